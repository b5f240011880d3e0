"""Rényi, chi and importance-weighted bounds: values, gradients, existence.

Exact bounds come from a dense grid in one dimension, or from closed forms on a
conjugate problem; the skewed density below has neither conjugacy nor symmetry.
"""

import math
from itertools import pairwise

import pytest
import torch
from torch.nn.functional import logsigmoid

from skvi.base import Layout, NormalForm
from skvi.divergences import KLDivergence
from skvi.divergences._forms import log_power_integral
from skvi.likelihoods import BernoulliLikelihood, GaussianLikelihood
from skvi.likelihoods.base import Likelihood
from skvi.losses import BetaLoss, LogLoss
from skvi.objectives import EUBO, IWELBO, ChiBound, RenyiBound
from skvi.posteriors import FullRankNormal, MeanFieldNormal
from skvi.predictors import LinearPredictor, MLPPredictor
from skvi.priors import Laplace, Normal
from skvi.priors._blocks import build_prior
from skvi.targets import SupervisedTarget, Target
from tests.densities import randn
from tests.objectives.conjugate import (
    DESIGN,
    EXACT,
    LOG_Z,
    NOISE,
    SIZE,
    TARGET,
    N,
    as_torch,
    log_evidence,
    make_posterior,
    replicate,
    run,
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


def grouped(objective, size, path=None):
    """The objective with many groups of few draws: expectations at finite S."""

    class Grouped(type(objective)):
        def group_shape(self, n_draws):
            return n_draws // size, size

        def bound(self, log_weights):  # IWELBO would cut into its own groups
            return RenyiBound(self._order).bound(log_weights)

        def path_weights(self, weights):
            return path(weights) if path else super().path_weights(weights)

    Grouped.__name__ = type(objective).__name__
    return Grouped(**objective.get_params())


def gradients_of(objective, seed, n_groups=4000, n_replicates=25):
    n_draws = n_groups * objective.group_shape(1000)[1]
    seeds = range(1000 * seed, 1000 * seed + n_replicates)
    return torch.stack(
        [run(objective, skewed_q(), n_draws, s, SKEWED)[1] for s in seeds]
    )


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize(
    "make", [lambda g: IWELBO(gradient=g), lambda g: RenyiBound(0.4, g)]
)
def test_maximized_rules_agree_at_every_number_of_draws(make, size, z_score):
    """Wrong variant: alpha w alone, which is what holds for many draws only."""
    alpha = make("auto")._order
    auto = gradients_of(grouped(make("reparam"), size), 0)
    path = gradients_of(grouped(make("doubly_reparam"), size), 1)
    wrong = gradients_of(grouped(make("doubly_reparam"), size, lambda w: -alpha * w), 1)
    assert z_score(auto - path, 0.0) < 5
    assert z_score(auto - wrong, 0.0) > 5
    if size > 1:  # the square matters as well
        wrong = gradients_of(grouped(make("doubly_reparam"), size, lambda w: -w), 1)
        assert z_score(auto - wrong, 0.0) > 5


@pytest.mark.parametrize(
    "make", [lambda g: ChiBound(2, g), lambda g: RenyiBound(-2, g)]
)
def test_score_has_the_expectation_of_w_minus_its_square(make, z_score):
    """Three draws. Wrong variant: w, which is only right for many draws."""
    alpha = make("auto")._order
    score = gradients_of(grouped(make("score"), 3), 0)
    right = grouped(make("doubly_reparam"), 3, lambda w: alpha * (w - w.square()))
    assert z_score(score - gradients_of(right, 1), 0.0) < 5
    assert z_score(score - gradients_of(grouped(make("auto"), 3), 1), 0.0) > 5


@pytest.mark.parametrize(
    "objective",
    [EUBO(), IWELBO(), RenyiBound(0.5), RenyiBound(2), RenyiBound(-1), ChiBound()],
)
def test_no_noise_at_the_posterior(objective):
    """Wrong variant: variational parameters inside q not detached."""
    posterior = make_posterior(FullRankNormal(), 0, 1)
    value, gradient = run(objective, posterior)
    torch.testing.assert_close(signed(objective, value), LOG_Z, rtol=1e-10, atol=0)
    assert float(gradient.abs().max()) < 1e-9


# --- identities and limits ----------------------------------------------------------


def test_order_0_is_the_importance_weighted_elbo():
    posterior = skewed_q()
    for rule in ("reparam", "doubly_reparam"):
        a = run(RenyiBound(0, rule), posterior, 12, 3, SKEWED)
        b = run(IWELBO(12, rule), posterior, 12, 3, SKEWED)
        assert torch.equal(a[0], b[0])
        assert torch.equal(a[1], b[1])
    log_weights = randn(3, 12)
    expected = (torch.logsumexp(log_weights, 1) - math.log(12)).mean()
    torch.testing.assert_close(IWELBO(12).bound(log_weights), expected)
    halves = IWELBO(6).bound(log_weights)  # two groups in each row: a lower number
    assert halves < expected
    torch.testing.assert_close(halves, IWELBO(6).bound(log_weights.reshape(6, 6)))
    assert IWELBO(10).group_shape(35) == (3, 10)
    assert IWELBO(10).group_shape(4) == (1, 10)


@pytest.mark.parametrize("order", [1.5, 2, 4])
def test_chi_is_renyi(order):
    chi, renyi = ChiBound(order), RenyiBound(1 - order)
    a, b = (run(o, skewed_q(), 20, 5, SKEWED) for o in (chi, renyi))
    torch.testing.assert_close(a, b, rtol=1e-12, atol=0)
    log_weights = randn(50)
    expected = (order * log_weights).exp().mean().log() / order
    torch.testing.assert_close(chi.bound(log_weights), expected)
    assert (chi.direction, renyi.direction) == ("upper", "upper")


def test_bounds_fall_with_the_order():
    """Wrong variant: log_power_mean with the power's sign lost."""
    orders = (-40, -3, -1, 0, 0.3, 0.99, 0.9999999, 1.0000001, 1.01, 2, 30)
    for seed in range(20):
        log_weights = 3 * randn(30, seed=seed) - 1e4
        bounds = [float(RenyiBound(a).bound(log_weights)) for a in orders]
        assert all(x > y for x, y in pairwise(bounds))
        assert bounds[0] < float(log_weights.max())
        assert bounds[-1] > float(log_weights.min())
    directions = [RenyiBound(a).direction for a in (-1, -1e-9, 0, 0.5, 3)]
    assert directions == ["upper", "upper", "lower", "lower", "lower"]


@pytest.mark.parametrize("side", [1, -1])
def test_order_near_1(side):
    """mean - (alpha - 1)/2 var, to rounding. Wrong variant: the formula as it is."""
    log_weights = 2 * randn(1000) - 1e4
    mean, variance = log_weights.mean(), log_weights.var(correction=0)
    for distance in (1e-5, 1e-8, 1e-12, 2.3e-16):
        alpha = 1 - side * distance
        bound = RenyiBound(alpha).bound(log_weights)
        expected = mean + 0.5 * (1 - alpha) * variance
        torch.testing.assert_close(bound, expected, rtol=0, atol=1e-8)
    alpha = 1 - 1e-10
    naive = (torch.logsumexp((1 - alpha) * log_weights, 0) - math.log(1000)) / 1e-10
    assert abs(float(naive - mean)) > 1e-7
    gradient = run(RenyiBound(alpha, "reparam"), skewed_q(), 9, 1, SKEWED)[1]
    elbo = run(IWELBO(1, "reparam"), skewed_q(), 9, 1, SKEWED)[1]
    torch.testing.assert_close(gradient, elbo, rtol=1e-8, atol=0)


def test_impossible_draws():
    """Draws outside the support: their weight is 0, and no bound is NaN."""
    log_weights = torch.tensor([0.0, 1.0, -math.inf], dtype=torch.float64)
    finite = [EUBO(), IWELBO(3), RenyiBound(0.9), RenyiBound(-1), ChiBound(3)]
    for objective in finite:
        assert torch.isfinite(objective.bound(log_weights))
    assert RenyiBound(1.5).bound(log_weights) == -math.inf
    for objective in [*finite, RenyiBound(1.5), RenyiBound(1 - 1e-12)]:
        assert objective.bound(torch.full((4,), -math.inf)) == -math.inf
    expected = (1 + math.e) / 3
    assert float(IWELBO(3).bound(log_weights)) == pytest.approx(math.log(expected))


def test_wide_weights_do_not_overflow():
    log_weights = torch.tensor([-3e4, 0.0, 2e4], dtype=torch.float64)
    for alpha in (-5, 0, 0.5, 1 - 1e-9, 1 + 1e-9, 4):
        assert torch.isfinite(RenyiBound(alpha).bound(log_weights))
    value = float(RenyiBound(-5).bound(log_weights))
    assert value == pytest.approx(2e4 - math.log(3) / 6, rel=1e-12)


# --- closed forms on a conjugate problem --------------------------------------------


P_EXACT = NormalForm(EXACT.mean, EXACT.scale_tril)


def closed_bound(q, alpha, p=P_EXACT, log_z=LOG_Z):
    return log_z + log_power_integral(q, p, alpha, 1 - alpha) / (1 - alpha)


@pytest.mark.parametrize("objective", [*map(RenyiBound, (0.3, 1.2, -0.4)), ChiBound(2)])
@pytest.mark.parametrize("family", [MeanFieldNormal(), FullRankNormal()], ids=repr)
def test_estimates_reach_the_closed_form(objective, family, z_score):
    """Wrong variant: the powers of q and of the joint density exchanged."""
    posterior = make_posterior(family, 0.3, 1.25)
    assert objective.exists(TARGET, posterior)
    theta = posterior.as_normal().transform(randn(200_000, SIZE))
    log_weights = TARGET.log_joint(theta) - posterior.log_prob(theta).detach()
    estimates = torch.stack([objective.bound(b) for b in log_weights.split(10_000)])
    alpha = order_of(objective)
    exact = closed_bound(posterior.as_normal(), alpha)
    assert z_score(estimates, exact) < 5
    wrong = LOG_Z + log_power_integral(
        posterior.as_normal(), P_EXACT, 1 - alpha, alpha
    ) / (1 - alpha)
    assert z_score(estimates, wrong) > 5


def test_theorem_1(make_normal):
    """The sandwich of Ji and Shen (2019), and what is not part of it.

    Wrong variant: EUBO <= U_alpha, which does not hold.
    """
    log_z, violations, finite = -3.0, 0, 0
    for seed in range(200):
        p = make_normal(3, "full", seed)
        q = make_normal(3, ("diag", "full")[seed % 2], 1000 + seed, 0.7 + seed / 200)
        pair = as_torch(p), as_torch(q)
        divergence = torch.distributions.kl_divergence
        eubo = log_z + divergence(*pair)
        elbo = log_z - divergence(*pair[::-1])
        assert elbo <= log_z <= eubo
        for alpha in (0.9, 0.5, 0.1):
            assert elbo <= closed_bound(q, alpha, p, log_z) <= log_z + 1e-12
        for alpha in (-0.1, -0.5, -1, -3):
            upper = closed_bound(q, alpha, p, log_z)
            below = -alpha / (1 - alpha) * eubo + log_z / (1 - alpha)
            assert below <= upper + 1e-12
            n = 1 - alpha  # the same for chi of order n
            assert (n - 1) / n * eubo + log_z / n <= upper + 1e-12
            violations += int(upper < eubo)
            finite += int(torch.isfinite(upper))
    assert violations > 20
    assert finite > 200


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


@pytest.mark.parametrize("objective", RULES, ids=repr)
def test_learning_the_noise_leaves_the_posterior_alone(objective):
    """Wrong variant: a weight of the noise's part that is not detached."""
    posterior, found = make_posterior(MeanFieldNormal()), []
    for target in (LearnedNoise(), TARGET):
        found.append(run(objective, posterior, 30, 0, target)[1])
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


# --- existence ----------------------------------------------------------------------


def one_dimensional(likelihood, prior=None, loss=None, y=(1.0, 0.0), weight=None):
    predictor = LinearPredictor(1, fit_intercept=False)
    X = torch.tensor([[1.0], [1.5]], dtype=torch.float64)
    built = (prior or Normal(1.0)).build(predictor.layout)
    weight = None if weight is None else torch.tensor(weight, dtype=torch.float64)
    return SupervisedTarget(
        predictor, likelihood, loss or LogLoss(), built, X, torch.tensor(y), weight
    )


def log_integral(target, posterior, power, radius):
    """Of w^n q over a growing interval."""
    x = torch.linspace(-radius, radius, 20_001, dtype=torch.float64)[:, None]
    log_p, log_q = target.log_joint(x), posterior.log_prob(x)
    total = torch.logsumexp(power * log_p + (1 - power) * log_q, 0)
    return float(total) + math.log(radius / 1e4)


ONE_DIMENSIONAL = {
    "gaussian": one_dimensional(GaussianLikelihood(0.8)),
    "weighted": one_dimensional(GaussianLikelihood(0.8), weight=(0.0, 2.0)),
    "bernoulli": one_dimensional(BernoulliLikelihood()),
    "laplace": one_dimensional(BernoulliLikelihood(), Laplace(0.7)),
    "beta": one_dimensional(GaussianLikelihood(0.8), loss=BetaLoss(1.5)),
}


@pytest.mark.parametrize(
    ("name", "family"),
    [
        (name, (MeanFieldNormal(), FullRankNormal())[i % 2])
        for i, name in enumerate(ONE_DIMENSIONAL)
    ],
)
def test_verdicts_agree_with_integrals(name, family):
    """Converging or not. Wrong variants: the likelihood's tail left out, or added
    for labels; n and 1 - n exchanged."""
    target, verdicts = ONE_DIMENSIONAL[name], set()
    for std in (0.2, 0.35, 0.5, 0.65, 0.8, 0.95, 1.2, 2.0):
        posterior = family.build(target.layout)
        scale = torch.tensor([std], dtype=torch.float64)
        posterior = posterior.near(NormalForm(0.3 + 0 * scale, scale))
        for alpha in (-4, -1, -0.3, 0, 0.5, 1.4, 2, 5):
            small, large = (
                log_integral(target, posterior, 1 - alpha, r) for r in (200, 400)
            )
            verdict = RenyiBound(alpha).exists(target, posterior)
            assert verdict is (large - small < 0.1), (std, alpha)
            verdicts.add(verdict)
            if alpha < 0:
                assert ChiBound(1 - alpha).exists(target, posterior) is verdict
        for objective in (EUBO(), IWELBO()):
            assert objective.exists(target, posterior) is True
    assert verdicts == {True, False}


def test_existence_with_correlations():
    """Wrong variant: variances in the place of eigenvalues."""
    posterior = FullRankNormal().build(TARGET.layout)
    mean = torch.zeros(2, dtype=torch.float64)
    tail, is_exact = TARGET.tail_precision()
    assert is_exact
    torch.testing.assert_close(tail, EXACT.precision_matrix, rtol=1e-10, atol=0)
    for factor in (0.6, 0.72, 1.0, 1.4):  # n T + (1 - n) T / factor^2, n = 2
        posterior = posterior.near(NormalForm(mean, factor * EXACT.scale_tril))
        assert ChiBound(2).exists(TARGET, posterior) is (factor > 2**-0.5)
        # alpha / factor^2 > alpha - 1, alpha = 3
        assert RenyiBound(3).exists(TARGET, posterior) is (factor < 1.5**0.5)
    posterior = posterior.near(NormalForm(mean, math.sqrt(0.5) * EXACT.scale_tril))
    assert ChiBound(2).exists(TARGET, posterior) is None  # on the edge


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
