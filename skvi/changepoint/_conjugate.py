"""Conjugate regressions of all hypotheses at once.

The first axis, of size K, is that of hypotheses. There are G sets of p regressors, each
for O series, so that there are G * O series: G = 1 if all series share their
regressors, otherwise O = 1. Coefficients are normal with covariance sigma^2 V, and the
inverse of the Cholesky factor of V^-1 is stored: V = factor^T factor. A row changes
V^-1 by a matrix of rank one.
"""

from collections.abc import Sequence

import numpy as np

from skvi.changepoint._rows import BurnIn, Row, State
from skvi.changepoint._student import log_student
from skvi.changepoint.base import RegressionModel

__all__ = ["Designs", "Regressions", "downdate", "noise_of", "prior_of"]


def noise_of(model: RegressionModel, burn_in: BurnIn) -> np.ndarray:
    """Return the prior standard deviation of the noise, (n_series,)."""
    if model.noise_scale == "auto":
        return burn_in.noise
    return np.full(burn_in.n_series, float(model.noise_scale))


def prior_of(model: RegressionModel, burn_in: BurnIn, p: int) -> State:
    """State before the first row, padded to p coefficients."""
    noise = noise_of(model, burn_in)
    mean, scale = model.coefficient_prior(burn_in)
    sets = np.exp(np.log(noise).mean(keepdims=True)) if model.shares_design else noise
    factor = np.zeros((len(sets), p, p))
    index = np.arange(p)
    factor[:, index, index] = 1.0
    used = index[: len(scale)]
    factor[:, used, used] = scale / sets[:, None]
    means = np.zeros((len(sets), len(noise) // len(sets), p))
    means[..., : len(mean)] = mean
    shape = np.full((len(sets), 1), model.noise_df / 2)
    rate = shape * (noise**2).reshape(len(sets), -1)
    return {"factor": factor, "mean": means, "shape": shape, "rate": rate}


class Designs:
    """Regressors of several models side by side; shorter ones are padded with zeros."""

    def __init__(self, models: Sequence[RegressionModel], burn_in: BurnIn) -> None:
        self.models = models
        self.sizes = [len(model.coefficient_prior(burn_in)[0]) for model in models]
        nobody = np.zeros(0, int)
        aged = [model.segment_regressors(nobody).shape[-1] for model in models]
        # Positions of the regressors that depend on the segment's age.
        self.aged = [slice(p - q, p) for p, q in zip(self.sizes, aged, strict=True)]
        self.any_aged = any(aged)

    def of_row(self, row: Row, n_sets: int) -> np.ndarray:
        """Regressors shared by all hypotheses of a model: (n_models, n_sets, p)."""
        found = np.zeros((len(self.models), n_sets, max(self.sizes)))
        for place, model in zip(found, self.models, strict=True):
            part = model.regressors(row)
            place[:, : part.shape[1]] = part
        return found

    def of_hypotheses(
        self, design: np.ndarray, member: np.ndarray, age: np.ndarray
    ) -> np.ndarray:
        """Regressors of hypotheses, (K or 1, n_sets, ..., p), at ages (K, ...)."""
        if len(design) == 1 and not self.any_aged:
            return design
        found = design[member]
        for i, (model, place) in enumerate(zip(self.models, self.aged, strict=True)):
            if place.stop > place.start:
                of = member == i
                found[of, ..., place] = model.segment_regressors(age[of])[:, None]
        return found


def downdate(factor: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """Factor of the inverse after a row: (F^T F)^-1 + phi phi^T, with direction F phi.

    The inverse Cholesky factor of I + d d^T multiplies F. Its lower triangle is an
    outer product: one cumulative sum replaces the loop over columns.
    """
    square = direction * direction
    after = 1 + np.cumsum(square, axis=-1)
    before = after - square
    scaled = direction[..., None] * factor
    earlier = np.cumsum(scaled, axis=-2) - scaled
    correction = (direction / before)[..., None] * earlier
    return np.sqrt(before / after)[..., None] * (factor - correction)


class Regressions:
    """Prediction of one row by all hypotheses, and the update of their posteriors.

    `state` has "factor" (K, G, p, p), "mean" (K, G, O, p), "shape" (K, G, 1) and "rate"
    (K, G, O); `design` are the regressors, (K or 1, G, p).
    """

    def __init__(self, state: State, design: np.ndarray) -> None:
        self.state = state
        column = design[..., None]
        self.direction = (state["factor"] @ column)[..., 0]
        self.fit = (state["mean"] @ column)[..., 0]
        self.leverage = (self.direction * self.direction).sum(-1)[..., None]

    def log_density(self, values: np.ndarray) -> np.ndarray:
        """Log density of a row, for every hypothesis and series: (K, n_series)."""
        shape, rate = self.state["shape"], self.state["rate"]
        self.error = values.reshape(self.fit.shape[1:]) - self.fit
        return log_student(self.error, shape, rate, self.leverage).reshape(
            len(rate), -1
        )

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the prediction, (K, n_series) each."""
        shape, rate = self.state["shape"], self.state["rate"]
        excess = np.where(shape > 1, shape - 1, np.nan)
        variance = np.where(shape > 1, rate * (1 + self.leverage) / excess, np.inf)
        return self.fit.reshape(len(rate), -1), variance.reshape(len(rate), -1)

    def learned(self, temper: float = 1.0) -> State:
        """Updated state, with the last evaluated row at the given weight."""
        factor, width = self.state["factor"], 1 + temper * self.leverage
        gain = (self.direction[..., None, :] @ factor)[..., 0, :]
        step = temper * self.error / width
        return {
            "mean": self.state["mean"] + step[..., None] * gain[:, :, None],
            "rate": self.state["rate"] + 0.5 * step * self.error,
            "shape": self.state["shape"] + 0.5 * temper,
            "factor": downdate(factor, temper**0.5 * self.direction),
        }
