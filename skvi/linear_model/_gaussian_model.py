"""The model of linear regression: inferred precisions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from skvi.linear_model._units import LinearModel
from skvi.priors import GammaHyperprior
from skvi.targets import HierarchicalTarget

__all__ = ["GaussianLinearModel"]


@dataclass(frozen=True, eq=False)
class GaussianLinearModel(LinearModel):
    """Linear regression in the units of the fit, with inferred precisions.

    `gammas` are their hyperpriors. `prior` is that of the intercept alone if the
    coefficients' precision has one; `marginal_prior` integrates the precisions out.
    """

    gammas: Mapping[str, GammaHyperprior] = field(default_factory=dict)
    marginal_prior: Any = None
    is_centered: bool = True

    def target(self, data):
        """Log joint density of coefficients and precisions; see `Model.target`."""
        y, weight, constant = self._columns(data)
        return HierarchicalTarget(
            self.predictor,
            self.likelihood,
            self.loss,
            self.prior,
            self.design(data.X),
            y,
            weight,
            constant,
            **self.gammas,
            is_centered=self.is_centered,
        )
