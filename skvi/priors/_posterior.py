"""Fitted posteriors as priors: what was learned from other data."""

import math
from copy import deepcopy
from typing import Any

import torch

from skvi.base import Layout, NormalForm
from skvi.exceptions import IncompatibleComponentsError
from skvi.priors.base import BuiltPrior

__all__ = ["MixtureAsPrior", "prior_of_posterior"]


def prior_of_posterior(posterior: Any, layout: Layout) -> BuiltPrior:
    """Use a copy of a fitted posterior as the prior of a model with the same layout.

    Raises IncompatibleComponentsError if its parameters are others, or its density is
    not exact.
    """
    if dict(posterior.layout) != dict(layout):
        raise IncompatibleComponentsError(
            f"The posterior that is given as prior is over {posterior.layout}, but "
            f"this model has {layout}. Use a posterior of the same features, outputs "
            "and sizes."
        )
    posterior = posterior.unrefined
    if posterior.side != "exact":
        raise IncompatibleComponentsError(
            "A posterior whose density is known up to a bound cannot be a prior. Use "
            "one of a normal family, such as posterior='full_rank'."
        )
    if hasattr(posterior, "log_scales"):
        return MixtureAsPrior(deepcopy(posterior))
    return _PosteriorAsPrior(deepcopy(posterior.as_prior()))


class _PosteriorAsPrior(BuiltPrior):
    def __init__(self, posterior: Any) -> None:
        self.posterior = posterior

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        return self.posterior.log_prob(theta)

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        with torch.no_grad():
            return self.posterior.draw(n_draws, generator).theta

    def as_normal(self) -> NormalForm | None:
        return self.posterior.as_normal()

    def matching_normal(self) -> NormalForm | None:
        normal = self.as_normal()
        return normal and NormalForm(normal.mean, normal.variance.sqrt())


class MixtureAsPrior(_PosteriorAsPrior):
    """A mixture over the scales of an earlier prior, which keep their weights.

    `log_scales` are the logs of the scales, in ascending order; there are no others.
    """

    def __init__(self, posterior: Any) -> None:
        super().__init__(posterior)
        self.log_scales = posterior.log_scales.tolist()

    def _at(self, log_scale: float) -> int:
        distances = (self.posterior.log_scales - log_scale).abs()
        return int(distances.argmin())

    def given_scale(self, scale: float) -> BuiltPrior:
        """The posterior at the nearest of the scales."""
        node = self.posterior.nodes[self._at(math.log(scale))]
        return _PosteriorAsPrior(node)

    def log_density_of_scale(self, log_scale: torch.Tensor) -> torch.Tensor:
        """Log of the weight of the nearest scale."""
        return self.posterior.log_weights[self._at(float(log_scale))]

    def as_one(self) -> BuiltPrior:
        """The normal with the moments of the mixture."""
        return _PosteriorAsPrior(self.posterior.as_prior())

    def matching_normal(self) -> NormalForm | None:
        """Factorized normal with the means and variances of the mixture."""
        return self.as_one().matching_normal()
