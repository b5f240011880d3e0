"""Evidence of linear regression: closed forms first, then sampling."""

import math
from dataclasses import replace

import torch

from skvi.evidence import bound_evidence
from skvi.evidence._conjugate import conjugate_evidence
from skvi.evidence._table import elbo_row
from skvi.exceptions import IncompatibleComponentsError
from skvi.linear_model._blocks import with_logarithm
from skvi.utils._warnings import warn_user

__all__ = ["RegressionEvidenceMixin"]

# Hyperpriors below this shape are flat over many orders of magnitude.
VAGUE_SHAPE = 1e-2


COST = (
    "; {} vague hyperpriors cost about {:.1f} nats, as much for all models that have "
    "them: compare with others only under proper ones, such as "
    "HierarchicalNormal(shape=1.0, rate=1.0)"
)


class RegressionEvidenceMixin:
    """Mixin: bounds on the evidence of a linear regression."""

    _evidence_methods = frozenset({"auto", "exact", "importance", "annealing"})

    def _bound_evidence(
        self,
        target,
        generator,
        method,
        n_draws,
        precision,
        quantity,
        report,
        max_seconds=None,
    ):
        self._warn_vague()
        posterior, normal = self.posterior_, None
        if method in ("auto", "exact"):
            found = conjugate_evidence(target, posterior, generator, quantity)
            if found is not None and (found.reliable or method == "exact"):
                return self._with_own_bound(self._with_cost(found))
        if method == "exact":
            raise IncompatibleComponentsError(
                "method='exact' needs log loss and normal coefficients that share "
                "their precision, or have given ones. Use method='auto'."
            )
        if target.is_extended:
            # Joint draws of precisions and coefficients have funnels.
            target = target.marginal(self._marginal_prior())
            posterior = posterior.as_prior().marginal(target.layout)
            normal = self._log_normal(target.layout)
        found = bound_evidence(
            target,
            posterior,
            generator,
            n_draws,
            precision,
            quantity,
            normal,
            method,
            report,
            max_seconds,
        )
        return self._with_own_bound(self._with_cost(found))

    def _marginal_prior(self):
        """Prior of coefficients and intercept, with precisions integrated out."""
        prior = self._model.marginal_prior
        first = len(self._hyper) - len(prior.learned)
        return prior.bind(torch.from_numpy(self._hyper[first:]))

    def _log_normal(self, layout):
        """Normal with the moments of the posterior, a log noise precision included."""
        if self._normal is None or "noise_precision" not in layout:
            return self._normal
        return with_logarithm(self._normal, self.posterior_, "noise_precision")

    def _with_own_bound(self, found):
        """Bounds with the fit's own ELBO if that has no Monte Carlo noise."""
        if self.lower_bound_se_:
            return found
        row = elbo_row((self.lower_bound_, 0.0))
        return replace(found, table={**found.table, "ELBO of q": row})

    def _vague(self):
        """Hyperpriors that are flat over many orders of magnitude."""
        gammas = self._model.gammas.values()
        return [gamma for gamma in gammas if gamma.shape < VAGUE_SHAPE]

    def _warn_vague(self):
        """Warn of a cost that depends on the number of features."""
        shapes = [gamma.shape for gamma in self._vague() if not gamma.is_shared]
        if shapes:
            n = self.n_features_in_
            cost = -sum(n * math.log(shape) for shape in shapes)
            warn_user(
                f"{n} vague Gamma hyperpriors, one for each coefficient, cost the "
                f"evidence about {cost:.1f} nats whatever the data: models with fewer "
                "features win for that reason alone. Give the prior a scale, such as "
                "prior=ARD(shape=1.0, rate=1.0).",
                UserWarning,
            )

    def _with_cost(self, found):
        """Name what shared hyperpriors cost: as much for every model that has them."""
        shapes = [gamma.shape for gamma in self._vague() if gamma.is_shared]
        if not shapes:
            return found
        cost = -sum(math.log(shape) for shape in shapes)
        return replace(found, reason=found.reason + COST.format(len(shapes), cost))
