"""Priors: densities, expectations, unknown scales."""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import special

import skvi.priors
from skvi.base import Layout
from skvi.linear_model import BayesianLogisticRegression, BayesianPoissonRegressor
from skvi.priors import ARD, HalfCauchy, Horseshoe, Laplace, Normal, Prior, StudentT
from skvi.priors._heavy_tailed import LogUniform

CLASSES = [getattr(skvi.priors, name) for name in skvi.priors.__all__]
CLASSES = [c for c in CLASSES if isinstance(c, type) and issubclass(c, Prior)]
#: Priors with draws and a total mass that quadrature can find.
REGULAR = [
    Normal(0.3),
    Laplace(0.3),
    StudentT(),
    StudentT(1.0, 0.3),
    Horseshoe(),
    Horseshoe(0.3),
    ARD(0.5, 2.0),
]
every_regular = pytest.mark.parametrize("spec", REGULAR, ids=repr)
THETA = torch.tensor([[0.5, -1.2, 2.0], [-0.1, 0.3, -4.0]], dtype=torch.float64)
# Edges of panels in log(theta): poles at 0 and heavy tails are smooth there.
LOG_EDGES = (-60, -30, -10, -3, -1, 0, 1, 3, 10, 30, 60)


def build_one(spec):
    return spec.build(Layout({"coef": (1,)}))


@pytest.fixture
def expect_even(integrate):
    """Expectation of an even function of theta under a symmetric prior."""

    def run(prior, function, *edges):
        def integrand(x):
            t = x.exp()
            return 2 * function(t) * (prior.log_prob(t[:, None]) + x).exp()

        return float(integrate(integrand, *(edges or LOG_EDGES), n_nodes=100))

    return run


@every_regular
def test_density_integrates_to_one(spec, expect_even):
    # Wrong variants: the constant without the scale; Gamma(df) for Gamma(df / 2).
    prior = build_one(spec)
    assert expect_even(prior, torch.ones_like) == pytest.approx(1, abs=1e-10)
    assert torch.equal(prior.log_prob(THETA[:, :1]), prior.log_prob(-THETA[:, :1]))


@pytest.mark.parametrize("spec", [Normal(0.3), Laplace(0.3), StudentT(), ARD(2.0, 3.0)])
def test_matching_normal_has_the_moments(spec, expect_even):
    # Wrong variant: the scale of a Student-t for its standard deviation.
    prior = build_one(spec)
    variance = expect_even(prior, torch.square)
    assert float(prior.matching_normal().variance) == pytest.approx(variance, rel=1e-8)


def test_ard_integrates_the_precisions_out(integrate):
    """Against quadrature over the precision. Wrong variant: df = shape."""
    shape, rate = 1.5, 0.4
    prior = build_one(ARD(shape, rate))
    for w in (0.0, 0.3, 5.0):

        def joint(x, w=w):
            t = x.exp()
            log_gamma = shape * x - rate * t
            log_normal = 0.5 * (x - t * w**2)
            return torch.exp(log_gamma + log_normal)

        constant = rate**shape / special.gamma(shape) / math.sqrt(2 * math.pi)
        expected = constant * float(integrate(joint, -40, -10, 0, 8))
        actual = float(prior.log_prob(torch.tensor([[w]], dtype=torch.float64)).exp())
        assert actual == pytest.approx(expected, rel=1e-10)


SPECS = [
    Normal(0.3),
    Laplace(0.3),
    StudentT(),
    StudentT(1.0, 0.3),
    ARD(),
    ARD(0.5, 2.0),
    Horseshoe(),
    Horseshoe(0.03),
    LogUniform(),
]
every_spec = pytest.mark.parametrize("spec", SPECS, ids=repr)


def build(spec, size):
    return spec.build(Layout({"coef": (1, size)}))


@pytest.fixture
def expect(integrate):
    """Expectation of log_prob under N(mean, std^2), on panels that shrink around 0."""

    def run(prior, mean, std):
        low, high = mean - 13 * std, mean + 13 * std
        powers = [sign * 10.0**k for k in range(-24, 12) for sign in (1, -1)]
        edges = [mean + k * std for k in range(-12, 13, 2)] + powers + [0.0]
        inside = [e for e in edges if low < e < high]

        def integrand(t):
            density = torch.exp(-0.5 * ((t - mean) / std) ** 2)
            return prior.log_prob(t[:, None]) * density / (std * math.sqrt(2 * math.pi))

        return float(integrate(integrand, low, *inside, high, n_nodes=60))

    return run


@every_spec
@pytest.mark.parametrize("std", [1e-8, 1e-3, 0.4, 1e4])
def test_expected_log_prob(spec, std, expect):
    """Against quadrature, for every ratio of mean, width and scale.

    Wrong variants: |mean| for E|theta|; variance for std; no tail beyond the last
    node; the mean of lambda left out.
    """
    ratios = torch.tensor([0.0, -0.3, 2.0, 9.0, 28.0, 1e3, -1e6], dtype=torch.float64)
    mean = std * ratios
    prior = build(spec, len(mean))
    actual = prior.expected_log_prob(mean, torch.full_like(mean, std))
    one = build(spec, 1)
    values = [expect(one, float(m), std) for m in mean]
    expected = torch.tensor(values, dtype=torch.float64)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


def built(size, scale=1.0):
    return Normal(HalfCauchy(scale)).build(Layout({"coef": (1, size)}))


