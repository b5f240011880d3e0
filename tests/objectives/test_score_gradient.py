"""The score-function gradient of the ELBO, and what cuts its noise.

The rules are written a second time here, for many replicates of S draws at once.
"""

import math

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from skvi.divergences import FDivergence, KLDivergence, RenyiDivergence
from skvi.likelihoods import BernoulliLikelihood
from skvi.linear_model import BayesianLogisticRegression
from skvi.losses import LogLoss
from skvi.objectives import ELBO
from skvi.posteriors import FullRankNormal, MeanFieldNormal
from skvi.predictors import LinearPredictor
from skvi.priors import Laplace, Normal
from skvi.priors._blocks import build_prior
from skvi.solvers import Stochastic
from skvi.solvers._stochastic._optimizers import Adam
from skvi.solvers._stochastic._schedules import Plateau, StableDecay
from skvi.targets import SupervisedTarget
from tests.densities import randn
from tests.objectives import conjugate
from tests.objectives.conjugate import (
    EXACT,
    PRIOR_SCALE,
    SIZE,
    TARGET,
    as_torch,
    make_posterior,
    make_target,
    small_problem,
)

S = 5
REPLICATES = 60_000
families = pytest.mark.parametrize(
    "family", [MeanFieldNormal(), FullRankNormal()], ids=repr
)


def exact_gradient(posterior, weight=1.0):
    """Gradient of ``E_q[loss] + weight KL(q || prior)``, from closed forms."""
    q = as_torch(posterior.normal())
    prior = PRIOR_SCALE * torch.eye(SIZE).double()
    prior = MultivariateNormal(torch.zeros(SIZE).double(), scale_tril=prior)
    value = kl_divergence(q, EXACT) + (weight - 1) * kl_divergence(q, prior)
    return torch.autograd.grad(value, posterior.params)[0]


def run(objective, posterior, seed=0, divergence=None, n_draws=S, **kwargs):
    return conjugate.run(
        objective, posterior, n_draws, seed, divergence=divergence, **kwargs
    )


# --- the rules, right and wrong -----------------------------------------------------


def reference(posterior, eps, rao_blackwell, control, weight=1.0):
    """Gradients, (R, n_variational), from noise of shape (R, S, P)."""
    shape = eps.shape[:2]
    normal = posterior.as_normal()
    theta = normal.transform(eps.reshape(-1, SIZE))
    fixed = posterior.params.detach()
    of_one = torch.func.grad(lambda p, t: posterior.log_prob(t[None], p)[0])
    h = torch.func.vmap(of_one, (None, 0))(fixed, theta).reshape(*shape, -1)
    log_prior = -0.5 * (theta / PRIOR_SCALE) ** 2
    log_prior = log_prior - math.log(PRIOR_SCALE * math.sqrt(2 * math.pi))
    log_lik = TARGET.log_joint(theta) - log_prior.sum(1)
    if rao_blackwell:
        z = (theta - normal.mean) / normal.scale
        log_q = -0.5 * z**2 - torch.log(normal.scale * math.sqrt(2 * math.pi))
        own = log_prior - log_q
    else:
        own = (log_prior.sum(1) - posterior.log_prob(theta, fixed))[:, None]
    # The variational parameters are means, then scales: coordinates twice.
    reward = (log_lik[:, None] + weight * own).reshape(*shape, -1)
    reward = torch.cat([reward, reward], -1) if rao_blackwell else reward
    if not control:
        return -(h * reward).mean(1)
    product, square = h**2 * reward, h**2
    top, bottom = product.sum(1, True) - product, square.sum(1, True) - square
    return -(h * (reward - top / bottom)).mean(1)


OPTIONS = [(False, False), (True, False), (False, True), (True, True)]
options = pytest.mark.parametrize(
    ("rao_blackwell", "control"), OPTIONS, ids=["plain", "rb", "cv", "both"]
)
#: A full rank is no product, so that it has no Rao-Blackwell form.
possible = pytest.mark.parametrize(
    ("family", "rao_blackwell", "control"),
    [(MeanFieldNormal(), *pair) for pair in OPTIONS]
    + [(FullRankNormal(), False, False), (FullRankNormal(), False, True)],
    ids=repr,
)


@possible
@pytest.mark.parametrize("n_draws", [2, 5])
def test_package_trains_with_these_rules(family, rao_blackwell, control, n_draws):
    posterior = make_posterior(family)
    objective = ELBO("score", rao_blackwell, control)
    for seed in range(3):
        value, gradient = run(objective, posterior, seed, n_draws=n_draws)
        eps = randn(n_draws, SIZE, seed=seed)
        expected = reference(posterior, eps[None], rao_blackwell, control)[0]
        torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-11)
        theta = posterior.as_normal().transform(eps)
        log_weights = TARGET.log_joint(theta) - posterior.log_prob(theta).detach()
        torch.testing.assert_close(value, -log_weights.mean())


