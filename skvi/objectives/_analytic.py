"""Gradients of the ELBO without automatic differentiation, for many members at once."""

from collections.abc import Hashable, Sequence
from typing import Self

import torch

from skvi.objectives._analytic_divergence import divergence_part
from skvi.objectives._batches import MemberBatches
from skvi.objectives._steps import Member, Rows, Steps
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
    target, posterior = member.target, member.posterior
    if not (target.has_row_slopes and posterior.is_diagonal) or target.prior is None:
        return None
    if not member.divergence.has_closed_form(target.prior):
        return None
    is_form = not target.prior_spec.learnt and (
        member.divergence.moment_form(target.prior) is not None
    )
    parts = (target.loss, target.likelihood_spec, target.predictor)
    shared = [repr(part) for part in parts[:2]]
    return (
        *shared,
        target.predictor.structure,
        len(target.hyper),
        is_form,
        target.offset is None,
        posterior.params.dtype,
    )


class AnalyticSteps(Steps):
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
        super().__init__(params)
        self.members, self.n_draws, self.batch_size = members, n_draws, batch_size
        targets, count, dtype = [m.target for m in members], len(members), params.dtype
        first, size = targets[0], targets[0].layout.size
        self.loss, self.likelihood = first.loss, first.likelihood_spec
        if noise is None:
            generators = [member.generator for member in members]
            noise = NoiseStream(generators, n_draws, size, dtype)
        self.noise = noise
        self.batches = MemberBatches(targets, batch_size, n_draws, like=params)
        n_rows = self.batches.n_rows
        self.passes = first.predictor.passes(count, n_draws, n_rows, like=params)
        self.batches.steps = [
            batch._replace(X=self.passes.inputs(batch.X))
            for batch in self.batches.steps
        ]
        self._scaled = torch.empty_like(self.passes.theta)
        self._std = params.new_empty(count, 1, size)
        self._mean, self._log_std = params[:, None, : 2 * size].split(size, 2)
        ends = [size, 2 * size, 2 * size + len(self.likelihood.learnt)]
        self._noise_scale = params[:, ends[1] : ends[2]]
        self._parts = self.gradient.tensor_split(ends, 1)
        self._learns_noise = ends[2] > ends[1]
        self.divergence = divergence_part(
            members, params, self._std[:, 0], self.gradient
        )
        self._values: list[torch.Tensor] = []

    @property
    def max_steps(self) -> int:
        return min(super().max_steps, self.batches.max_steps)

    def prepare(self, rows: Sequence[Sequence[Rows]]) -> None:
        self.batches.fill(rows)
        self.divergence.forget()
        self._values = []

    def differentiate(self, step: int) -> None:
        for_mean, for_std, for_noise, _ = self._parts
        inputs, y, weight, offset = self.batches.steps[step]
        passes, noise = self.passes, self.noise.next()
        torch.exp(self._log_std, out=self._std)
        torch.addcmul(self._mean, self._std, noise, out=passes.theta)
        f = passes.forward(inputs)
        if offset is not None:
            f += offset
        value, for_hyper = self.loss.sums(
            self.likelihood, self._noise_scale, f, y, weight, out=passes.slope
        )
        self._values.append(value)
        pulled = passes.pull_back()
        torch.sum(pulled, 1, out=for_mean)
        torch.mul(pulled, noise, out=self._scaled)
        torch.sum(self._scaled, 1, out=for_std)
        if self._learns_noise:
            for_noise.copy_(for_hyper)
        self.divergence.complete()

    def values(self, trail: torch.Tensor) -> torch.Tensor:
        losses = torch.stack(self._values).double() - self.batches.constant
        return losses + self.divergence.values(trail)

    def keep(self, members: Sequence[int], params: torch.Tensor) -> Self:
        self.noise.keep(members)
        chosen = [self.members[m] for m in members]
        return type(self)(chosen, params, self.n_draws, self.batch_size, self.noise)
