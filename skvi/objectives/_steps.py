r"""Gradient steps of several members, and what they can still gain.

With theta = m + L eps, the gradient of log joint - log q in eps is b + M eps if the
density is normal. In eps its posterior then has the mean b and the covariance I + M, up
to higher orders, and q is short of it by

.. math:: KL(q \| p) = \tfrac12 |b|^2 + \tfrac14 |M|^2 .

At the posterior b and M are 0 without noise. A factorized q can change b and the
diagonal of M only. For other densities they are regressions on eps, whose expected
squares due to the residuals are subtracted: residuals of cubes are larger where eps is,
and those of M and of its transpose are alike.
"""

from collections.abc import Sequence
from typing import Any, Protocol, Self

import torch

from skvi.exceptions import IncompatibleComponentsError
from skvi.utils._processes import share_of_rows
from skvi.utils._tensors import randn

#: Rows of one minibatch; None is all rows.
Rows = torch.Tensor | None

# Steps that are prepared at once, and the largest number of elements per member.
MAX_STEPS, MAX_ELEMENTS = 32, 2**21


class Member(Protocol):
    """One member: the parts of its objective, and a source of draws."""

    @property
    def target(self) -> Any:
        """Target, with its own rows and hyperparameters."""

    @property
    def posterior(self) -> Any:
        """Posterior."""

    @property
    def divergence(self) -> Any:
        """Divergence."""

    @property
    def generator(self) -> Any:
        """Source of all its draws, torch.Generator."""


class Source(Protocol):
    """Source of draws: a torch generator, or a stream of noise."""

    def get_state(self) -> Any:
        """Current state: tensors and numbers."""

    def set_state(self, state: Any) -> None:
        """Continue from a state."""


class Steps:
    """Gradients of M members, some steps at a time.

    The owner of `params`, (M, V), variational then hyperparameters, changes them in
    place between steps; `gradient`, (M, V), is the buffer of the last step's.
    """

    #: Whether draws are independent of the number of steps prepared at once, which may
    #: then exceed an epoch.
    spans_epochs = False

    #: What `confine` keeps.
    limits: Sequence[Any] = ()

    def __init__(self, params: torch.Tensor) -> None:
        self.params, self.gradient = params, torch.zeros_like(params)

    def weigh_divergence(self, shares: Sequence[float]) -> bool:
        """Let gradients, but not values, contain a fraction of the divergence.

        `shares` has one fraction for each member; initially they are 1. False where
        gradients always contain all of it.
        """
        return False

    def confine(self) -> None:
        """Move `params`, in place, to where the divergence is finite."""

    @property
    def sources(self) -> list[Source]:
        """Sources of draws, in an order that is the same for equal members.

        With `params` they are the complete state of the steps, for checkpoints.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement sources.")

    @property
    def max_steps(self) -> int:
        """Steps that may be prepared at once."""
        return max(1, min(MAX_STEPS, MAX_ELEMENTS // self.params[0].numel()))

    def prepare(self, rows: Sequence[Sequence[Rows]]) -> None:
        """Load the rows of the next steps, for each member."""
        raise NotImplementedError

    def differentiate(self, step: int) -> None:
        """Compute the gradient at `params`, in place, with a prepared step's rows."""
        raise NotImplementedError

    def values(self, own: torch.Tensor, hyper: torch.Tensor) -> torch.Tensor:
        """Losses since `prepare`, (T, M), in nats, float64.

        `own` and `hyper`, (T, M, ...), were the variational and the hyperparameters.
        """
        raise NotImplementedError

    def keep(self, members: Sequence[int], params: torch.Tensor) -> Self:
        """Steps of some members at `params`, (m, V); they continue unchanged."""
        raise NotImplementedError


