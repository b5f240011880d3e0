"""What evidence says, and when it may say reliable."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import binom, t

from skvi._sampling._chains import Chains
from skvi._sampling._importance import pareto_khat
from skvi.base import Layout, NormalForm
from skvi.evidence import EvidenceBounds, _summarize
from skvi.evidence._bounds import bound_evidence
from skvi.evidence._estimates import (
    Sides,
    block_size,
    bridge_estimate,
    finite_sample_bounds,
    forward_bound,
    reverse_bound,
)
from skvi.evidence._summarize import lower_bound, summarize
from skvi.evidence._table import NamedBound, elbo_row
from skvi.likelihoods import BernoulliLikelihood, GaussianLikelihood
from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
)
from skvi.losses import LogLoss
from skvi.posteriors import FullRankNormal, MeanFieldNormal
from skvi.predictors import LinearPredictor
from skvi.priors import Normal, StudentT
from skvi.solvers._moment_matching import fit_proposal_normal
from skvi.targets import SupervisedTarget, Target
from tests.reference import conjugate_evidence

on_one_thread = pytest.mark.usefixtures("one_thread")


def conjugate(n=40, d=3, prior_scale=1.5, noise=0.6):
    """A linear regression with its posterior, mean-field, and its log p(D)."""
    rng = np.random.default_rng(0)
    A = np.column_stack([rng.standard_normal((n, d)), np.ones(n)])
    y = A @ rng.standard_normal(d + 1) + noise * rng.standard_normal(n)
    predictor = LinearPredictor(d)
    prior = Normal(prior_scale).build(predictor.layout)
    X = torch.from_numpy(A[:, :d].copy())
    target = SupervisedTarget(
        predictor, GaussianLikelihood(noise), LogLoss(), prior, X, torch.from_numpy(y)
    )
    posterior = MeanFieldNormal().build(predictor.layout)
    posterior = posterior.near(fit_proposal_normal(target))
    return target, posterior, conjugate_evidence(A, y, prior_scale, noise)


def bounds_of(target, posterior, seed, **options):
    return bound_evidence(
        target, posterior, torch.Generator().manual_seed(seed), **options
    )


@on_one_thread
@pytest.mark.parametrize(
    ("shape", "seed"), [((40, 3), 0), ((40, 3), 1), ((10, 15), 0), ((10, 15), 1)]
)
def test_conjugate_regression(shape, seed):
    """lower <= log p(D) <= upper within two errors, both tight; also for d > n.

    Wrong variants: likelihood without log(2 pi) / 2; the sign of the reverse weights.
    """
    target, posterior, exact = conjugate(*shape)
    bounds = bounds_of(target, posterior, seed)
    assert bounds.reliable, bounds.reason
    low, high = bounds.interval()
    assert low - 1e-9 <= exact <= high + 1e-9  # equal up to rounding where n < d
    assert exact - bounds.lower < 0.05
    assert bounds.upper - exact < 0.05
    assert bounds.estimate == pytest.approx(
        exact, abs=5 * bounds.table["bridge"].standard_error
    )
    table = bounds.table
    assert table["lower, 95 %"].value < exact < table["upper, 95 %"].value
    # Marginal deviations under a factorized q: neither bound is tight, both hold.
    elbo, eubo = table["ELBO of q"], table["EUBO of q"]
    assert elbo.value < exact - 0.01
    assert eubo.value > exact + 0.01


def lognormal_weights(sigma, n, seed, sign=1):
    """Log weights with mean weight exp(-2) (forward) or mean inverse exp(2)."""
    lw = sigma * np.random.default_rng(seed).standard_normal((64, n // 64))
    return torch.from_numpy(-2 + sign * (lw - sigma**2 / 2))


@on_one_thread
@pytest.mark.parametrize("sigma", [0.01, 1.5])
def test_estimates_of_known_weights(sigma):
    """Lognormal weights with log Z = -2: coverage over 200 sets of each estimate.

    Wrong variants: sign of the penalty (seen at sigma = 0.01); minimum of upper blocks.
    """
    n, covered = 4096, np.zeros(4)
    k = block_size(math.exp(sigma**2) - 1, n)
    assert 1 <= k <= n // 64
    for seed in range(200):
        forward = lognormal_weights(sigma, n, seed)
        reverse = lognormal_weights(sigma, n, 1000 + seed, sign=-1)
        low, high = finite_sample_bounds(forward.flatten(), reverse, 0.95)
        lower, lower_se = forward_bound(forward.flatten(), k)
        upper, upper_se = reverse_bound(reverse, k)
        covered += [
            low <= -2,
            high >= -2,
            lower - 2 * lower_se <= -2,
            upper + 2 * upper_se >= -2,
        ]
    assert covered.min() >= binom.ppf(1e-4, 200, 0.95)
    # Wide apart they would say nothing: the gap is a few errors.
    assert upper - lower < 8 * (lower_se + upper_se) + sigma**2 / k


@on_one_thread
@pytest.mark.parametrize("width", [0.5, 2.0])
def test_bridge_of_two_normals(width, global_random_seed):
    """r = N(0, 1), p = N(1/2, width^2) exp(-2): consistent, with an honest error.

    Wrong variants: the error of either side left out.
    """
    rng = np.random.default_rng(global_random_seed)
    z = []
    for _ in range(400):
        x = rng.standard_normal(500)
        t = 0.5 + width * rng.standard_normal((50, 10))
        lw = [
            torch.from_numpy(
                -2 - 0.5 * ((v - 0.5) / width) ** 2 - math.log(width) + 0.5 * v**2
            )
            for v in (x, t)
        ]
        value, error = bridge_estimate(*lw, n_effective=500)
        z.append((value + 2) / error)
    assert abs(np.mean(z)) < 5 * np.std(z) / 20
    assert abs(np.std(z) - 1) < 5 / math.sqrt(2 * 400)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.999])
def test_limits_are_quantiles_of_a_student_t(level):
    """Errors come from 64 blocks. Wrong variant: normal quantiles."""
    numbers = -7.2, -7.1, 0.01, 0.02, -7.15, 0.1, 900.0, 0.1
    low, high = EvidenceBounds(*numbers, True, "", "importance").limits(level)
    quantile = t(63).ppf(level)
    assert low == pytest.approx(-7.2 - 0.01 * quantile, abs=1e-9)
    assert high == pytest.approx(-7.1 + 0.02 * quantile, abs=1e-9)


class Bell(Target):
    """A standard normal, without closed form of anything."""

    layout = Layout({"coef": (1,)})

    def log_joint(self, theta, rows=None):
        return -0.5 * theta.square().sum(1)


def test_error_of_a_drawn_elbo_is_that_of_the_mean():
    """log p - log q of draws from N(0, 2^2) is -1.5 chi^2_1 but for a constant.

    Wrong variant: the deviation of one draw for the error of the mean.
    """
    posterior = MeanFieldNormal().build(Bell.layout)
    posterior = posterior.near(NormalForm(torch.zeros(1), torch.full((1,), 2.0)))
    found = [
        lower_bound(Bell(), posterior, torch.Generator().manual_seed(seed), 500)
        for seed in range(100)
    ]
    values, errors = np.transpose(found)
    exact = -1.5 + math.log(2) + 0.5 * math.log(2 * math.pi)
    assert abs(values.mean() - exact) < 4 * values.std() / 10
    # The deviation of one is sqrt(4.5), and that of an estimate from 100, 7 %.
    assert errors.mean() == pytest.approx((4.5 / 500) ** 0.5, rel=0.05)
    assert values.std(ddof=1) == pytest.approx(errors.mean(), rel=0.3)


def target_with(prior, predictor=None, n=40, d=8):
    generator = torch.Generator().manual_seed(0)
    model = predictor or LinearPredictor(d)
    X = torch.randn(n, d, generator=generator, dtype=torch.float64)
    y = (torch.rand(n, generator=generator) < 0.5).double()
    built = prior.build(model.layout)
    return SupervisedTarget(model, BernoulliLikelihood(), LogLoss(), built, X, y)


def test_a_reliable_interval_that_is_wide_says_how_wide(monkeypatch):
    target = target_with(Normal(1.0))
    posterior = FullRankNormal().build(target.layout)
    posterior = posterior.near(fit_proposal_normal(target))
    generator = torch.Generator().manual_seed(0)
    monkeypatch.setattr("skvi.evidence._tempered.MAX_SWEEPS", 300)
    bounds = bound_evidence(
        target, posterior, generator, None, 1e-4, method="tempering"
    )
    low, high = bounds.interval()
    assert f"holds, but it is {high - low:.2g} nats wide" in bounds.reason
    assert bounds.reason.endswith("a larger n_draws narrows it")


def test_what_certainly_takes_minutes_is_said_before_a_proposal_is_fitted(monkeypatch):
    """From a poor fit, under a prior for which proposals are fitted from two starts.

    Wrong variants: no rough fit, so that a proposal is fitted; nearly normal posteriors
    are refused, too.
    """

    class Fitted(Exception):
        pass

    def fit(*args):
        raise Fitted

    monkeypatch.setattr("skvi.evidence._bounds.fit_proposal_normal", fit)
    far, near = target_with(StudentT(), n=300, d=500), target_with(StudentT(), n=5000)
    monkeypatch.setattr("skvi.evidence._importance.MAX_WORK", 1e4)
    options = torch.Generator().manual_seed(0), None, None, "log evidence", None
    posterior = MeanFieldNormal().build(far.layout)
    bounds = bound_evidence(far, posterior, *options)
    assert "and under this prior" in bounds.reason
    with pytest.raises(Fitted):
        bound_evidence(near, MeanFieldNormal().build(near.layout), *options)


BOUNDS = EvidenceBounds(
    lower=-55.24,
    upper=-55.21,
    lower_se=0.01,
    upper_se=0.005,
    estimate=-55.225,
    gap=0.03,
    ess=900.0,
    khat=0.1,
    reliable=True,
    reason="the chains have mixed",
    method="importance",
    table={"ELBO of q": elbo_row((-55.47, 0.0))},
)


def test_unreliable_numbers_are_not_shown():
    """But for bounds that always hold. Wrong variant: they are shown."""
    text = str(replace(BOUNDS, reliable=False, reason="the chains disagree"))
    assert "NOT reliable" in text
    assert "the chains disagree" in text
    assert "-55.2" not in text
    assert text.count("unknown") == 2
    assert "-55.47" in text
    counts = replace(BOUNDS, reliable=False).of_probability()
    assert str(counts).count("unknown") == 1


def test_exact_values_have_two_decimals():
    """Wrong variant: digits of a width of 0."""
    exact = replace(BOUNDS, lower=-5.0, upper=-5.0, lower_se=0.0, upper_se=0.0)
    exact = replace(exact, estimate=-5.0, table={})
    assert str(exact).count("-5.00\n") == 3


@pytest.fixture(scope="module")
def sure():
    """Posterior of separable rows, under which three others are nearly certain."""
    x = np.random.default_rng(0).normal(size=(60, 1))
    model = BayesianLogisticRegression(prior=Normal(30.0), fit_intercept=False)
    return model.fit(x, (x[:, 0] > 0).astype(int)).posterior_


def result(lower, upper, table=(), lower_se=0.01):
    return EvidenceBounds(
        *(lower, upper, lower_se, 0.01, lower, upper - lower),
        *(900.0, 0.1, True, "", "importance", (), "log evidence", dict(table)),
    )


def test_lower_bounds_above_zero_refute_themselves():
    """Wrong variants: the cut at 0 makes what is impossible nearly certain; a lower
    bound above that of any probability; the gap before the cut.
    """
    impossible = result(3.0, 3.1).of_probability()
    assert not impossible.reliable
    assert "above 0" in impossible.reason
    sure = NamedBound(0.5, 0.0, "lower", "a bound", holds="always")
    assert not result(-0.1, 0.1, {"ELBO": sure}).of_probability().reliable
    chance = result(0.02, 0.05).of_probability()  # it reaches so far
    assert chance.reliable
    assert (chance.lower, chance.upper, chance.estimate, chance.gap) == (0, 0, 0, 0)


N, SHAPE = 4096, 1.2


class Bell_of_nearly_constant(Target):
    """A prior alone: log Z = 0."""

    layout = Layout({"coef": (1, 1)})
    prior = Normal(1.0).build(layout)

    def log_joint(self, theta, rows=None):
        return self.prior.log_prob(theta)


def nearly_constant(size, seed=0, most=0.9):
    """Log weights with a tail of k 1.2, none above 1.9 times the smallest."""
    generator = torch.Generator().manual_seed(seed)
    tail = torch.rand(N, generator=generator, dtype=torch.float64) ** -SHAPE
    return torch.log1p(most * tail / tail.max()).reshape(size)


def constant_bounds(forward, reverse):
    generator = torch.Generator().manual_seed(1)
    theta = torch.randn(64, N // 64, 1, generator=generator, dtype=torch.float64)
    sides = Sides(
        method="importance",
        forward=forward,
        reverse=reverse,
        bridge=reverse,
        k_below=1,
        k_above=1,
        chains=Chains(theta, torch.zeros(64, N // 64).double(), 0.8),
        error=math.inf,
    )
    posterior = MeanFieldNormal().build(Bell_of_nearly_constant.layout)
    return summarize(
        Bell_of_nearly_constant(), posterior, sides, generator, "log evidence"
    )


EVEN = torch.zeros(N).double()


@pytest.mark.parametrize("side", ["lower", "upper"])
def test_nearly_constant_weights_are_exempt_and_pay(side, monkeypatch):
    """Wrong variants: k is capped; not exempt; 2 / n is left out of the error."""
    tail = nearly_constant(N)
    forward = tail if side == "lower" else EVEN
    reverse = -tail if side == "upper" else EVEN
    bounds = constant_bounds(forward, reverse.reshape(64, -1))
    assert bounds.khat == pareto_khat(tail) > 0.9
    assert bounds.reliable
    monkeypatch.setattr(_summarize, "_unseen_tail", lambda khat, log_weights: 0.0)
    plain = constant_bounds(forward, reverse.reshape(64, -1))
    assert not plain.reliable
    extra = {
        name: getattr(bounds, f"{name}_se") - getattr(plain, f"{name}_se")
        for name in ("lower", "upper")
    }
    assert extra.pop(side) == pytest.approx(2 / N, rel=1e-9)
    assert set(extra.values()) == {0.0}


X = np.array([[-1.0], [1.5]])
GIVEN = {"prior": Normal(0.8), "noise_scale": 0.7, "normalize_y": False}
GIVEN |= {"intercept_prior": Normal(0.8)}


def bound(params, y):
    return BayesianLinearRegression(**params).fit(X, y).evidence_bounds(X, y)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_learned_noise_is_named_beside():
    y = np.array([1.0, 3.0])
    bounds = bound({"prior": "normal", "noise_scale": "learn"}, y)
    assert bounds.plug_in == ("noise_scale", "y_mean", "y_scale")
    assert "at the learned noise_scale: optimistic" in str(bounds)
