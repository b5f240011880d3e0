"""Small problems of model selection with exact evidences, for EvidenceSearch."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq, minimize_scalar
from scipy.special import log_expit, logsumexp
from scipy.stats import multivariate_normal, norm
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures

from skvi.linear_model import BayesianLinearRegression, BayesianLogisticRegression

NOISE = 0.4


class Columns(TransformerMixin, BaseEstimator):
    """Some of the features."""

    def __init__(self, columns=(0,)):
        self.columns = columns

    def fit(self, X, y=None):
        self.n_features_in_ = X.shape[1]
        return self

    def transform(self, X):
        return X[:, list(self.columns)]


def normal_evidence(features, y, scale, noise=NOISE):
    """Log density of y with coefficients integrated out: a multivariate normal.

    The intercept has the prior N(0, 1), and features are centered.
    """
    features = features - features.mean(0)
    covariance = noise**2 * np.eye(len(y)) + scale**2 * (features @ features.T) + 1
    return multivariate_normal(np.zeros(len(y)), covariance).logpdf(y)


def regression(**params):
    priors = {"prior": "normal", "intercept_prior": "normal"}
    return BayesianLinearRegression(
        noise_scale=NOISE, normalize_y=False, **priors, **params
    )


@dataclass
class Problem:
    """A pipeline, its candidates, and data of which one candidate is the truth."""

    estimator: Any
    name: str
    values: list
    truth: int
    draw: Any  # generator -> X, y
    features: Any  # X, value -> features
    scale: Any  # value -> prior scale

    def grid(self):
        return {self.name: self.values}

    def exact(self, X, y):
        return np.array(
            [
                normal_evidence(self.features(X, value), y, self.scale(value))
                for value in self.values
            ]
        )


def _polynomial(rng):
    X = rng.uniform(-1, 1, (40, 1))
    coef = rng.choice([-1.0, 1.0], 3) * rng.uniform(0.5, 1.5, 3)
    y = np.vander(X[:, 0], 4, increasing=True)[:, 1:] @ coef
    return X, y + NOISE * rng.normal(size=40)


def _scaled(rng):
    X = rng.normal(size=(40, 8))
    return X, X @ rng.normal(size=8) + NOISE * rng.normal(size=40)


def _subset(rng):
    X = rng.normal(size=(40, 4))
    y = X[:, :2] @ rng.normal(size=2) + NOISE * rng.normal(size=40)
    return X, y


PROBLEMS = {
    "degree": Problem(
        make_pipeline(PolynomialFeatures(include_bias=False), regression()),
        "polynomialfeatures__degree",
        [1, 2, 3, 4],
        2,
        _polynomial,
        lambda X, degree: X ** np.arange(1, degree + 1),
        lambda degree: 1.0,
    ),
    "scale": Problem(
        make_pipeline(Columns(tuple(range(8))), regression()),
        "bayesianlinearregression__prior__scale",
        [0.2, 1.0, 5.0],
        1,
        _scaled,
        lambda X, scale: X,
        lambda scale: scale,
    ),
    "subset": Problem(
        make_pipeline(Columns(), regression()),
        "columns__columns",
        [(0,), (1,), (0, 1), (0, 1, 2), (0, 1, 2, 3)],
        2,
        _subset,
        lambda X, columns: X[:, list(columns)],
        lambda columns: 1.0,
    ),
}


def scales_apart(log_evidence, difference):
    """The prior scale of highest evidence, and a wider one that is so much worse."""
    found = minimize_scalar(
        lambda t: -log_evidence(np.exp(t)), bounds=(-2.0, 1.5), method="bounded"
    )
    best = float(np.exp(found.x))
    target = log_evidence(best) - difference
    worse = brentq(lambda t: log_evidence(np.exp(t)) - target, np.log(best), 6.0)
    return best, float(np.exp(worse))


def linear_pair(difference, rng):
    """Two scales for a linear regression, with the exact evidence."""
    X, y = _scaled(rng)
    scales = scales_apart(lambda scale: normal_evidence(X, y, scale), difference)
    return regression(), scales, X, y


GRID = np.arange(-400, 401) * 0.1


def logistic_pair(difference, rng):
    """Two scales for a logistic regression; the evidence by quadrature in the plane."""
    X = rng.normal(size=(40, 1))
    y = (rng.uniform(size=40) < 1 / (1 + np.exp(-1.0 * X[:, 0] - 0.5))).astype(int)
    f = GRID[:, None, None] + GRID[:, None] * (X[:, 0] - X.mean())
    log_likelihood = log_expit(np.where(y == 1, f, -f)).sum(-1)

    def log_evidence(scale):
        intercept, coef = (norm.logpdf(GRID, scale=s) for s in (1.0, scale))
        log_joint = log_likelihood + intercept[:, None] + coef
        return logsumexp(log_joint) + 2 * np.log(0.1)  # the rule of trapezia

    scales = scales_apart(log_evidence, difference)
    model = BayesianLogisticRegression(prior="normal", intercept_prior="normal")
    return model, scales, X, y


PAIRS = [linear_pair, logistic_pair]
