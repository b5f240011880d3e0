"""What one fit found is what the next one starts from: sequential inference."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from skvi.exceptions import IncompatibleComponentsError
from skvi.likelihoods import GaussianLikelihood
from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
)
from skvi.linear_model._count_predictions import matching_gamma
from skvi.neural_network import BayesianMLPRegressor
from skvi.priors import Normal

NOISE = 0.7


def make_data(n=60):
    """Halves with other means of X and y, and other scales of y."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3)) + np.linspace(0, 2, n)[:, None]
    y = 5 + X @ [1.0, -2.0, 0.5] + NOISE * rng.normal(size=n)
    return X, y, slice(None, n // 3), slice(n // 3, None)


def exact_posterior(X, y, first, scale=1.0):
    """Mean, covariance and log evidence of coef and intercept, in units of y.

    The prior is that of the first fit: centered features, a standardized target.
    """
    X_mean, y_mean, y_scale = X[first].mean(0), y[first].mean(), y[first].std()
    A = np.column_stack([X - X_mean, np.ones(len(X))]) * y_scale
    precision = A.T @ A / NOISE**2 + np.eye(4) / scale**2
    covariance = np.linalg.inv(precision)
    mean = covariance @ A.T @ (y - y_mean) / NOISE**2
    marginal = NOISE**2 * np.eye(len(X)) + scale**2 * A @ A.T
    log_evidence = multivariate_normal(np.full(len(X), y_mean), marginal).logpdf(y)
    coef, at_mean = mean[:3] * y_scale, mean[3] * y_scale
    return coef, at_mean - coef @ X_mean + y_mean, covariance * y_scale**2, log_evidence


@pytest.mark.parametrize("normalize_y", [True, False])
def test_two_fits_in_sequence_are_one_fit(normalize_y):
    """Conjugate: exact. Wrong variants: units, or origin of X, of the second data."""
    X, y, first, second = make_data()
    model = BayesianLinearRegression(prior="normal", noise_scale=NOISE)
    start = model.fit(X[first], y[first])
    one, bound = start.posterior_, start.lower_bound_
    later = BayesianLinearRegression(
        prior=one, noise_scale=NOISE, normalize_y=normalize_y
    ).fit(X[second], y[second])
    coef, intercept, covariance, log_evidence = exact_posterior(X, y, first)
    np.testing.assert_allclose(later.coef_, coef, rtol=1e-6)
    assert later.intercept_ == pytest.approx(intercept, rel=1e-6)
    np.testing.assert_allclose(later.sigma_, covariance[:3, :3], rtol=1e-6)
    # log p(first) + log p(second | first), in units of y: the Jacobian is in.
    assert bound + later.lower_bound_ == pytest.approx(log_evidence, abs=1e-4)
    assert later.converged_


def test_a_raw_first_fit_gives_its_units_to_the_second():
    """Wrong variant: the second fit standardizes its target anyway."""
    X, y, first, second = make_data()
    options = {"noise_scale": NOISE, "fit_intercept": False}
    start = BayesianLinearRegression(prior="normal", normalize_y=False, **options)
    posterior = start.fit(X[first], y[first]).posterior_
    later = BayesianLinearRegression(prior=posterior, **options)
    later.fit(X[second], y[second])
    whole = start.fit(X, y)
    np.testing.assert_allclose(later.coef_, whole.coef_, rtol=1e-6)
    np.testing.assert_allclose(later.sigma_, whole.sigma_, rtol=1e-6)


@pytest.mark.parametrize("prior", ["hierarchical", "ard"])
def test_precisions_with_hyperpriors(prior):
    """The noise precision goes on; those of coefficients have done their work.

    Wrong variant: a vague hyperprior for the noise again (its posterior shape is then
    that of the second rows alone).
    """
    X, y, first, second = make_data()
    start = BayesianLinearRegression(prior=prior).fit(X[first], y[first])
    later = BayesianLinearRegression(prior=start.posterior_).fit(X[second], y[second])
    whole = BayesianLinearRegression(prior=prior).fit(X, y)
    assert list(later.posterior_.layout) == ["coef", "intercept", "noise_precision"]
    assert np.all(np.abs(later.coef_ - whole.coef_) < 0.3 * whole.coef_std_)
    np.testing.assert_allclose(later.coef_std_, whole.coef_std_, rtol=0.1)
    assert later.noise_scale_ == pytest.approx(whole.noise_scale_, rel=0.05)
    # That of a precision whose log varies as much.
    shape, _ = matching_gamma(later.posterior_)
    n_explained = X.shape[1] + 1
    assert shape == pytest.approx((len(y) - n_explained) / 2, rel=0.1)
    mean, std = later.predict(X[:3], return_std=True)
    np.testing.assert_allclose(mean, whole.predict(X[:3]), atol=0.2)
    assert np.isfinite(std).all()


def test_evidence_given_earlier_rows():
    """Bounds hold the change of the exact log evidence.

    Wrong variant: units that the prior brings are named as taken from y.
    """
    X, y, first, second = make_data()
    model = BayesianLinearRegression(prior="normal", noise_scale=NOISE)
    posterior = model.fit(X[first], y[first]).posterior_
    before = model.lower_bound_
    later = BayesianLinearRegression(prior=posterior, noise_scale=NOISE)
    bounds = later.fit(X[second], y[second]).evidence_bounds(
        X[second], y[second], n_draws=256, random_state=0
    )
    expected = exact_posterior(X, y, first)[3] - before
    assert bounds.lower - 0.1 < expected < bounds.upper + 0.1
    assert bounds.plug_in == ()  # the units come from earlier rows


@pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::skvi.exceptions.SkviWarning",
)
def test_a_network_keeps_the_units_of_its_prior():
    """Wrong variant: the few rows of the second fit give the units of the target."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(128, 1))
    y = 10 + 5 * X[:, 0] + 0.1 * rng.normal(size=128)
    options = {"hidden_layer_sizes": (), "random_state": 0}
    options["likelihood"] = GaussianLikelihood(0.1)
    first = BayesianMLPRegressor(
        skip_connection=False,
        activation="softplus",
        divergence="kl",
        posterior="mean_field",
        max_iter=40,
        **options,
    ).fit(X, y)
    near = np.abs(X[:, 0]) < 0.3
    second = BayesianMLPRegressor(
        skip_connection=False,
        activation="softplus",
        divergence="kl",
        posterior="mean_field",
        prior=first.posterior_,
        max_iter=40,
        **options,
    )
    second.fit(X[near], y[near])
    grid = np.linspace(-2, 2, 9)[:, None]
    np.testing.assert_allclose(second.predict(grid), 10 + 5 * grid[:, 0], atol=0.15)


@pytest.mark.parametrize(
    "other", [BayesianPoissonRegressor, BayesianLogisticRegression]
)
def test_units_that_a_model_cannot_have_are_refused(other):
    """Wrong variant: a layout that fits is taken for a model that fits."""
    X, y, *_ = make_data()
    posterior = BayesianLinearRegression(noise_scale=1.0, prior="normal").fit(X, y)
    with pytest.raises(IncompatibleComponentsError, match="standardized target"):
        other(prior=posterior.posterior_).fit(X, (y > 5).astype(int))


def test_other_features_are_refused():
    X, y, *_ = make_data()
    posterior = BayesianLinearRegression().fit(X[:, :2], y).posterior_
    with pytest.raises(IncompatibleComponentsError, match="same features"):
        BayesianLinearRegression(prior=posterior).fit(X, y)


class ShapedPrior(Normal):
    """A prior of one's own with hyperparameters called shape and rate."""

    def __init__(self, shape=2.0, rate=3.0, scale=0.5):
        self.shape, self.rate, self.scale = shape, rate, scale

    _parameter_constraints: dict = {"scale": Normal._parameter_constraints["scale"]}


def test_names_of_attributes_make_no_hierarchy():
    """Wrong variant: any object with `shape` and `rate` has a Gamma hyperprior."""
    X, y, *_ = make_data()
    found = BayesianLinearRegression(prior=ShapedPrior()).fit(X, y)
    expected = BayesianLinearRegression(prior=Normal(scale=0.5)).fit(X, y)
    assert list(found.posterior_.layout) == list(expected.posterior_.layout)
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-12)
