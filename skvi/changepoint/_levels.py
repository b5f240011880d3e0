"""Noise around a level, for all hypotheses and many rows at once.

The sufficient statistics of a segment are cumulative sums over its rows, so that a
window of rows is read by a few operations on arrays of rows times hypotheses.
"""

import math
from collections.abc import Sequence

import numpy as np

from skvi.changepoint._conjugate import noise_of
from skvi.changepoint._groups import Group, Reading
from skvi.changepoint._rows import BurnIn, State, Window
from skvi.changepoint._student import log_gamma_ratio
from skvi.changepoint.base import RegressionModel

__all__ = ["LevelGroup"]


class LevelGroup(Group):
    """Regressions on a constant, under the log loss.

    `temper`, the weight of every row, is the inverse of the weight of the KL
    divergence.
    """

    rows_at_once = 32

    def __init__(
        self,
        numbers: Sequence[int],
        models: Sequence[RegressionModel],
        burn_in: BurnIn,
        temper: float = 1.0,
    ) -> None:
        self.models, self.temper = numbers, temper
        self.noise = np.stack([noise_of(model, burn_in) for model in models])
        priors = np.array([model.coefficient_prior(burn_in) for model in models])
        self.mean, scale = priors[:, 0], priors[:, 1]
        # Prior weight of the level, in rows: (n_models, n_series).
        self.precision = (self.noise / scale) ** 2
        self.shapes = np.array([model.noise_df / 2 for model in models])

    def prior(self) -> State:
        """See `Group.prior`."""
        return {
            "total": self.precision * self.mean,
            "n_rows": np.zeros(self.noise.shape),
            "rate": self.shapes[:, None] * self.noise**2,
        }

    def n_parameters(self) -> int:
        """See `Group.n_parameters`: level and noise."""
        return 2 * self.noise.shape[1]

    def read(
        self, state: State, rows: Window, usable: np.ndarray, born: np.ndarray
    ) -> Reading:
        """See `Group.read`."""
        member, n, head = state["member"], len(rows), int(born[0])
        values, seen = rows.values[..., None], usable[..., None] * 1.0
        # Hypotheses that begin in one of the rows; the others exist in all of them.
        exists = (np.arange(head, len(member)) < born[:, None])[:, None] * 1.0
        total, n_rows, rate = np.empty((3, n + 1, usable.shape[1], len(member)))
        total[0], total[1:] = state["total"].T, self.temper * seen * values
        total[1:, :, head:] *= exists
        accumulate(total)
        n_rows[0], n_rows[1:] = state["n_rows"].T, seen
        n_rows[1:, :, head:] *= exists
        accumulate(n_rows)
        state["n_rows"][...], state["total"][...] = n_rows[-1].T, total[-1].T
        n_rows = n_rows[:-1]
        weight = n_rows if self.temper == 1 else n_rows * self.temper
        precision = weight + self.precision[member].T
        mean = total[:-1] / precision
        half = values - mean
        half *= half
        half *= 0.5
        np.divide(self.temper, precision, out=precision)
        precision += 1
        rate[0] = state["rate"].T
        np.divide(half, precision, out=rate[1:])
        rate[1:, :, head:] *= exists
        if self.temper != 1 or not usable.all():
            rate[1:] *= self.temper * seen
        accumulate(rate)
        state["rate"][...] = rate[-1].T
        if self.temper != 1:  # the scale of predictions, not that of the posterior
            precision -= 1
            precision /= self.temper
            precision += 1
        return self._reading(mean, half, precision, rate[:-1], member, n_rows)

    def _reading(
        self,
        mean: np.ndarray,
        half: np.ndarray,
        width: np.ndarray,
        rate: np.ndarray,
        member: np.ndarray,
        n_rows: np.ndarray,
    ) -> Reading:
        """Student's t densities.

        `half` are half the squared errors and `width` 1 + the variance of the level, in
        units of that of the noise; both are overwritten.
        """
        shape = n_rows * (0.5 * self.temper)
        shape += self.shapes[member]
        density = log_gamma_ratio(shape)
        density -= 0.5 * math.log(2 * math.pi)
        shape += 0.5
        width *= rate
        half /= width
        np.log1p(half, out=half)
        half *= shape
        density -= half
        np.log(width, out=half)
        half *= 0.5
        density -= half
        shape -= 1.5
        if self.shapes.min() > 1:
            width /= shape
            return Reading(density, mean, width)
        variance = np.full(shape.shape, np.inf)
        np.divide(width, shape, out=variance, where=shape > 0)
        return Reading(density, mean, variance)


def accumulate(rows: np.ndarray) -> None:
    """Sums over the first axis, in place; faster than one call of numpy for it."""
    add = np.add
    before = rows[0]
    for row in rows[1:]:
        add(before, row, row)
        before = row
