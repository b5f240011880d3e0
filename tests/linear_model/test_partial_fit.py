"""Linear models that learn batch after batch."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import RegressorMixin, clone
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.preprocessing import scale

from skvi.exceptions import IncompatibleComponentsError
from skvi.likelihoods import GaussianLikelihood
from skvi.linear_model import (
    BayesianLinearModel,
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
)
from skvi.posteriors import RefinedNormal
from skvi.posteriors._mixture import MixtureOverScales
from skvi.priors import HalfCauchy, Normal
from tests.problems import assert_same, assert_same_posterior, predictions

CANCER = load_breast_cancer(return_X_y=True)
CANCER = scale(CANCER[0]), CANCER[1]
UNKNOWN = Normal(HalfCauchy())
DIABETES = load_diabetes(return_X_y=True)


class KnownNoise(RegressorMixin, BayesianLinearModel):
    """A regression whose posterior at a known scale is normal: fits are exact."""

    def __init__(self, prior="normal", posterior="full_rank", divergence="kl"):
        self.prior, self.posterior, self.divergence = prior, posterior, divergence

    def _assemble(self, data, response):
        return self._generalized_linear(data, response, GaussianLikelihood(0.5))

    def predict(self, X):
        return self._average(X, lambda likelihood, f: f[..., 0])


def mirrored_batches():
    """Two batches with features of the same mean, 0, and the same deviations."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20, 4)) * [1.0, 2.0, 0.5, 1.0]
    X -= X.mean(0)
    y = X @ [0.5, -0.5, 1.0, 0.0] + 0.5 * rng.standard_normal(20)
    return (X, y), (-X, -y + 0.3 * rng.standard_normal(20))


def in_batches(model, X, y, n=5, weight=None, **options):
    for rows in np.array_split(np.arange(len(y)), n):
        own = None if weight is None else weight[rows]
        model.partial_fit(X[rows], y[rows], sample_weight=own, **options)
    return model


# --- linear regression: exact -------------------------------------------------------


@pytest.mark.parametrize(
    "params",
    [{}, {"noise_scale": 50.0, "prior": Normal(3.0)}, {"fit_intercept": False}],
    ids=["default", "fixed", "no intercept"],
)
def test_fifty_batches_are_one_fit(params):
    """Units of all rows included. Wrong variants: means of batches are not merged; the
    weight of a row is not that of those it stands for."""
    X, y = DIABETES[0] + [0.0, 3.0] * 5, DIABETES[1]
    expected = BayesianLinearRegression(**params).fit(X, y)
    model = in_batches(BayesianLinearRegression(**params), X, y, 50)
    assert_same_posterior(model, expected, 1e-8)
    # An end of an interval may be near 0, where the unit is the deviation of y.
    found, known = predictions(model, X), predictions(expected, X)
    assert_same(found, known, rtol=1e-8, atol=1e-10 * y.std())
    assert model.diagnostics_["n_rows"] == len(y)
    assert model.diagnostics_["n_batches"] == 50
    with pytest.raises(ValueError, match="does not keep the 442 rows"):
        model.evidence_bounds(X, y)


def test_forgotten_rows_have_smaller_weights():
    """Wrong variant: the new rows are discounted as well."""
    X, y = DIABETES
    first, rest = slice(0, 200), slice(200, None)
    model = BayesianLinearRegression().partial_fit(X[first], y[first])
    model.partial_fit(X[rest], y[rest], forgetting=0.25)
    weight = np.where(np.arange(len(y)) < 200, 0.25, 1.0)
    assert_same_posterior(model, BayesianLinearRegression().fit(X, y, weight), 1e-8)


def test_several_targets_begin_with_partial_fit():
    X, y = DIABETES
    model = BayesianLinearRegression().fit(X, np.column_stack([y, y]))
    with pytest.raises(IncompatibleComponentsError, match="for all batches"):
        model.partial_fit(X, np.column_stack([y, y]))
    model = in_batches(BayesianLinearRegression(), X, np.column_stack([y, y]))
    with pytest.raises(ValueError, match=r"y must have the shape"):
        model.partial_fit(X, y)


