"""What every objective must implement."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch

from skvi.base._component import Component
from skvi.exceptions import IncompatibleComponentsError
from skvi.objectives._steps import Member, Steps, SurrogateSteps
from skvi.utils._tensors import CPU

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

    def check(
        self,
        divergence: Any,
        target: Any,
        posterior: Any = None,
        n_draws: int | None = None,
    ) -> None:
        """Raise if this objective cannot be combined with these parts.

        Parameters
        ----------
        divergence : Divergence
        target : Target
        posterior : Posterior, default=None
            What is to be trained; None if it is not known yet.
        n_draws : int, default=None
            Draws of a gradient step; None if it is not known yet.

        Raises
        ------
        IncompatibleComponentsError
            The message says which part to change, and to what.
        """
        self.validate()
        divergence.check_regularizer()
        if target.prior is not None:
            divergence.check_prior(target.prior)
        refuse(Parts(self, divergence, target, posterior, n_draws))

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


class Parts(NamedTuple):
    """Parts that are to be combined; see `Objective.check`."""

    objective: Any
    divergence: Any
    target: Any
    posterior: Any = None
    n_draws: int | None = None

    def has(self, kind: str, gradient: str | None = None) -> bool:
        """Whether the objective is of this kind, and has this gradient rule."""
        own = self.objective.gradient
        return self.objective.kind == kind and gradient in (None, own)

    def reduces(self, name: str) -> bool:
        """Whether a way of reducing the noise of "score" is asked for."""
        return getattr(self.objective, name, False) is True

    def has_score(self) -> bool:
        """Whether "score" has a gradient without bias."""
        divergence, q = self.divergence, self.posterior
        if divergence.kl_weight is not None:
            return True
        if q is None or q.as_normal() is not None:
            if divergence.has_closed_form(self.target.reference):
                return True
        at = torch.zeros(1, dtype=torch.float64, device=CPU)
        return divergence.score_factor(at, at) is not None

    def has_terms(self) -> bool:
        """Whether log q and log prior are known to be sums over coordinates."""
        is_kl = self.divergence.kl_weight is not None
        parts = (self.target.reference, self.posterior or self.target.reference)
        return is_kl and all(part.has_log_prob_terms for part in parts)

    def has_evidence(self) -> bool:
        """Whether the prior, if there is one, is proper."""
        return self.target.prior is None or self.target.prior.is_proper

    def follows_path(self) -> bool:
        """Whether the divergence is KL, and the gradient along the path of draws."""
        is_kl = self.divergence.kl_weight is not None
        return is_kl and self.objective.gradient not in ("stl", "score")

    def has_local_draws(self) -> bool:
        """Whether activations can be drawn row by row."""
        predictor, q = getattr(self.target, "predictor", None), self.posterior
        is_normal = q.is_diagonal and q.as_normal() is not None
        has_layers = hasattr(predictor, "sample_locally")
        return has_layers and is_normal and not self.target.layout.positive


#: What does not go together: whether a row applies, the part, what it needs, and what
#: to use instead.
Row = tuple[Callable[[Parts], bool], str, str, str]

OBJECTIVE, DIVERGENCE = "objective={objective!r}", "divergence={divergence!r}"

REFUSALS: list[Row] = [
    (
        lambda p: not p.has("expectation") and p.divergence.kl_weight != 1,
        OBJECTIVE,
        "KLDivergence(weight=1), which belongs to it; got {divergence!r}",
        "objective='elbo' with this divergence, or divergence='kl' with this objective",
    ),
    (
        lambda p: p.has("weights") and not p.has_evidence(),
        OBJECTIVE,
        "an exact posterior, which an improper prior such as LogUniform need not have",
        "objective='elbo', or a proper sparse prior: prior='horseshoe'",
    ),
    (
        lambda p: p.has("rows") and not hasattr(p.target, "sampled_losses"),
        OBJECTIVE,
        "rows with a likelihood, and a prior; this target has no separate rows",
        "objective='renyi', which takes a power mean of the whole density",
    ),
    (
        lambda p: p.target.prior is None and p.divergence.kl_weight != 1,
        DIVERGENCE,
        "a prior to compare the posterior with, and this target has none",
        "divergence='kl' with weight 1, or a target with a prior",
    ),
    (
        lambda p: p.has("expectation", "stl") and p.divergence.kl_weight != 1,
        "ELBO(gradient='stl')",
        "KLDivergence(weight=1); got {divergence!r}",
        "gradient='reparam' or 'auto'",
    ),
    (
        lambda p: p.reduces("rao_blackwell") and not p.has("expectation", "score"),
        "rao_blackwell=True",
        "gradient='score', whose noise it reduces; got {objective!r}",
        "gradient='score', or rao_blackwell=False",
    ),
    (
        lambda p: p.reduces("control_variate") and not p.has("expectation", "score"),
        "control_variate=True",
        "gradient='score', whose noise it reduces; got {objective!r}",
        "gradient='score', or control_variate='auto'",
    ),
    (
        lambda p: p.has("expectation", "score") and not p.has_score(),
        "ELBO(gradient='score')",
        "for a gradient without bias a divergence that is a mean over draws of q (KL, "
        "FDivergence, AlphaDivergence(joint=True)), or one in closed form; "
        "{divergence!r} is neither here",
        "gradient='reparam', divergence='kl', or a normal prior and posterior",
    ),
    (
        lambda p: p.reduces("rao_blackwell") and not p.has_terms(),
        "rao_blackwell=True",
        "log q of several independent parts, an independent prior, and their KL",
        "divergence='kl', an independent prior such as 'normal', and "
        "posterior='mean_field' or a Product of several parts, or rao_blackwell=False",
    ),
]

#: The same, if the posterior is known.
OF_POSTERIORS: list[Row] = [
    (
        lambda p: p.posterior.side not in p.objective.sides,
        OBJECTIVE,
        "the log density of q, of which this family has a bound at most",
        "a family with an exact density, such as posterior='full_rank'; or, if it has "
        "an upper bound, objective='elbo'",
    ),
    (
        lambda p: p.objective.needs_full_path and not p.posterior.has_full_path,
        OBJECTIVE,
        "draws that move with all parameters of q: weights of a mixture and "
        "probabilities of discrete parameters move none",
        "objective='elbo'; or posterior='ensemble', whose weights are equal; or, with "
        "discrete parameters, gradient='score' if there is one",
    ),
    (
        lambda p: p.posterior.side == "upper" and not p.follows_path(),
        "A family whose log density has an upper bound",
        "KL, and a gradient along the path of draws; got {objective!r}, {divergence!r}",
        "ELBO(gradient='auto') and divergence='kl', or a family with an exact density",
    ),
    (
        lambda p: not p.posterior.has_full_path and p.divergence.kl_weight is None,
        "A mixture with weights to learn",
        "a divergence that is a mean over its components; got {divergence!r}",
        "divergence='kl', or posterior='ensemble', whose weights are equal",
    ),
    (
        lambda p: p.has("expectation", "local") and not p.has_local_draws(),
        "ELBO(gradient='local')",
        "an MLP whose weights are independent normals: it draws the activations",
        "posterior='mean_field' with such a model, or ELBO(gradient='auto')",
    ),
    (
        lambda p: p.n_draws is not None and p.n_draws < p.objective.min_draws,
        OBJECTIVE,
        "draws that it can compare with one another; got n_draws={n_draws}",
        "{objective.min_draws} or more, or objective='elbo', for which one is enough",
    ),
]


def refuse(parts: Parts) -> None:
    """Raise for the first row that applies."""
    for applies, *texts in REFUSALS + OF_POSTERIORS * (parts.posterior is not None):
        if applies(parts):
            given = (text.format(**parts._asdict()) for text in texts)
            raise IncompatibleComponentsError(*given)
