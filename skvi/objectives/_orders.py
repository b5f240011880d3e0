"""Divergences of an order from normal priors, and their gradients."""

from collections.abc import Sequence

import torch

from skvi.divergences.base import OrderForm
from skvi.objectives._scaled_moments import LearnedScales

__all__ = ["Orders"]


class Orders:
    """Closed: Rényi divergences of single coordinates, each member of its own order.

    With ``M = a var(pi) + (1 - a) var(q)`` the slopes are ``d / M`` in the mean,
    ``(var(q) / M - 1) / a - (1 - a) var(q) (d / M)^2`` in the log deviation, and
    ``(var(pi) - var(q)) / M - a var(pi) (d / M)^2`` in the log of a scale factor.
    """

    def __init__(
        self,
        forms: Sequence[OrderForm],
        params: torch.Tensor,
        std: torch.Tensor,
        gradient: torch.Tensor,
        scales: LearnedScales | None = None,
    ) -> None:
        size, like, device = std.shape[1], params.dtype, params.device
        self.center = torch.stack([form.center for form in forms]).to(device, like)
        self.variance = torch.stack([form.variance for form in forms]).to(device, like)
        numbers = [(form.order, form.rate) for form in forms]
        self.order, self.rate = params.new_tensor(numbers).T[..., None]
        self.has_rate = bool(self.rate.any())
        # Without a rate any number serves in its place.
        self.divisor = torch.where(self.rate == 0, 1.0, self.rate)
        self.share = torch.ones_like(self.rate)
        self.std, self.mean, self.size = std, params[:, :size], size
        self.for_mean, self.for_std = gradient[:, : 2 * size].split(size, 1)
        self.hyper, self.scales = params[:, 2 * size :], scales

    def weigh(self, shares: Sequence[float]) -> None:
        self.share = self.share.new_tensor(shares)[:, None]

    def complete(self) -> None:
        a, variance, prior = self.order, self.std.square(), self._prior(self.hyper)
        mixed = torch.addcmul(a * prior, 1 - a, variance)
        shift = self.mean - self.center
        in_mean = shift / mixed
        squares = in_mean.square()
        in_log = (variance / mixed - 1) / a - (1 - a) * variance * squares
        weight = self.share.expand_as(in_mean)
        if self.has_rate:
            order = _renyi(a, shift, mixed, self.std.log(), prior)
            weight = weight * torch.exp(-self.rate * order)
        self.for_mean.addcmul_(weight, in_mean)
        self.for_std.mul_(self.std).addcmul_(weight, in_log)
        if self.scales is not None:
            in_factor = (prior - variance) / mixed - a * prior * squares
            self.scales.collect(weight * in_factor)

    def _prior(self, hyper: torch.Tensor) -> torch.Tensor:
        """Variances of the prior, (..., M, P)."""
        if self.scales is None:
            return self.variance.to(hyper.dtype)
        return self.variance * (2 * self.scales.log_factors(hyper)).exp()

    def values(self, own: torch.Tensor, hyper: torch.Tensor) -> torch.Tensor:
        mean, log_std = own.double().split(self.size, 2)
        a, prior = self.order.double(), self._prior(hyper.double())
        mixed = torch.addcmul(a * prior, 1 - a, (2 * log_std).exp())
        found = _renyi(a, mean - self.center, mixed, log_std, prior)
        if self.has_rate:
            bounded = -torch.expm1(-self.rate * found) / self.divisor
            found = torch.where(self.rate == 0, found, bounded)
        return found.sum(2)


def _renyi(
    a: torch.Tensor,
    shift: torch.Tensor,
    mixed: torch.Tensor,
    log_std: torch.Tensor,
    prior: torch.Tensor,
) -> torch.Tensor:
    """Rényi divergences of coordinates, NaN where they are infinite."""
    b = 1 - a
    dets = b * log_std + 0.5 * (a * prior.log() - mixed.log())
    return 0.5 * shift.square() / mixed - dets / (a * b)
