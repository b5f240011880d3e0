"""Precisions of priors and noise: information on them, and nodes after the data.

Sums over equally spaced nodes in their logarithms, which converge exponentially.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import logsumexp

from skvi.base import Layout
from skvi.priors import BuiltPrior, GammaHyperprior, HalfCauchy
from skvi.targets._least_squares import LeastSquares
from skvi.utils._tensors import CPU, LOG_2PI, Movable

#: Of one number: what gives `log_density` and `draw_log` of its logarithm.
Hyperprior = GammaHyperprior | HalfCauchy

# Steps to the likeliest noise, distances of differences of its hyperpriors, the least
# slope of the logarithm of what lowers it, and a log precision at which only the tails
# of hyperpriors matter.
N_NEWTON, CLOSE, LEAST_GROWTH, SMALL, LARGEST = 2, 1e-3, 0.1, -200.0, 600.0


@dataclass(frozen=True, eq=False)
class Precision(Movable):
    """A precision: fixed, to be learned, or with a hyperprior.

    Parameters
    ----------
    value : Tensor of shape (1,) or (d,)
        Its value, or the start of an iteration.
    hyperprior : GammaHyperprior, HalfCauchy, ScaleDensity or None
    is_learned : bool, default=False
        Whether it is a point estimate that maximizes the ELBO.

    Examples
    --------
    >>> import torch
    >>> from skvi.targets._precisions import Precision
    >>> Precision(torch.ones(1)).is_fixed
    True
    """

    value: torch.Tensor
    hyperprior: "Hyperprior | ScaleDensity | None" = None
    is_learned: bool = False

    @property
    def is_fixed(self) -> bool:
        """Whether there is nothing to infer."""
        return self.hyperprior is None and not self.is_learned

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """Log density of the log of an inferred precision; 0 of others."""
        if self.hyperprior is None:
            return np.zeros_like(x)
        values: np.ndarray = self.hyperprior.log_density(torch.from_numpy(x)).numpy()
        return values

    def log_prob(self, coef: torch.Tensor) -> torch.Tensor:
        """Log density of normals with this precision, (S, d), integrated over it."""
        if isinstance(self.hyperprior, ScaleDensity):
            return self.hyperprior.prior.log_prob(coef)
        log = self.value.log()
        return 0.5 * (log - LOG_2PI - log.exp() * coef.square()).sum(1)

    @property
    def exponent(self) -> float:
        """Power of a small precision that its density has, times its measure."""
        return 0.0 if self.hyperprior is None else exponent(self.hyperprior)


@dataclass(frozen=True, eq=False)
class ScaleDensity(Movable):
    """Density of the log precision of coefficients that have one unknown scale.

    `prior` is theirs; `log_unit` is the log of the precision at a scale of 1.
    """

    prior: BuiltPrior
    log_unit: float = 0.0

    def log_density(self, log_precision: torch.Tensor) -> torch.Tensor:
        """Log density, of any shape: the log of the scale is half of it."""
        log_scale = 0.5 * (self.log_unit - log_precision)
        values = self.prior.log_density_of_scale(log_scale)
        return values - math.log(2.0)


def exponent(hyperprior: "Hyperprior | ScaleDensity") -> float:
    """Power of a small number that its density has, times its measure."""
    ends = torch.tensor([SMALL, SMALL + 1.0], dtype=torch.float64, device=CPU)
    low, high = hyperprior.log_density(ends)
    return float(high - low)


@dataclass(frozen=True, eq=False)
class UnknownNumber:
    """A positive number of a likelihood with a prior, such as a dispersion.

    Parameters
    ----------
    hyperprior : GammaHyperprior or HalfCauchy
    power : float
        Of the number, that gives what the likelihood binds the log of.
    """

    hyperprior: Hyperprior
    power: float

    def log_density(self, log_number: torch.Tensor) -> torch.Tensor:
        """Log density of the logarithm, of any shape."""
        return self.hyperprior.log_density(log_number)

    def bind(self, likelihood: Any, log_number: torch.Tensor) -> Any:
        """The likelihood with this number; see `Likelihood.bind`."""
        return likelihood.bind(self.power * log_number)


@dataclass(frozen=True, eq=False)
class ConjugateForm(Movable):
    """A linear model with normal noise and normal coefficients, given precisions."""

    data: LeastSquares
    noise: Precision
    coef: Precision
    intercept: float | None  # its prior precision
    constant: float  # added to the log joint density

    def at_ratio(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Half the log determinant, and least squares with ridge ``exp(u)``.

        u is the log ratio of the precisions of coefficients and noise. The determinant
        is that of the posterior precision in units of the prior's.
        """
        log_e = self.data.values.log().numpy()
        z = self.data.solution.numpy()
        # In units of the smaller of both precisions nothing overflows.
        excess, least = log_e - u[..., None], np.minimum(log_e, u[..., None])
        small = np.exp(-np.abs(excess))
        half_log_det = 0.5 * (np.maximum(excess, 0.0) + np.log1p(small)).sum(-1)
        return half_log_det, self.data.residual + np.exp(least) / (1 + small) @ (z * z)

    def noise_at_ratio(self, u: np.ndarray) -> np.ndarray:
        """Log of about the likeliest noise precision at a ratio `u`.

        Where the slope of the log density is zero: what raises the precision equals
        what lowers it, but for the intercept, which is left out. By Newton's method in
        logarithms, which finds it in one step under Gamma distributions.
        """
        half, rate = 0.5 * self.data.n, 0.5 * self.at_ratio(u)[1].clip(1e-300)
        raises = half + self.most_raised
        t = math.log(raises) - np.log(rate)
        for _ in range(N_NEWTON):
            t = t.clip(max=LARGEST)
            near = np.stack([t - CLOSE, t, t + CLOSE])
            low, middle, high = self.noise.log_density(near) + self.coef.log_density(
                near + u
            )
            slope = (high - low) / (2 * CLOSE)
            lowers = rate * np.exp(t) + self.most_raised - slope
            growth = rate * np.exp(t) - (high - 2 * middle + low) / CLOSE**2
            lowers = lowers.clip(1e-300)
            t = t - np.log(lowers / raises) / (growth / lowers).clip(LEAST_GROWTH)
        return t.clip(max=LARGEST)

    @cached_property
    def most_raised(self) -> float:
        """Largest slope of the log densities of both hyperpriors."""
        return self.noise.exponent + self.coef.exponent

    def log_evidence(
        self, t: np.ndarray, s: np.ndarray, ratio: np.ndarray | None = None
    ) -> np.ndarray:
        """Log p(D | precisions) in nats, with one precision for all coefficients.

        t, s: logs of those of noise and coefficients; `ratio`: s - t with more digits.
        """
        half_log_det, squares = self.at_ratio(s - t if ratio is None else ratio)
        alpha = np.exp(t)
        value = 0.5 * (self.data.n * (t - LOG_2PI) - alpha * squares) - half_log_det
        return value + self.constant + self.log_intercept(alpha)

    def log_intercept(self, alpha: np.ndarray) -> np.ndarray:
        """Part of the log evidence due to the intercept, at noise precisions."""
        if self.intercept is None:
            return np.zeros_like(alpha)
        n, prior, mean = self.data.n, self.intercept, self.data.mean
        total = alpha * n + prior
        return 0.5 * (np.log(prior / total) - mean**2 * alpha * n * prior / total)

    def log_density(
        self, t: np.ndarray, s: np.ndarray, ratio: np.ndarray | None = None
    ) -> np.ndarray:
        """Log density of the data and of the logs of inferred precisions, in nats."""
        value = self.log_evidence(t, s, ratio)
        return value + self.noise.log_density(t) + self.coef.log_density(s)


