"""Divergences from normal priors whose scales are learned, and their gradients."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch

from skvi.divergences.base import MomentForm, OrderForm
from skvi.objectives._steps import Member

__all__ = ["LearnedScales", "ScaledForm", "ScaledMoments", "prior_at_one"]


def prior_at_one(member: Member) -> Any:
    """Prior at factors 1 of the scales that are learned."""
    spec = member.target.prior_spec
    return spec.bind(torch.zeros_like(spec.initial_hyper()))


@dataclass(frozen=True, eq=False)
class ScaledForm:
    """A closed form at factors 1 of the prior's scales, and what those factors are.

    `learned_scales`, (P,), are as in `BuiltPrior.learned_scales`.
    """

    at_one: MomentForm | OrderForm
    learned_scales: torch.Tensor

    @classmethod
    def of(cls, member: Member) -> Self | None:
        """Form of a member whose prior learns only scales."""
        spec = member.target.prior_spec
        factors = spec.learned_scales()
        if factors is None:
            return None
        prior = prior_at_one(member)
        moments = member.divergence.moment_form(prior)
        form = member.divergence.order_form(prior) if moments is None else moments
        return None if form is None else cls(form, factors)

    @property
    def name(self) -> str:
        """Equal for members that can be trained in one stack."""
        return f"{type(self.at_one).__name__} {self.learned_scales.tolist()}"


class LearnedScales:
    """Logs of factors of the prior's scales in some coordinates: where they are."""

    def __init__(
        self, member: Member, params: torch.Tensor, gradient: torch.Tensor
    ) -> None:
        target = member.target
        n_learned = len(target.prior_spec.learned)
        start = 2 * target.layout.size + len(target.likelihood_spec.learned)
        self.hyper = slice(start, start + n_learned)
        # The last factor is 1, of all scales that are fixed.
        factors = target.prior_spec.learned_scales().to(params.device)
        self.index = torch.where(factors < 0, n_learned, factors)
        # Coordinates in the order of their factors, and how many each factor has.
        self._order = torch.argsort(self.index, stable=True)
        self._lengths = torch.bincount(self.index, minlength=n_learned + 1)
        #: Number of coordinates of each factor, (H,).
        self.counts = self._lengths[:-1].to(params.dtype)
        self.for_factors = gradient[:, self.hyper]

    def log_factors(self, params: torch.Tensor) -> torch.Tensor:
        """Logs of the factors of all coordinates, (..., M, P)."""
        learned = params[..., self.hyper]
        fixed = learned.new_zeros(*learned.shape[:-1], 1)
        return torch.cat([learned, fixed], -1)[..., self.index]

    def sums(self, values: torch.Tensor) -> torch.Tensor:
        """Sums of coordinates' values, (M, P), over those of each factor, (M, H).

        Always in the same order, unlike those of `scatter_add_` on GPUs.
        """
        ordered = values.T[self._order]
        found = torch.segment_reduce(
            ordered, "sum", lengths=self._lengths, axis=0, unsafe=True
        )
        return found[:-1].T

    def collect(self, slopes: torch.Tensor) -> None:
        """Put the gradient in place, from derivatives of every coordinate, (M, P)."""
        self.for_factors.copy_(self.sums(slopes))


class ScaledMoments:
    """Closed form, with a factor ``exp(h)`` of the prior's scale in some coordinates.

    ``D = sum(precision exp(-2 h) (std^2 + (mean - center)^2) / 2 - w log(std) + w h) +
    constant``; its slope in h sums ``w`` minus twice the first term over coordinates.
    """

    def __init__(
        self,
        forms: Sequence[MomentForm],
        params: torch.Tensor,
        std: torch.Tensor,
        gradient: torch.Tensor,
        scales: LearnedScales,
    ) -> None:
        size, like, device = std.shape[1], params.dtype, params.device
        self.precision = torch.stack([m.precision for m in forms]).to(device, like)
        self.center = torch.stack([m.center for m in forms]).to(device, like)
        numbers = [(m.weight, m.constant) for m in forms]
        self.weight, self.constant = params.new_tensor(numbers, dtype=torch.float64).T
        self.params, self.scales = params, scales
        self.whole = self.weight[:, None].to(like)
        self.counts = self.whole * scales.counts
        self.share = torch.ones_like(self.whole)
        self.std, self.mean, self.size = std, params[:, :size], size
        self.for_mean, self.for_std = gradient[:, : 2 * size].split(size, 1)

    def weigh(self, shares: Sequence[float]) -> None:
        self.share = self.share.new_tensor(shares)[:, None]

    def complete(self) -> None:
        std, slope, share = self.std, self.for_std, self.share
        precision = self._precision(self.params).mul_(share)
        shift = self.mean - self.center
        self.for_mean.addcmul_(precision, shift)
        slope.addcmul_(precision, std).mul_(std).sub_(self.whole * share)
        squares = shift.square_().addcmul_(std, std).mul_(precision)
        moments = self.scales.sums(squares)
        torch.sub(self.counts * share, moments, out=self.scales.for_factors)

    def _precision(self, params: torch.Tensor) -> torch.Tensor:
        """Precisions of the prior, (..., M, P)."""
        factor = self.scales.log_factors(params).mul_(-2.0).exp_()
        return factor.mul_(self.precision)

    def values(self, trail: torch.Tensor) -> torch.Tensor:
        mean, log_std = trail[..., : 2 * self.size].split(self.size, 2)
        log_factors = trail[..., self.scales.hyper]
        shift = mean - self.center
        squares = torch.exp(log_std).square_().addcmul_(shift, shift)
        total = squares.mul_(self._precision(trail)).sum(2, dtype=torch.float64)
        entropy = log_std.sum(2, dtype=torch.float64)
        scales = (log_factors * self.counts).sum(2, dtype=torch.float64)
        return 0.5 * total - self.weight * entropy + scales + self.constant
