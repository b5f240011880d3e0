"""Values that leave the range of floats get an error that names them, never NaN."""

import numpy as np
import pytest
import scipy.sparse

from skvi.linear_model import BayesianLinearRegression, BayesianPoissonRegressor

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 2))
Y = X[:, 0] + RNG.normal(size=20)


@pytest.mark.parametrize("convert", [np.asarray, scipy.sparse.csr_array])
def test_features_whose_squares_overflow(convert):
    """Wrong variant: an eigenvalue routine that fails to converge."""
    model = BayesianLinearRegression()
    with pytest.raises(ValueError, match=r"X has values up to .*e\+300; their squares"):
        model.fit(convert(X * 1e300), X[:, 0])
    assert not hasattr(model, "posterior_")


@pytest.mark.filterwarnings("ignore:.*the features have ranges")
def test_large_features_are_fitted():
    """As large as their squares allow."""
    expected = BayesianLinearRegression(prior="normal").fit(X * 1e10, Y)
    found = BayesianLinearRegression(prior="normal").fit(X * 1e139, Y)
    np.testing.assert_allclose(found.coef_ * 1e139, expected.coef_ * 1e10, rtol=1e-6)


def test_counts_that_are_no_integers_in_floats():
    """Wrong variant: rates of infinity."""
    y = np.round(np.abs(X[:, 0]))
    with pytest.raises(ValueError, match="Give counts in larger units"):
        BayesianPoissonRegressor(prior="normal").fit(X, y * 1e140)
    model = BayesianPoissonRegressor(prior="normal").fit(X, y)
    with pytest.raises(ValueError, match=r"y has values up to 2e\+20"):
        model.predict_log_density(X, y / y.max() * 2e20)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("offset", "scale"), [(5412345.678, 1e-2), (1e9, 1e-3)])
def test_targets_far_from_zero(dtype, offset, scale):
    """Predictions, ends, draws and densities move with y.

    Wrong variants: results in the precision of X; a target with a scale of 1e-12 of its
    origin is constant.
    """
    model, features = BayesianLinearRegression(), X.astype(dtype)

    def answers(y):
        parts = [model.predict(features), model.predict_interval(features)]
        parts.append(model.sample_y(features, 2, random_state=0))
        return parts, model.predict_log_density(features, y)

    base, y = Y.astype(dtype).astype(float), offset + scale * Y
    expected, densities = (model.fit(features, base), answers(base))[1]
    found, moved = (model.fit(features, y), answers(y))[1]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose((a - offset) / scale, b, atol=5e-3)
    np.testing.assert_allclose(moved + np.log(scale), densities, atol=0.02)
