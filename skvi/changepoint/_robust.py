r"""Robust regressions: hypotheses whose posteriors minimize the beta loss.

For every hypothesis each series has its own normal inverse gamma posterior. Its natural
parameters are those of the prior plus one site for every row of the segment
(below). The sites of the last rows are found together with the posterior, as the fixed
point of its optimum: for segments no longer than the window, that is the optimum over
all their rows. Posteriors of longer segments take one step per row, and the sites of
their older rows stay as they were when they left the window; the posterior of so many
rows hardly changes any more, so that these sites are nearly optimal, and the cost per
row does not grow.

With c = beta - 1, a row y with regressors phi, and the posterior q of coefficients w |
sigma^2 ~ N(mean, sigma^2 V), sigma^2 ~ inverse gamma (a, b), the expected gain is

    G = E_q[ f(y | w, sigma)^c / c - int f^(1+c) / (1+c) ] = E / c - J

    E = (2 pi)^(-c/2) (1 + c s)^(-1/2) Gamma(a + c/2) / Gamma(a) b^a (b + k)^(-a - c/2)
    J = (1 + c)^(-3/2) (2 pi)^(-c/2) Gamma(a + c/2) / Gamma(a) b^(-c/2)

with s = phi^T V phi, e = y - phi^T mean and k = c e^2 / (2 (1 + c s)). As c goes to 0,
G - 1/c + 1 becomes the expected log density.

The natural parameters of the optimal q are those of the prior plus, for every row, the
gradient of G with respect to the expectation parameters of q: a *site*, as if the row
were a fraction of a row of a conjugate model. Expectation parameters of the fit u =
phi^T w are

    m1 = E[u^2 / sigma^2]   m2 = E[u / sigma^2]   m3 = E[1 / sigma^2]
    m4 = E[log sigma^2]
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import gammaln, polygamma, psi

from skvi.changepoint._conjugate import RegressionGroup, log_power_integral, log_student
from skvi.changepoint.base import Row, State

NATURAL = ("precision", "shift", "const", "count")
MOMENTS = ("mean", "cov", "a", "b")
# Rows whose sites follow the posterior, and the most steps for each of them.
WINDOW, PASSES = 25, 8
HALVINGS = 20
TOLERANCE = 1e-4
# Smallest count of a frozen part, and sum of squares relative to the current one.
FLOOR = 1e-3
LOG_2PI = np.log(2 * np.pi)
# The derivative at the midpoint has an error of h^2 / 24, a difference quotient one of
# 1e-16 / h.
SMALL_STEP = 3e-5


@dataclass(frozen=True)
class Sites:
    """Contributions of rows to the natural parameters of the posterior, of equal shape.

    The precision of the coefficients grows by ``precision`` phi phi^T, precision times
    mean by ``shift`` phi, b + mean^T precision mean / 2 by ``const``, and a by
    ``shape``. Under the log loss they are 1, y, y^2 / 2 and 1 / 2.
    """

    precision: np.ndarray
    shift: np.ndarray
    const: np.ndarray
    shape: np.ndarray


def _terms(
    c: float, error: np.ndarray, leverage: np.ndarray, a: np.ndarray, b: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Log E, J, 1 + c s, and k / c."""
    damped = 1 + c * leverage
    k = error * error / (2 * damped)
    log_common = gammaln(a + c / 2) - gammaln(a) - c / 2 * (LOG_2PI + np.log(b))
    log_gain = log_common - 0.5 * np.log(damped) - (a + c / 2) * np.log1p(c * k / b)
    return log_gain, np.exp(log_common) * (1 + c) ** -1.5, damped, k


def sites(
    c: float,
    fit: np.ndarray,
    error: np.ndarray,
    leverage: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
) -> Sites:
    """Sites of rows at the current posterior; all arrays broadcast.

    ``c`` is beta - 1, positive; fit, error and leverage are phi^T mean, y - phi^T mean
    and phi^T V phi; a and b the shape and rate of the posterior of sigma^2.
    """
    log_gain, integral, damped, k = _terms(c, error, leverage, a, b)
    gain = np.exp(log_gain)
    weight = (a + c / 2) / (b + c * k)
    d_leverage = gain / damped * (c * k * weight - 0.5)
    d_fit = gain * weight * error / damped
    d_b = gain * (a * k - b / 2) / (b * (b + c * k)) + c / 2 * integral / b
    step = _digamma_step(a, c / 2)
    d_a = gain * (step - np.log1p(c * k / b)) / c - integral * step
    # From (fit, s, a, b) to expectation parameters.
    tau = a / b
    slope = 1 / a - polygamma(1, a)
    by_m4 = d_a / slope + d_b / (tau * slope)
    by_m3 = by_m4 / tau - d_b * a / tau**2
    return Sites(
        precision=-2 * d_leverage,
        shift=d_fit / tau - 2 * fit * d_leverage,
        const=d_fit * fit / tau - d_leverage * fit * fit - by_m3,
        shape=-by_m4,
    )


def _digamma_step(a: np.ndarray, h: float) -> np.ndarray:
    """psi(a + h) - psi(a), without cancellation for small h."""
    if h < SMALL_STEP:
        return h * polygamma(1, a + h / 2)
    return psi(a + h) - psi(a)


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

    @staticmethod
    def join(rows: Iterable["Seen"]) -> "Seen":
        """Rows of several parts."""
        columns = zip(*(vars(part).values() for part in rows), strict=True)
        axes = 0, 0, 1, 2, 1
        return Seen(*map(np.concatenate, columns, axes))


class RobustGroup(RegressionGroup):
    """Regressions under the beta loss, of order ``power + 1``.

    `run_power` is that of the run-length loss, None for the log loss.
    """

    def __init__(self, *given: Any, power: float, run_power: float | None) -> None:
        super().__init__(*given)
        self.power, self.run_power = power, run_power
        # The loss depends on units: densities are taken in units of the noise.
        self.temper = self.temper * self.unit[:, None] ** power
        self.window: deque[Seen] = deque(maxlen=WINDOW)

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

    def read(self, state: State, row: Row, usable: np.ndarray) -> Sequence[np.ndarray]:
        """See `Group.read`."""
        design = self.designs.of_row(row, len(usable))[:, :, None]
        self.designs.ages(state, row)
        place = np.array([row.index]), np.array([row.time])
        seen = Seen(*place, row.values[:, None], design, usable[:, None])
        phi = self._regressors(state, seen)[:, :, 0]
        fit = (phi * state["mean"]).sum(-1)
        leverage = ((state["cov"] @ phi[..., None])[..., 0] * phi).sum(-1)
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
        if len(self.window) == WINDOW:
            # The sites of a row that leaves the window stay at their current values.
            self._add_sites(state, "frozen_", state, self.window[0], drops=True)
            keep_valid(state)
        self.window.append(seen)
        self._settle(state, Seen.join(self.window))

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
