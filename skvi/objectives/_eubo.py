"""The evidence upper bound."""

from typing import Any

import torch

from skvi.exceptions import IncompatibleComponentsError
from skvi.objectives.base import Objective
from skvi.utils._validation import StrOptions

__all__ = ["EUBO"]


class EUBO(Objective):
    r"""Evidence upper bound: minimises KL(posterior || q).

    .. math:: U(q) = E_{p(\theta|D)}[\log p(D, \theta) - \log q(\theta)]
              = \log p(D) + KL(p(\theta|D) \| q)

    A normal q at the optimum has the posterior's own mean and covariance (for a
    mean-field q: its marginal standard deviations), where the ELBO's are often
    too small.

    Parameters
    ----------
    gradient : {"auto", "score", "doubly_reparam"}, default="auto"
        "auto" matches moments where q is normal, and else trains with
        "doubly_reparam". Both rules train on self-normalised weights of fresh
        draws; their bias is O(1/S) and large while the effective sample size is
        small. The noise of "doubly_reparam" vanishes where q is the posterior.

    Notes
    -----
    The exact EUBO is above log p(D). Its estimate from draws of q is a
    self-normalised one and can fall below: `evidence_bounds` gives a certified
    upper side. The gradient of the exact EUBO is
    ``-E_p[d log q(theta; lambda) / d lambda]`` with theta held fixed.
    Differentiating the weights as well minimises something that has no lower
    bound at a finite number of draws.

    References
    ----------
    Ji and Shen (2019), *Stochastic variational inference via upper bound*, eq. 2;
    the algorithm's printed gradient is not used (it vanishes in the mean). Tucker
    et al. (2019), *Doubly reparameterized gradient estimators*.

    Examples
    --------
    >>> from skvi.objectives import EUBO
    >>> EUBO(gradient="score")
    EUBO(gradient='score')
    """

    _parameter_constraints: dict = {
        "gradient": [StrOptions({"auto", "score", "doubly_reparam"})]
    }
    kind, direction = "weights", "upper"
    matches_moments = True

    def __init__(self, gradient: str = "auto") -> None:
        self.gradient = gradient

    def check(self, divergence: Any, target: Any) -> None:
        """Refuse every divergence but KL with weight 1."""
        self.validate()
        if not divergence.is_standard:
            raise IncompatibleComponentsError(
                f"objective=EUBO moves q towards the exact posterior and leaves no "
                f"room for another divergence to the prior than KL(weight=1); got "
                f"divergence={divergence!r}. Use objective='elbo' with this "
                "divergence, or divergence='kl' with this objective."
            )

    def bound(self, log_weights: torch.Tensor) -> torch.Tensor:
        """Self-normalised estimate of the EUBO.

        Parameters
        ----------
        log_weights : Tensor of shape (..., S)
            ``log p(D, theta) - log q(theta)`` at draws of q, in nats.

        Returns
        -------
        Tensor
            A scalar in nats: reduced over the last axis, averaged over the others.
            Its bias is O(1/S), so that it can be below log p(D).
        """
        return (torch.softmax(log_weights, -1) * log_weights).sum(-1).mean()

    def surrogate(
        self,
        target: Any,
        posterior: Any,
        divergence: Any,
        rows: torch.Tensor | None,
        n_draws: int,
        generator: torch.Generator,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """EUBO by one of its two gradient rules; see `Objective.surrogate`."""
        theta, log_q = posterior.rsample_with_log_prob(n_draws, generator)
        if self.gradient == "score":
            theta = theta.detach()
            log_weights = target.log_joint(theta, rows) - log_q.detach()
            surrogate = -_normalise(log_weights) @ posterior.log_prob(theta)
        else:
            fixed = posterior.params.detach()
            log_weights = target.log_joint(theta, rows) - posterior.log_prob(
                theta, fixed
            )
            surrogate = -_normalise(log_weights) @ log_weights
        return surrogate, self.bound(log_weights.detach())


def _normalise(log_weights: torch.Tensor) -> torch.Tensor:
    return torch.softmax(log_weights.detach(), -1)