# --- elsewhere: the posterior is the prior -------------------------------------------


@pytest.mark.parametrize("prior", [Normal(), UNKNOWN])
@pytest.mark.parametrize("forgetting", [1.0, 0.3])
def test_exact_posteriors_lose_nothing(prior, forgetting):
    """Where every fit is exact, batches are one fit, and forgotten rows weigh less.

    Under an unknown scale up to its nodes, which are those of the first batch. Wrong
    variants: weights of scales that do not learn; the mixture's normal is carried; a
    power without the integral of what it makes, or of the posterior alone.
    """
    (X, y), (Z, z) = mirrored_batches()
    model = KnownNoise(prior).partial_fit(X, y)
    model.partial_fit(Z, z, forgetting=forgetting)
    weight = np.repeat([forgetting, 1.0], 20)
    both = np.vstack([X, Z]), np.concatenate([y, z])
    expected = KnownNoise(prior).fit(*both, weight)
    atol = 2e-3 * model.coef_std_.min()
    np.testing.assert_allclose(model.coef_, expected.coef_, atol=atol)
    np.testing.assert_allclose(model.coef_std_, expected.coef_std_, rtol=2e-3)
    if prior is UNKNOWN:
        assert isinstance(model.posterior_, MixtureOverScales)
        assert model.prior_scale_ == pytest.approx(expected.prior_scale_, rel=5e-3)
    if forgetting == 1:
        total = model.diagnostics_["sum_of_bounds"]
        assert total == pytest.approx(expected.lower_bound_, abs=5e-3)


# --- what can go wrong --------------------------------------------------------------

