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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from skvi.changepoint._beta import sites
from skvi.changepoint._conjugate import RegressionGroup, log_power_integral, log_student
from skvi.changepoint.base import Row, State

__all__ = ["RobustGroup"]

NATURAL = ("precision", "shift", "const", "count")
MOMENTS = ("mean", "cov", "a", "b")
# Rows whose sites follow the posterior, and the most steps for each of them.
WINDOW, PASSES = 25, 8
HALVINGS = 20
TOLERANCE = 1e-4
# Smallest count of a frozen part, and sum of squares relative to the current one.
FLOOR = 1e-3


@dataclass(frozen=True)
class Seen:
    """Rows of the window, on the last axis but for the regressors.

    Shapes (w,), (w,), (n_series, w), (n_models, n_series, w, p) and (n_series, w).
    """

    index: np.ndarray
    time: np.ndarray
    values: np.ndarray
    design: np.ndarray
    usable: np.ndarray

    def __getitem__(self, rows: slice) -> "Seen":
        return Seen(
            self.index[rows],
            self.time[rows],
            self.values[:, rows],
            self.design[:, :, rows],
            self.usable[:, rows],
        )

    def append(self, other: "Seen") -> "Seen":
        """Rows before others."""
        return Seen(
            np.append(self.index, other.index),
            np.append(self.time, other.time),
            np.append(self.values, other.values, 1),
            np.append(self.design, other.design, 2),
            np.append(self.usable, other.usable, 1),
        )


class RobustGroup(RegressionGroup):
    """Regressions under the beta loss, of order ``power + 1``.

    `run_power` is that of the run-length loss, None for the log loss.
    """

    rows_at_once = 4

    def __init__(self, *given: Any, power: float, run_power: float | None) -> None:
        super().__init__(*given)
        self.power, self.run_power = power, run_power
        # The loss depends on units: densities are taken in units of the noise.
        self.temper = self.temper * self.unit[:, None] ** power
        self.window: Seen | None = None

    def prior(self) -> State:
        """See `Group.prior`."""
        eye = np.eye(self.mean.shape[-1])
        shift = self.mean / self.ratio**2
        a = np.broadcast_to(self.shape, self.rate.shape)
        natural = {
            "precision": eye / self.ratio[..., None] ** 2,
            "shift": shift,
            "const": self.rate + 0.5 * (shift * self.mean).sum(-1),
            "count": a,
        }
        frozen = {f"frozen_{name}": array for name, array in natural.items()}
        cov = eye * self.ratio[..., None] ** 2
        moments = {"mean": self.mean, "cov": cov, "a": a, "b": self.rate}
        return natural | frozen | moments

    def read_one(
        self, state: State, row: Row, usable: np.ndarray
    ) -> Sequence[np.ndarray]:
        """See `Group.read_one`."""
        design = self.designs.of_row(row, len(usable))[:, :, None]
        self.designs.ages(state, row)
        place = np.array([row.index]), np.array([row.time])
        seen = Seen(*place, row.values[:, None], design, usable[:, None])
        phi = self._regressors(state, seen)[:, :, 0]
        fit = (phi * state["mean"]).sum(-1)
        leverage = quadratic(state["cov"], phi)
        a, b = state["a"], state["b"]
        # Rows that contradict a hypothesis reduce its degrees of freedom. Below 3 a
        # finite, continuous extension replaces the variance.
        variance = b * (1 + leverage) / np.maximum(a - 1, a / 3)
        found = [log_student(row.values - fit, a, b, leverage), fit, variance]
        if self.run_power is not None:
            found.append(log_power_integral(1 + self.run_power, a, b, leverage))
        if usable.any():
            self._learn(state, seen)
        return found

    def _learn(self, state: State, seen: Seen) -> None:
        """Update the state with a row, in place."""
        window = seen if self.window is None else self.window.append(seen)
        if len(window.index) > WINDOW:
            self._freeze(state, window[:1])
        self.window = window[-WINDOW:]
        self._settle(state, self.window)

    def _regressors(self, state: State, seen: Seen) -> np.ndarray:
        """Regressors of rows by hypotheses, (K, n_series, w, p)."""
        age = seen.time - state["begin"][:, None]
        phi = self.designs.of_hypotheses(seen.design, state["member"], age)
        return np.broadcast_to(phi, (len(age), *phi.shape[1:]))

    def _add_sites(
        self, target: State, prefix: str, state: State, seen: Seen, drops: bool = False
    ) -> None:
        """Add sites of rows, at the posterior of a state, to natural parameters.

        Outliers, whose precision in the coefficients is negative, may be dropped.
        """
        phi = self._regressors(state, seen)
        fit = (phi @ state["mean"][..., None])[..., 0]
        leverage = ((phi @ state["cov"]) * phi).sum(-1)
        a, b = state["a"][..., None], state["b"][..., None]
        found = sites(self.power, fit, seen.values - fit, leverage, a, b)
        counts = (seen.index >= state["start"][:, None])[:, None] & seen.usable
        weight = self.temper * counts
        target[f"{prefix}count"] += (weight * found.shape).sum(-1)
        if drops:
            weight = weight * (found.precision > 0)
        scaled = phi * (weight * found.precision)[..., None]
        target[f"{prefix}precision"] += np.swapaxes(scaled, -1, -2) @ phi
        shift = (weight * found.shift)[..., None, :] @ phi
        target[f"{prefix}shift"] += shift[..., 0, :]
        target[f"{prefix}const"] += (weight * found.const).sum(-1)

    def _freeze(self, state: State, oldest: Seen) -> None:
        """Fix the sites of a row that leaves the window at their current values."""
        self._add_sites(state, "frozen_", state, oldest, drops=True)
        keep_valid(state)

    def _settle(self, state: State, seen: Seen) -> None:
        """Find posterior and sites of the window's rows, for all hypotheses."""
        active = np.arange(len(state["start"]))
        for _ in range(PASSES):
            part = {name: array[active] for name, array in state.items()}
            target = {name: part[f"frozen_{name}"].copy() for name in NATURAL}
            self._add_sites(target, "", part, seen)
            moved = step_to(part, target)
            for name in (*NATURAL, *MOMENTS):
                state[name][active] = part[name]
            young = seen.index[-1] - part["start"] < WINDOW
            active = active[(moved > TOLERANCE) & young]
            if not len(active):
                break


def along(array: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Append axes, so that it broadcasts."""
    return array.reshape(array.shape + (1,) * (other.ndim - array.ndim))


def quadratic(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """v^T M v, over the last axes."""
    return ((matrix @ vector[..., None])[..., 0] * vector).sum(-1)


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
    step = np.ones(state["a"].shape)
    for _ in range(HALVINGS):
        for name in NATURAL:
            part = along(step, before[name])
            state[name] = before[name] + part * (target[name] - before[name])
        valid = solve(state)
        if valid.all():
            break
        step = np.where(valid, step, step / 2)
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
