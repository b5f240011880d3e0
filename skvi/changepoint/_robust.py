"""Robust regressions: hypotheses whose posteriors minimize the beta loss.

For every hypothesis each series has its own normal inverse gamma posterior. Its natural
parameters are those of the prior plus one site for every row of the segment (see
`_beta`). The sites of the last rows are found together with the posterior, as the fixed
point of its optimum: for segments no longer than the window, that is the optimum over
all their rows. Posteriors of longer segments take one step per row, and the sites of
their older rows stay as they were when they left the window; the posterior of so many
rows hardly changes any more, so that these sites are nearly optimal, and the cost per
row does not grow.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from skvi.changepoint import _student
from skvi.changepoint._beta import Sites, sites
from skvi.changepoint._conjugate import Designs, noise_of
from skvi.changepoint._groups import Group, Reading
from skvi.changepoint._rows import BurnIn, State, Window
from skvi.changepoint.base import RegressionModel

__all__ = ["RobustGroup"]

NATURAL = ("precision", "shift", "const", "count")
MOMENTS = ("mean", "cov", "a", "b")
HALVINGS = 20
TOLERANCE = 1e-4
# Smallest count of a frozen part, and sum of squares relative to the current one.
FLOOR = 1e-3


@dataclass(frozen=True)
class Seen:
    """A row of the window: (n_series,), (n_models, n_series, p), (n_series,)."""

    index: int
    values: np.ndarray
    design: np.ndarray
    usable: np.ndarray


@dataclass(frozen=True)
class RobustReading(Reading):
    """A reading with the parameters of Student's t predictions: (R, n_series, K)."""

    shape: np.ndarray
    rate: np.ndarray
    leverage: np.ndarray

    @classmethod
    def empty(cls, n_rows: int, n_series: int, n_hypotheses: int) -> "RobustReading":
        """See `Reading.empty`; the parameters of those that do not exist are 1."""
        shape = (n_rows, n_series, n_hypotheses)
        zeros, ones = (np.zeros(shape) for _ in range(3)), np.ones((3, *shape))
        return cls(*zeros, *ones)

    def log_power_integral(self, power: float) -> np.ndarray:
        """See `Reading.log_power_integral`."""
        return _student.log_power_integral(power, self.shape, self.rate, self.leverage)


