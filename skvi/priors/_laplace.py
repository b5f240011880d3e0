"""Laplace priors."""

import math

import torch

from skvi.base import Layout
from skvi.priors._scales import SCALE, BuiltIndependent, scaled
from skvi.priors.base import BuiltPrior, Prior
from skvi.utils._random import rand

__all__ = ["Laplace"]


class Laplace(Prior):
    """Independent Laplace (double exponential) density on every coefficient.

    Parameters
    ----------
    scale : float or "learn", default=1.0
        The density is ``exp(-abs(theta) / scale) / (2 * scale)``, with standard
        deviation ``sqrt(2) * scale``; in units of the block's natural size. "learn"
        as in `Normal`.

    Examples
    --------
    >>> from skvi.priors import Laplace
    >>> Laplace(scale=0.5)
    Laplace(scale=0.5)
    """

    _parameter_constraints: dict = {"scale": SCALE}

    def __init__(self, scale: float | str = 1.0) -> None:
        self.scale = scale

    def build(self, layout: Layout) -> BuiltPrior:
        """Build the prior over every coordinate of a layout."""
        self.validate()
        return scaled(layout, self.scale, _BuiltLaplace)


class _BuiltLaplace(BuiltIndependent):
    is_log_concave = True
    width = math.sqrt(2)

    def _log_density(self, u: torch.Tensor) -> torch.Tensor:
        return -u.abs() - math.log(2)

    def _slope(self, u: torch.Tensor) -> torch.Tensor:
        return -u.sign()

    def _expected(self, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
        # Mean of the folded normal: E|u|.
        z = mean / std
        density = torch.exp(-0.5 * z.square()) * math.sqrt(2 / math.pi)
        return -std * density - mean * torch.erf(z / math.sqrt(2)) - math.log(2)

    def _draw(self, generator: torch.Generator, *shape: int) -> torch.Tensor:
        u = rand(generator, *shape) - 0.5
        return -u.sign() * torch.log1p(-2 * u.abs())
