"""E[log(lambda + w^2)] for a normal w, lambda fixed or random; exp(t) E1(t) itself.

For ``t > 0``, ``log t`` is the integral of ``(exp(-tau) - exp(-tau t)) / tau`` over
tau > 0 (Frullani). With ``t = lambda + w^2`` the expectation of ``exp(-tau w^2)`` is
closed for a normal w, and that of ``exp(-tau lambda)`` is the Laplace transform of
the law of lambda. There remains one integral over ``u = log(tau)`` of a function that
is analytic and bounded for ``|Im u| < pi/2``: the trapezoidal rule with step h has an
error of about ``exp(-pi^2/h)``, for any mean and variance of w. Its tails on both sides
are summed in closed form.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import exp1, expi
from torch.utils.checkpoint import checkpoint

from skvi.utils._tables import table
from skvi.utils._tensors import CPU
from skvi.utils._validation import TEMPORARY_ELEMENTS

STEP = 0.35  # an error of 6e-13
# Relative size of the first and last nodes, beyond which series take over.
EDGE = 1e-4
LARGEST = 40.0  # exp(-40) is negligible
# Range of log(tau), in steps, for which the transform is tabulated.
FIRST, LAST = -500, 700
# Nodes times parameters kept for a gradient.
KEPT = 2**24
# Arguments of exp(t) E1(t): beyond FAR the asymptotic series is exact to rounding.
FAR, SMALLEST = 500.0, 1e-300


@dataclass(frozen=True)
class Law:
    """Law of lambda ("zero", "one" or "horseshoe") with its first two moments."""

    name: str
    first: float
    second: float

    @property
    def decays(self) -> bool:
        """Whether the transform decays exponentially."""
        return self.name == "one"


ZERO, ONE = Law("zero", 0.0, 0.0), Law("one", 1.0, 1.0)
# Mixing density ``exp(x) / (x (pi^2 + Ei(x)^2))``: ``exp(t) E1(t)`` is a Stieltjes
# function, and this is the jump of its logarithm at -x over 2 pi i, so that
# ``log(exp(t) E1(t)) = -E[log(t + lambda)]``.
HORSESHOE = Law("horseshoe", 1.0, 3.0)


@table(maxsize=4)
def _transform(law: Law) -> torch.Tensor:
    """E[exp(-tau lambda)] at ``tau = exp(k STEP)`` for k from FIRST to LAST."""
    tau = np.exp(STEP * np.arange(FIRST, LAST + 1))
    if law.name == "zero":
        return torch.ones(len(tau), dtype=torch.float64, device=CPU)
    if law.name == "one":
        return torch.from_numpy(np.exp(-tau))
    # By parts: the distribution function is arccot(-Ei(x) / pi) / pi.
    step = 0.07
    v = np.exp(np.arange(-40, 4, step))
    with np.errstate(over="ignore", under="ignore"):
        below = 0.5 + np.arctan(expi(v[:, None] / tau) / math.pi) / math.pi
    return torch.from_numpy(step * (v * np.exp(-v)) @ below)


@dataclass(frozen=True)
class _Grid:
    """Nodes for a batch of normals."""

    tau: torch.Tensor
    transform: torch.Tensor
    constant: float
    below: tuple[float, ...]
    above: tuple[float, ...]


def _indices(squared: torch.Tensor, variance: torch.Tensor, law: Law) -> tuple:
    """First and last node, from the widest and the narrowest normal."""
    # Values that are too large or NaN get a finite grid, and keep their value.
    largest = float(torch.nan_to_num(squared + variance, nan=0.0).max())
    low = math.log(EDGE / (1 + 3 * min(largest, 1e60)))
    high = math.log(LARGEST)
    if not law.decays:
        small = variance.clamp(min=1e-60)
        far = squared > 800 * small
        needed = torch.where(far, 50 / squared.clamp(min=1e-60), 0.5 / (EDGE * small))
        high = max(
            high, math.log(float(torch.nan_to_num(needed, nan=1.0).max()) or 1.0)
        )
    return math.floor(low / STEP), math.ceil(high / STEP)


@table(maxsize=64)
def _grid(low: int, high: int, law: Law, device: torch.device) -> _Grid:
    whole = _transform(law)
    steps = torch.arange(low, high + 1, dtype=torch.float64, device=CPU)
    tau = torch.exp(STEP * steps)
    decay = torch.exp(-tau)
    # The same numbers, so that they cancel: numpy rounds otherwise on some processors.
    transform = decay if law.decays else whole[low - FIRST : high + 1 - FIRST]
    rest = whole[high + 1 - FIRST :]
    j = torch.arange(1, len(rest) + 1, dtype=torch.float64, device=CPU)
    first = float(tau[0])
    return _Grid(
        tau.to(device),
        transform.to(device),
        STEP * float((decay - transform).sum()),
        tuple(STEP * first**p / math.expm1(p * STEP) for p in (1, 2)),
        tuple(STEP * float(rest @ torch.exp(-(p + 0.5) * STEP * j)) for p in (0, 1, 2)),
    )


def _log_rule(
    squared: torch.Tensor, variance: torch.Tensor, grid: _Grid, law: Law
) -> torch.Tensor:
    tau = grid.tau[:, None]
    widened = torch.log1p(2 * tau * variance)
    # 1 - E[exp(-tau w^2)]
    lost = -torch.expm1(-tau * squared * torch.exp(-widened) - 0.5 * widened)
    value = grid.constant + STEP * (grid.transform @ lost)
    second = squared + variance
    fourth = squared.square() + 6 * squared * variance + 3 * variance.square()
    value = value + grid.below[0] * (second + (law.first - 1))
    quadratic = 0.5 * (1 - law.second) - law.first * second - 0.5 * fourth
    value = value + grid.below[1] * quadratic
    return value if law.decays else value - _above(squared, variance, grid)


def _above(squared: torch.Tensor, variance: torch.Tensor, grid: _Grid) -> torch.Tensor:
    """Nodes beyond the last: sqrt(y) exp(-x) times a series in y = 1/(2 tau var)."""
    y = (0.5 / (grid.tau[-1] * variance)).clamp(max=1e40)
    x = (0.5 * squared / variance).clamp(max=700)
    series = (
        grid.above[0]
        + grid.above[1] * y * (x - 0.5)
        + grid.above[2] * y.square() * (0.375 - 1.5 * x + 0.5 * x.square())
    )
    return y.sqrt() * torch.exp(-x) * series


def _inverse_rule(
    squared: torch.Tensor, variance: torch.Tensor, grid: _Grid, law: Law
) -> torch.Tensor:
    tau = grid.tau[:, None]
    widened = 1 + 2 * tau * variance
    kept = torch.exp(-tau * squared / widened) * widened.rsqrt()
    value = STEP * ((grid.transform * grid.tau) @ kept)
    first = law.first + squared + variance
    return value + grid.below[0] - grid.below[1] * first


def expected_log(mean: torch.Tensor, std: torch.Tensor, law: Law) -> torch.Tensor:
    """E[log(lambda + w^2)], w ~ N(mean, std^2), to about 1e-11 in float64.

    Differentiable any number of times; lambda is independent of w.
    """
    found = _apply(_log_rule, mean.flatten(), std.flatten(), law)
    return found.view(mean.shape)


def expected_inverse(mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    """E[1 / (1 + w^2)], w ~ N(mean, std^2), to 1e-11 relative; differentiable."""
    return _apply(_inverse_rule, mean, std, ONE)


def _apply(rule: Any, mean: torch.Tensor, std: torch.Tensor, law: Law) -> torch.Tensor:
    squared = mean.double().square()
    variance = std.double().square().clamp(min=1e-290)
    low, high = _indices(squared.detach(), variance.detach(), law)
    grid = _grid(low, high, law, squared.device)
    width = max(1, TEMPORARY_ELEMENTS // len(grid.tau))
    parts = zip(squared.split(width), variance.split(width), strict=True)
    keeps = torch.is_grad_enabled() and (squared + variance).requires_grad
    if keeps and len(grid.tau) * len(squared) > KEPT:
        return torch.cat([_recomputed(rule, *part, grid, law) for part in parts])
    return torch.cat([rule(*part, grid, law) for part in parts])


def _recomputed(rule: Any, *arguments: Any) -> torch.Tensor:
    """Evaluate without storing intermediates: the gradient recomputes them."""
    return checkpoint(rule, *arguments, use_reentrant=False, preserve_rng_state=False)


def _evaluate(t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Value and derivative 1 - 1 / (t exp(t) E1(t))."""
    t = t.detach().double().clamp(min=SMALLEST)
    near = t.clamp(max=FAR)
    value = near.exp() * torch.from_numpy(exp1(near.cpu().numpy())).to(t.device)
    # t exp(t) E1(t) = 1 - lack.
    r, far = 1 / t, t > FAR
    lack = r * (1 - r * (2 - r * (6 - r * (24 - r * (120 - 720 * r)))))
    slope = torch.where(far, -lack / (1 - lack), 1 - r / value)
    return torch.where(far, torch.log1p(-lack) - t.log(), value.log()), slope


class _LogScaledE1(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: torch.Tensor) -> torch.Tensor:
        value, slope = _evaluate(t)
        ctx.save_for_backward(slope)
        return value

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * ctx.saved_tensors[0]


def log_scaled_e1(t: torch.Tensor) -> torch.Tensor:
    """Log of ``exp(t) E1(t)`` for t >= 0, in float64; differentiable once."""
    return _LogScaledE1.apply(t)


def log_scaled_e1_slope(t: torch.Tensor) -> torch.Tensor:
    """Return the derivative of `log_scaled_e1`, a tensor of the same shape."""
    return _evaluate(t)[1]
