"""Positive targets and rates: densities, posteriors against quadrature, units."""

import numpy as np
import pytest
import torch
from scipy import special, stats
from scipy.integrate import quad
from sklearn import config_context
from sklearn.base import clone

from skvi.exceptions import SkviWarning
from skvi.likelihoods import BetaLikelihood, GammaLikelihood, Likelihood
from skvi.likelihoods._positive import InverseGaussianLikelihood, LogNormalLikelihood
from skvi.likelihoods._tweedie import TweedieLikelihood
from skvi.linear_model import (
    BayesianBetaRegressor,
    BayesianGammaRegressor,
    BayesianTweedieRegressor,
)
from skvi.priors import Normal

LAWS = {
    "gamma": lambda f, a: stats.gamma(1 / a, scale=a * np.exp(f)),
    "lognormal": lambda f, a: stats.lognorm(
        np.sqrt(np.log1p(a)), scale=np.exp(f) / np.sqrt(1 + a)
    ),
    "inverse_gaussian": lambda f, a: stats.invgauss(a * np.exp(f), scale=1 / a),
    "beta": lambda f, a: stats.beta(special.expit(f) / a, special.expit(-f) / a),
}
KINDS = GammaLikelihood, LogNormalLikelihood, InverseGaussianLikelihood, BetaLikelihood
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
Y = np.exp(X @ [0.5, -0.3] + 4) * RNG.gamma(3, 1 / 3, size=60)
RATES = RNG.beta(3, 2, size=60)


def regressor(name):
    if name == "beta":
        return BayesianBetaRegressor(prior=Normal())
    return BayesianGammaRegressor(likelihood=name, prior=Normal())


