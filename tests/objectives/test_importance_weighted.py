"""Objectives over several draws."""

import math

import pytest
import torch
from torch.nn.functional import logsigmoid

from skvi.base import Layout, NormalForm
from skvi.divergences import KLDivergence
from skvi.divergences._forms import log_power_integral
from skvi.likelihoods import BernoulliLikelihood, GaussianLikelihood
from skvi.likelihoods.base import Likelihood
from skvi.losses import LogLoss
from skvi.objectives import ELBO, EUBO, IWELBO, AlphaEnergy, ChiBound, RenyiBound
from skvi.posteriors import FullRankNormal, MeanFieldNormal
from skvi.predictors import LinearPredictor, MLPPredictor
from skvi.priors import Normal
from skvi.priors._blocks import build_prior
from skvi.targets import SupervisedTarget, Target
from skvi.targets._least_squares import FreeEnergy
from tests.densities import randn
from tests.objectives.conjugate import (
    DESIGN,
    NOISE,
    PRIOR_SCALE,
    TARGET,
    N,
    log_evidence,
    make_posterior,
    replicate,
)

GRID = torch.linspace(-14, 14, 8001, dtype=torch.float64)[:, None]
LOG_STEP = math.log(28 / 8000)


class Skewed(Target):
    layout = Layout({"coef": (1,)})

    def log_joint(self, theta, rows=None):
        x = theta[:, 0]
        return -0.5 * x.square() + 4 * logsigmoid(2 * x + 0.5)


SKEWED = Skewed()
LOG_P = SKEWED.log_joint(GRID)


def skewed_q(mean=0.6, std=1.05):
    posterior = MeanFieldNormal().build(SKEWED.layout)
    posterior.params = torch.tensor([mean, math.log(std)], dtype=torch.float64)
    posterior.params.requires_grad_()
    return posterior


def order_of(objective):
    return 1 - objective.order if hasattr(objective, "order") else objective.alpha


def grid_bound(objective, posterior, params):
    """The exact bound of q with these parameters, with the integral as a sum."""
    log_q = posterior.log_prob(GRID, params)
    if isinstance(objective, EUBO):
        return torch.softmax(LOG_P, 0) @ (LOG_P - log_q)
    if isinstance(objective, IWELBO):  # of one draw: the ELBO
        return torch.exp(log_q + LOG_STEP) @ (LOG_P - log_q)
    a = order_of(objective)
    return (torch.logsumexp((1 - a) * LOG_P + a * log_q, 0) + LOG_STEP) / (1 - a)


def signed(objective, value):
    return value if objective.direction == "upper" else -value


RULES = [
    EUBO("score"),
    EUBO(),
    IWELBO(1, "reparam"),
    IWELBO(1, "doubly_reparam"),
    RenyiBound(0.5, "reparam"),
    RenyiBound(0.5, "doubly_reparam"),
    RenyiBound(1.2, "reparam"),
    RenyiBound(1.2, "doubly_reparam"),
    RenyiBound(-0.7, "score"),
    RenyiBound(-0.7, "doubly_reparam"),
    ChiBound(2.2, "score"),
    ChiBound(2.2, "doubly_reparam"),
]
rules = pytest.mark.parametrize("objective", RULES, ids=repr)


@rules
def test_many_draws_give_the_exact_value_and_gradient(
    objective, numeric_gradient, z_score
):
    """Wrong variants: the sign, 9/10 of it; (1 - n) for (1 - n) / n in the score."""
    posterior = skewed_q()
    fixed = posterior.params.detach()
    exact = signed(objective, grid_bound(objective, posterior, fixed))
    expected = signed(
        objective,
        numeric_gradient(lambda p: grid_bound(objective, posterior, p), fixed),
    )
    values, gradients = replicate(
        25, objective, posterior, n_draws=40_000, target=SKEWED
    )
    assert z_score(values, exact) < 5
    assert z_score(gradients, expected) < 5
    assert z_score(gradients, -expected) > 5
    assert z_score(gradients, 0.9 * expected) > 5


# --- hyperparameters ----------------------------------------------------------------


class LearnedNoise(Target):
    """The conjugate problem, with the logarithm of the noise to learn."""

    layout, prior = TARGET.layout, TARGET.prior

    def __init__(self):
        self.hyper = torch.tensor([math.log(NOISE)], dtype=torch.float64)
        self.hyper.requires_grad_()

    def _log_joint(self, theta, hyper):
        noise = hyper.exp()
        z = (TARGET.y - theta @ DESIGN.T) / noise
        constant = N * torch.log(noise * math.sqrt(2 * math.pi))
        return self.prior.log_prob(theta) - 0.5 * z.square().sum(1) - constant

    def log_joint(self, theta, rows=None):
        return self._log_joint(theta, self.hyper.detach())

    def log_joint_split(self, theta, rows=None):
        return self.log_joint(theta), self._log_joint(theta.detach(), self.hyper)


