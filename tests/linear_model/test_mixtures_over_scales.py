"""What is reported of a mixture over scales, against draws of it."""

import numpy as np
import pytest

from skvi.likelihoods import NegativeBinomialLikelihood
from skvi.linear_model import BayesianLogisticRegression, BayesianPoissonRegressor

N_DRAWS = 20_000


def data(n=16, d=3):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    return X, X[:, 0] + rng.logistic(size=n)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_intervals_are_quantiles_of_draws(n_classes):
    """Wrong variant: all scales equally likely in quantiles."""
    X, f = data()
    y = np.digitize(f, [0.0] if n_classes == 2 else [-0.7, 0.7])
    model = BayesianLogisticRegression().fit(X, y)
    draws = model.sample_posterior(N_DRAWS, random_state=0)
    values = draws["coef"].reshape(N_DRAWS, -1)
    table = model.summary(0.9)
    ends = (np.reshape(e, (-1, 4))[:, 1:].ravel() for e in (table.lower, table.upper))
    for level, end in zip((0.05, 0.95), ends, strict=True):
        np.testing.assert_allclose((values < end).mean(0), level, atol=0.01)
    f = np.einsum("skd,nd->snk", draws["coef"], X[:4]) + draws["intercept"][:, None]
    f = np.concatenate([0 * f, f], 2) if n_classes == 2 else f
    p = np.exp(f - f.max(2, keepdims=True))
    p = p / p.sum(2, keepdims=True)
    found = model.predict_proba_interval(X[:4])
    for i, level in enumerate((0.05, 0.95)):
        np.testing.assert_allclose((p < found[:, i]).mean(0), level, atol=0.015)


def test_counts_are_those_of_draws():
    """Wrong variant: all scales equally likely in a mixture by quadrature."""
    X, f = data()
    y = np.random.default_rng(1).poisson(np.exp(np.clip(f, -3, 2)))
    likelihood = NegativeBinomialLikelihood(dispersion=0.3)
    model = BayesianPoissonRegressor(likelihood=likelihood).fit(X, y)
    draws = model.sample_y(X[:4], N_DRAWS, random_state=0)
    mass = np.exp(model.predict_log_density(X[:4], np.zeros(4)))
    np.testing.assert_allclose(mass, (draws == 0).mean(1), atol=0.012)


def test_another_divergence_is_that_under_the_scale():
    """Wrong variant: the scale is reported, and 1 is used."""
    X, f = data()
    X = 0.1 * X
    model = BayesianLogisticRegression(divergence="renyi").fit(X, f > 0)
    plain = BayesianLogisticRegression(divergence="renyi", prior=model.prior_["coef"])
    np.testing.assert_allclose(model.coef_, plain.fit(X, f > 0).coef_, rtol=1e-3)
