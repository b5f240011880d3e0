"""Training gradients of a small network, in the posterior and in the noise.

The network, the normal families and the bounds are written a second time here, as
functions of the variational parameters and of the log noise. The data are weak, so
that the posterior is one hill near the prior: self-normalized weights then have a
large effective sample size, and their bias O(1/S) is far below the noise.
"""

import math

import pytest
import torch

from skvi.base import NormalForm
from skvi.divergences import KL
from skvi.likelihoods import GaussianLikelihood
from skvi.losses import LogLoss
from skvi.objectives import ELBO, EUBO, IWELBO, ChiBound, RenyiBound
from skvi.posteriors import FullRankNormal, MeanFieldNormal
from skvi.predictors import MLPPredictor
from skvi.priors import Normal, build_prior
from skvi.targets import SupervisedTarget
from tests.objectives.conjugate import randn

N, HIDDEN, SIZE = 10, 2, 7
LOG_NOISE, PRIOR_SCALE = 0.1, 0.6
GROUP = 10  # draws in one bound of those whose expectation depends on their number


X = randn(N, 1)
Y = 1.5 * torch.sin(X[:, 0]) + 0.5 + 0.5 * randn(N, seed=1)
FAMILIES = {"mean_field": MeanFieldNormal(), "full_rank": FullRankNormal()}
families = pytest.mark.parametrize("family", list(FAMILIES))


# --- the model, written again --------------------------------------------------------


def log_normal(x, scale):
    return -0.5 * (x / scale) ** 2 - torch.as_tensor(scale).log() - HALF_LOG_2PI


HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
#: sqrt(1 / inputs) for the weights, 1 for the intercepts, in the order of theta.
SCALES = PRIOR_SCALE * torch.tensor([1.0] * 4 + [0.5**0.5] * 2 + [1.0]).double()


def log_joint(theta, log_noise):
    """Log p(y | theta) + log p(theta) of one hidden layer of tanh units, (...,)."""
    w, b, v, c = theta.split([2, 2, 2, 1], -1)
    hidden = torch.tanh(X[:, 0, None] * w[..., None, :] + b[..., None, :])
    f = (hidden * v[..., None, :]).sum(-1) + c
    log_likelihood = log_normal(Y - f, log_noise.exp()).sum(-1)
    return log_likelihood + log_normal(theta, SCALES).sum(-1)


def factor_of(params):
    """Mean and lower Cholesky factor that the flat parameters stand for."""
    mean, log_scale, rest = params.split([SIZE, SIZE, len(params) - 2 * SIZE])
    lower = torch.zeros(SIZE, SIZE).double()
    if len(rest):
        rows = [(i, j) for i in range(SIZE) for j in range(i)]
        lower = lower.index_put(tuple(torch.tensor(rows).T), rest)
    scale = log_scale.exp()
    return mean, scale[:, None] * lower + torch.diag(scale)


def log_q(params, theta):
    mean, factor = factor_of(params)
    flat = (theta - mean).reshape(-1, SIZE).T
    z = torch.linalg.solve_triangular(factor, flat, upper=False).T
    log_det = factor.diagonal().log().sum()
    return log_normal(z, 1.0).sum(1).reshape(theta.shape[:-1]) - log_det


def log_weights(params, log_noise, eps):
    mean, factor = factor_of(params)
    theta = mean + eps @ factor.T
    return log_joint(theta, log_noise) - log_q(params, theta)


def lower_bound(alpha, params, log_noise, eps):
    """Rényi's bound from groups of draws, (groups, GROUP, SIZE); 1 is the ELBO."""
    lw = log_weights(params, log_noise, eps)
    if alpha == 1:
        return lw.mean()
    power = 1 - alpha
    means = torch.logsumexp(power * lw, -1) - math.log(lw.shape[-1])
    return means.mean() / power


# --- the package's side --------------------------------------------------------------


def make_target(noise="learn"):
    predictor = MLPPredictor(1, 1, (HIDDEN,), "tanh")
    likelihood = GaussianLikelihood("learn" if noise == "learn" else math.exp(0.1))
    prior = build_prior(Normal(PRIOR_SCALE), predictor.layout)
    target = SupervisedTarget(predictor, likelihood, LogLoss(), prior, X, Y)
    if noise == "learn":
        target.hyper = torch.tensor([LOG_NOISE], dtype=torch.float64)
        target.hyper.requires_grad_()
    return target


