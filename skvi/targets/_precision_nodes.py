"""Where the precisions of a conjugate linear model are, after the data.

Sums over equally spaced nodes in their logarithms, which converge exponentially.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

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
# Refinements of the mode by ten, the largest width, widths over which the curvature is
# taken, and standard deviations at which an end is looked for.
N_ZOOMS, WIDEST, WIDTHS = 9, 3.0, 2.0 ** np.arange(1, -17, -1)
ENDS = np.array([2, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 30])

LogDensity = Callable[[np.ndarray], np.ndarray]


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


def has_nodes(form: ConjugateForm | None) -> bool:
    """Whether one or two precisions have hyperpriors, and the data inform them."""
    if form is None or not len(form.data.values):
        return False
    nodes = (form.noise, form.coef)
    is_free = any(node.hyperprior is not None for node in nodes)
    return is_free and all(len(node.value) == 1 for node in nodes)


def find_nodes(form: ConjugateForm, fineness: float = 1.0) -> PrecisionNodes:
    """Place nodes where the posterior of the precisions is.

    `fineness` divides the distances of the nodes.
    """
    t, s = (np.log(node.value.numpy()) for node in (form.noise, form.coef))
    log_e = np.log(form.data.values.numpy())
    if form.coef.hyperprior is None:
        # About the likeliest noise with and without what the features explain.
        near = np.concatenate([form.noise_at_ratio(s - t), s - log_e])
        look = np.arange(near.min() - REACH, near.max() + REACH + 1)
        t, step = _line(lambda t: form.log_density(t, s), look, fineness)
        return _weigh(form, t[None], s, None, math.log(step))
    look = np.arange(log_e.min() - REACH, log_e.max() + REACH + 1)
    if form.noise.hyperprior is None:
        s, step = _line(lambda s: form.log_density(t, s), t + look, fineness)
        return _weigh(form, t, s[:, None], None, math.log(step))
    t, ratio, log_cell = _plane(form, look, fineness)
    return _weigh(form, t, t + ratio, ratio, log_cell)


def _weigh(
    form: ConjugateForm,
    t: np.ndarray,
    s: np.ndarray,
    ratio: np.ndarray | None,
    log_cell: float,
) -> PrecisionNodes:
    """Nodes with the weights of cells of equal size."""
    t, s = np.broadcast_arrays(t, s)
    w = form.log_density(t, s, ratio)
    total = float(logsumexp(w))
    return PrecisionNodes(t, s, np.exp(w - total), total + log_cell)


def _plane(
    form: ConjugateForm, look: np.ndarray, fineness: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """Noises around the likeliest for every ratio, log ratios, (n, 1), log of a cell.

    The map from ratio and distance to both log precisions has determinant one. At every
    ratio the noise has about the distribution that it has at the best one.
    """

    def along(u: np.ndarray) -> np.ndarray:
        t = form.noise_at_ratio(u)
        return form.log_density(t, t + u, u)

    u, across = _line(along, look, fineness)
    middle = form.noise_at_ratio(u)
    best = int(np.argmax(form.log_density(middle, middle + u, u)))

    def around(v: np.ndarray) -> np.ndarray:
        return form.log_density(middle[best] + v, middle[best] + v + u[best], u[best])

    v, step = _line(around, np.arange(-2 * REACH, 5.0), fineness)
    log_cell = math.log(across) + math.log(step)
    return middle[:, None] + v, u[:, None], log_cell


def _line(
    log_density: LogDensity, look: np.ndarray, fineness: float
) -> tuple[np.ndarray, float]:
    """Equally spaced nodes where a density is not empty, and their distance."""
    if np.argmax(log_density(look)) in (0, len(look) - 1):  # it goes on to rise
        look = np.union1d(look, np.arange(-FARTHEST, FARTHEST, CHUNK))
    mode, width = _peak(log_density, look)
    look = np.sort(np.concatenate([look, mode - width * ENDS, mode + width * ENDS]))
    values = log_density(look)
    empty = values.max() - EMPTY
    low = _end(log_density, look, values, empty, -1)
    high = _end(log_density, look, values, empty, 1)
    step = min(STEP * width, LONGEST) / fineness
    return np.arange(low, high + step, step), step


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


def _peak(log_density: LogDensity, look: np.ndarray) -> tuple[float, float]:
    """Mode, and the standard deviation there."""
    mode, step = look[np.argmax(log_density(look))], 1.0
    for _ in range(N_ZOOMS):
        near = mode + step * np.linspace(-1, 1, 21)
        mode, step = near[np.argmax(log_density(near))], step / 10
    near = log_density(np.concatenate([[mode], mode - WIDTHS, mode + WIDTHS]))
    drop = near[0] - 0.5 * np.add(*np.split(near[1:], 2))
    # The widest step over which the density has little curvature.
    one = int(np.argmax(drop < 0.5))
    return mode, min(WIDTHS[one] / math.sqrt(2 * max(drop[one], 1e-3)), WIDEST)
