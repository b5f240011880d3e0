"""Student-t and negative binomial regressions in numpy, for long chains."""

import os
from pathlib import Path

import numpy as np
from scipy import stats
from scipy.optimize import minimize
from scipy.special import gammaln
from sklearn.datasets import load_diabetes
from sklearn.preprocessing import scale

DF, PRIOR_SCALE, INTERCEPT_SCALE = 4.0, 1.0, 10.0


def _table(name, file="data.txt", **options):
    return np.loadtxt(Path(os.environ["SKVI_DATA"], name, file), **options)


def data_of(name):
    """Standardized features, and a target in its own units."""
    if name == "boston":
        table = _table("bostonHousing")
        return scale(table[:, :-1]), table[:, -1]
    if name == "pregnancies":
        file = "pima-indians-diabetes.data"
        table = _table("pima", file, delimiter=",")
        return scale(table[:, 1:]), table[:, 0]
    X, y = load_diabetes(return_X_y=True)
    return scale(X), y


class Posterior:
    """Log joint density of (coef, intercept, log of a number), and a normal near it."""

    scale = None

    def __init__(self, X, y):
        self.A, self.y = np.column_stack([X, np.ones(len(y))]), y
        self.widths = np.full(self.A.shape[1], PRIOR_SCALE)
        self.widths[-1] = INTERCEPT_SCALE

    def log_joint(self, theta):
        """In nats, (S,)."""
        theta = np.atleast_2d(theta)
        coef, number = theta[:, :-1], theta[:, -1:]
        prior = stats.norm.logpdf(coef, 0, self.widths).sum(1)
        likelihood = self.log_likelihood(coef @ self.A.T, number).sum(1)
        return prior + self.log_prior(number[:, 0]) + likelihood

    def mode(self):
        """Mode, and a root of the covariance of a normal there."""

        def negative(theta):
            return -self.log_joint(theta[None])[0]

        start = np.zeros(self.A.shape[1] + 1)
        start[-2] = self.start
        found = minimize(negative, start, method="BFGS").x
        step = 1e-3
        shifts = step * np.eye(len(found))
        points = found + shifts[:, None] + shifts[None]
        both = -self.log_joint(points.reshape(-1, len(found))).reshape(2 * [len(found)])
        single = -self.log_joint(found + shifts)
        hessian = (both - single - single[:, None] + negative(found)) / step**2
        covariance = np.linalg.inv(0.5 * (hessian + hessian.T))
        return found, np.linalg.cholesky(covariance)


class StudentT(Posterior):
    """Of a standardized target; the number is the scale, 1 / scale^2 ~ Gamma(a, a)."""

    start = 0.0

    def log_likelihood(self, f, log_scale):
        z = (self.y - f) / np.exp(log_scale)
        return stats.t.logpdf(z, DF) - log_scale

    def log_prior(self, log_scale, a=1e-6):
        t = -2 * log_scale
        log_density = a * np.log(a) - gammaln(a) + a * t - a * np.exp(t)
        return log_density + np.log(2)


class NegativeBinomial(Posterior):
    """The number is the dispersion, with an exponential prior of mean 1."""

    @property
    def start(self):
        return np.log(self.y.mean())

    def log_likelihood(self, f, log_alpha):
        r, y = np.exp(-log_alpha), self.y
        constant = gammaln(y + r) - gammaln(r) - gammaln(y + 1)
        log_total = np.logaddexp(np.log(r), f)
        return constant + r * (np.log(r) - log_total) + y * (f - log_total)

    def log_prior(self, log_alpha):
        return log_alpha - np.exp(log_alpha)