@possible
def test_unbiased(family, rao_blackwell, control, z_score):
    """Wrong variants: a coefficient that does not leave its draw out; in the
    Rao-Blackwell form the own term dropped, or kept for the others."""
    posterior = make_posterior(family)
    eps = randn(REPLICATES, S, SIZE, seed=7)
    gradients = reference(posterior, eps, rao_blackwell, control)
    expected = exact_gradient(posterior)
    assert z_score(gradients, expected) < 5
    assert z_score(gradients, 0.8 * expected) > 5


@pytest.mark.parametrize("n_draws", [1, 2, 3])
def test_few_draws(n_draws, z_score):
    """Unbiased too; a single draw has no others to take a coefficient from."""
    posterior = make_posterior(MeanFieldNormal())
    objective = ELBO("score", rao_blackwell=True)
    if n_draws == 1:
        plain = ELBO("score", True, control_variate=False)
        pair = run(objective, posterior, n_draws=1), run(plain, posterior, n_draws=1)
        torch.testing.assert_close(*pair, rtol=1e-12, atol=1e-14)
        return
    eps = randn(REPLICATES, n_draws, SIZE, seed=3)
    gradients = reference(posterior, eps, True, True)
    assert z_score(gradients, exact_gradient(posterior)) < 5


@pytest.mark.parametrize(
    ("rao_blackwell", "control", "weight"),
    [(*pair, (0.5, 2.0)[i % 2]) for i, pair in enumerate(OPTIONS)],
)
def test_weighted_kl(rao_blackwell, control, weight, z_score):
    """Wrong variant: the weight left out of log q or of the log prior."""
    posterior = make_posterior(MeanFieldNormal())
    eps = randn(REPLICATES, S, SIZE, seed=5)
    gradients = reference(posterior, eps, rao_blackwell, control, weight=weight)
    assert z_score(gradients, exact_gradient(posterior, weight)) < 5
    assert z_score(gradients, exact_gradient(posterior)) > 5
    objective, divergence = ELBO("score", rao_blackwell, control), KLDivergence(weight)
    _, found = run(objective, posterior, 5, divergence)
    expected = reference(
        posterior, randn(1, S, SIZE, seed=5), rao_blackwell, control, weight=weight
    )[0]
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("family", "control"), [(MeanFieldNormal(), True), (FullRankNormal(), False)]
)
def test_other_divergences_in_closed_form(family, control, z_score):
    """Only the loss is sampled. Wrong variant: a constant divergence."""
    posterior, divergence = make_posterior(family), RenyiDivergence(0.5)
    objective = ELBO("score", control_variate=control)
    found = [run(objective, posterior, s, divergence) for s in range(150)]
    value, gradient = run(ELBO(), posterior, 0, divergence)
    assert z_score(torch.stack([v for v, _ in found]), value) < 5
    assert z_score(torch.stack([g for _, g in found]), gradient) < 5


def chi_square(normal):
    """Integral of q^2 / prior, less 1, for a factorized normal q."""
    m, s, p = normal.mean, normal.scale, PRIOR_SCALE
    a = s**-2 - 0.5 / p**2
    factor = p / (s**2 * (2 * a).sqrt())
    return (factor * (m**2 / (s**4 * a) - m**2 / s**2).exp()).prod() - 1


@pytest.mark.parametrize("control", [True, False])
@pytest.mark.parametrize("kind", ["kl", "chi2"])
def test_f_divergences_are_means_over_q(kind, control, z_score):
    """Unbiased, by the factor g + dg / d log q of the score.

    Wrong variant: g alone, as if log q within it had no parameters.
    """
    posterior = make_posterior(MeanFieldNormal())
    objective = ELBO("score", control_variate=control)
    divergence, expected = FDivergence("chi2"), exact_gradient(posterior, 0.0)
    if kind == "kl":
        divergence = FDivergence(lambda t: t * t.log())
        expected = exact_gradient(posterior)
    else:
        value = chi_square(posterior.normal())
        expected = expected + torch.autograd.grad(value, posterior.params)[0]
    found = [run(objective, posterior, s, divergence, 200)[1] for s in range(100)]
    assert z_score(torch.stack(found), expected) < 5


@options
def test_minibatches_average_to_all_rows(rao_blackwell, control):
    """Linear in the loss. Wrong variant: log q scaled with the rows."""
    posterior = make_posterior(MeanFieldNormal())
    objective = ELBO("score", rao_blackwell, control)
    parts = [
        run(objective, posterior, rows=torch.tensor(rows))
        for rows in ([0, 3], [1, 7], [2, 6], [4, 5])
    ]
    for i, full in enumerate(run(objective, posterior)):
        mean = torch.stack([part[i] for part in parts]).mean(0)
        torch.testing.assert_close(mean, full, rtol=1e-10, atol=1e-10)


@options
def test_learned_noise_follows_its_own_gradient(rao_blackwell, control):
    """As by reparameterization. Wrong variant: a detached value."""
    target = make_target(noise="learn")
    posterior = make_posterior(MeanFieldNormal(), target=target)
    found = []
    for objective in (ELBO("score", rao_blackwell, control), ELBO("reparam")):
        target.hyper = target.initial_hyper().requires_grad_()
        generator = torch.Generator().manual_seed(2)
        surrogate, _ = objective.surrogate(
            target, posterior, KLDivergence(), None, S, generator
        )
        found += torch.autograd.grad(surrogate, target.hyper)
    assert float(found[1].abs()) > 0.01
    torch.testing.assert_close(found[0], found[1], rtol=1e-10, atol=0)


