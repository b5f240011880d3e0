"""Scales that the data are to find, and how likely they are before."""

import math

import torch

from skvi.base import Component
from skvi.priors._scales import POSITIVE

__all__ = ["HalfCauchy", "log_density", "scale_nodes"]

# Integral over a log scale: its least number of nodes; their reach from the top, in
# widths of the integrand; the exponent at which its tail ends; the largest step.
N_NODES, REACH, TAIL, LONGEST = 161, 10.0, 37.0, 0.15


class HalfCauchy(Component):
    r"""Hyperprior of one scale for all coefficients, which the data determine.

    .. math:: p(s) = \frac{2}{\pi \, c \, (1 + s^2 / c^2)}, \qquad s > 0

    with median c. It is weak: a scale a thousand times larger or smaller than c costs
    about seven nats, so that even a little information about the size of the
    coefficients outweighs it. And it is proper: there is an evidence, and the scale
    remains finite if the data do not limit it, as with separable classes.

    Parameters
    ----------
    scale : float, default=1.0
        c, in units of the block's natural size (`Block.scale`). In linear models it is
        relative to the columns: c is the median for features whose standard deviations
        have the root mean square 1, and the fit does not depend on their common unit.

    References
    ----------
    Gelman (2006), *Prior distributions for variance parameters in hierarchical
    models*. Polson and Scott (2012), *On the half-Cauchy prior for a global scale
    parameter*.

    Examples
    --------
    >>> from skvi.priors import HalfCauchy, Normal
    >>> Normal(scale=HalfCauchy())
    Normal(scale=HalfCauchy())
    """

    _parameter_constraints: dict = {"scale": POSITIVE}

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale


def log_density(log_scale: torch.Tensor) -> torch.Tensor:
    """Log density of the log of a half-Cauchy scale of median 1: 1 / (pi cosh)."""
    away = log_scale.abs()
    return math.log(2 / math.pi) - away - torch.log1p(torch.exp(-2 * away))


def scale_nodes(squares: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Values of 1 / s^2 and log weights, (..., n_nodes), to integrate over a scale s.

    ``sum(exp(log_weights - squares * precisions / 2))`` is the integral of the
    half-Cauchy density of s (median 1) times ``s^-size exp(-squares / (2 s^2))``.
    """
    # Steps of log s are equal, around the top of the integrand, which falls
    # exponentially: the trapezoidal rule is exact but for rounding. Above a top that is
    # far below the median it falls slowly up to that; for one coefficient it is flat.
    half = 0.5 * (squares - (size - 1))
    root = torch.sqrt(half.square() + (size + 1) * squares)
    # s^2 at the top is a root of a quadratic equation; without cancellation.
    top = torch.where(half > 0, (half + root) / (size + 1), squares / (root - half))
    width = (2 * size + 1) ** -0.5
    log_top, reach = 0.5 * top.log(), REACH * width
    low = torch.full_like(top, -reach)
    if size == 1:
        low = torch.minimum(low, 0.5 * (0.5 * squares / TAIL).log() - log_top)
    high = TAIL / (size + 1) - log_top.clamp(max=0)
    high = high.clamp(reach, max(reach, TAIL / (size - 1)) if size > 1 else None)
    widest = float((high - low).max())
    # Squares that are not finite have none, and leave a density that is not.
    n_steps = math.ceil(widest / LONGEST) if math.isfinite(widest) else 0
    n_nodes = max(N_NODES, n_steps + 1)
    line = torch.linspace(0, 1, n_nodes, dtype=torch.float64, device=squares.device)
    log_scale = (log_top + low)[..., None] + (high - low)[..., None] * line
    log_step = ((high - low) / (n_nodes - 1)).log()[..., None]
    log_weights = log_step + log_density(log_scale) - size * log_scale
    return torch.exp(-2 * log_scale), log_weights
