"""Weighting hypotheses by rows: the loss, its order, the predictions."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from skvi.changepoint._groups import Reading

__all__ = ["Judge", "Judgment", "beta_gain", "predict"]


@dataclass(frozen=True)
class Judgment:
    """Log density of rows under every hypothesis, and the gain, (R, K) each."""

    density: np.ndarray
    gain: np.ndarray


class Judge:
    """The loss by which hypotheses are weighted.

    `power` is beta - 1, None for the log loss. The beta loss depends on units: `noise`,
    (n_series,), has those of its densities.
    """

    def __init__(self, power: float | None, noise: np.ndarray) -> None:
        self.power = power
        self.log_unit = np.log(noise)[:, None]

    def __call__(self, readings: Sequence[Reading], usable: np.ndarray) -> Judgment:
        """Evaluate all hypotheses on the usable values of rows, (R, n_series)."""
        density = joined([total(reading.log_density, usable) for reading in readings])
        if self.power is None:
            return Judgment(density, density)
        return Judgment(density, self._gain(readings, usable, self.power))

    def _gain(
        self, readings: Sequence[Reading], usable: np.ndarray, power: float
    ) -> np.ndarray:
        found = []
        for reading in readings:
            integral = reading.log_power_integral(1 + power) + power * self.log_unit
            gain = beta_gain(power, reading.log_density + self.log_unit, integral)
            found.append(total(gain - self.log_unit, usable))
        return joined(found)


def beta_gain(power: float, score: np.ndarray, integral: np.ndarray) -> np.ndarray:
    """Minus the beta loss of log densities, plus a constant; identity at power 0."""
    return np.expm1(power * score) / power - np.expm1(integral) / (1 + power)


def joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """One array of all hypotheses of all groups."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)


def total(values: np.ndarray, usable: np.ndarray) -> np.ndarray:
    """Sum over those series of rows that are usable: (R, K)."""
    if not usable.all():
        values = np.where(usable[..., None], values, 0.0)
    return values[:, 0] if values.shape[1] == 1 else values.sum(1)


def predict(
    readings: Sequence[Reading], weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Predictive mean and standard deviation over all hypotheses, (R, n_series) each.

    In units in which models see the series, from probabilities (R, K) before the rows.
    """
    means = joined([reading.mean for reading in readings])
    variances = joined([reading.variance for reading in readings])
    mean = np.einsum("rk,rsk->rs", weight, means)
    gap = means - mean[..., None]
    variance = np.einsum("rk,rsk->rs", weight, variances)
    if np.isnan(variance).any():  # infinite ones without weight do not count
        variances = np.where(weight[:, None] > 0, variances, 0.0)
        variance = np.einsum("rk,rsk->rs", weight, variances)
    gap *= gap
    return mean, np.sqrt(variance + np.einsum("rk,rsk->rs", weight, gap))
