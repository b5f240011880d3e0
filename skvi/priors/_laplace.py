"""Laplace priors."""

import math

import torch

from skvi.base import Layout, NormalForm
from skvi.priors._scales import SCALE, scaled
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


class _BuiltLaplace(BuiltPrior):
    has_expected_log_prob = True
    has_log_prob_terms = True
    is_log_concave = True

    def __init__(self, scale: torch.Tensor) -> None:
        self.scale = scale

    def matching_normal(self) -> NormalForm:
        return NormalForm(torch.zeros_like(self.scale), math.sqrt(2) * self.scale)

    def tail_precision(self) -> torch.Tensor:
        return torch.zeros_like(self.scale)

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        return self.log_prob_terms(theta).sum(1)

    def log_prob_terms(self, theta: torch.Tensor) -> torch.Tensor:
        return -theta.abs() / self.scale - torch.log(2 * self.scale)

    def log_prob_gradient(self, theta: torch.Tensor) -> torch.Tensor:
        return -theta.sign() / self.scale

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        u = rand(generator, n_draws, len(self.scale)) - 0.5
        return -self.scale * u.sign() * torch.log1p(-2 * u.abs())

    def expected_log_prob(self, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
        # Mean of the folded normal: E|theta|.
        z = mean / std
        density = torch.exp(-0.5 * z.square()) * math.sqrt(2 / math.pi)
        absolute = std * density + mean * torch.erf(z / math.sqrt(2))
        return -absolute / self.scale - torch.log(2 * self.scale)