@pytest.mark.parametrize(("name", "kind"), [*zip(LAWS, KINDS, strict=True)])
def test_distributions(name, kind):
    """Wrong variants: no slope of log y; the variance of log y for the dispersion."""
    likelihood, f = kind(0.05), np.array([-1.0, 0.2, 1.1])
    law, y = LAWS[name](f, 0.05), np.array([0.2, 0.9, 0.8])
    f, given = torch.from_numpy(f)[None, :, None], torch.from_numpy(y)
    assert likelihood.log_prob(f, given)[0].numpy() == pytest.approx(law.logpdf(y))
    assert likelihood.cdf(f, given)[0].numpy() == pytest.approx(law.cdf(y), rel=1e-8)
    for level in (1e-6, 0.3, 0.99):
        found = likelihood.quantile(f, level)[0].numpy()
        assert found == pytest.approx(law.ppf(level), rel=1e-8)
    assert likelihood.variance(f)[0].numpy() == pytest.approx(law.var())
    exact = Likelihood.log_prob_derivatives(likelihood, f, given)
    for a, b in zip(likelihood.log_prob_derivatives(f, given), exact, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    # Wrong variants: c^shape left out; a Bessel function of order 1.5 c.
    power = likelihood.log_power_integral(f, 1.4)[0].exp()
    for k, own in enumerate(power.tolist()):
        density = lambda y, k=k: law.pdf(np.full(3, y))[k] ** 1.4
        top = 1.0 if name == "beta" else 40.0
        assert own == pytest.approx(quad(density, 0, top, limit=200)[0], rel=1e-7)


@pytest.mark.parametrize("name", LAWS)
def test_posterior_and_evidence_are_those_of_quadrature(name):
    """Wrong variants: no Jacobian of the unit; a prior of the variance's root."""
    y = RATES if name == "beta" else Y
    model, unit = regressor(name).fit(np.zeros((60, 1)), y), y.mean()
    origin = special.logit(unit) if name == "beta" else 0.0
    unit = 1.0 if name == "beta" else unit
    f, z = np.linspace(-1, 1, 101) + origin, np.linspace(-3, 1, 121)  # of sqrt(alpha)
    law = LAWS[name](f[:, None, None], np.exp(2 * z)[:, None])
    log_p = law.logpdf(y / unit).sum(-1) - 60 * np.log(unit)
    log_p += (
        stats.norm(origin, 10).logpdf(f)[:, None]
        + stats.halfcauchy.logpdf(np.exp(z))
        + z
    )
    total = special.logsumexp(log_p)
    evidence = total + np.log((f[1] - f[0]) * (z[1] - z[0]))
    assert evidence - 0.02 < model.lower_bound_ < evidence
    if name in ("gamma", "lognormal"):  # others take seconds
        bounds = model.evidence_bounds(np.zeros((60, 1)), y, random_state=0)
        assert bounds.reliable
        assert bounds.lower - 0.01 < evidence < bounds.upper + 0.01
        assert bounds.upper - bounds.lower < 0.1
    mean = np.exp(log_p - total).sum(1) @ f + np.log(unit)
    assert model.intercept_ == pytest.approx(mean, abs=0.1 * model.intercept_std_)
    alpha = np.exp(log_p - total).sum(0) @ np.exp(2 * z)
    assert model.dispersion_ == pytest.approx(alpha, rel=0.02)
    levels = [0.05, 0.5, 0.95]
    ends = model.predict_quantiles(np.zeros((1, 1)), levels)[0] / unit
    below = [(np.exp(log_p - total) * law.cdf(q)[..., 0]).sum() for q in ends]
    assert below == pytest.approx(levels, abs=2e-3)


@pytest.mark.parametrize(
    "parts", [{"likelihood": "inverse_gaussian"}, {"loss": "beta"}]
)
def test_the_unit_of_y_moves_the_intercept_alone(parts):
    """Wrong variant: y as it is, whose unit weighs a robust loss."""
    parts = {"likelihood": GammaLikelihood(0.3), "prior": "normal", **parts}
    one, other = (BayesianGammaRegressor(**parts).fit(X, y) for y in (Y, 1000 * Y))
    assert other.coef_ == pytest.approx(one.coef_, rel=1e-8)
    assert other.intercept_ == pytest.approx(one.intercept_ + np.log(1000))
    ends = other.predict_interval(X[:3])
    assert ends == pytest.approx(1000 * one.predict_interval(X[:3]))
    draws = one.sample_y(X[:3], 20_000, random_state=0)
    mean, std = one.predict(X[:3], return_std=True)
    assert draws.mean(1) == pytest.approx(mean, abs=5 * std.max() / 20_000**0.5)


def test_small_sets_of_wide_nodes():
    """Wrong variant: a node whose extrapolated start is lost ends the whole fit."""
    rng = np.random.default_rng(7)
    few = rng.normal(size=(12, 4))
    y = np.exp(few[:, 0] + 0.5 * rng.normal(size=12))
    model = BayesianGammaRegressor(likelihood="inverse_gaussian")
    one, other = (clone(model).fit(few, unit * y).lower_bound_ for unit in (1, 100))
    assert other == pytest.approx(one - 12 * np.log(100.0), abs=1e-3)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.r_[0.0, Y[1:]], "must be positive. Got 0, and 1 values"),
        (np.full(60, 2.0), "60 rows with equal values of y tell nothing"),
        (np.r_[np.nan, Y[1:]], "NaN"),
        (100 * RATES, "between 0 and 1.*Divide percentages"),
    ],
)
def test_targets_that_are_refused(y, message):
    model = (
        BayesianBetaRegressor() if "between" in message else BayesianGammaRegressor()
    )
    with pytest.raises(ValueError, match=message):
        model.fit(X, y)


def amounts(mean, power, dispersion):
    """Draws of a sum of a Poisson number of Gamma variables."""
    number = RNG.poisson(mean ** (2 - power) / (dispersion * (2 - power)))
    parts = RNG.gamma((2 - power) / (power - 1) * number + 1e-300)
    return parts * dispersion * (power - 1) * mean ** (power - 1) * (number > 0)


@pytest.mark.parametrize(("power", "alpha"), [(1.5, 1.0), (1.05, 0.3), (1.6, 1e-3)])
def test_amounts_are_sums_over_the_number_of_parts(power, alpha):
    """Wrong variants: log z without 2 - power; terms of every second number for all."""
    likelihood, mean, y = TweedieLikelihood(power, alpha), 1.7, 2.1
    f, given = torch.from_numpy(np.log([[[mean]]])), torch.from_numpy(np.array([y]))
    rate, j = mean ** (2 - power) / (alpha * (2 - power)), np.arange(1, 6000)
    law = stats.gamma(
        (2 - power) / (power - 1) * j, scale=alpha * (power - 1) * mean ** (power - 1)
    )
    number = stats.poisson(rate)
    log_p = special.logsumexp(number.logpmf(j) + law.logpdf(y))
    assert float(likelihood.log_prob(f, given)) == pytest.approx(log_p, abs=1e-9)
    below = number.pmf(0) + number.pmf(j) @ law.cdf(y)
    assert float(likelihood.cdf(f, given)) == pytest.approx(below, abs=1e-9)
    zero = float(likelihood.log_prob(f, 0 * given))
    assert zero == pytest.approx(-rate)


