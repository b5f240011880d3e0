"""Normal priors."""

import math

import torch

from skvi.base import Layout, NormalForm
from skvi.priors._scales import SCALE, scaled
from skvi.priors.base import BuiltPrior, Prior
from skvi.utils._random import randn

__all__ = ["Normal"]


class Normal(Prior):
    """Independent N(0, scale^2) on every coefficient.

    Parameters
    ----------
    scale : float or "learn", default=1.0
        Standard deviation, in units of the block's natural size (`Block.scale`).
        1 suits standardized features. "learn" has the fit find the value with the
        largest ELBO (empirical Bayes; type-II maximum likelihood if q is exact): one
        scale for all coefficients, or one for each entry of a mapping of priors.

    Examples
    --------
    >>> from skvi.priors import Normal
    >>> Normal(scale=2.5)
    Normal(scale=2.5)
    """

    _parameter_constraints: dict = {"scale": SCALE}

    def __init__(self, scale: float | str = 1.0) -> None:
        self.scale = scale

    def build(self, layout: Layout) -> BuiltPrior:
        """Build the prior over every coordinate of a layout."""
        self.validate()
        return scaled(layout, self.scale, _BuiltNormal)


class _BuiltNormal(BuiltPrior):
    has_expected_log_prob = True
    has_log_prob_terms = True

    def __init__(self, scale: torch.Tensor) -> None:
        self.scale = scale

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        return self.as_normal().log_prob(theta)

    def log_prob_terms(self, theta: torch.Tensor) -> torch.Tensor:
        return self.as_normal().log_prob_terms(theta)

    def log_prob_gradient(self, theta: torch.Tensor) -> torch.Tensor:
        return -theta / self.scale.square()

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        return self.scale * randn(generator, n_draws, len(self.scale))

    def as_normal(self) -> NormalForm:
        return NormalForm(torch.zeros_like(self.scale), self.scale)

    def expected_log_prob(self, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
        second_moment = (mean.square() + std.square()) / self.scale.square()
        return -0.5 * second_moment - torch.log(self.scale * math.sqrt(2 * math.pi))
