"""What every objective owes."""

from typing import Any

import torch

from skvi.base import Component

__all__ = ["Objective"]


class Objective(Component):
    """Base class of objectives.

    Attributes
    ----------
    kind : {"expectation", "rows", "weights"}
        What is minimised: ``E_q[loss] + D(q || prior)``; the same with something
        else in the place of each row's expected loss; or a function of the log
        weights ``log p(D, theta) - log q(theta)`` of draws from q.
    direction : {"lower", "upper", "estimate"}
        Which side of log p(D) the exact bound is on, if it is one.

    Examples
    --------
    >>> from skvi.objectives import EUBO
    >>> EUBO().kind, EUBO().direction
    ('weights', 'upper')
    """

    kind: str
    direction: str
    #: Power alpha of q in the density ``p^(1 - alpha) q^alpha`` whose mean and
    #: covariance a normal q has at the optimum; None where there is none.
    tilt: float | None = None
    gradient: str
    #: Share of a solver's usual step size that the noise of the gradient allows.
    rate_share = 1.0

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

    def check_posterior(self, posterior: Any, divergence: Any, target: Any) -> None:
        """Raise where this objective cannot train a posterior, before it does.

        Parameters
        ----------
        posterior : Posterior
        divergence : Divergence
        target : Target

        Raises
        ------
        IncompatibleComponentsError
            Says which part to change, and to what.
        """

    @property
    def needs_draws(self) -> bool:
        """Whether theta must be drawn, whatever the target and q can do."""
        return self.gradient != "auto"

    def training_target(self, target: Any) -> Any:
        """Target whose expected loss, without draws, is what this objective needs.

        Parameters
        ----------
        target : Target
            Linear.

        Returns
        -------
        Target
            The same one for every objective that takes expectations of the loss.
        """
        return target

    def exists(self, target: Any, posterior: Any) -> bool | None:
        """Whether the exact bound at this posterior is finite.

        Parameters
        ----------
        target : Target
        posterior : Posterior

        Returns
        -------
        bool or None
            None where it is not known. A sample always prints a finite number:
            where this is False, it estimates nothing.
        """
        return True

    def remaining_gain(
        self, target: Any, posterior: Any, divergence: Any, generator: torch.Generator
    ) -> float:
        """Nats that a better q surely has, where the values are too noisy to tell.

        Parameters
        ----------
        target, posterior, divergence : Target, Posterior, Divergence
        generator : torch.Generator

        Returns
        -------
        float
            A cautious estimate, by which a solver judges its end; 0 for objectives
            whose own progress shows that.
        """
        return 0.0

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
