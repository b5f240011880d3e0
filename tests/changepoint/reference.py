"""The recursion computed directly: every segment on its own, by batch formulas, O(t^2).

Nothing here is updated row by row: evidences of segments come from determinants, and
what the detector computes by recursion comes from sums over pairs of rows.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import betaln, gammaln, logsumexp
from scipy.stats import multivariate_normal

from skvi.changepoint import (
    BernoulliTrials,
    PoissonCounts,
)


def regression_evidence(y, A, scale, noise, df, prior_scale_noise=None):
    """Log evidence of one series: normal inverse gamma prior, from determinants."""
    n = len(A)
    v0 = np.diag((scale / (prior_scale_noise or noise)) ** 2)
    a0, b0 = df / 2, df / 2 * noise**2
    precision = np.linalg.inv(v0) + A.T @ A
    mean = np.linalg.solve(precision, A.T @ y)
    b = b0 + 0.5 * (y @ y - mean @ precision @ mean)
    a = a0 + n / 2
    return (
        a0 * np.log(b0)
        - a * np.log(b)
        + gammaln(a)
        - gammaln(a0)
        - 0.5 * np.linalg.slogdet(precision @ v0)[1]
        - n / 2 * np.log(2 * np.pi)
    )


def design(model, X, features, j, rows, start):
    """Regressors of series j in a segment from row `start` on, and prior deviations."""
    columns, scale = [np.ones(len(rows))], [model.mean_scale]
    if model.trend:
        columns.append((rows - start) / 100)
        scale.append(model.slope_scale)
    own = slice(None) if model.across else slice(j, j + 1)
    linear = [X[rows - i - 1, own].T for i in range(model.order)]
    if model.features:
        linear.append(features[rows].T)
    columns.extend(column for columns_ in linear for column in columns_)
    coef_scale = model.coef_scale
    if coef_scale == "auto":
        coef_scale = 0.3 if model.across else 1.0
    scale.extend([coef_scale] * (len(columns) - len(scale)))
    return np.column_stack(columns), np.array(scale)


def series_evidence(model, X, features, j, rows, noise, mean, start):
    """Log evidence of the rows of one series under one model."""
    y = X[rows, j]
    if not len(rows):
        return 0.0
    if isinstance(model, PoissonCounts):
        a, b = model.shape, model.shape / max(mean[j], 0.1)
        return (
            gammaln(a + y.sum())
            - gammaln(a)
            + a * np.log(b)
            - (a + y.sum()) * np.log(b + len(y))
            - gammaln(y + 1).sum()
        )
    if isinstance(model, BernoulliTrials):
        ones, zeros = model.ones + y.sum(), model.zeros + len(y) - y.sum()
        return betaln(ones, zeros) - betaln(model.ones, model.zeros)
    sigma = noise[j] if model.noise_scale == "auto" else model.noise_scale
    common = None
    if model.across and model.noise_scale == "auto":
        common = np.exp(np.log(noise).mean())
    A, scale = design(model, X, features, j, rows, start)
    if np.isinf(model.noise_df):
        prior = sigma / (common or sigma) * scale
        cov = sigma**2 * np.eye(len(y)) + (A * prior**2) @ A.T
        return multivariate_normal(np.zeros(len(y)), cov).logpdf(y)
    return regression_evidence(y, A, scale, sigma, model.noise_df, common)


@dataclass
class Reference:
    """Everything that follows from the evidences of segments."""

    segments: np.ndarray  # log evidence of rows s, ..., t-1 by model m: (n, n+1, m)
    log_hazard: np.ndarray  # of lengths 0, 1, ..., n
    log_survival: np.ndarray
    log_prior: np.ndarray
    first: int  # the first row that a new segment may begin after

    def __post_init__(self):
        n, m = len(self.segments), len(self.log_prior)
        self.n = n
        # joint[t, s, m]: of rows before t and a present segment from s on by model m
        self.joint = np.full((n + 1, n, m), -np.inf)
        starts = [0, *range(self.first + 1, n)]
        for s in starts:
            before = 0.0 if s == 0 else self.ending(s)
            for t in range(max(s, self.first) + 1, n + 1):
                self.joint[t, s] = before + self.open(s, t)

    def open(self, s, t):
        """Log weight of a segment that begins at s and is not over before row t."""
        lengths = np.arange(max(s, self.first) + 1, t) - s
        return self.log_prior + self.segments[s, t] + self.log_survival[lengths].sum()

    def ending(self, s):
        """Log joint of rows before s and that a segment ends there, all models."""
        over = self.log_hazard[s - np.arange(self.n)]
        over[s:] = -np.inf
        return logsumexp(self.joint[s] + over[:, None])

    @property
    def log_evidence(self):
        return logsumexp(self.joint[self.n])

    def posterior(self, t=None):
        """Of first row and model of the present segment, (n, m)."""
        joint = self.joint[self.n if t is None else t]
        return np.exp(joint - logsumexp(joint))

    def smoothed(self):
        """Probability of every row to begin a segment: forward times backward."""
        n = self.n
        after = np.full(n + 1, -np.inf)  # of rows from s on, if a segment begins at s
        for s in range(n - 1, 0, -1):
            terms = [logsumexp(self.open(s, n))]
            for t in range(s + 1, n):
                last = self.log_hazard[t - s]
                terms.append(logsumexp(self.open(s, t)) + last + after[t])
            after[s] = logsumexp(terms)
        found = np.zeros(n)
        for s in range(self.first + 1, n):
            found[s] = np.exp(self.ending(s) + after[s] - self.log_evidence)
        return found


def make_reference(
    models, X, *, hazard, features=None, model_prior=None, noise=None, mean=None
):
    """Evidences of all segments; X has NaN where missing."""
    n, d = X.shape
    features = np.zeros((n, 0)) if features is None else features
    noise = np.ones(d) if noise is None else noise
    order = max(model.order for model in models)
    seen = np.isfinite(X)
    usable = np.zeros((n, d), bool)
    for t in range(order, n):
        window = seen[t - order : t + 1]
        usable[t] = window.all(0)
        if any(getattr(m, "across", False) for m in models):
            usable[t] &= usable[t].all()
    segments = np.full((n, n + 1, len(models)), -np.inf)
    for s in range(n):
        for t in range(s, n + 1):
            for k, model in enumerate(models):
                segments[s, t, k] = sum(
                    series_evidence(
                        model,
                        X,
                        features,
                        j,
                        s + np.flatnonzero(usable[s:t, j]),
                        noise,
                        mean,
                        s,
                    )
                    for j in range(d)
                )
    lengths = np.arange(1, n + 1)
    p = np.concatenate([[0.0], hazard.probability(lengths)])
    prior = (
        np.full(len(models), 1 / len(models)) if model_prior is None else model_prior
    )
    with np.errstate(divide="ignore"):
        return Reference(segments, np.log(p), np.log1p(-p), np.log(prior), order)