def test_regression_of_amounts():
    """Wrong variant: the power of the first guess, 1.5."""
    Z = RNG.normal(size=(400, 1))
    y = amounts(np.exp(0.5 * Z[:, 0] + 4), 1.3, 9.0)
    model = BayesianTweedieRegressor(prior="normal").fit(Z, y)
    assert abs(model.coef_[0] - 0.5) < 3 * model.coef_std_[0]
    assert model.power_ == pytest.approx(1.3, abs=0.1)
    draws = model.sample_y(Z[:2], 20_000, random_state=0)
    mean, std = model.predict(Z[:2], return_std=True)
    assert draws.mean(1) == pytest.approx(mean, abs=5 * std.max() / 20_000**0.5)
    levels = [0.05, 0.5, 0.95]
    ends = model.predict_quantiles(Z[:2], levels)
    found = (draws[:, None] <= ends[..., None]).mean(2)
    none = (draws == 0).mean(1)[:, None]
    assert found == pytest.approx(np.maximum(levels, none), abs=0.01)
    with pytest.raises(ValueError, match="must not be negative"):
        model.fit(Z, -y)


def test_quantile_beside_a_mass():
    """Not a number where it lies below all lengths that are searched."""
    likelihood, f = TweedieLikelihood(1.74, 1.76), torch.tensor([[[1.17]]]).double()
    mass = float(likelihood.mass(f))
    assert 0 <= float(likelihood.quantile(f, mass + 1e-5)) < 1e-8


def test_impossible_targets():
    """Bounds were finite although log densities are minus infinity."""
    X, y = np.arange(6.0)[:, None], np.arange(6.0)
    with pytest.raises(ValueError, match="impossible"):
        BayesianTweedieRegressor(likelihood=GammaLikelihood(0.5)).fit(X, y)


@pytest.mark.parametrize(
    ("model", "y"),
    [
        (BayesianGammaRegressor(), Y),
        (BayesianTweedieRegressor(), np.where(Y < 20, 0.0, Y)),
        (BayesianBetaRegressor(), RATES),
    ],
)
def test_offset(model, y):
    """A constant moves the intercept; wrong variants: no offset, or of wrong sign.

    Also a pipeline of weights within the fit, which routing refuses; a scalar as it is.
    """
    with config_context(enable_metadata_routing=True):
        given, two = clone(model).fit(X, y, offset=2), np.full(60, 2.0)
    model.fit(X, y)
    assert given.coef_ == pytest.approx(model.coef_, abs=1e-9)
    assert given.intercept_ == pytest.approx(model.intercept_ - 2, abs=1e-9)
    assert given.predict(X, offset=two) == pytest.approx(model.predict(X))
    found = given.predict_log_density(X, y, offset=two)
    assert found == pytest.approx(model.predict_log_density(X, y))
    assert given.score(X, y, offset=2) == pytest.approx(model.score(X, y))
    with pytest.warns(
        SkviWarning, match="the fit had offset=..., and this call has not"
    ):
        given.predict_interval(X[:1])
    with pytest.raises(ValueError, match="offset contains infinity"):
        given.predict(X, offset=np.inf)


def test_offset_is_the_log_of_a_size():
    """Means per unit; wrong variant: a mean offset that is left out."""
    size = RNG.uniform(0.2, 5, size=60)
    per_unit = BayesianGammaRegressor().fit(X, Y)
    model = BayesianGammaRegressor().fit(X, Y * size, offset=np.log(size))
    # Nodes over the dispersion are placed around another start.
    error = 1e-3 * per_unit.coef_std_
    assert (abs(model.coef_ - per_unit.coef_) < error).all()
    assert model.intercept_ == pytest.approx(per_unit.intercept_, abs=1e-3)
    found = model.predict(X, offset=np.log(size))
    assert found == pytest.approx(per_unit.predict(X) * size, rel=1e-3)
    assert model.lower_bound_ == pytest.approx(
        per_unit.lower_bound_ - np.log(size).sum(), abs=1e-3
    )