@pytest.mark.parametrize("objective", [IWELBO(5), RenyiBound(0.5), RenyiBound(2.0)])
def test_maximized_bounds_have_their_own_gradient_in_hyper(objective, numeric_gradient):
    """Away from the posterior. Wrong variant: softmax(lw) for every order."""
    target, posterior = LearnedNoise(), make_posterior(MeanFieldNormal())
    draw = posterior.draw(20, torch.Generator().manual_seed(4))
    theta, log_q = draw.theta, draw.log_q

    def bound(hyper):
        return objective.bound(target._log_joint(theta, hyper) - log_q).detach()

    expected = numeric_gradient(bound, target.hyper.detach())
    generator = torch.Generator().manual_seed(4)
    surrogate, _ = objective.surrogate(
        target, posterior, KLDivergence(), None, 20, generator
    )
    (found,) = torch.autograd.grad(surrogate, target.hyper)
    torch.testing.assert_close(-found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "objective",
    [EUBO(), EUBO("score"), RenyiBound(-0.5), RenyiBound(-0.5, "score"), ChiBound()],
    ids=repr,
)
def test_minimized_bounds_ascend_the_evidence_in_hyper(
    objective, numeric_gradient, z_score
):
    """Whose slope is the posterior's expectation of that of the joint density.

    Wrong variants: the noise descends the bound; weights with the power 1 - alpha in
    the noise, too.
    """
    target, posterior = LearnedNoise(), make_posterior(FullRankNormal())
    log_noise = target.hyper.detach()
    expected = -numeric_gradient(lambda h: log_evidence(h[0]), log_noise)
    found = []
    for seed in range(25):
        generator = torch.Generator().manual_seed(seed)
        parts = target, posterior, KLDivergence(), None, 20_000, generator
        surrogate, _ = objective.surrogate(*parts)
        found += torch.autograd.grad(surrogate, target.hyper)
    found = torch.stack(found)
    assert z_score(found, expected) < 5
    assert z_score(found, 0.9 * expected) > 5


# --- existence ----------------------------------------------------------------------


class Silent(Likelihood):
    """Says nothing about its tails."""

    log_prob = BernoulliLikelihood.log_prob


def test_what_is_not_known():
    X, y = randn(5, 2), torch.tensor([0.0, 1, 1, 0, 1])
    network = MLPPredictor(2, 1, (3,), "tanh")
    linear = LinearPredictor(2)
    for predictor, likelihood in (
        (network, BernoulliLikelihood()),
        (linear, Silent()),
    ):
        prior = build_prior(Normal(), predictor.layout)
        target = SupervisedTarget(predictor, likelihood, LogLoss(), prior, X, y)
        posterior = MeanFieldNormal().build(target.layout)
        one = torch.ones(target.layout.size, dtype=torch.float64)
        for std, chi, renyi in (
            (0.6, None, None),
            (0.8, True, None),
            (1.6, True, False),
        ):
            posterior = posterior.near(NormalForm(0 * one, std * one))
            assert ChiBound().exists(target, posterior) is chi
            assert RenyiBound(2).exists(target, posterior) is renyi
            assert RenyiBound(0.5).exists(target, posterior) is True
    assert ChiBound().exists(SKEWED, skewed_q()) is None


alphas = pytest.mark.parametrize("alpha", [0.1, 1.0, 2.5])
kinds = pytest.mark.parametrize("kind", ["gaussian", "bernoulli"])
families = pytest.mark.parametrize(
    "family", [MeanFieldNormal(), FullRankNormal()], ids=repr
)


def make_target(kind, predictor=None, weight=None, loss=None, rows=None, scale=None):
    predictor, X = predictor or LinearPredictor(1), 0.8 + randn(N, 1)
    prior = build_prior(Normal(scale or PRIOR_SCALE), predictor.layout)
    y = X[:, 0] + randn(N, seed=1)
    likelihood = GaussianLikelihood(NOISE)
    if kind == "bernoulli":
        y, likelihood = (y > 0.3).double(), BernoulliLikelihood()
    if rows is not None:
        X, y = X[rows], y[rows]
    weight = None if weight is None else torch.tensor(weight, dtype=torch.float64)
    return SupervisedTarget(
        predictor, likelihood, loss or LogLoss(), prior, X, y, weight
    )


TARGETS = {kind: make_target(kind) for kind in ("gaussian", "bernoulli")}


def alpha_posterior(family, target=TARGETS["gaussian"]):
    posterior = family.build(target.layout)
    size = target.layout.size
    root = 0.4 * torch.eye(size).double() + 0.1 * randn(size, size, seed=4).tril()
    posterior = posterior.near(NormalForm(0.3 + 0.5 * randn(size, seed=3), root))
    posterior.params.requires_grad_()
    return posterior


