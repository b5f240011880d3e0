"""Judging hypotheses by the next row: predictions, the loss, its order."""

from dataclasses import dataclass

import numpy as np

from skvi.changepoint._filter import Filter
from skvi.changepoint.base import Row

__all__ = ["Judge", "Judgement", "beta_gain", "predict"]

# Steps of the logarithm of beta - 1, and its range.
STEP, LARGEST_STEP = 0.05, 0.25
SMALLEST, LARGEST = 0.01, 1.0
# Relative step of numerical derivatives in beta - 1.
DIFFERENCE = 1e-4


@dataclass(frozen=True)
class Judgement:
    """Log density of a row by every hypothesis, what it gains, and the gain's slope.

    Of shape (K,); the slope is in beta - 1, and there only where it is adapted.
    """

    density: np.ndarray
    gain: np.ndarray
    slope: np.ndarray | None


class Judge:
    """The loss by which hypotheses are judged.

    Parameters
    ----------
    power : float or None
        beta - 1; None for the log loss.
    adapts : bool
        Whether it takes a step after each row.
    noise : ndarray of shape (n_series,)
        The beta loss is that of densities in these units: it depends on units.
    """

    def __init__(self, power: float | None, adapts: bool, noise: np.ndarray) -> None:
        self.power, self.adapts, self.log_unit = power, adapts, np.log(noise)

    def __call__(
        self, filter_: Filter, row: Row, usable: np.ndarray | None
    ) -> Judgement:
        """Judge all hypotheses by the usable series of a row; None if all are."""
        kept = slice(None) if usable is None else usable
        density, gains, slopes = [], [], []
        for group, store in zip(filter_.groups, filter_.stores, strict=True):
            state = store.view()
            score = group.score(state, row)[:, kept]
            density.append(score.sum(1))
            if self.power is None:
                continue
            score = score + self.log_unit[kept]

            def gain(power: float) -> np.ndarray:
                integral = group.log_power_integral(state, 1 + power)  # noqa: B023
                integral = (integral + power * self.log_unit)[:, kept]
                gain = beta_gain(power, score, integral)  # noqa: B023
                return (gain - self.log_unit[kept]).sum(1)

            gains.append(gain(self.power))
            if self.adapts:
                step = DIFFERENCE * self.power
                change = gain(self.power + step) - gain(self.power - step)
                slopes.append(change / (2 * step))
        scores = np.concatenate(density)
        return Judgement(
            scores,
            np.concatenate(gains) if gains else scores,
            np.concatenate(slopes) if slopes else None,
        )

    def adapt(self, filter_: Filter, row: Row, usable: np.ndarray) -> None:
        """Step down the gradient of the absolute error of the prediction of a row."""
        if self.power is None or not self.adapts or not usable.any():
            return
        weight = np.exp(filter_.gather("log_weight"))
        means, _ = all_moments(filter_, row)
        mean = weight @ means
        slope = (weight * filter_.gather("tilt")) @ (means - mean)
        error = mean - row.values
        gradient = self.power * (np.sign(error) * slope)[usable].sum()
        step = np.clip(STEP * gradient, -LARGEST_STEP, LARGEST_STEP)
        self.power = float(np.clip(self.power * np.exp(-step), SMALLEST, LARGEST))


def beta_gain(power: float, score: np.ndarray, integral: np.ndarray) -> np.ndarray:
    """Minus the beta loss of log densities, plus a constant: themselves at power 0."""
    return np.expm1(power * score) / power - np.expm1(integral) / (1 + power)


def all_moments(filter_: Filter, row: Row) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances of a row by every hypothesis, (K, n_series) each."""
    parts = [
        group.moments(store.view(), row)
        for group, store in zip(filter_.groups, filter_.stores, strict=True)
    ]
    if len(parts) == 1:
        return parts[0]
    means, variances = zip(*parts, strict=True)
    return np.concatenate(means), np.concatenate(variances)


def predict(filter_: Filter, row: Row) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of a row by all hypotheses, (n_series,) each.

    In units in which models see the series; the hypotheses have branched.
    """
    weight = np.exp(filter_.gather("log_weight"))[:, None]
    means, variances = all_moments(filter_, row)
    mean = (weight * means).sum(0)
    variance = (weight * (variances + (means - mean) ** 2)).sum(0)
    return mean, np.sqrt(variance)