@pytest.mark.parametrize(
    "prior",
    [Normal(0.7), Laplace(0.4), {"coef": Laplace(0.4), "intercept": Normal(2.0)}],
    ids=repr,
)
def test_terms_sum_to_the_log_density(prior):
    layout, theta = TARGET.layout, randn(4, SIZE)
    built = build_prior(prior, layout)
    assert built.has_log_prob_terms
    terms = built.log_prob_terms(theta)
    assert terms.shape == (4, SIZE)
    torch.testing.assert_close(terms.sum(1), built.log_prob(theta))
    moved = theta.clone()
    moved[:, 0] += 1
    assert torch.equal(built.log_prob_terms(moved)[:, 1], terms[:, 1])
    posterior = make_posterior(MeanFieldNormal())
    terms = posterior.log_prob_terms(theta)
    torch.testing.assert_close(terms.sum(1), posterior.log_prob(theta))


# --- how much noise -----------------------------------------------------------------


def whitened_variance(objective, target, posterior, n_replicates):
    """Total variance where the Fisher information of q is the identity."""
    posterior.params.requires_grad_()
    found = [
        run(objective, posterior, seed, target=target)[1]
        for seed in range(n_replicates)
    ]
    normal = posterior.as_normal()
    unit = torch.cat([normal.scale, torch.full_like(normal.scale, 0.5**0.5)])
    return float((torch.stack(found) * unit).var(0).sum())


@pytest.mark.parametrize(
    "at_optimum", [True, pytest.param(False, marks=pytest.mark.slow)]
)
def test_variance_cuts_on_real_data(at_optimum, breast_cancer):
    """Each by itself, and together at least tenfold. Wrong variant: the coefficient
    of the control variate with the other sign."""
    X, y = breast_cancer
    predictor = LinearPredictor(30)
    prior = Normal().build(predictor.layout)
    target = SupervisedTarget(
        predictor,
        BernoulliLikelihood(),
        LogLoss(),
        prior,
        torch.from_numpy(X),
        torch.from_numpy(y).double(),
    )
    posterior = MeanFieldNormal().build(predictor.layout)
    if at_optimum:
        fitted = BayesianLogisticRegression(posterior="mean_field", prior="normal").fit(
            X, y
        )
        posterior = posterior.near(fitted.posterior_.as_normal())
    plain, rb, cv, both = (
        whitened_variance(ELBO("score", *pair), target, posterior, 150)
        for pair in OPTIONS
    )
    assert plain / rb > (2 if at_optimum else 1.1)
    assert plain / cv > 10
    assert plain / both > 10
    reparam = whitened_variance(ELBO("reparam"), target, posterior, 150)
    assert reparam < both / 5


@pytest.fixture(scope="module")
def breast_cancer():
    from sklearn.datasets import load_breast_cancer

    X, y = load_breast_cancer(return_X_y=True)
    return (X - X.mean(0)) / X.std(0), y


# --- fits, and what is refused ------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("posterior", ["mean_field", "full_rank"])
def test_fit_reaches_the_optimum(posterior):
    X, y = small_problem()
    best = (
        BayesianLogisticRegression(posterior=posterior, prior="normal")
        .fit(X, y)
        .lower_bound_
    )
    model = BayesianLogisticRegression(
        objective=ELBO("score", rao_blackwell=posterior == "mean_field"),
        posterior=posterior,
        solver=Stochastic(n_draws=50, learning_rate=0.05),
        random_state=0,
        prior="normal",
    ).fit(X, y)
    assert model.converged_
    assert best - 0.1 < model.lower_bound_ <= best + 1e-6


@pytest.mark.parametrize("schedule", [Plateau, StableDecay])
@pytest.mark.parametrize("end", [10.0, 3.0, 1.1])
@pytest.mark.parametrize("start", [20.0, 1.0])
def test_what_noise_carried_away_has_not_converged(schedule, end, start):
    """Level, but above the lowest average, or the start. Wrong variant: level is
    enough."""
    schedule = schedule(Adam(torch.zeros(1), 1.0), 12, 1e-5)
    for i, mean in enumerate((start, 1.0, *[end] * 100)):
        if schedule.done:
            break
        schedule.observe(mean + 0.5 * randn(100, seed=i))
    assert schedule.done
    assert schedule.drifted == (not schedule.converged) == (end > 2)


@pytest.mark.slow
def test_the_message_says_what_to_change():
    X, y = small_problem()
    model = BayesianLogisticRegression(
        objective=ELBO("score", control_variate=False),
        solver=Stochastic(n_draws=2, learning_rate=0.3),
        random_state=0,
        prior="normal",
    )
    with pytest.warns(
        UserWarning, match="learning_rate of the solver, or increase its n_draws"
    ):
        model.fit(X, y)
    assert not model.converged_
