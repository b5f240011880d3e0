"""Components of an estimator: from its parameters to specifications."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.base import clone

from skvi._registry import SHORTHANDS
from skvi.base._units import Units
from skvi.exceptions import IncompatibleComponentsError
from skvi.losses import CallableLoss, Loss
from skvi.posteriors import Posterior
from skvi.priors import Normal, Prior

__all__ = ["ResolutionMixin"]


class ResolutionMixin:
    """Mixin: shorthands become objects, and objects are cloned, before a fit."""

    #: Whether a fit can have a target in the units of another one, whose posterior is
    #: its prior.
    _reads_units = False

    def _resolve(self, name: str) -> Any:
        """Clone a specification, or build that of a shorthand."""
        value = getattr(self, name)
        if isinstance(value, str):
            return SHORTHANDS[name][value]()
        if isinstance(value, Mapping):
            return {block: self._resolve_block(part) for block, part in value.items()}
        return clone(value, safe=not isinstance(value, Posterior))

    def _resolve_block(self, prior: Any) -> Any:
        """Resolve one prior of a mapping, which may be a shorthand as well."""
        if not isinstance(prior, str):
            return clone(prior)
        if prior not in SHORTHANDS["prior"]:
            raise ValueError(
                f"A prior must be one of {sorted(SHORTHANDS['prior'])} or an object "
                f"such as Normal(scale=2.0). Got {prior!r}."
            )
        return SHORTHANDS["prior"][prior]()

    def _resolve_all(self) -> None:
        self.objective_ = self._resolve("objective")
        self.divergence_ = self._resolve("divergence")
        self.loss_function_ = self._resolve_loss()
        self.posterior_family_ = self._resolve("posterior")
        self.prior_ = self._resolve_prior()
        for part in (self.divergence_, self.loss_function_, self.posterior_family_):
            part.validate()

    def _resolve_loss(self) -> Loss:
        """Return a loss; a function is wrapped in one."""
        if isinstance(self.loss, (str, Loss)):
            return self._resolve("loss")
        if isinstance(self.loss, type):
            raise ValueError(
                f"loss must be a string, a Loss or a function of (f, y). Got the class "
                f"{self.loss.__name__}: give an instance, {self.loss.__name__}()."
            )
        return CallableLoss(self.loss)

    def _resolve_prior(self) -> Any:
        """Return one prior, or one for each block if there is an intercept."""
        prior, intercept = self._resolve("prior"), None
        if self.intercept_prior is not None:
            intercept = self._resolve("intercept_prior")
        if intercept is not None and not self._has_intercept:
            raise IncompatibleComponentsError(
                f"intercept_prior={self.intercept_prior!r} needs an intercept. Use "
                "fit_intercept=True, or intercept_prior=None."
            )
        if not self._reads_units and _is_standardized(prior):
            raise IncompatibleComponentsError(
                "The posterior that is given as prior is that of a regression with a "
                f"standardized target, which {type(self).__name__} has not. Use the "
                f"posterior_ of a {type(self).__name__}."
            )
        if isinstance(prior, Posterior) and intercept is not None:
            raise IncompatibleComponentsError(
                "A posterior that is given as prior has the intercept in it. Use "
                "intercept_prior=None."
            )
        if isinstance(prior, Posterior) or not self._has_intercept:
            return prior
        blocks = prior if isinstance(prior, dict) else {"coef": prior}
        if intercept is not None and "intercept" in blocks:
            raise IncompatibleComponentsError(
                "prior and intercept_prior both give a prior for the intercept. "
                "Leave one of them out."
            )
        if intercept is None and "intercept" not in blocks:
            intercept = self._intercept_beside(prior)
        return blocks if intercept is None else {**blocks, "intercept": intercept}

    def _intercept_beside(self, prior: Any) -> Prior | None:
        """Prior of the intercept where none is given; None if a mapping has no entry.

        Never a sparse prior: a normal of the same scale.
        """
        if isinstance(prior, dict):
            return None
        if prior.intercept_scale is None:
            raise IncompatibleComponentsError(
                f"prior={prior!r} has no scale for the intercept to share. Give "
                "intercept_prior, or a dict of priors for 'coef' and 'intercept'."
            )
        return Normal(scale=prior.intercept_scale)

    @property
    def _has_intercept(self) -> bool:
        return True

    def _given_units(self) -> Units | None:
        """Units of the fit whose posterior is the prior; None if there is none."""
        return self.prior_.units if isinstance(self.prior_, Posterior) else None


def _is_standardized(prior: Any) -> bool:
    """Whether a prior is the posterior of a fit to a standardized target."""
    units = prior.units if isinstance(prior, Posterior) else None
    if units is None:
        return False
    return bool(np.any(units.y_mean != 0) or np.any(units.y_scale != 1))
