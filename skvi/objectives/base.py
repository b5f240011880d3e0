"""What every objective must implement."""

from collections.abc import Hashable, Sequence
from typing import Any

import torch

from skvi.base._component import Component
from skvi.exceptions import IncompatibleComponentsError
from skvi.objectives._steps import Member, Steps, SurrogateSteps

__all__ = ["Objective"]


class Objective(Component):
    """Base class of objectives.

    Attributes
    ----------
    kind : {"expectation", "rows", "weights"}
        What is minimized: ``E_q[loss] + D(q || prior)``; the same with each row's
        expected loss replaced; or a function of the log weights ``log p(D, theta) - log
        q(theta)`` of draws from q.
    direction : {"lower", "upper", "estimate"}
        Whether the exact value is a lower or an upper bound of log p(D), if it is one.

    Examples
    --------
    >>> from skvi.objectives import EUBO
    >>> EUBO().kind, EUBO().direction
    ('weights', 'upper')
    """

    kind: str
    direction: str
    #: Power alpha of q in the density ``p^(1 - alpha) q^alpha`` whose mean and
    #: covariance a normal q has at the optimum; None if there is none.
    tilt: float | None = None
    gradient: str
    #: Sides of log q, of `Draw`, for which the objective is valid.
    sides: frozenset[str] = frozenset({"exact"})
    #: Fewest draws of a gradient step: two where draws are compared with one another.
    min_draws = 1
    #: Fraction of a solver's usual step size that the noise of the gradient allows.
    rate_share = 1.0

    def check(self, divergence: Any, target: Any) -> None:
        """Raise if this objective cannot be combined with these parts.

        Parameters
        ----------
        divergence : Divergence
        target : Target

        Raises
        ------
        IncompatibleComponentsError
            The message says which part to change, and to what.
        """
        self.validate()

    def check_draws(self, n_draws: int) -> None:
        """Raise if a gradient step has too few draws.

        Parameters
        ----------
        n_draws : int

        Raises
        ------
        IncompatibleComponentsError
            One draw, where draws are compared with one another.
        """
        if n_draws < self.min_draws:
            raise IncompatibleComponentsError(
                f"n_draws={n_draws} is too few for objective={type(self).__name__}, "
                f"which compares draws with one another: give the solver "
                f"{self.min_draws} or more, or use objective='elbo', for which one "
                "draw per step is enough."
            )

    def check_posterior(self, posterior: Any, divergence: Any, target: Any) -> None:
        """Raise if this objective cannot train a posterior.

        Parameters
        ----------
        posterior : Posterior
        divergence : Divergence
        target : Target

        Raises
        ------
        IncompatibleComponentsError
            The message says which part to change, and to what.
        """
        if posterior.side not in self.sides:
            raise IncompatibleComponentsError(_refusal(self, posterior.side))
        if self.needs_full_path and not posterior.has_full_path:
            raise IncompatibleComponentsError(
                f"{self!r} follows draws along their path, on which weights of a "
                "mixture and probabilities of discrete parameters have no gradient. "
                "Use objective='elbo'; or posterior='ensemble', whose weights are "
                f"equal; or, with discrete parameters, {type(self).__name__}"
                "(gradient='score') if there is one."
            )

    @property
    def needs_full_path(self) -> bool:
        """Whether draws must move with all parameters of q; see `Posterior`."""
        return self.gradient != "score" and self.kind != "expectation"

    @property
    def needs_draws(self) -> bool:
        """Whether theta must be drawn, whatever the target and q can do."""
        return self.gradient != "auto"

    def training_target(self, target: Any) -> Any:
        """Target whose expected loss, computed without draws, this objective needs.

        Parameters
        ----------
        target : Target
            A target that `has_design`.

        Returns
        -------
        Target
            The same target for every objective that takes expectations of the loss.
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
            None if unknown. An estimate from draws is always finite: if this is False,
            it does not converge.
        """
        return True

    #: Nats of `remaining_gain` that do not matter.
    allowed_gain = 1.0
    #: What else finds more of it.
    gain_remedy = "or use gradient='reparam'"

    def remaining_gain(
        self, target: Any, posterior: Any, divergence: Any, generator: torch.Generator
    ) -> float:
        """Gain in nats that a better q still has, if values are too noisy to tell.

        Parameters
        ----------
        target, posterior, divergence : Target, Posterior, Divergence
        generator : torch.Generator

        Returns
        -------
        float
            A conservative estimate, by which a solver decides whether it has converged;
            0 for objectives whose values show it.
        """
        return 0.0

    def value_and_gradient(
        self,
        target: Any,
        posterior: Any,
        divergence: Any,
        rows: torch.Tensor | None,
        n_draws: int,
        generator: torch.Generator,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Estimate the minimized loss, and its gradient for training.

        Parameters
        ----------
        target, posterior, divergence : Target, Posterior, Divergence
            None of them is changed.
        rows : Tensor of int or None
            A minibatch, whose loss is scaled up to all rows; None is all rows.
        n_draws : int
            S, draws of q; unused where everything is in closed form.
        generator : torch.Generator

        Returns
        -------
        value : Tensor
            A scalar in nats; see `surrogate`.
        gradient : Tensor of shape (n_variational + H,)
            In the variational parameters, and after them the hyperparameters of the
            target: that of the surrogate.
        """
        split = len(posterior.params)
        with torch.enable_grad():
            leaf = torch.cat([posterior.params, target.hyper]).detach()
            leaf.requires_grad_()
            surrogate, value = self.surrogate(
                target.at(leaf[split:]),
                posterior.at(leaf[:split]),
                divergence,
                rows,
                n_draws,
                generator,
            )
            (gradient,) = torch.autograd.grad(surrogate, leaf)
        return value, gradient

    def structure(self, member: Member) -> Hashable | None:
        """What members must share for `steps` to train them in one stack.

        Parameters
        ----------
        member : Member

        Returns
        -------
        Hashable or None
            Equal for members that can be stacked; None for one that cannot.
        """
        return None

    def steps(
        self,
        members: Sequence[Member],
        params: torch.Tensor,
        n_draws: int,
        batch_size: int | None,
    ) -> Steps:
        """Make the gradient steps of members that are trained together.

        Parameters
        ----------
        members : sequence of Member
            Members of one structure, or a single one.
        params : Tensor of shape (M, V)
            Their parameters, which change in place between steps.
        n_draws : int
            S.
        batch_size : int or None
            Maximum number of rows of one step; None is all rows in every step.

        Returns
        -------
        Steps
            By `value_and_gradient`, unless an objective has a faster method for the
            same gradients.
        """
        return SurrogateSteps(self, members, params, n_draws)

    def surrogate(
        self,
        target: Any,
        posterior: Any,
        divergence: Any,
        rows: torch.Tensor | None,
        n_draws: int,
        generator: torch.Generator,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Build a scalar to minimize, with the right gradient, from fresh draws.

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
            its value is meaningless.
        value : Tensor
            A scalar: detached estimate of the loss that is minimized, in nats,
            summed over all data. A minibatch or S draws add noise, and if it is not
            linear in means over draws (Rényi, EUBO) a bias that decreases with S.
        """
        raise NotImplementedError


#: Why log q must be the log density itself.
_WHY = {
    "upper": "an upper bound of log q makes log p(D, theta) - log q too small, which "
    "keeps the ELBO a lower bound, but makes this objective meaningless",
    "lower": "a lower bound of log q makes log p(D, theta) - log q too large, so that "
    "no bound of the evidence is left",
    "none": "it has no density to compare with the posterior's",
}


def _refusal(objective: Objective, side: str) -> str:
    known = {
        "upper": "known up to an upper bound",
        "lower": "known up to a lower bound",
        "none": "not known",
    }
    remedies = ["a family with an exact density, such as posterior='full_rank'"]
    if side == "upper":
        remedies.insert(0, "objective='elbo'")
    return (
        f"The log density of this posterior family is {known[side]}, and "
        f"objective={objective!r} cannot be trained on it: {_WHY[side]}. Use "
        f"{' or '.join(remedies)}."
    )