class RobustGroup(Group):
    """Regressions under the beta loss, of order ``power + 1``.

    Sites of the last `window` rows follow the posterior, by at most `n_passes` steps a
    row; longer segments take one step. `temper` is the inverse of the weight of the KL.
    """

    rows_at_once = 4

    def __init__(
        self,
        numbers: Sequence[int],
        models: Sequence[RegressionModel],
        burn_in: BurnIn,
        power: float,
        temper: float = 1.0,
        window: int = 25,
        n_passes: int = 8,
    ) -> None:
        self.models, self.members, self.burn_in = numbers, models, burn_in
        # The loss depends on units: densities are taken in units of the noise.
        self.power, self.temper = power, temper * burn_in.noise[:, None] ** power
        self.n_passes = n_passes
        self.designs = Designs(models, burn_in)
        self.window: deque[Seen] = deque(maxlen=window)

    def prior(self) -> State:
        """See `Group.prior`."""
        n, p = self.burn_in.n_series, max(self.designs.sizes)
        parts = []
        for model in self.members:
            noise = noise_of(model, self.burn_in)
            mean = np.zeros((n, p))
            ratio = np.ones((n, p))
            found, scale = model.coefficient_prior(self.burn_in)
            sets = np.exp(np.log(noise).mean()) if model.shares_design else noise
            mean[:, : len(found)] = found
            ratio[:, : len(scale)] = scale / np.broadcast_to(sets, n)[:, None]
            a = np.full(n, model.noise_df / 2)
            parts.append(natural(mean, ratio, a, a * noise**2))
        state = {name: np.stack([part[name] for part in parts]) for name in parts[0]}
        return state | {f"frozen_{name}": state[name].copy() for name in NATURAL}

    def n_parameters(self) -> int:
        """See `Group.n_parameters`: coefficients and noise."""
        return self.burn_in.n_series * (max(self.designs.sizes) + 1)

    def _fit(self, state: State, design: np.ndarray) -> tuple[np.ndarray, ...]:
        fit = (design * state["mean"]).sum(-1)
        full = np.broadcast_to(design, state["mean"].shape)
        return fit, quadratic(state["cov"], full)

    def read(
        self, state: State, rows: Window, usable: np.ndarray, born: np.ndarray
    ) -> "RobustReading":
        """See `Group.read`."""
        reading = RobustReading.empty(len(rows), usable.shape[1], len(state["member"]))
        for i, (row, seen, n) in enumerate(zip(rows, usable, born, strict=True)):
            part = {name: array[:n] for name, array in state.items()}
            design = self.designs.of_row(row, usable.shape[1])
            age = row.index - part["start"]
            fit, leverage = self._fit(
                part, self.designs.of_hypotheses(design, part["member"], age)
            )
            reading.shape[i, :, :n], reading.rate[i, :, :n] = part["a"].T, part["b"].T
            reading.leverage[i, :, :n], reading.mean[i, :, :n] = leverage.T, fit.T
            reading.log_density[i, :, :n] = _student.log_student(
                row.values - fit, part["a"], part["b"], leverage
            ).T
            reading.variance[i, :, :n] = variance_of(part["a"], part["b"], leverage).T
            if seen.any():
                self._learn(part, Seen(row.index, row.values, design, seen))
        return reading

    def _learn(self, state: State, seen: Seen) -> None:
        """Update the state with a row, in place."""
        if len(self.window) == self.window.maxlen:
            self._freeze(state, self.window[0])
        self.window.append(seen)
        self._settle(state)

    def _freeze(self, state: State, oldest: Seen) -> None:
        """Fix the sites of a row that leaves the window at their current values."""
        age = oldest.index - state["start"]
        phi = self.designs.of_hypotheses(oldest.design, state["member"], age)
        phi = np.broadcast_to(phi, state["mean"].shape)
        part = _take(state, slice(None))
        found = self._sites(part, phi[:, :, None], oldest.values[:, None])
        found = without_outliers(found)
        counts = (oldest.index >= state["start"])[:, None] & oldest.usable
        add_sites(
            state, "frozen_", found, phi[:, :, None], counts[..., None], self.temper
        )
        keep_valid(state)

    def _sites(self, state: State, phi: np.ndarray, values: np.ndarray) -> Sites:
        """Sites of rows, (K, n_series, w), given regressors (K, n_series, w, p)."""
        fit = (phi @ state["mean"][..., None])[..., 0]
        leverage = ((phi @ state["cov"]) * phi).sum(-1)
        a, b = state["a"][..., None], state["b"][..., None]
        return sites(self.power, fit, values - fit, leverage, a, b)

    def _settle(self, state: State) -> None:
        """Find posterior and sites of the window's rows, for all hypotheses."""
        rows = list(self.window)
        index = np.array([seen.index for seen in rows])
        values = np.stack([seen.values for seen in rows], -1)
        usable = np.stack([seen.usable for seen in rows], -1)
        design = np.stack([seen.design for seen in rows], -2)
        active = np.arange(len(state["start"]))
        for _ in range(self.n_passes):
            part = _take(state, active)
            counts = (index >= part["start"][:, None])[:, None] & usable
            shape = (*part["mean"].shape[:2], len(rows), design.shape[-1])
            age = index - part["start"][:, None]
            phi = self.designs.of_hypotheses(design, part["member"], age)
            phi = np.broadcast_to(phi, shape)
            found = self._sites(part, phi, values)
            target = {name: part[f"frozen_{name}"].copy() for name in NATURAL}
            add_sites(target, "", found, phi, counts, self.temper)
            moved = step_to(part, target)
            for name in (*NATURAL, *MOMENTS):
                state[name][active] = part[name]
            young = index[-1] - part["start"] < self.window.maxlen
            active = active[(moved > TOLERANCE) & young]
            if not len(active):
                break


def variance_of(a: np.ndarray, b: np.ndarray, leverage: np.ndarray) -> np.ndarray:
    """Variance of a prediction.

    Rows that contradict a hypothesis reduce its degrees of freedom. Below 3 a finite,
    continuous extension replaces the variance, which would become infinite.
    """
    return b * (1 + leverage) / np.maximum(a - 1, a / 3)


