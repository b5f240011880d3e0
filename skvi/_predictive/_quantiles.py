"""Predictions from draws, and quantiles of mixtures."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize.elementwise import find_root
from sklearn.utils import gen_batches
from torch.nn.functional import logsigmoid

from skvi.expectations._poisson import smallest_counts
from skvi.likelihoods import (
    BetaLikelihood,
    GaussianLikelihood,
    HurdleLikelihood,
    Likelihood,
    RoundedLikelihood,
)
from skvi.likelihoods._log_mean import LogMeanLikelihood
from skvi.likelihoods._tweedie import TweedieLikelihood
from skvi.predictors.base import Predictor
from skvi.utils._interrupts import limit_threads
from skvi.utils._rows import Features, SparseRows, as_rows
from skvi.utils._tensors import CPU, Movable, log_mean_exp
from skvi.utils._validation import as_tensor

# Relative error of quantiles, and of the probability of their tails.
ROUNDING = 1e-15
# Smallest deviation, whose square is not 0.
TINY = 1e-150


def quantiles_of(
    p: Likelihood, f: torch.Tensor, levels: np.ndarray, w: torch.Tensor
) -> torch.Tensor:
    """Quantiles, (n, q), of a mixture of one target; the smallest where it is discrete.

    Those of a rounded number spread its probability evenly over its interval, as
    its density does: the next number on the grid covers too much.
    """
    if isinstance(p, RoundedLikelihood):
        y = p.rounded(mixture_quantiles(p.smooth, f, levels, w)).T
        below, upto = (
            torch.stack([w @ p.cdf(f, x) for x in g]) for g in (y - p.step, y)
        )
        share = (torch.as_tensor(levels).to(y)[:, None] - below) / (upto - below)
        return (y + p.step * (share.clamp(0, 1) - 0.5)).T
    if p.is_discrete:
        start = torch.expm1(w @ torch.log1p(p.mean(f))) + 1  # about the median
        cdf = lambda k: w @ p.cdf(f, k)
        found = [smallest_counts(cdf, start, level) for level in levels.tolist()]
        return torch.stack(found, 1)
    found = mixture_quantiles(p, f, levels, w)
    if isinstance(p, HurdleLikelihood | TweedieLikelihood):
        upto = w @ p.cdf(f, f.new_full(f.shape[1:2], p.value))
        below, level = upto - w @ p.mass(f), torch.as_tensor(levels).to(upto)[:, None]
        found = found.where(((level < below) | (level > upto)).T, p.value)
    return found


def cdf_of(
    p: Likelihood, f: torch.Tensor, y: torch.Tensor, w: torch.Tensor
) -> torch.Tensor:
    """Distribution function, (n,), of the mixture that `quantiles_of` inverts."""
    if isinstance(p, RoundedLikelihood):
        grid = p.rounded(y)
        below, upto = (w @ p.cdf(f, g) for g in (grid - p.step, grid))
        return below + (upto - below) * ((y - grid) / p.step + 0.5)
    return w @ p.cdf(f, y.floor() if p.is_discrete else y)


def mixture_quantiles(
    likelihood: Likelihood,
    f: torch.Tensor,
    levels: np.ndarray,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Quantiles, (n, q), of the mixture of distributions given draws f, (S, n, C)."""
    levels = np.asarray(levels, dtype=np.float64)
    w = f.new_full((len(f),), 1 / len(f)) if weights is None else weights
    # A mixture's quantile lies between those of its components.
    scale = _scale_of(likelihood)
    own = [
        [scale.to_z(y.clamp(*scale.ends)) for y in likelihood.quantile_range(f, level)]
        for level in levels.tolist()
    ]
    likely = [0.5 * (low + high) for low, high in own]
    # Lengths over which the probability of a tail changes.
    log_density = lambda z: likelihood.log_prob(f, scale.to_y(z)) + scale.log_slope(z)
    density = torch.stack([w @ log_density(z).exp() for z in likely])
    tail = torch.from_numpy(np.minimum(levels, 1 - levels)[:, None]).to(f)
    unit = (tail / density).nan_to_num(1.0).clamp(*scale.lengths)
    # The bracket may be many orders wider: by powers of it, around a likely place.
    middle = torch.stack([x[w.argmax()] for x in likely])
    low, high = (
        ((torch.stack(ends) - middle) / unit).asinh().cpu().numpy().ravel()
        for ends in ([x.amin(0) for x, _ in own], [x.amax(0) for _, x in own])
    )
    found = low.reshape(unit.shape).copy()

    def excess(x: np.ndarray, index: np.ndarray) -> np.ndarray:
        found.flat[index] = x
        y = scale.to_y(middle + torch.from_numpy(found).to(unit).sinh() * unit)
        cdf = torch.stack([w @ likelihood.cdf(f, row) for row in y])
        value = (cdf.cpu().numpy() - levels[:, None]).flat[index]
        # Rounding must not take the root out of its bracket.
        value = np.where(x <= low[index], np.minimum(value, 0), value)
        return np.where(x >= high[index], np.maximum(value, 0), value)

    tolerances = {"xatol": ROUNDING, "xrtol": ROUNDING}
    index = np.arange(len(low))
    root = find_root(excess, (low, high), args=(index,), tolerances=tolerances)
    x = torch.from_numpy(root.x.reshape(unit.shape)).to(unit)
    return scale.to_y(middle + x.sinh() * unit).T


