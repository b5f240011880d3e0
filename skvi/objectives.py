"""Objectives: what training optimises, with its gradient rules.

Two kinds. An *expectation* objective is ``E_q[loss] + D(q || prior)``, minimised:
the ELBO and every generalised posterior. A *weights* objective is a function of
the log weights ``lw = log p(D, theta) - log q(theta)`` of draws from q.
"""

from typing import Any

import torch

from skvi.base import Component
from skvi.exceptions import IncompatibleComponentsError
from skvi.utils._validation import StrOptions

__all__ = ["ELBO", "EUBO", "Objective"]


class Objective(Component):
    """Base class of objectives.

    Attributes
    ----------
    kind : {"expectation", "weights"}
        What is minimised: ``E_q[loss] + D(q || prior)``, or a function of the log
        weights ``log p(D, theta) - log q(theta)`` of draws from q.
    direction : {"lower", "upper"}
        Which side of log p(D) the exact bound is on.

    Examples
    --------
    >>> from skvi.objectives import EUBO
    >>> EUBO().kind, EUBO().direction
    ('weights', 'upper')
    """

    kind: str
    direction: str
    #: Whether a normal q at the optimum has the posterior's mean and covariance.
    matches_moments = False
    gradient: str

    def check(self, divergence: Any, target: Any) -> None:
        """Raise where this objective cannot be combined with these parts.

        Parameters
        ----------
        divergence : Divergence
        target : Target

        Raises
        ------
        IncompatibleComponentsError
            Says which part to change, and to what.
        """
        self.validate()

    def surrogate(
        self,
        target: Any,
        posterior: Any,
        divergence: Any,
        rows: torch.Tensor | None,
        n_draws: int,
        generator: torch.Generator,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Build a scalar to minimise, with the right gradient, from fresh draws.

        Parameters
        ----------
        target, posterior, divergence : Target, Posterior, Divergence
        rows : Tensor of int or None
            A minibatch, whose loss is scaled up to all rows; None is all rows.
        n_draws : int
            S, draws of q; unused where everything is in closed form.
        generator : torch.Generator

        Returns
        -------
        surrogate : Tensor
            A scalar. Its gradient in ``posterior.params`` is the training rule;
            its value means nothing.
        value : Tensor
            A scalar: detached estimate of the loss that is minimised, in nats,
            summed over all data. A minibatch or S draws add noise, and where it is
            not linear in means over draws (Rényi, EUBO) a bias that falls with S.
        """
        raise NotImplementedError


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
        value = loss + divergence.monte_carlo(log_q, log_prior)
        return value, value.detach()


def _closed_divergence(divergence: Any, target: Any, posterior: Any) -> bool:
    return posterior.as_normal() is not None and divergence.has_closed_form(
        target.prior
    )


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