def along(array: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Append axes, so that it broadcasts."""
    return array.reshape(array.shape + (1,) * (other.ndim - array.ndim))


def natural(mean: np.ndarray, ratio: np.ndarray, a: np.ndarray, b: np.ndarray) -> State:
    """Posterior with independent coefficients, (n_series, p), in both forms."""
    p = mean.shape[1]
    eye = np.eye(p)
    precision = eye / ratio[:, :, None] ** 2
    shift = mean / ratio**2
    return {
        "precision": precision,
        "shift": shift,
        "const": b + 0.5 * (shift * mean).sum(-1),
        "count": a,
        "mean": mean,
        "cov": eye * ratio[:, :, None] ** 2,
        "a": a.copy(),
        "b": b,
    }


def _take(state: State, index: np.ndarray | slice) -> State:
    return {name: array[index] for name, array in state.items()}


def quadratic(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """v^T M v, over the last axes."""
    return ((matrix @ vector[..., None])[..., 0] * vector).sum(-1)


def add_sites(
    state: State,
    prefix: str,
    found: Sites,
    phi: np.ndarray,
    counts: np.ndarray,
    temper: np.ndarray,
) -> None:
    """Add the sites of those rows that count to natural parameters, in place."""
    weight = temper * counts
    scaled = phi * (weight * found.precision)[..., None]
    state[f"{prefix}precision"] += np.swapaxes(scaled, -1, -2) @ phi
    state[f"{prefix}shift"] += ((weight * found.shift)[..., None, :] @ phi)[..., 0, :]
    state[f"{prefix}const"] += (weight * found.const).sum(-1)
    state[f"{prefix}count"] += (weight * found.shape).sum(-1)


def without_outliers(found: Sites) -> Sites:
    """Zero the sites with negative precision in the coefficients."""
    valid = found.precision > 0
    return Sites(
        *(np.where(valid, x, 0) for x in (found.precision, found.shift, found.const)),
        found.shape,
    )


def keep_valid(state: State) -> None:
    """Raise the frozen count and sum of squares if rows reduced them too much."""
    shift = state["frozen_shift"]
    mean = np.linalg.solve(state["frozen_precision"], shift[..., None])[..., 0]
    b = state["frozen_const"] - 0.5 * (shift * mean).sum(-1)
    state["frozen_const"] += np.maximum(FLOOR * state["b"] - b, 0)
    np.maximum(state["frozen_count"], FLOOR, out=state["frozen_count"])


def step_to(state: State, target: State) -> np.ndarray:
    """Move natural parameters to a target, or as far as they define a posterior.

    Returns the relative distance, (K,).
    """
    before = {name: state[name] for name in (*NATURAL, *MOMENTS)}
    share = np.ones(state["a"].shape)
    for _ in range(HALVINGS):
        for name in NATURAL:
            part = along(share, before[name])
            state[name] = before[name] + part * (target[name] - before[name])
        valid = solve(state)
        if valid.all():
            break
        share = np.where(valid, share, share / 2)
    else:
        for name, array in before.items():
            state[name] = np.where(along(valid, array), state[name], array)
    size = np.abs(before["count"]) + np.abs(before["const"])
    moved = np.abs(state["count"] - before["count"])
    moved = moved + np.abs(state["const"] - before["const"])
    shift = np.abs(state["shift"] - before["shift"]).max(-1)
    shift = shift / (1 + np.abs(before["shift"]).max(-1))
    grown = np.abs(state["precision"] - before["precision"]).max((-1, -2))
    grown = grown / np.abs(before["precision"]).max((-1, -2))
    return np.maximum(np.maximum(moved / size, shift), grown).max(-1)


def solve(state: State) -> np.ndarray:
    """Mean, covariance, a and b of natural parameters; and whether they are valid."""
    precision, shift = state["precision"], state["shift"]
    if precision.shape[-1] == 1:
        valid = precision[..., 0, 0] > 0
        with np.errstate(divide="ignore", invalid="ignore"):
            state["cov"] = 1 / precision
    else:
        valid = np.linalg.eigvalsh(precision)[..., 0] > 0
        safe = np.where(valid[..., None, None], precision, np.eye(precision.shape[-1]))
        state["cov"] = np.linalg.inv(safe)
    state["mean"] = (state["cov"] @ shift[..., None])[..., 0]
    state["a"] = state["count"]
    state["b"] = state["const"] - 0.5 * (shift * state["mean"]).sum(-1)
    return valid & (state["a"] > 0) & (state["b"] > 0)
