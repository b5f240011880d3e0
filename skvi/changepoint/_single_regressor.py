"""Regressions on one regressor, such as a constant: many rows at once.

The precision of the coefficient, precision times mean, and the number of rows are sums
over rows; and given these, the sum of squares is one. So a window of rows is read by
few operations on arrays of rows times hypotheses.
"""

from collections.abc import Sequence

import numpy as np

from skvi.changepoint._conjugate import noise_of
from skvi.changepoint._groups import Group, Reading
from skvi.changepoint._student import GammaRatios
from skvi.changepoint.base import BurnIn, RegressionModel, Row, State

__all__ = ["SingleRegressorGroup"]

SUMS = ("precision", "shift", "n_rows")


class SingleRegressorGroup(Group):
    """Regressions with one coefficient per series, under the log loss.

    Parameters
    ----------
    numbers : sequence of int
    models : sequence of RegressionModel
    burn_in : BurnIn
    temper : float
        Weight of every row: the inverse of the weight of the KL divergence.
    """

    rows_at_once = 32

    def __init__(
        self,
        numbers: Sequence[int],
        models: Sequence[RegressionModel],
        burn_in: BurnIn,
        temper: float = 1.0,
    ) -> None:
        self.models, self.members, self.burn_in = numbers, models, burn_in
        self.temper = temper
        self.shapes = np.array([model.noise_df / 2 for model in models])
        self.ratios = GammaRatios(self.shapes, temper / 2)

    def prior(self) -> State:
        """See `Group.prior`."""
        noise = np.stack([noise_of(model, self.burn_in) for model in self.members])
        priors = [model.coefficient_prior(self.burn_in) for model in self.members]
        mean, scale = np.array(priors)[:, :, 0].T[..., None]
        precision = (noise / scale) ** 2
        return {
            "precision": precision,
            "shift": precision * mean,
            "n_rows": np.zeros(noise.shape),
            "rate": self.shapes[:, None] * noise**2,
        }

    def design(self, rows: Sequence[Row], member: np.ndarray) -> np.ndarray:
        """Regressors of rows, (R, 1 or n_series, 1 or K)."""
        parts = [
            np.array([model.regressors(row) for row in rows])[..., 0]
            for model in self.members
        ]
        if len(parts) == 1:
            return parts[0][:, :, None]
        return np.stack(np.broadcast_arrays(*parts), -1)[:, :, member]

    def read(
        self, state: State, rows: Sequence[Row], usable: np.ndarray, born: np.ndarray
    ) -> Reading:
        """See `Group.read`."""
        member, n = state["member"], len(rows)
        values = np.stack([row.values for row in rows])[..., None]
        design = self.design(rows, member)
        weight = self.temper * np.where(np.isfinite(design), design, 0.0)
        exists = np.arange(len(member)) < born[:, None]
        counts = (exists[:, None] & usable[..., None]).astype(float)
        sums = np.empty((1 + n, len(SUMS), *counts.shape[1:]))
        rate = np.empty((1 + n, *counts.shape[1:]))
        for place, name in zip(sums[0], SUMS, strict=True):
            place[...] = state[name].T
        rate[0] = state["rate"].T
        np.multiply(counts, weight * design, out=sums[1:, 0])
        np.multiply(counts, weight * values, out=sums[1:, 1])
        sums[1:, 2] = counts
        for i in range(n):
            sums[i + 1] += sums[i]
        precision, shift, n_rows = np.moveaxis(sums[:-1], 1, 0)
        widening = design * design / precision
        mean = design * shift
        mean /= precision
        half = values - mean
        half *= half
        half *= 0.5
        np.divide(half * self.temper, 1 + self.temper * widening, out=rate[1:])
        rate[1:] *= counts
        for i in range(n):
            rate[i + 1] += rate[i]
        for found, name in zip(sums[-1], SUMS, strict=True):
            state[name][...] = found.T
        state["rate"][...] = rate[-1].T
        return self._reading(mean, half, rate[:-1], widening, member, n_rows)

    def _reading(
        self,
        mean: np.ndarray,
        half: np.ndarray,
        rate: np.ndarray,
        widening: np.ndarray,
        member: np.ndarray,
        n_rows: np.ndarray,
    ) -> Reading:
        """Student's t densities, with gamma functions from a table; uses half up."""
        shape = (0.5 * self.temper) * n_rows
        shape += self.shapes[member]
        widening += 1
        widening *= rate
        half /= widening
        np.log1p(half, out=half)
        half *= shape + 0.5
        density = self.ratios(member, n_rows)
        density -= half
        np.log(widening, out=half)
        half *= 0.5
        density -= half
        shape -= 1
        if shape.min() > 0:
            widening /= shape
            return Reading(density, mean, widening)
        variance = np.full(shape.shape, np.inf)
        np.divide(widening, shape, out=variance, where=shape > 0)
        return Reading(density, mean, variance)
