"""Gradients of the ELBO without automatic differentiation, for many members at once."""

from collections.abc import Hashable, Sequence
from typing import Self

import torch

from skvi.objectives._analytic_divergence import divergence_part, form_of
from skvi.objectives._network_steps import NetworkSteps, can_train
from skvi.objectives._steps import Member
from skvi.objectives._variance_limits import VarianceLimits
from skvi.utils._random import NoiseStream

__all__ = ["AnalyticSteps", "structure_of"]


def structure_of(member: Member) -> Hashable | None:
    """What members must share to be trained in one stack; None for other steps."""
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
        target.rows.offset is None,
        params.dtype,
        params.device,
    )


class _Layer:
    """Views of the buffers for the weights of one layer, (M, S or 1, inputs, outputs).

    The first draws of pairs are followed by the second ones; if S is odd, one has none.
    Views are made once: making them costs as much as small operations.
    """

    def __init__(
        self,
        mean: torch.Tensor,
        std: torch.Tensor,
        weights: torch.Tensor,
        gradients: torch.Tensor,
        total: torch.Tensor,
    ) -> None:
        n_draws = weights.shape[1]
        n_first, n_second = (n_draws + 1) // 2, n_draws // 2
        self.mean, self.std = mean, std
        self.first, self.second = weights.split([n_first, n_second], 1)[:2]
        slopes, _ = gradients
        # The only pair needs no sum over pairs.
        self.both = total[:, :, None] if n_first == 1 else gradients[:, :, :n_first]
        self.total = None if n_first == 1 else total
        self.in_mean, self.in_std = self.both
        self.one = slopes[:, :n_second], slopes[:, n_first:]
        self.pairs = self.in_mean[:, :n_second], self.in_std[:, :n_second]
        alone = slice(n_second, n_first)
        self.alone = slopes[:, alone], self.both[:, :, alone]
        self.is_odd, self.n_second = n_first > n_second, n_second

    def draw(self, noise: torch.Tensor) -> None:
        """Fill the weights."""
        torch.addcmul(self.mean, self.std, noise, out=self.first)
        if self.n_second:
            noise = noise[:, : self.n_second] if self.is_odd else noise
            torch.addcmul(self.mean, self.std, noise, value=-1, out=self.second)

    def collect(self, noise: torch.Tensor) -> None:
        """Put gradients in means and deviations in place, from those in the weights."""
        if self.n_second:
            one, other = self.one
            in_mean, in_std = self.pairs
            torch.sub(one, other, out=in_std)
            torch.add(one, other, out=in_mean)
        if self.is_odd:
            slopes, both = self.alone
            both.copy_(slopes)
        self.in_std.mul_(noise)
        if self.total is not None:
            torch.sum(self.both, 2, out=self.total)


class AnalyticSteps(NetworkSteps):
    """Gradients of the negative ELBO from draws of factorized normals.

    ``theta = mean + std * noise``: the slopes of the loss in theta are the gradient in
    the means and, times the noise, in the deviations. The divergence is in closed form.
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
        self._std = params.new_empty(len(members), size)
        self._mean, self._log_std = params[:, : 2 * size].split(size, 1)
        self._layers, blocks = self._views(), self.passes.blocks
        self._noise = [blocks(noise) for noise in self.noise.steps]
        self.divergence = divergence_part(members, params, self._std, self.gradient)
        self.limits = VarianceLimits(members, params, self.gradient)

    def _views(self) -> list[_Layer]:
        passes, shape = self.passes, (2, self._std.shape[1])
        total = self.gradient[:, : 2 * shape[1]].unflatten(1, shape).transpose(0, 1)
        by_layer = (
            passes.blocks(self._mean[:, None]),
            passes.blocks(self._std[:, None]),
            passes.weights,
            passes.gradients,
            passes.blocks(total),
        )
        return [_Layer(*views) for views in zip(*by_layer, strict=True)]

    def differentiate(self, step: int) -> None:
        self.noise.next()
        noise = self._noise[self.noise.position - 1]
        torch.exp(self._log_std, out=self._std)
        for layer, eps in zip(self._layers, noise, strict=True):
            layer.draw(eps)
        self._pull_back(step)
        for layer, eps in zip(self._layers, noise, strict=True):
            layer.collect(eps)
        self.divergence.complete()

    def weigh_divergence(self, shares: Sequence[float]) -> None:
        self.divergence.weigh(shares)

    @property
    def confines(self) -> bool:  # type: ignore[override]
        return bool(self.limits.are_finite)

    def confine(self) -> None:
        self.limits.confine()

    def values(self, own: torch.Tensor, hyper: torch.Tensor) -> torch.Tensor:
        return self._losses(hyper) + self.divergence.values(own, hyper)

    def keep(self, members: Sequence[int], params: torch.Tensor) -> Self:
        self.noise.keep(members)
        chosen = [self.members[m] for m in members]
        return type(self)(chosen, params, self.n_draws, self.batch_size, self.noise)
