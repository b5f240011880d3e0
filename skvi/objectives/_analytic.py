"""Gradients of the ELBO without automatic differentiation, for many members."""

import math
from collections.abc import Hashable, Sequence
from typing import Any, Protocol, Self

import torch

from skvi.base import NormalForm
from skvi.divergences.base import MomentForm
from skvi.objectives._network_steps import NetworkSteps, can_train
from skvi.objectives._orders import Moments, Orders, ScaledForm, VarianceLimits
from skvi.objectives._steps import Member
from skvi.posteriors._normal import _DiagonalPosterior
from skvi.utils._processes import average
from skvi.utils._tensors import NoiseStream

# Variance of a weight, below which squares of single precision are 0.
SMALLEST = 1e-30


class DivergencePart(Protocol):
    """Adds a fraction of the divergence to gradients, and returns its full value."""

    def weigh(self, shares: Sequence[float]) -> None:
        """Set the fraction of each member from now on; initially 1."""

    def complete(self) -> None:
        """Complete the gradient, so far that of the loss in means and deviations.

        It becomes that in means and log standard deviations, with the divergence.
        """

    def values(self, own: torch.Tensor, hyper: torch.Tensor) -> torch.Tensor:
        """Divergences since the last time, (T, M); see `Steps.values`."""


def divergence_part(
    members: Sequence[Member],
    params: torch.Tensor,
    std: torch.Tensor,
    gradient: torch.Tensor,
) -> DivergencePart:
    """Choose the fastest method available to all members.

    `params` and `std` are read in every step; `gradient` is the buffer to be completed.
    """
    forms = [ScaledForm.of(member) for member in members]
    closed = [form.at_one for form in forms if form is not None]
    if len(closed) < len(members):
        return _ByAutograd(members, params, std, gradient)
    kind: Any = Moments if isinstance(closed[0], MomentForm) else Orders
    part: DivergencePart = kind(closed, members[0], params, std, gradient)
    return part


def form_of(member: Member) -> str:
    """Name of the method that differentiates a member's divergence.

    Members with different names cannot be trained in one stack.
    """
    form = ScaledForm.of(member)
    return "by autograd" if form is None else form.name


class _ByAutograd:
    """Automatic differentiation of the closed form, one member after the other."""

    def __init__(
        self,
        members: Sequence[Member],
        params: torch.Tensor,
        std: torch.Tensor,
        gradient: torch.Tensor,
    ) -> None:
        self.members, self.params = members, params
        self.std, self.gradient, self.size = std, gradient, std.shape[1]
        n_of_loss = 2 * self.size + len(members[0].target.likelihood_spec.learned)
        self.for_std = gradient[:, self.size : 2 * self.size]
        self.for_prior = gradient[:, n_of_loss:]
        self.found: list[torch.Tensor] = []
        self.shares: Sequence[float] = [1.0] * len(members)

    def weigh(self, shares: Sequence[float]) -> None:
        self.shares = shares

    def complete(self) -> None:
        self.for_std.mul_(self.std)
        self.for_prior.zero_()
        each = zip(self.members, self.params, self.gradient, self.shares, strict=True)
        self.found.append(torch.stack([self._add(*one) for one in each]))

    def _add(
        self, member: Member, params: torch.Tensor, gradient: torch.Tensor, share: float
    ) -> torch.Tensor:
        with torch.inference_mode(False), torch.enable_grad():
            leaf = params.clone().requires_grad_()
            mean, log_std, hyper = leaf.tensor_split([self.size, 2 * self.size])
            q = NormalForm(mean, log_std.exp())
            prior = member.target.at(hyper).prior
            value = member.divergence.closed_form(q, prior)
            (own,) = torch.autograd.grad(value, leaf)
        gradient.add_(own, alpha=share)
        return value.detach().double()

    def values(self, own: torch.Tensor, hyper: torch.Tensor) -> torch.Tensor:
        found, self.found = torch.stack(self.found), []
        return found


def structure_of(member: Member) -> Hashable | None:
    """What members must share to be trained in one stack; None for other steps."""
    target = member.target
    if not (isinstance(member.posterior, _DiagonalPosterior) and can_train(member)):
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
        self._std = params.new_empty(len(members), size)
        self._mean, self._log_std = params[:, : 2 * size].split(size, 1)
        super().__init__(members, params, n_draws, batch_size, noise)
        self._link()
        self.divergence = divergence_part(members, params, self._std, self.gradient)
        limits = VarianceLimits(members, params, self.gradient)
        self.limits = [limits] if limits.are_finite else []

    def _link(self) -> None:
        """Make the views of all buffers."""
        self._layers, blocks = self._views(), self.passes.blocks
        self._noise = [blocks(noise) for noise in self.noise.steps]

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
        noise = self.noise.next()
        torch.exp(self._log_std, out=self._std)
        self._slopes_of_loss(step, noise)
        self.divergence.complete()
        average(self.gradient)

    def _slopes_of_loss(self, step: int, noise: torch.Tensor) -> None:
        """Write the gradient of the loss in means and deviations."""
        own = self._noise[self.noise.position - 1]
        for layer, eps in zip(self._layers, own, strict=True):
            layer.draw(eps)
        self._pull_back(step)
        for layer, eps in zip(self._layers, own, strict=True):
            layer.collect(eps)

    def weigh_divergence(self, shares: Sequence[float]) -> bool:
        self.divergence.weigh(shares)
        return True

    def confine(self) -> None:
        for limits in self.limits:
            limits.confine()

    def values(self, own: torch.Tensor, hyper: torch.Tensor) -> torch.Tensor:
        return self._losses(hyper) + self.divergence.values(own, hyper)

    def keep(self, members: Sequence[int], params: torch.Tensor) -> Self:
        self.noise.keep(members)
        chosen = [self.members[m] for m in members]
        return type(self)(chosen, params, self.n_draws, self.batch_size, self.noise)


class LocalSteps(AnalyticSteps):
    """The same from draws of the activations of each row."""

    def _noise_stream(self) -> NoiseStream:
        generators = [member.generator for member in self.members]
        # Those of all processes, whose shares are equal but for what is 0.
        n_rows = self.batches.n_rows * self.batches.n_shares
        shape = sum(self.members[0].target.predictor.sizes[1:]), n_rows
        sizes = [self._rows_alone(member.target.n_rows) for member in self.members]
        return NoiseStream(generators, self.n_draws, shape, self.params.dtype, sizes)

    def _rows_alone(self, n_rows: int) -> int:
        """Rows of a step of a member alone: of its own equal batches, or all."""
        if self.batch_size is None:
            return n_rows
        return math.ceil(n_rows / math.ceil(n_rows / self.batch_size))

    def _buffers(self, *shape: int) -> Any:
        self._variance = torch.empty_like(self._std)
        own = self.gradient[:, : 2 * self._std.shape[1]].chunk(2, 1)
        self._in_std = own[1]
        theta = self._mean, self._variance
        predictor = self.members[0].target.predictor
        return predictor.local_passes(theta, own, *shape[1:])

    def _link(self) -> None:
        """Nothing: the passes write to the gradient itself."""

    def _slopes_of_loss(self, step: int, noise: torch.Tensor) -> None:
        torch.mul(self._std, self._std, out=self._variance).clamp_min_(SMALLEST)
        self.passes.fill(self.batches.own(noise))
        self._pull_back(step)
        self._in_std.mul_(self._std)
