"""Gradients of the ELBO without automatic differentiation, for many members at once."""

from collections.abc import Hashable, Sequence
from typing import Self

import torch

from skvi.objectives._analytic_divergence import divergence_part, form_of
from skvi.objectives._network_steps import NetworkSteps, can_train
from skvi.objectives._steps import Member
from skvi.utils._random import NoiseStream

__all__ = ["AnalyticSteps", "structure_of"]


def structure_of(member: Member) -> Hashable | None:
    """What members must share to be trained in one stack.

    Parameters
    ----------
    member : Member

    Returns
    -------
    Hashable or None
        None where `AnalyticSteps` cannot train the member.
    """
    target = member.target
    if not (member.posterior.is_mean_field and can_train(member)):
        return None
    params = member.posterior.params
    return (
        repr(target.loss),
        repr(target.likelihood_spec),
        target.predictor.structure,
        len(target.hyper),
        form_of(member),
        target.offset is None,
        params.dtype,
        params.device,
    )


class AnalyticSteps(NetworkSteps):
    """Gradients of the negative ELBO from draws of factorised normals.

    ``theta = mean + std * noise``. The predictor pulls the slopes of the loss in f
    back to theta; they are the gradient in the means and, times the noise, in the
    standard deviations. The divergence is in closed form.

    Parameters
    ----------
    members : sequence of Member
        Of one structure, see `structure_of`.
    params : Tensor of shape (M, V)
    n_draws : int
        S.
    batch_size : int or None
        Most rows of one step; None is all rows in every step.
    noise : NoiseStream, default=None
        Goes on with this one.
    """

    def __init__(
        self,
        members: Sequence[Member],
        params: torch.Tensor,
        n_draws: int,
        batch_size: int | None,
        noise: NoiseStream | None = None,
    ) -> None:
        size = members[0].target.layout.size
        super().__init__(members, params, n_draws, batch_size, size, noise)
        self._scaled = torch.empty_like(self.passes.theta)
        self._std = params.new_empty(len(members), 1, size)
        self._mean, self._log_std = params[:, None, : 2 * size].split(size, 2)
        self._for_mean, self._for_std = self.gradient[:, : 2 * size].split(size, 1)
        std = self._std[:, 0]
        self.divergence = divergence_part(members, params, std, self.gradient)

    def differentiate(self, step: int) -> None:
        noise = self.noise.next()
        torch.exp(self._log_std, out=self._std)
        torch.addcmul(self._mean, self._std, noise, out=self.passes.theta)
        pulled = self._slopes(step)
        torch.sum(pulled, 1, out=self._for_mean)
        torch.mul(pulled, noise, out=self._scaled)
        torch.sum(self._scaled, 1, out=self._for_std)
        self.divergence.complete()

    def values(self, trail: torch.Tensor) -> torch.Tensor:
        return self._losses(trail) + self.divergence.values(trail)

    def keep(self, members: Sequence[int], params: torch.Tensor) -> Self:
        self.noise.keep(members)
        chosen = [self.members[m] for m in members]
        return type(self)(chosen, params, self.n_draws, self.batch_size, self.noise)