def posterior_moments():
    """Mean and covariance of the posterior, weighting draws of the prior."""
    theta = SCALES * randn(200_000, SIZE, seed=2)
    lw = log_joint(theta, torch.tensor(LOG_NOISE)) - log_normal(theta, SCALES).sum(1)
    w = torch.softmax(lw, 0)
    assert 1 / w.square().sum() > 5_000
    mean = w @ theta
    return mean, (theta - mean).T @ (w[:, None] * (theta - mean))


MEAN, COVARIANCE = posterior_moments()


def make_posterior(family):
    """A q that is off by up to half a standard deviation, and wider by 1/5."""
    posterior = FAMILIES[family].build(make_target().layout)
    std, tilt = COVARIANCE.diagonal().sqrt(), torch.linspace(-0.5, 0.5, SIZE)
    factor = 1.2 * torch.linalg.cholesky(COVARIANCE)
    posterior = posterior.near(NormalForm(MEAN + tilt * std, factor))
    posterior.params.requires_grad_()
    return posterior


def run(objective, posterior, target, n_draws, seed=0, rows=None):
    """Gradient that the objective trains with: of the posterior, then of the noise."""
    generator = torch.Generator().manual_seed(seed)
    surrogate, _ = objective.surrogate(
        target, posterior, KL(), rows, n_draws, generator
    )
    leaves = [posterior.params, *([target.hyper] if len(target.hyper) else [])]
    return torch.cat(torch.autograd.grad(surrogate, leaves))


def replicate(n_replicates, *args, **kwargs):
    return torch.stack(
        [run(*args, seed=100 + i, **kwargs) for i in range(n_replicates)]
    )


def distance(a, b):
    """Largest distance of two means over axis 0, in standard errors."""
    error = torch.hypot(*(x.std(0) / math.sqrt(len(x)) for x in (a, b)))
    return float(((a.mean(0) - b.mean(0)).abs() / error).max())


def check(found, expected):
    """The same means; and a quarter less or more would have been seen."""
    assert found.shape[1] == expected.shape[1]
    assert distance(found, expected) < 5
    for factor in (0.75, 1.33, -1):
        assert distance(factor * found, expected) > 5


def test_the_second_model_is_the_first(make_normal):
    """Values of the density and of q, with all constants."""
    theta, target = make_normal(SIZE, "full").transform(randn(50, SIZE)), make_target()
    expected = log_joint(theta, torch.tensor(LOG_NOISE).double())
    torch.testing.assert_close(target.log_joint(theta), expected, check_dtype=False)
    for family in FAMILIES:
        posterior = make_posterior(family)
        again = log_q(posterior.params, theta)
        torch.testing.assert_close(posterior.log_prob(theta), again)


# --- maximized bounds: unbiased at every number of draws -----------------------------


def reference_lower(alpha, family, n_blocks=20, n_groups=1_000):
    """Gradients of minus the bound, by autodiff through the draws, (n_blocks, P + 1).

    200,000 draws in groups of 10.
    """
    params = make_posterior(family).params.detach()
    blocks = []
    for i in range(n_blocks):
        leaf = params.clone().requires_grad_()
        log_noise = torch.tensor(LOG_NOISE, dtype=torch.float64, requires_grad=True)
        eps = randn(n_groups, GROUP, SIZE, seed=1000 + i)
        value = -lower_bound(alpha, leaf, log_noise, eps)
        parts = torch.autograd.grad(value, (leaf, log_noise))
        blocks.append(torch.cat([parts[0], parts[1][None]]))
    return torch.stack(blocks)


LOWER = {
    1.0: [(ELBO("auto"), 50), (ELBO("reparam"), 50), (ELBO("stl"), 50)],
    0.5: [
        (RenyiBound(0.5, "reparam"), GROUP),
        (RenyiBound(0.5, "doubly_reparam"), GROUP),
    ],
    0.0: [
        (IWELBO(GROUP, "reparam"), 20 * GROUP),
        (IWELBO(GROUP, "doubly_reparam"), 20 * GROUP),
    ],
}