def run(objective, target, posterior, n_draws=10, seed=0, rows=None):
    generator = torch.Generator().manual_seed(seed)
    surrogate, value = objective.surrogate(
        target, posterior, KLDivergence(), rows, n_draws, generator
    )
    assert not value.requires_grad
    return value, torch.autograd.grad(surrogate, posterior.params)[0]


def exact_form(target, normal, alpha, scaled=True):
    """Closed: q^(1-a) prior^a is another normal, times a power integral; a = alpha/n.

    Without `scaled` the 1/n inside is forgotten.
    """
    n = target.n_rows
    a = alpha / n if scaled else alpha
    prior = target.prior.as_normal()
    precision = (1 - a) * torch.linalg.inv(normal.covariance())
    precision = precision + a * torch.diag(1 / prior.variance)
    shift = (1 - a) * torch.linalg.solve(normal.covariance(), normal.mean)
    covariance = torch.linalg.inv(precision)
    tilted = NormalForm(covariance @ shift, torch.linalg.cholesky(covariance))
    mean, variance = target.predictor.moments(target.X, tilted)
    rows = FreeEnergy(LogLoss(), alpha).expected(
        target.likelihood, mean, variance.sqrt(), target.y, refine=4
    )[0]
    return rows.sum() - n / alpha * log_power_integral(normal, prior, 1 - a, a)


# --- one row ------------------------------------------------------------------------


def on_a_grid(log_prob, mean, std, alpha):
    """Log E p^alpha over a grid that holds the integrand, wherever it lives."""
    reach = 15 * std + alpha * std**2
    f = torch.linspace(mean - reach, mean + reach, 40_001, dtype=torch.float64)
    log_density = -0.5 * ((f - mean) / std) ** 2 - math.log(
        std * math.sqrt(2 * math.pi)
    )
    total = torch.logsumexp(alpha * log_prob(f) + log_density, 0)
    return -float(total + (f[1] - f[0]).log()) / alpha


ROWS = [(0.3, 0.2), (1.0, 1.5), (-4.0, 0.6), (-9.0, 3.0), (-60.0, 6.0), (40.0, 9.0)]


@alphas
@pytest.mark.parametrize("likelihood", [BernoulliLikelihood(), GaussianLikelihood(0.8)])
def test_free_energy_of_a_row(likelihood, alpha):
    """Far on the wrong side too. Wrong variants: nodes around the mean only (off by
    nats there); the log of a power that has underflowed."""
    y = torch.ones(1, dtype=torch.float64)
    for mean, std in ROWS:
        m, s = torch.tensor([mean]).double(), torch.tensor([std]).double()
        value, _, _ = FreeEnergy(LogLoss(), alpha).expected(likelihood, m, s, y)
        expected = on_a_grid(
            lambda f: likelihood.log_prob(f[None, :, None], y)[0], mean, std, alpha
        )
        assert float(value) == pytest.approx(expected, rel=1e-6, abs=2e-7), (mean, std)


# --- the whole energy ---------------------------------------------------------------


@kinds
def test_the_forms_meet_for_many_rows(kind):
    """The distance stays while the energy grows. Wrong variant: a KL for every row."""
    distances = []
    for copies in (1, 10, 100):
        target = make_target(kind, rows=torch.arange(N).repeat(copies))
        posterior = alpha_posterior(MeanFieldNormal())
        large = run(AlphaEnergy(), target, posterior)[0]
        exact = exact_form(target, posterior.as_normal(), 0.5)
        distances.append(abs(float(large - exact)) / float(large))
    assert distances[1] < distances[0] / 3  # the KL does not grow with the rows
    assert distances[2] < distances[1] / 3


@kinds
@families
def test_small_alpha_is_the_elbo(kind, family):
    """Value and gradient, with an error of O(alpha). Wrong variant: the sign."""
    target, posterior = TARGETS[kind], alpha_posterior(family)
    elbo, slope = run(ELBO(), target, posterior)
    for alpha in (1e-2, 1e-3, 1e-6):
        value, gradient = run(AlphaEnergy(alpha), target, posterior)
        assert -20 * alpha * abs(float(elbo)) < float(value - elbo) < 0
        torch.testing.assert_close(gradient, slope, rtol=50 * alpha, atol=50 * alpha)
    sampled = run(ELBO("reparam"), target, posterior, 50)
    for form in ("exact", "large_n"):
        objective = AlphaEnergy(1e-7, form, "reparam")
        found = run(objective, target, posterior, 50)
        torch.testing.assert_close(found, sampled, rtol=1e-4, atol=1e-4)


def test_one_draw_is_the_elbo():
    posterior = alpha_posterior(MeanFieldNormal())
    for kind, target in TARGETS.items():
        elbo = run(ELBO("reparam"), target, posterior, 1)
        found = run(AlphaEnergy(2.0, "exact"), target, posterior, 1)
        torch.testing.assert_close(found, elbo, rtol=1e-9, atol=1e-9, msg=kind)