class BuiltHierarchy(BuiltPrior):
    """Prior of the predictor's parameters and of a positive number after them.

    In unconstrained coordinates: that of the number is its logarithm.
    """

    def __init__(
        self, layout: Layout, prior: BuiltPrior, hyperprior: Hyperprior
    ) -> None:
        self.layout, self.prior, self.hyperprior = layout, prior, hyperprior
        self.learned, self.is_proper = prior.learned, prior.is_proper
        self.paired = prior.paired

    def initial_hyper(self) -> torch.Tensor:
        """Those of the parameters; see `BuiltPrior.initial_hyper`."""
        return self.prior.initial_hyper()

    def bind(self, hyper: torch.Tensor) -> "BuiltHierarchy":
        """Bind these hyperparameters; see `BuiltPrior.bind`."""
        if not self.learned:
            return self
        return BuiltHierarchy(self.layout, self.prior.bind(hyper), self.hyperprior)

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        """Log density of theta, (S,), with the Jacobian of the number."""
        own = self.prior.log_prob(theta[:, :-1])
        return own + self.hyperprior.log_density(theta[:, -1])

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        """Draws of the prior, (S, P); logs of numbers stay within 600 of 0."""
        own = self.prior.sample(n_draws, generator)
        return torch.cat([own, self.hyperprior.draw_log(n_draws, generator)], 1)

    def as_normal(self) -> None:
        """None: it is not normal in theta."""

    def matching_normal(self) -> None:
        """None: it has no such moments."""

    def tail_precision(self) -> None:
        """None: its tails are not of that form."""


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
        return (find_axis(lambda t: form.log_density(t, s), look),)
    look = np.arange(log_e.min() - REACH, log_e.max() + REACH + 1)
    if form.noise.hyperprior is None:
        return (find_axis(lambda s: form.log_density(t, s), t + look),)

    def along(u: np.ndarray) -> np.ndarray:
        t = form.noise_at_ratio(u)
        return form.log_density(t, t + u, u)

    across = find_axis(along, look)
    u = np.array([across.mode])
    middle = form.noise_at_ratio(u)

    def around(v: np.ndarray) -> np.ndarray:
        return form.log_density(middle + v, middle + v + u, u)

    return across, find_axis(around, np.arange(-2 * REACH, 5.0))


def find_axis(log_density: LogDensity, look: np.ndarray) -> Axis:
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
