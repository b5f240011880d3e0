"""Where the precisions of a conjugate linear model are, after the data.

Sums over equally spaced nodes in their logarithms, which converge exponentially.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from skvi.targets._precisions import ConjugateForm

__all__ = ["PrecisionNodes", "find_nodes", "has_nodes"]

# Steps between nodes, in standard deviations, and the longest ones.
STEP, LONGEST = 1.0, 0.6
# Nats below the mode at which nodes end: far ones make the tails of predictions.
EMPTY = 40.0
# How far beyond the data the first look goes, in logarithms, by steps of one; the next
# ones go on in both directions, to the range of floats.
REACH, FARTHEST, CHUNK = 40.0, 700.0, 2.0
# Refinements of the mode by ten, nats at which it is found, the largest width, widths
# over which the curvature is taken, and standard deviations at which an end is looked
# for.
N_ZOOMS, LEVEL, WIDEST, WIDTHS = 9, 1e-3, 3.0, 2.0 ** np.arange(1, -17, -1)
ENDS = np.array([2, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 30])

LogDensity = Callable[[np.ndarray], np.ndarray]


class Axis(NamedTuple):
    """Mode of a density, where it becomes empty, and the distance of nodes."""

    mode: float
    low: float
    high: float
    step: float

    def nodes(self, fineness: float) -> np.ndarray:
        """Equally spaced nodes."""
        step = self.step / fineness
        return np.arange(self.low, self.high + step, step)


@dataclass(frozen=True, eq=False)
class PrecisionNodes:
    """Log precisions of noise and coefficients, (n_ratios, n_noises), probabilities.

    All nodes of a row have the same ratio of both precisions, except where the noise
    alone is unknown. `log_evidence` is the log of the integral of their density with
    the data, in nats.
    """

    noise: np.ndarray
    coef: np.ndarray
    weights: np.ndarray
    log_evidence: float
    axes: tuple[Axis, ...]


def has_nodes(form: ConjugateForm | None) -> bool:
    """Whether one or two precisions have hyperpriors, and the data inform them."""
    if form is None or not len(form.data.values):
        return False
    nodes = (form.noise, form.coef)
    is_free = any(node.hyperprior is not None for node in nodes)
    return is_free and all(len(node.value) == 1 for node in nodes)


def find_nodes(
    form: ConjugateForm, fineness: float = 1.0, near: PrecisionNodes | None = None
) -> PrecisionNodes:
    """Place nodes where the posterior of the precisions is.

    `fineness` divides the distances of the nodes. Others of the same posterior, `near`,
    say where it is.
    """
    t, s = (np.log(node.value.numpy()) for node in (form.noise, form.coef))
    axes = near.axes if near else _axes(form, t, s)
    (x, *others), ratio = (axis.nodes(fineness) for axis in axes), None
    if form.coef.hyperprior is None:
        t = x[None]
    elif not others:
        s = x[:, None]
    else:
        ratio = x[:, None]
        t = form.noise_at_ratio(ratio) + others[0]
        s = t + ratio
    t, s = np.broadcast_arrays(t, s)
    w = form.log_density(t, s, ratio)
    total = float(logsumexp(w))
    log_cell = sum(math.log(axis.step / fineness) for axis in axes)
    return PrecisionNodes(t, s, np.exp(w - total), total + log_cell, axes)


def _axes(form: ConjugateForm, t: np.ndarray, s: np.ndarray) -> tuple[Axis, ...]:
    """Those of one unknown precision; of the ratio of two, and of the noise beside.

    The map from ratio and distance to both log precisions has determinant one. At every
    ratio the noise has about the distribution that it has at the best one.
    """
    log_e = np.log(form.data.values.numpy())
    if form.coef.hyperprior is None:
        # About the likeliest noise with and without what the features explain.
        near = np.concatenate([form.noise_at_ratio(s - t), s - log_e])
        look = np.arange(near.min() - REACH, near.max() + REACH + 1)
        return (_axis(lambda t: form.log_density(t, s), look),)
    look = np.arange(log_e.min() - REACH, log_e.max() + REACH + 1)
    if form.noise.hyperprior is None:
        return (_axis(lambda s: form.log_density(t, s), t + look),)

    def along(u: np.ndarray) -> np.ndarray:
        t = form.noise_at_ratio(u)
        return form.log_density(t, t + u, u)

    across = _axis(along, look)
    u = np.array([across.mode])
    middle = form.noise_at_ratio(u)

    def around(v: np.ndarray) -> np.ndarray:
        return form.log_density(middle + v, middle + v + u, u)

    return across, _axis(around, np.arange(-2 * REACH, 5.0))


def _axis(log_density: LogDensity, look: np.ndarray) -> Axis:
    """Where a density is not empty."""
    values = log_density(look)
    if np.argmax(values) in (0, len(look) - 1):  # it goes on to rise
        look = np.union1d(look, np.arange(-FARTHEST, FARTHEST, CHUNK))
        values = log_density(look)
    mode, width = _peak(log_density, float(look[np.argmax(values)]))
    further = np.concatenate([mode - width * ENDS, mode + width * ENDS])
    look = np.concatenate([look, further])
    values = np.concatenate([values, log_density(further)])
    empty = values.max() - EMPTY
    low = _end(log_density, look, values, empty, -1)
    high = _end(log_density, look, values, empty, 1)
    return Axis(mode, low, high, min(STEP * width, LONGEST))


def _end(
    log_density: LogDensity,
    look: np.ndarray,
    values: np.ndarray,
    empty: float,
    sign: int,
) -> float:
    """First place beyond which the density is empty, below or above its mode."""
    active = look[values >= empty]  # a huge density has no 40 nats
    last = (sign * active).max()
    if (sign * look).max() > last:
        return float(sign * (sign * look)[sign * look > last].min())
    further = np.arange(last, FARTHEST, CHUNK)  # a flat hyperprior goes on
    beyond = further[log_density(sign * further) <= empty]
    return float(sign * (beyond.min() if len(beyond) else FARTHEST))


def _peak(log_density: LogDensity, mode: float) -> tuple[float, float]:
    """Mode, near a place, and the standard deviation there."""
    step = 1.0
    for _ in range(N_ZOOMS):
        near = mode + step * np.linspace(-1, 1, 21)
        values = log_density(near)
        mode, step = float(near[np.argmax(values)]), step / 10
        if np.ptp(values) < LEVEL:
            break
    near = log_density(np.concatenate([[mode], mode - WIDTHS, mode + WIDTHS]))
    drop = near[0] - 0.5 * np.add(*np.split(near[1:], 2))
    # The widest step over which the density has little curvature.
    one = int(np.argmax(drop < 0.5))
    return mode, min(WIDTHS[one] / math.sqrt(2 * max(drop[one], 1e-3)), WIDEST)
