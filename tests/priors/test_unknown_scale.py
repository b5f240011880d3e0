"""Normal coefficients of one unknown scale under a half-Cauchy hyperprior."""

import math
from functools import partial

import mpmath
import numpy as np
import pytest
import torch
from scipy import integrate, stats

from skvi.base import Layout
from skvi.exceptions import SkviWarning
from skvi.linear_model import BayesianLogisticRegression, BayesianPoissonRegressor
from skvi.priors import HalfCauchy, Horseshoe, Normal


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


@pytest.mark.parametrize("scale", [1.0, 0.7])
def test_density_is_that_of_its_parts(scale):
    """Of the scale, and of normals at known scales. Wrong variant: a factor of pi."""
    prior, theta = built(2, scale), torch.tensor([[0.3, -1.2]], dtype=torch.float64)

    def integrand(log_scale):
        normal = prior.given_scale(math.exp(log_scale))
        of_scale = float(prior.log_density_of_scale(torch.tensor(log_scale)))
        return math.exp(float(normal.log_prob(theta)) + of_scale)

    exact = integrate.quad(integrand, -20, 20, points=[0.0], epsrel=1e-10)[0]
    assert float(prior.log_prob(theta)) == pytest.approx(math.log(exact), abs=1e-8)


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


def test_one_coefficient_has_the_horseshoe():
    theta = torch.tensor([[1e-90], [0.01], [0.5], [30.0]], dtype=torch.float64)
    horseshoe = Horseshoe(0.3).build(Layout({"coef": (1,)}))
    assert torch.allclose(built(1, 0.3).log_prob(theta), horseshoe.log_prob(theta))


def test_expectation_is_a_lower_bound_of_that_of_the_density():
    prior = built(5)
    mean, std = torch.linspace(-1, 1, 5).double(), torch.full((5,), 0.4).double()
    draws = mean + std * torch.randn(
        20_000, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    log_p = prior.log_prob(draws)
    found = float(prior.expected_log_prob(mean, std).sum())
    error = float(log_p.std()) / math.sqrt(len(log_p))
    assert found < float(log_p.mean()) + 3 * error
    assert found > float(log_p.mean()) - 0.5


def test_draws_are_of_the_density():
    draws = built(3).sample(4000, torch.Generator().manual_seed(0)).numpy()
    one = np.abs(draws[:, 0])
    grid = np.geomspace(1e-3, 1e3, 1001)
    density = built(1).log_prob(torch.from_numpy(grid)[:, None]).exp().numpy()
    cdf = integrate.cumulative_trapezoid(2 * density, grid, initial=0)
    inside = one[(one > grid[0]) & (one < grid[-1])]
    result = stats.kstest(inside, lambda x: np.interp(x, grid, cdf / cdf[-1]))
    assert result.pvalue > 1e-4


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


@pytest.mark.parametrize("posterior", ["full_rank", "mean_field"])
def test_scale_moves_together_with_the_posterior(posterior):
    """Weak effects: the scale that q implies follows that of the prior closely.

    Wrong variants: the scale follows q with a lag (5 iterations); no elasticity (4).
    """
    X, y = data(200, 30, seed=1)
    make = partial(BayesianLogisticRegression, prior="auto", posterior=posterior)
    model, best = make().fit(X, y), make(tol=1e-10).fit(X, y)
    assert best.converged_
    assert model.n_iter_ <= 4  # the last one is that of all scales
    # Nodes lie around different centers, and sums over them have errors of 0.004.
    assert abs(best.lower_bound_ - model.lower_bound_) < 4e-3


def test_evidence_integrates_over_the_scale():
    X, y = data(60, 2)
    model = BayesianLogisticRegression(prior="auto").fit(X, y)
    bounds = model.evidence_bounds(X, y, random_state=0)
    nodes, step = np.linspace(-7, 6, 53, retstep=True)
    parts = [
        at_scale(X, y, u, "full_rank").lower_bound_ - math.log(math.pi * math.cosh(u))
        for u in nodes
    ]
    below = np.logaddexp.reduce(parts) + math.log(step)
    assert bounds.reliable
    assert bounds.plug_in == ()
    assert below - 0.02 < bounds.estimate < below + 0.1  # ELBOs are that close
    assert model.lower_bound_ < bounds.upper


def test_separable_data_leave_the_scale_finite():
    X = np.linspace(-1, 1, 40)[:, None]
    with pytest.warns(SkviWarning, match="medians are given"):
        model = BayesianLogisticRegression(prior="auto").fit(X, X[:, 0] > 0)
    assert model.converged_
    assert 1 < model.prior_scale_ < 1e4


@pytest.mark.parametrize("divergence", ["renyi", "beta", "jeffreys"])
def test_other_divergences_have_the_prior_of_the_fit_by_kl(divergence):
    """A search over divergences compares divergences, not priors.

    Wrong variants: the scale 1; the evidence as if the scale were known.
    """
    X, y = data()
    X = 0.01 * X
    plain = BayesianLogisticRegression().fit(X, y)
    model = BayesianLogisticRegression(divergence=divergence).fit(X, y)
    np.testing.assert_allclose(model.prior_scale_, plain.prior_scale_, rtol=0.01)
    np.testing.assert_array_equal(model.prior_scale_, model.prior_["coef"].scale)
    bounds = model.evidence_bounds(X, y, random_state=0, precision=0.1)
    assert bounds.plug_in == ("prior_scale",)


def test_beside_an_intercept_that_is_not_normal():
    """The scale stays integrated out, with a distribution that is independent.

    Wrong variant: a known scale is taken to make the whole prior normal.
    """
    X, y = data()
    model = BayesianLogisticRegression(intercept_prior="laplace").fit(X, y)
    plain = BayesianLogisticRegression().fit(X, y)
    np.testing.assert_allclose(model.coef_, plain.coef_, atol=0.06)
    assert not hasattr(model, "prior_scale_")


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