class Scale(NamedTuple):
    """A function of y in whose units its quantiles are found, and limits of both."""

    to_z: Callable = torch.clone
    to_y: Callable = torch.clone
    log_slope: Callable = torch.zeros_like  # of y
    ends: tuple[float, float] = (-math.inf, math.inf)
    lengths: tuple[float, float] = (0.0, math.inf)


# Quantiles of positive numbers and of rates may span all floats.
LENGTHS = (1e-9, 1e3)
LOGS = Scale(torch.log, torch.exp, torch.clone, (1e-300, 1e300), LENGTHS)
LOG_ODDS = Scale(
    torch.logit,
    torch.sigmoid,
    lambda z: z + 2 * logsigmoid(-z),
    (1e-300, 1 - 2.0**-53),
    LENGTHS,
)


def _scale_of(likelihood: Likelihood) -> Scale:
    if isinstance(likelihood, BetaLikelihood):
        return LOG_ODDS
    return LOGS if isinstance(likelihood, LogMeanLikelihood) else Scale()


def normal_mixture_quantiles(
    means: torch.Tensor,
    stds: torch.Tensor | float,
    levels: np.ndarray,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Quantiles, (n, q), of mixtures of normals, (S, n)."""
    # A function that no data can change, as in an empty row, is its own quantile.
    stds = torch.as_tensor(stds).to(means).clamp(min=TINY)
    normal = GaussianLikelihood()._at_scale(stds)
    return mixture_quantiles(normal, means[..., None], levels, weights)


# Rows that are predicted at once. The number is constant (a short block is padded),
# because matrix products of other sizes may round differently: the prediction for a row
# must not depend on the other rows. It is a multiple of the widths, 8, 12, 16, 48 and
# 64, in which products and sums process rows together, so that all positions in a block
# are equivalent as well.
ROW_BLOCK = 192
# The number on other devices, where every operation on a block has an overhead of
# microseconds.
DEVICE_BLOCK = 64 * ROW_BLOCK


@dataclass(frozen=True, eq=False)
class Draws(Movable):
    """Functions drawn from a posterior: `theta` has shape (n_draws, n_params).

    `read` turns the features of the user into those of the predictor.
    """

    predictor: Predictor
    theta: torch.Tensor
    read: Callable[[Any], Any] = field(default=as_rows, kw_only=True)

    def by_rows(
        self, X: Any, function: Callable[..., torch.Tensor], *columns: np.ndarray
    ) -> np.ndarray:
        """Apply a function to the outputs of all draws, in blocks of rows; float64.

        It gets f of shape (n_draws, rows, n_outputs) and the rows of `columns`, and
        returns a tensor whose first axis is the rows.
        """
        rows, device = self.read(X), self.theta.device
        arrays = [as_tensor(column).to(device) for column in columns]
        size = ROW_BLOCK if device == CPU else DEVICE_BLOCK
        with limit_threads(0):  # copies of the weights need no second thread
            forward = self.predictor.block_forward(self.theta, size)
        result = None
        with torch.no_grad(), limit_threads(forward.work):
            for block in gen_batches(len(rows), size):
                f = forward(_dense(rows[block], self.theta.dtype).to(device)).double()
                filled = (_fill(array[block], size) for array in arrays)
                part = function(f, *filled)[: min(block.stop, len(rows)) - block.start]
                if result is None:
                    result = part.new_empty(len(rows), *part.shape[1:])
                result[block] = part
        return result.cpu().numpy()


class SampledFunction:
    """The function of a fitted estimator at one draw of its parameters."""

    def __init__(self, estimator, theta):
        self.estimator, self.draws = estimator, estimator._drawn(theta)

    def __call__(self, X):
        """Targets in units of y without noise, or class probabilities; float64."""
        X = self.estimator._check_X(X)
        return self.draws.by_rows(X, lambda f: self.estimator._mean(f)[0])


def log_class_probabilities(f: torch.Tensor) -> torch.Tensor:
    """Log class probabilities given f, (n_draws, rows, n_classes)."""
    if f.shape[2] > 1:
        return torch.log_softmax(f, 2)
    return torch.cat([logsigmoid(-f), logsigmoid(f)], 2)


def average_log_probabilities(f: torch.Tensor) -> torch.Tensor:
    """Log of class probabilities averaged over draws, (rows, n_classes)."""
    return log_mean_exp(log_class_probabilities(f), 0)


def _dense(rows: Features, dtype: torch.dtype) -> torch.Tensor:
    """Rows of a block as a tensor; a block of sparse rows is small enough for this."""
    if isinstance(rows, SparseRows):
        return rows.dense().to(dtype)
    return rows


def _fill(block: torch.Tensor, n_rows: int) -> torch.Tensor:
    """Append rows of zeros."""
    padding = [0, 0] * (block.ndim - 1) + [0, n_rows - len(block)]
    return torch.nn.functional.pad(block, padding)
