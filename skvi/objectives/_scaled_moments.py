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
        n_own, start = 2 * target.layout.size, len(target.likelihood_spec.learned)
        #: Where they are among the hyperparameters.
        self.where = slice(start, start + n_learned)
        # The last factor is 1, of all scales that are fixed.
        factors = target.prior_spec.learned_scales().to(params.device)
        self.index = torch.where(factors < 0, n_learned, factors)
        # Coordinates in the order of their factors, and how many each factor has.
        order = torch.argsort(self.index, stable=True)
        is_sorted = bool((self.index.diff() >= 0).all())
        self._order = None if is_sorted else order
        lengths = torch.bincount(self.index, minlength=n_learned + 1)
        self._lengths = lengths.repeat(len(params), 1)
        #: Number of coordinates of each factor, (H,).
        self.counts = lengths[:-1].to(params.dtype)
        self._log_factors = params[:, n_own:][:, self.where]
        self.for_factors = gradient[:, n_own:][:, self.where]
        self._factors = params.new_ones(len(params), n_learned + 1)
        self._positions = self.index.expand(len(params), -1)

    def log_factors(self, hyper: torch.Tensor) -> torch.Tensor:
        """Logs of the factors of all coordinates, (..., M, P), from hyperparameters."""
        learned = hyper[..., self.where]
        fixed = learned.new_zeros(*learned.shape[:-1], 1)
        return torch.cat([learned, fixed], -1)[..., self.index]

    def precisions(self, out: torch.Tensor) -> torch.Tensor:
        """Put the inverse squares of the current factors in `out`, (M, P)."""
        factors = self._factors[:, :-1]
        torch.mul(self._log_factors, -2.0, out=factors).exp_()
        return torch.gather(self._factors, 1, self._positions, out=out)

    def sums(self, values: torch.Tensor) -> torch.Tensor:
        """Sums of coordinates' values, (M, P), over those of each factor, (M, H + 1).

        The last one is that of fixed scales. Always in the same order, unlike those of
        `scatter_add_` on GPUs.
        """
        if self._order is not None:
            values = values.index_select(1, self._order)
        return torch.segment_reduce(
            values, "sum", lengths=self._lengths, axis=1, unsafe=True
        )

    def collect(self, slopes: torch.Tensor) -> None:
        """Put the gradient in place, from derivatives of every coordinate, (M, P)."""
        self.for_factors.copy_(self.sums(slopes)[:, :-1])


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
        self.scales, self.whole = scales, self.weight[:, None].to(like)
        self.counts = self.whole * scales.counts
        self.is_centered = not bool(self.center.any())
        self.std, self.mean, self.size = std, params[:, :size], size
        self.for_mean, self.for_std = gradient[:, : 2 * size].split(size, 1)
        self._precision, self._room, self._shift = std.new_empty(3, *std.shape)
        self._moments: list[torch.Tensor] = []  # of each step
        self.weigh([1.0] * len(params))

    def weigh(self, shares: Sequence[float]) -> None:
        self.share = self.whole.new_tensor(shares)[:, None]
        self.minus_weight = (-self.whole * self.share).expand_as(self.std)

    def complete(self) -> None:
        std, slope, shift = self.std, self.for_std, self.mean
        if not self.is_centered:
            shift = torch.sub(shift, self.center, out=self._shift)
        precision = self.scales.precisions(self._precision).mul_(self.precision)
        by_std = torch.mul(precision, std, out=self._room)
        slope.addcmul_(by_std, self.share)
        torch.addcmul(self.minus_weight, slope, std, out=slope)
        by_shift = precision.mul_(shift)
        self.for_mean.addcmul_(by_shift, self.share)
        moments = self.scales.sums(by_shift.mul_(shift).addcmul_(by_std, std))
        self._moments.append(moments)
        in_factors = torch.sub(self.counts, moments[:, :-1])
        torch.mul(in_factors, self.share, out=self.scales.for_factors)

    def values(self, own: torch.Tensor, hyper: torch.Tensor) -> torch.Tensor:
        moments, self._moments = torch.stack(self._moments), []
        total = moments.sum(2, dtype=torch.float64)
        entropy = own[..., self.size :].sum(2, dtype=torch.float64)
        factors = hyper[..., self.scales.where] * self.counts
        scales = factors.sum(2, dtype=torch.float64)
        return 0.5 * total - self.weight * entropy + scales + self.constant
