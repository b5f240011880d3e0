"""The expectation objective: ELBO and every generalised posterior."""

from typing import Any

import torch

from skvi.exceptions import IncompatibleComponentsError
from skvi.objectives.base import Objective
from skvi.utils._validation import StrOptions

__all__ = ["ELBO"]


class ELBO(Objective):
    """Evidence lower bound, or its generalisation by loss and divergence.

    Maximises ``-E_q[loss] - D(q || prior)``. With log loss and KL this is a lower
    bound on log p(D), and the fit is standard variational inference.

    Parameters
    ----------
    gradient : {"auto", "reparam", "stl"}, default="auto"
        "auto" integrates in closed form or by quadrature where it can, and needs
        no draws for a linear model. "reparam" and "stl" train on fresh draws:
        "reparam" differentiates through the draws, "stl" (sticking the landing)
        also drops the score term, so that the gradient has no noise where q is
        the posterior; it needs ``KL(weight=1)``.

    References
    ----------
    Roeder, Wu and Duvenaud (2017), *Sticking the landing*.

    Examples
    --------
    >>> from skvi.objectives import ELBO
    >>> ELBO()
    ELBO()
    """

    _parameter_constraints: dict = {
        "gradient": [StrOptions({"auto", "reparam", "stl"})]
    }
    kind, direction = "expectation", "lower"

    def __init__(self, gradient: str = "auto") -> None:
        self.gradient = gradient

    def check(self, divergence: Any, target: Any) -> None:
        """Check the order of the divergence, and what `gradient` needs."""
        self.validate()
        divergence.check_regularizer()
        divergence.check_prior(target.prior)
        if self.gradient == "stl" and not divergence.is_standard:
            raise IncompatibleComponentsError(
                f"ELBO(gradient='stl') holds for KL(weight=1) only, not for "
                f"{divergence!r}. Use gradient='reparam' or 'auto'."
            )

    def surrogate(
        self,
        target: Any,
        posterior: Any,
        divergence: Any,
        rows: torch.Tensor | None,
        n_draws: int,
        generator: torch.Generator,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Negative ELBO; see `Objective.surrogate`."""
        if self.gradient == "auto" and _closed_divergence(
            divergence, target, posterior
        ):
            value = target.expected_loss(posterior, rows, n_draws, generator)
            value = value + divergence.closed_form(posterior.normal(), target.prior)
            return value, value.detach()
        theta, log_q = posterior.rsample_with_log_prob(n_draws, generator)
        if self.gradient == "stl":
            log_q = posterior.log_prob(theta, posterior.params.detach())
        log_prior = target.prior.log_prob(theta)
        # The log joint holds loss and prior; D replaces the prior's part.
        loss = (log_prior - target.log_joint(theta, rows)).mean()
        logs = (log_q, log_prior)
        value = loss + divergence.estimate(posterior, target.prior, *logs, generator)
        return value, value.detach()


def _closed_divergence(divergence: Any, target: Any, posterior: Any) -> bool:
    return posterior.as_normal() is not None and divergence.has_closed_form(
        target.prior
    )