STREAMS = {
    "logistic": (BayesianLogisticRegression(), CANCER, {"classes": [0, 1]}),
    "linear": (BayesianLinearRegression(), DIABETES, {}),
    "columns": (BayesianLinearRegression(), (DIABETES[0], DIABETES[0][:, :2]), {}),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_broken_batch_changes_nothing(name):
    """Also in the first call, and what follows a pickle is identical.

    Wrong variant: attributes set before the error stay.
    """
    model, (X, y), options = STREAMS[name]
    model = clone(model)
    holes = np.where(np.arange(X.shape[1]) == 1, np.nan, X)
    broken = [(X[:9, :-1], y[:9]), (holes[:9], y[:9]), (X[:9], y[:8])]
    if name == "logistic":
        broken.append((X[:9], y[:9] + 2))
    with pytest.raises(ValueError, match="NaN"):
        model.partial_fit(*broken[1], **options)
    assert vars(model) == vars(clone(model))
    model.partial_fit(X[:50], y[:50], **options)
    before, copied = vars(model).copy(), pickle.loads(pickle.dumps(model))
    for batch in broken:
        with pytest.raises(ValueError, match=r"features|NaN|samples|labels"):
            model.partial_fit(*batch)
        assert vars(model) == before
    with pytest.raises(ValueError, match="forgetting"):
        model.partial_fit(X, y, forgetting=0.0)
    for m in (model, copied):
        m.partial_fit(X[50:90], y[50:90])
    assert_same(predictions(model, X[:40]), predictions(copied, X[:40]), rtol=0)


@pytest.mark.parametrize("factor", [0.02, 30.0])
def test_scales_beyond_those_of_the_first_batch(factor):
    """One fit, where both are exact, after coefficients have grown or shrunk.

    Wrong variants: only the scales of the first batch; new ones without the ratio of
    the integrals of the prior; above without below.
    """
    rng = np.random.default_rng(0)
    (X, y), (Z, z) = mirrored_batches()
    X, Z = np.tile(X, (3, 1)), np.tile(Z, (3, 1))
    coef, noise = np.array([1.0, -1.0, 1.0, -1.0]), 0.5 * rng.standard_normal((2, 60))
    y, z = X @ coef + noise[0], Z @ (factor * coef) + noise[1]
    model = KnownNoise(UNKNOWN).partial_fit(X, y)
    first = model.posterior_.log_scales
    model.partial_fit(Z, z, forgetting=1e-4)
    scales = model.posterior_.log_scales
    assert scales[0] < first[0] - 1 if factor < 1 else scales[-1] > first[-1] + 1
    weight = np.repeat([1e-4, 1.0], 60)
    expected = KnownNoise(UNKNOWN).fit(np.vstack([X, Z]), np.r_[y, z], weight)
    # Small scales are likely far down, and both leave out another part of that tail.
    assert model.prior_scale_ == pytest.approx(expected.prior_scale_, rel=0.1)
    share = 0.2 if factor < 1 else 0.02
    atol = share * model.coef_std_.min()
    np.testing.assert_allclose(model.coef_, expected.coef_, atol=atol)
    np.testing.assert_allclose(model.coef_std_, expected.coef_std_, rtol=share)


def test_a_drift_of_log_odds_is_followed():
    """Coefficients of 0 leave small scales likely, and then they are 3.

    Wrong variant: the scales of the first batch, under which they end at .45.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 4))
    y = rng.random(2000) < 0.5
    y[400:] = 3 * X[400:] @ [1, -1, 1, -1] + rng.logistic(size=1600) > 0
    model = BayesianLogisticRegression().partial_fit(X[:400], y[:400], classes=[0, 1])
    for i in range(400, 2000, 100):
        model.partial_fit(X[i : i + 100], y[i : i + 100], forgetting=0.5)
    assert np.abs(model.coef_ - 3 * np.array([1, -1, 1, -1])).max() < 1.0


def test_a_failed_fit_at_an_unlikely_scale_does_not_matter():
    """Single counts at scales of hundreds overflow; the likely scales converge.

    Wrong variant: the status of the last scale for that of all.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(5, 3))
    y = rng.poisson(np.exp(0.5 * X[:, 0] + 1))
    model = BayesianPoissonRegressor()
    for i in range(5):
        model.partial_fit(X[i : i + 1], y[i : i + 1])
        assert model.converged_


@pytest.mark.parametrize(
    ("prior", "n_first"), [("ard", 40), ("auto", 40), ("auto", 1), (UNKNOWN, 1)]
)
def test_features_that_vary_later_take_their_unit_then(prior, n_first):
    """Relative to each column, and to all of them: rescaling them changes nothing.

    Wrong variant: the unit 1 of the first batch, where they are constant.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(160, 3))
    X[:n_first, 2] = 0.5
    y = rng.poisson(np.exp(0.5 * X[:, 2] + 0.3 * X[:, 0]))
    cuts, found = [n_first, 80, 120], []
    for unit in (1.0, 1e-4):
        Z = X * (unit if prior is UNKNOWN else [1.0, 1.0, unit])
        model = BayesianPoissonRegressor(prior=prior)
        for rows, counts in zip(np.split(Z, cuts), np.split(y, cuts), strict=True):
            model.partial_fit(rows, counts)
        found.append(model.coef_ * Z.std(0))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)
    assert 0.3 < found[0][..., 2].min() < 0.7


def test_refined_posteriors_pass_on_their_normal():
    """The next prior is the normal of the start, which few samples do not have.

    Wrong variant: moments of the samples.
    """
    X, y = CANCER[0][:, :3], CANCER[1]
    found = []
    for posterior in (RefinedNormal(n_auxiliary=2, n_draws=2), "mean_field"):
        model = BayesianLogisticRegression(
            prior="normal", posterior=posterior, random_state=0
        )
        model.partial_fit(X[:80], y[:80], classes=[0, 1])
        model.partial_fit(X[80:160], y[80:160], forgetting=0.3)
        found.append(model.posterior_.unrefined.params)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)
