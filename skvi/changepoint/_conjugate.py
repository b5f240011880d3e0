"""Conjugate regressions: all hypotheses of several models at once.

The first axis, of size K, is that of hypotheses. There are G sets of p regressors, each
for O series, so that there are G * O series: G = 1 if all series share their
regressors, otherwise O = 1. Coefficients are normal with covariance sigma^2 V, and the
inverse of the Cholesky factor of V^-1 is stored: V = factor^T factor. A row changes
V^-1 by a matrix of rank one. Predictions are Student's t distributions.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import betaln, gammaln

from skvi.changepoint._filter import Group, assign
from skvi.changepoint._models import RegressionModel
from skvi.changepoint.base import BurnIn, Row, State

# The noise is known to rounding, and a further row still counts.
KNOWN_DF = 2.0**50
# From here on five terms of the asymptotic series are exact to rounding.
LARGE = 32.0


def log_gamma_ratio(shape: np.ndarray) -> np.ndarray:
    """Return log Gamma(shape + 1/2) - log Gamma(shape), without cancellation."""
    a = np.maximum(shape, LARGE)
    x = 1 / (a * a)
    series = 1 / 8 - x * (1 / 192 - x * (1 / 640 - x * (17 / 14336)))
    found = 0.5 * np.log(a) - series / a
    small = shape < LARGE
    if small.any():
        s = shape[small]
        found[small] = gammaln(s + 0.5) - gammaln(s)
    return found


def log_student(
    error: np.ndarray, shape: np.ndarray, rate: np.ndarray, leverage: np.ndarray
) -> np.ndarray:
    """Log density at a given distance from the mean.

    The mean is normal with variance ``leverage`` times that of the noise, and the
    variance of the noise is inverse gamma; all arrays broadcast.
    """
    width = 2 * rate * (1 + leverage)
    return (
        log_gamma_ratio(shape)
        - 0.5 * np.log(math.pi * width)
        - (shape + 0.5) * np.log1p(error * error / width)
    )


def student_variance(
    shape: np.ndarray, rate: np.ndarray, leverage: np.ndarray
) -> np.ndarray:
    """Variance of the same; infinite where the noise may be."""
    excess = shape - 1
    if excess.min(initial=1.0) <= 0:
        excess = np.where(excess > 0, excess, 0.0)
    with np.errstate(divide="ignore"):
        return rate * (1 + leverage) / excess


def log_power_integral(
    power: float, shape: np.ndarray, rate: np.ndarray, leverage: np.ndarray
) -> np.ndarray:
    """Log of the integral of the density to a power, at least 1."""
    width = 2 * rate * (1 + leverage)
    at_mode = log_gamma_ratio(shape) - 0.5 * np.log(math.pi * width)
    return (
        power * at_mode + 0.5 * np.log(width) + betaln(0.5, power * (shape + 0.5) - 0.5)
    )


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

    @staticmethod
    def ages(state: State, row: Row) -> np.ndarray:
        """Times since segments began, (K,), which the state keeps from their first row.

        The first segment may have begun in rows that only serve as the past.
        """
        begin = state["begin"]
        new = np.isnan(begin)
        begin[new] = row.time - (row.index - state["start"][new])
        return row.time - begin

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


class RegressionGroup(Group):
    """Regressions; shorter ones are padded with zero regressors.

    `temper`, the weight of every row, is the inverse of the weight of the KL
    divergence. The prior of models is normal inverse gamma: `mean` and, in units of the
    noise, `ratio` of coefficients, (n_models, n_series, p); `shape`, (n_models, 1), and
    `rate`, (n_models, n_series), of the noise.
    """

    def __init__(
        self,
        numbers: Sequence[int],
        models: Sequence[RegressionModel],
        burn_in: BurnIn,
        temper: Any,
    ) -> None:
        self.models, self.temper, self.unit = numbers, temper, burn_in.noise
        self.designs = Designs(models, burn_in)
        shape = (len(models), burn_in.n_series, max(self.designs.sizes))
        self.mean, self.ratio = np.zeros(shape), np.ones(shape)
        df = np.array([min(model.noise_df, KNOWN_DF) for model in models])
        self.shape = df[:, None] / 2
        noise = np.empty(shape[:2])
        for i, model in enumerate(models):
            given = model.noise_scale
            noise[i] = unit = burn_in.noise if given == "auto" else given
            if model.shares_design:
                unit = np.exp(np.log(noise[i]).mean())
            mean, scale = model.coefficient_prior(burn_in)
            self.mean[i, :, : len(mean)] = mean
            self.ratio[i, :, : len(scale)] = scale / np.reshape(unit, (-1, 1))
        self.rate = self.shape * noise**2

    def n_parameters(self) -> int:
        """See `Group.n_parameters`: coefficients and noise."""
        return self.mean.shape[1] * (self.mean.shape[2] + 1)


class ConjugateGroup(RegressionGroup):
    """Regressions under the log loss.

    Either all models have a design that the series share, or none has.
    """

    def prior(self) -> State:
        """See `Group.prior`."""
        n_models, n_series, p = self.mean.shape
        self.n_sets = 1 if self.designs.models[0].shares_design else n_series
        return {
            "factor": self.ratio[:, : self.n_sets, :, None] * np.eye(p),
            "mean": self.mean.reshape(n_models, self.n_sets, -1, p),
            "shape": np.tile(self.shape[..., None], (1, self.n_sets, 1)),
            "rate": self.rate.reshape(n_models, self.n_sets, -1),
        }

    def read(self, state: State, row: Row, usable: np.ndarray) -> Sequence[np.ndarray]:
        """See `Group.read`."""
        design = self.designs.of_hypotheses(
            self.designs.of_row(row, self.n_sets),
            state["member"],
            self.designs.ages(state, row),
        )
        factor, shape, rate = state["factor"], state["shape"], state["rate"]
        direction = (factor @ design[..., None])[..., 0]
        fit = (state["mean"] @ design[..., None])[..., 0]
        leverage = (direction * direction).sum(-1)[..., None]
        error = row.values.reshape(fit.shape[1:]) - fit
        density = log_student(error, shape, rate, leverage)
        variance = student_variance(shape, rate, leverage)
        found = [part.reshape(len(fit), -1) for part in (density, fit, variance)]
        if usable.any():
            gain = (direction[..., None, :] @ factor)[..., 0, :]
            step = self.temper * error / (1 + self.temper * leverage)
            learned = {
                "mean": state["mean"] + step[..., None] * gain[:, :, None],
                "rate": rate + 0.5 * step * error,
                "shape": shape + 0.5 * self.temper,
                "factor": downdate(factor, self.temper**0.5 * direction),
            }
            assign(state, learned, usable)
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