class SurrogateSteps(Steps):
    """Steps by automatic differentiation, one member after the other."""

    def __init__(
        self,
        objective: Any,
        members: Sequence[Member],
        params: torch.Tensor,
        n_draws: int,
    ) -> None:
        super().__init__(params)
        if share_of_rows()[1] > 1:
            raise IncompatibleComponentsError(
                "distributed=True",
                "a network under a normal posterior, its ELBO, and a divergence in "
                "closed form",
                "posterior='mean_field' and a prior such as 'normal', or leave it out",
            )
        self.objective, self.members, self.n_draws = objective, list(members), n_draws
        self._rows: Sequence[Sequence[Rows]] = []
        self._values: list[torch.Tensor] = []
        self._shares = [1.0] * len(self.members)

    @property
    def sources(self) -> list[Source]:
        return [member.generator for member in self.members]

    def weigh_divergence(self, shares: Sequence[float]) -> bool:
        """If the objective is the loss plus a divergence in closed form."""
        self._shares, member = list(shares), self.members[0]
        if self.objective.kind != "expectation" or member.target.prior is None:
            return False
        if member.posterior.as_normal() is None:
            return False
        return bool(member.divergence.has_closed_form(member.target.reference))

    def prepare(self, rows: Sequence[Sequence[Rows]]) -> None:
        self._rows, self._values = rows, []

    def differentiate(self, step: int) -> None:
        with torch.inference_mode(False):
            found = [
                self._one(member, params.clone(), rows[step], share)
                for member, params, rows, share in zip(
                    self.members, self.params, self._rows, self._shares, strict=True
                )
            ]
        self._values.append(torch.stack([value.double() for value, _ in found]))
        torch.stack([gradient for _, gradient in found], out=self.gradient)

    def _one(
        self, member: Member, params: torch.Tensor, rows: Rows, share: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        split = len(member.posterior.params)
        value, gradient = self.objective.value_and_gradient(
            member.target.at(params[split:]),
            member.posterior.at(params[:split]),
            member.divergence,
            rows,
            self.n_draws,
            member.generator,
        )
        if share < 1:
            gradient = gradient - (1 - share) * _slope_of_divergence(member, params)
        return value, gradient

    def values(self, own: torch.Tensor, hyper: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._values)

    def keep(self, members: Sequence[int], params: torch.Tensor) -> Self:
        chosen = [self.members[m] for m in members]
        return type(self)(self.objective, chosen, params, self.n_draws)


def _slope_of_divergence(member: Member, params: torch.Tensor) -> torch.Tensor:
    """Gradient of the divergence in closed form, (V,)."""
    split = len(member.posterior.params)
    with torch.enable_grad():
        leaf = params.detach().requires_grad_()
        normal = member.posterior.at(leaf[:split]).normal()
        prior = member.target.at(leaf[split:]).reference
        value = member.divergence.closed_form(normal, prior)
        (slope,) = torch.autograd.grad(value, leaf, materialize_grads=True)
    return slope


# Draws for each coefficient of a regression, and the largest number of parameters.
DRAWS_PER_PARAM, MAX_PARAMS = 20, 200


def gain_of_normal(target: Any, posterior: Any, generator: torch.Generator) -> float:
    """Nats that a Newton step in mean and covariance would gain; 0 if unknown."""
    n_params = target.layout.size
    normal = posterior.as_normal()
    if normal is None or normal.factor is not None or n_params > MAX_PARAMS:
        return 0.0
    n_draws = DRAWS_PER_PARAM * (n_params + 1)
    eps = randn(generator, n_draws, n_params, dtype=normal.mean.dtype)
    with torch.enable_grad():
        leaf = eps.clone().requires_grad_()
        (slope,) = torch.autograd.grad(
            target.log_joint(normal.transform(leaf)).sum(), leaf
        )
    slope = slope + eps  # that of -log q
    design = torch.cat([torch.ones_like(eps[:, :1]), eps], 1)
    coef = torch.linalg.lstsq(design, slope).solution
    residual = slope - design @ coef
    b, M = coef[0], coef[1:]
    in_mean, of_mean = b.square().sum(), residual.square().sum(1)
    if normal.is_diagonal:
        in_shape, of_shape = (
            M.diagonal().square().sum(),
            (eps * residual).square().sum(1),
        )
    else:
        in_shape = (0.5 * (M + M.T)).square().sum()
        of_shape = 0.5 * eps.square().sum(1) * of_mean
        of_shape = of_shape + 0.5 * (eps * residual).sum(1).square()
    noise = (0.5 * of_mean + 0.25 * of_shape).sum() / (n_draws - n_params - 1) / n_draws
    return float(0.5 * in_mean + 0.25 * in_shape - noise)
