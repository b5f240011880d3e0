"""Parts of a prediction's uncertainty, against draws of parameters and of targets."""

import numpy as np
import pytest
from scipy.special import entr, log_softmax, softmax
from sklearn.base import is_classifier

from skvi.linear_model import BayesianLinearRegression, BayesianPoissonRegressor
from skvi.priors import Normal
from tests.problems import data, fitted

pytestmark = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::skvi.exceptions.SkviWarning",
)
N_DRAWS = 4000


def close(found, draws, n_se=4):
    """A mean of draws, (n, S), within standard errors."""
    error = draws.std(1) / np.sqrt(draws.shape[1])
    np.testing.assert_array_less(np.abs(found - draws.mean(1)), n_se * error + 1e-9)


def test_linear_functions_vary_as_their_coefficients():
    """Known noise: closed forms. Wrong variant: noise in the units of the fit."""
    X, y = data("linear")
    model = BayesianLinearRegression(noise_scale=0.8, prior=Normal(1.5)).fit(X, y)
    parts = model.predict_uncertainty(X)
    np.testing.assert_allclose(parts["noise_std"], 0.8)
    draws = model.sample_posterior(N_DRAWS, random_state=0)
    f = X @ draws["coef"].T + draws["intercept"]
    squares = np.square(f - model.predict(X)[:, None])
    close(parts["function_std"] ** 2, squares)
    pair = model.fit(X, np.c_[y, -3 * y]).predict_uncertainty(X)
    assert pair["noise_std"].shape == (30, 2)


def test_counts_against_simulated_ones():
    """Wrong variant: the dispersion is left out of the noise."""
    X, y = data("negative binomial")
    model = fitted("negative binomial")
    parts = model.predict_uncertainty(X)
    draws = model.sample_posterior(50_000, random_state=0)
    rates = np.exp(X @ draws["coef"][:, 0].T + draws["intercept"][:, 0])
    close(parts["noise_std"] ** 2, rates + 0.5 * rates**2, 5)
    close(parts["function_std"] ** 2, (rates - model.predict(X)[:, None]) ** 2, 5)
    years = np.full(30, 4.0)
    poisson = BayesianPoissonRegressor(prior="normal").fit(X, y, exposure=years)
    long = poisson.predict_uncertainty(X, exposure=years)
    short = poisson.predict_uncertainty(X)
    ratios = [long[name] / short[name] for name in ("noise_std", "function_std")]
    np.testing.assert_allclose(ratios, [[2.0] * 30, [4.0] * 30])


@pytest.mark.parametrize("name", ["logistic", "multinomial", "mlp, classes"])
def test_information_of_labels(name):
    """Entropy of the average minus average entropy, from draws of parameters.

    Wrong variants: the divergence in the other direction; averages of logarithms.
    """
    model, X = fitted(name), data(name)[0][:12]
    assert is_classifier(model)
    parts = model.predict_uncertainty(X)
    p = model.predict_proba(X)
    np.testing.assert_allclose(parts["entropy"], entr(p).sum(1), rtol=1e-9)
    if "mlp" in name:
        f = model._drawn().by_rows(X, lambda f: f.transpose(0, 1))
    else:
        draws = model.sample_posterior(N_DRAWS, random_state=0)
        f = np.einsum("nd,skd->nsk", X, draws["coef"]) + draws["intercept"]
        f = np.concatenate([0 * f, f], 2) if f.shape[2] == 1 else f
    kl = (softmax(f, 2) * (log_softmax(f, 2) - np.log(p)[:, None])).sum(2)
    if "mlp" in name:
        np.testing.assert_allclose(parts["mutual_information"], kl.mean(1), rtol=1e-9)
        given = entr(softmax(f, 2)).sum(2).mean(1)
        rest = parts["entropy"] - parts["mutual_information"]
        np.testing.assert_allclose(rest, given, rtol=1e-9)
    else:
        close(parts["mutual_information"], kl)
