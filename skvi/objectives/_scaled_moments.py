"""Divergences from normal priors whose scales are learned, and their gradients."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch

from skvi.divergences import MomentForm
from skvi.objectives._steps import Member

__all__ = ["ScaledForm", "ScaledMoments"]


@dataclass(frozen=True, eq=False)
class ScaledForm:
    """A `MomentForm` at unit scale factors of the prior, and the learned factors.

    Parameters
    ----------
    moments : MomentForm
    learned_scales : Tensor of int of shape (P,)
        See `BuiltPrior.learned_scales`.
    n_learned : int
    """

    moments: MomentForm
    learned_scales: torch.Tensor
    n_learned: int

    @classmethod
    def of(cls, member: Member) -> Self | None:
        """Form of a member whose prior learns only scales."""
        spec = member.target.prior_spec
        factors = spec.learned_scales()
        if factors is None:
            return None
        prior = spec.bind(torch.zeros_like(spec.initial_hyper()))
        moments = member.divergence.moment_form(prior)
        return None if moments is None else cls(moments, factors, len(spec.learned))

    @property
    def name(self) -> str:
        """Equal for members that can be trained in one stack."""
        return f"{type(self).__name__} {self.learned_scales.tolist()}"


class ScaledMoments:
    """Closed form, with a factor ``exp(h)`` of the prior's scale in some coordinates.

    ``D = sum(precision exp(-2 h) (std^2 + (mean - center)^2) / 2 - w log(std) + w h)
    + constant``, whose derivative in h is the sum of ``w - precision exp(-2 h) (std^2 +
    (mean - center)^2)`` over the coordinates that it scales.

    Parameters
    ----------
    forms : sequence of ScaledForm
        Forms of M members, with equal `learned_scales`.
    params, gradient : Tensor of shape (M, V)
    std : Tensor of shape (M, P)
    start : int
        Position of the prior's hyperparameters in `params`.
    """

    def __init__(
        self,
        forms: Sequence[ScaledForm],
        params: torch.Tensor,
        std: torch.Tensor,
        gradient: torch.Tensor,
        start: int,
    ) -> None:
        moments, first, size = [f.moments for f in forms], forms[0], std.shape[1]
        like, device = params.dtype, params.device
        self.precision = torch.stack([m.precision for m in moments]).to(device, like)
        self.center = torch.stack([m.center for m in moments]).to(device, like)
        numbers = [(m.weight, m.constant) for m in moments]
        self.weight, self.constant = params.new_tensor(numbers, dtype=torch.float64).T
        # The last factor is 1, for all fixed scales.
        factors = first.learned_scales.to(device)
        self.index = torch.where(factors < 0, first.n_learned, factors)
        self.members = torch.zeros(
            size, first.n_learned + 1, dtype=like, device=device
        ).scatter_(1, self.index[:, None], 1.0)[:, :-1]
        count = self.members.sum(0)
        self.hyper = slice(start, start + first.n_learned)
        self.log_factors = params[:, self.hyper]
        self.whole = self.weight[:, None].to(like)
        self.pull = self.whole * count
        self.share = torch.ones_like(self.whole)
        self.std, self.mean, self.size = std, params[:, :size], size
        self.for_mean, self.for_std = gradient[:, : 2 * size].split(size, 1)
        self.for_factors = gradient[:, self.hyper]

    def weigh(self, shares: Sequence[float]) -> None:
        self.share = self.share.new_tensor(shares)[:, None]

    def complete(self) -> None:
        std, slope, share = self.std, self.for_std, self.share
        precision = self._precision(self.log_factors).mul_(share)
        shift = self.mean - self.center
        self.for_mean.addcmul_(precision, shift)
        slope.addcmul_(precision, std).mul_(std).sub_(self.whole * share)
        squares = shift.square_().addcmul_(std, std).mul_(precision)
        torch.sub(self.pull * share, squares @ self.members, out=self.for_factors)

    def _precision(self, log_factors: torch.Tensor) -> torch.Tensor:
        """Precisions of the prior, (..., M, P)."""
        fixed = log_factors.new_zeros(*log_factors.shape[:-1], 1)
        factor = torch.cat([log_factors, fixed], -1).mul_(-2.0).exp_()
        return factor[..., self.index].mul_(self.precision)

    def values(self, trail: torch.Tensor) -> torch.Tensor:
        mean, log_std = trail[..., : 2 * self.size].split(self.size, 2)
        log_factors = trail[..., self.hyper]
        shift = mean - self.center
        squares = torch.exp(log_std).square_().addcmul_(shift, shift)
        total = squares.mul_(self._precision(log_factors)).sum(2, dtype=torch.float64)
        entropy = log_std.sum(2, dtype=torch.float64)
        scales = (log_factors * self.pull).sum(2, dtype=torch.float64)
        return 0.5 * total - self.weight * entropy + scales + self.constant