@pytest.mark.parametrize(
    ("alpha", "family"),
    [
        (1.0, "mean_field"),
        (0.5, "full_rank"),
        (0.0, "mean_field"),
        pytest.param(1.0, "full_rank", marks=pytest.mark.slow),
    ],
)
def test_maximized_bounds(alpha, family):
    """ELBO, Rényi and importance-weighted bounds, with learned noise.

    Wrong variants: "stl" with attached parameters inside q and detached draws; the
    doubly reparameterized rule with w for alpha w + (1 - alpha) w^2; the noise with
    softmax(lw) for alpha = 1/2; local reparameterization with standard deviations
    where variances belong.
    """
    expected, posterior = reference_lower(alpha, family), make_posterior(family)
    for objective, n_draws in LOWER[alpha]:
        count = 200 if n_draws > GROUP else 800
        found = replicate(count, objective, posterior, make_target(), n_draws)
        check(found, expected)


ALL = [
    *(objective for pairs in LOWER.values() for objective, _ in pairs),
    EUBO("score"),
    RenyiBound(-0.5),
    RenyiBound(-0.5, "score"),
    ChiBound(2),
]


@families
@pytest.mark.parametrize("objective", ALL, ids=repr)
def test_learning_the_noise_leaves_the_posterior_alone(objective, family):
    """The gradient in q is that of the same noise, fixed. Wrong variant: a weight of
    the noise's part that is not detached."""
    posterior = make_posterior(family)
    learned = run(objective, posterior, make_target("learn"), 30)
    fixed = run(objective, posterior, make_target("fixed"), 30)
    torch.testing.assert_close(learned[:-1], fixed)
    assert len(learned) == len(posterior.params) + 1


def test_minibatches_of_locally_sampled_activations():
    """In expectation, since every batch has its own draws.

    Wrong variant: the prior and the divergence scaled with the rows.
    """
    posterior, target = make_posterior("mean_field"), make_target()
    expected = reference_lower(1.0, "mean_field")
    batches = torch.arange(N).split(5)
    parts = [
        replicate(150, ELBO(), posterior, target, 50, rows=rows) for rows in batches
    ]
    # The two halves share their seeds: each sum is one replicate.
    check(torch.stack(parts).mean(0), expected)


# --- minimized bounds: many draws -----------------------------------------------------


def reference_upper(alpha, family, n_blocks=20, n_draws=10_000):
    """Exact gradients from 200,000 draws of the prior, (n_blocks, P + 1).

    ``alpha / (1 - alpha) E_t[d log q / d params]`` with t in proportion to
    ``p^(1 - alpha) q^alpha`` and theta held fixed; for the EUBO (None) minus the
    posterior's expectation. The noise ascends: ``-E_p[d log_joint / d log_noise]``.
    """
    params, blocks = make_posterior(family).params.detach(), []
    log_noise = torch.tensor(LOG_NOISE, dtype=torch.float64)
    for i in range(n_blocks):
        theta = SCALES * randn(n_draws, SIZE, seed=2000 + i)
        proposal = log_normal(theta, SCALES).sum(1)
        lp, lq = log_joint(theta, log_noise), log_q(params, theta)
        a = 0.0 if alpha is None else alpha
        tilted = torch.softmax((1 - a) * lp + a * lq - proposal, 0)
        exact = torch.softmax(lp - proposal, 0)
        factor = -1.0 if alpha is None else alpha / (1 - alpha)

        def loss(params, log_noise, theta=theta, w=factor * tilted, v=exact):
            return w @ log_q(params, theta) - v @ log_joint(theta, log_noise)

        parts = torch.func.grad(loss, (0, 1))(params, log_noise)
        blocks.append(torch.cat([parts[0], parts[1][None]]))
    return torch.stack(blocks)


UPPER = {
    None: [EUBO("score"), EUBO("doubly_reparam")],
    -0.5: [RenyiBound(-0.5, "score"), RenyiBound(-0.5, "doubly_reparam")],
    -1.0: [ChiBound(2, "score"), ChiBound(2, "doubly_reparam")],
}


@pytest.mark.parametrize(
    ("alpha", "family"),
    [
        (None, "mean_field"),
        (-0.5, "full_rank"),
        (-1.0, "mean_field"),
        pytest.param(-1.0, "full_rank", marks=pytest.mark.slow),
    ],
)
def test_minimized_bounds(alpha, family):
    """EUBO, negative orders and chi, with learned noise: 30 times 3,000 draws.

    Wrong variants: algorithm 1 of Ji and Shen (draws not detached in the score); the
    weights with the power 1 - alpha also in the noise; the noise descends the bound;
    parameters inside q not detached along the path.
    """
    expected, posterior = reference_upper(alpha, family), make_posterior(family)
    for objective in UPPER[alpha]:
        found = replicate(30, objective, posterior, make_target(), 3_000)
        check(found, expected)