def data(n=120, d=6, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, (X[:, 0] - 0.5 * X[:, 1] + rng.logistic(size=n) > 0).astype(int)


@pytest.mark.parametrize("size", [1, 2, 7, 200])
def test_density_is_the_integral_over_the_scale(size):
    """Closed form, with the confluent hypergeometric function U, near 0 as well.

    Wrong variants: a uniform log scale, or the Jacobian of log s left out; nodes that
    end a few widths from the top of the integrand, which has a flat side near 0.
    """
    lengths = np.array([1e-140, 1e-20, 1e-5, 0.02, 1.3, 40.0, 1e6])
    theta = np.outer(lengths, np.full(size, size**-0.5))
    a = mpmath.mpf(size + 1) / 2
    constant = mpmath.loggamma(a) - mpmath.log(mpmath.pi)
    constant -= size * mpmath.log(mpmath.sqrt(2 * mpmath.pi) * 0.7)
    halves = [(mpmath.mpf(x) / 0.7) ** 2 / 2 for x in lengths]
    expected = [float(constant + mpmath.log(mpmath.hyperu(a, a, z))) for z in halves]
    found = built(size, 0.7).log_prob(torch.from_numpy(theta))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 50])
def test_gradient_is_that_of_the_density(size):
    """Wrong variant: the precision at the median scale."""
    prior, rng = built(size, 0.7), np.random.default_rng(size)
    lengths = np.array([1e-20, 1e-5, 0.02, 1.3, 40.0, 1e6])
    theta = torch.from_numpy(lengths[:, None] * rng.normal(size=(6, size)))
    by_hand = prior.log_prob_gradient(theta)
    leaf = theta.requires_grad_()
    (expected,) = torch.autograd.grad(prior.log_prob(leaf).sum(), leaf)
    assert torch.allclose(by_hand, expected, rtol=1e-10)


def at_scale(X, y, log_scale, posterior):
    """The fit under a normal prior of a known scale, relative to the columns."""
    return BayesianLogisticRegression(
        prior=Normal(math.exp(log_scale) / X.std(0)),
        intercept_prior=Normal(10.0),
        posterior=posterior,
    ).fit(X, y)


@pytest.mark.parametrize("posterior", ["full_rank", "mean_field"])
def test_the_posterior_is_the_mixture_of_the_fits_at_all_scales(posterior):
    """Against a sum over 71 scales, each fitted by itself.

    Wrong variants: weights without the density of the scale; the variance without that
    of the means; the bound without the step.
    """
    X, y = data()
    model = BayesianLogisticRegression(prior="auto", posterior=posterior).fit(X, y)
    grid = np.linspace(-6.0, 4.5, 71)
    fits = [at_scale(X, y, z, posterior) for z in grid]
    logs = np.array([f.lower_bound_ for f in fits]) - np.log(math.pi * np.cosh(grid))
    weights = np.exp(logs - np.logaddexp.reduce(logs))
    means = np.array([f.coef_[0] for f in fits])
    variances = np.array([f.coef_std_[0] for f in fits]) ** 2
    mean = weights @ means
    std = np.sqrt(weights @ (variances + (means - mean) ** 2))
    assert model.converged_
    np.testing.assert_allclose(model.coef_[0], mean, atol=0.01 * std.max())
    np.testing.assert_allclose(model.coef_std_[0], std, rtol=0.01)
    scales = np.log(model.prior_scale_ * X.std(0))
    np.testing.assert_allclose(scales, weights @ grid, atol=0.01)
    bound = np.logaddexp.reduce(logs) + math.log(grid[1] - grid[0])
    # Less the tails, of five nats below the top.
    assert bound - 0.02 < model.lower_bound_ < bound + 1e-3
    proba = weights @ [f.predict_proba(X[:5])[:, 1] for f in fits]
    np.testing.assert_allclose(model.predict_proba(X[:5])[:, 1], proba, atol=1e-3)


@pytest.mark.filterwarnings("ignore::skvi.exceptions.SkviWarning")
@pytest.mark.parametrize("effect", [0.4, 0.7])
def test_two_likely_scales_are_both_integrated_over(effect):
    """One column in a large unit: its scale, and that of the others, 12 away in logs.

    The bound is that of the sum over both, also from a warm start, and the evidence is.
    Wrong variants: nodes around the higher of both alone (by .5 and .3 nat); the
    likelier one by losses that are quadratic around the mode of the other one; a warm
    start in the valley.
    """
    X = np.random.default_rng(3).normal(size=(60, 3))
    f, rng = X @ [effect, -0.8 * effect, 0], np.random.default_rng(1)
    X, model = X * [1.0, 1.0, 3e4], BayesianLogisticRegression
    if effect == 0.4:
        y, model = rng.poisson(np.exp(0.5 + f)), BayesianPoissonRegressor
    else:
        y = 3 * f + rng.logistic(size=60) > 0
    found = model(prior=Normal(HalfCauchy()), warm_start=True)
    unit = math.sqrt(X.var(0).mean())
    grid, step = np.linspace(-7, 15, 45, retstep=True)
    fits = [model(prior=Normal(math.exp(z) / unit)).fit(X, y) for z in grid]
    logs = [
        m.lower_bound_ - math.log(math.pi * math.cosh(z))
        for m, z in zip(fits, grid, strict=True)
    ]
    bound = np.logaddexp.reduce(logs) + math.log(step)
    for _ in range(2):
        assert bound - 0.02 < found.fit(X, y).lower_bound_ < bound + 5e-3
    low, high = found.evidence_bounds(X, y, random_state=0).interval()
    assert low - 0.02 < bound < high  # ELBOs given the scale are that close
