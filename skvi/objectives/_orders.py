"""Divergences of an order and of learned scales, where they exist."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch

from skvi.base import NormalForm
from skvi.divergences.base import MomentForm, OrderForm
from skvi.objectives._steps import Member

# A smallest eigenvalue this close to 0, relative to the largest, is inconclusive.
MARGIN = 1e-8


def power_exists(target: Any, posterior: Any, power: float) -> bool | None:
    """Whether ``E_q[w^n]`` is finite for w = p(D, theta) / q(theta); None if unknown.

    For q normal with covariance V, and T the tail precision of the joint density:
    finite if ``n T + (1 - n) / V`` is positive definite, infinite if it has a negative
    eigenvalue. For n from 0 to 1 at most ``Z^n`` (Jensen), for every q.
    """
    if 0 <= power <= 1:
        return True
    found, q = target.tail_precision(), posterior.as_normal()
    if found is None or q is None:
        return None
    tail, is_exact = found
    q = _with_square_scale(q, tail.dtype)
    finite = _is_positive(tail, q, power)
    # A lower bound of T decides one direction: more decay helps positive powers only.
    helps = finite if power > 0 else finite is False
    return finite if is_exact or helps else None


def _with_square_scale(q: NormalForm, dtype: torch.dtype) -> NormalForm:
    """The same normal, with its factor, if any, merged into its scale."""
    scale = q.scale if q.factor is None else torch.linalg.cholesky(q.covariance())
    return NormalForm(q.mean.to(dtype), scale.to(dtype))


def _is_positive(tail: torch.Tensor, q: Any, power: float) -> bool | None:
    """Sign of the smallest eigenvalue of n T + (1 - n) / V; None near 0."""
    if tail.ndim == 1 and q.is_diagonal:
        values = power * tail * q.variance + (1 - power)
        smallest = float(values.min())
        margin = MARGIN * (abs(power) * float((tail * q.variance).max()) + 1)
        return None if abs(smallest) <= margin else smallest > 0
    # In coordinates in which q is a standard normal.
    scale = torch.diag(q.scale) if q.is_diagonal else q.scale
    weighted = tail[:, None] * scale if tail.ndim == 1 else tail @ scale
    matrix = power * (scale.T @ weighted)
    matrix.diagonal().add_(1 - power)
    margin = MARGIN * float(matrix.diagonal().abs().max() + 1)
    matrix.diagonal().sub_(margin)
    if not int(torch.linalg.cholesky_ex(matrix)[1]):
        return True
    matrix.diagonal().add_(2 * margin)
    return False if int(torch.linalg.cholesky_ex(matrix)[1]) else None


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
        """Form of a member whose prior is normal, and learns scales, if anything."""
        factors = member.target.prior_spec.learned_scales()
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


class Moments:
    """Closed form, with a factor ``exp(h)`` of the prior's scale in some coordinates.

    ``D = sum(precision exp(-2 h) (std^2 + (mean - center)^2) / 2 - w log(std) + w h) +
    constant``; its slope in h sums ``w`` minus twice the first term over coordinates.
    """

    def __init__(
        self,
        forms: Sequence[MomentForm],
        member: Member,
        params: torch.Tensor,
        std: torch.Tensor,
        gradient: torch.Tensor,
    ) -> None:
        scales = LearnedScales(member, params, gradient)
        size, like, device = std.shape[1], params.dtype, params.device
        self.precision = torch.stack([m.precision for m in forms]).to(device, like)
        self.center = torch.stack([m.center for m in forms]).to(device, like)
        numbers = [(m.weight, m.constant) for m in forms]
        self.weight, self.constant = params.new_tensor(numbers, dtype=torch.float64).T
        self.scales, self.whole = scales, self.weight[:, None].to(like)
        self.counts = self.whole * scales.counts
        self.has_scales = bool(self.counts.numel())
        self.is_centered = not bool(self.center.any())
        self.std, self.mean, self.size = std, params[:, :size], size
        self.for_mean, self.for_std = gradient[:, : 2 * size].split(size, 1)
        self._precision, self._room, self._shift = std.new_empty(3, *std.shape)
        self.weigh([1.0] * len(params))

    def weigh(self, shares: Sequence[float]) -> None:
        self.share = self.whole.new_tensor(shares)[:, None]
        self.minus_weight = (-self.whole * self.share).expand_as(self.std)

    def complete(self) -> None:
        std, slope, shift, precision = self.std, self.for_std, self.mean, self.precision
        if not self.is_centered:
            shift = torch.sub(shift, self.center, out=self._shift)
        if self.has_scales:
            precision = self.scales.precisions(self._precision).mul_(precision)
        weighted = torch.mul(precision, self.share, out=self._room)
        slope.addcmul_(weighted, std)
        torch.addcmul(self.minus_weight, slope, std, out=slope)
        self.for_mean.addcmul_(weighted, shift)
        if self.has_scales:
            moments = precision * (std.square() + shift.square())
            in_factors = self.counts - self.scales.sums(moments)[:, :-1]
            torch.mul(in_factors, self.share, out=self.scales.for_factors)

    def values(self, own: torch.Tensor, hyper: torch.Tensor) -> torch.Tensor:
        mean, log_std = own.split(self.size, 2)
        log_factors = self.scales.log_factors(hyper)
        log_ratio, shift = log_std - log_factors, mean - self.center
        squares = (2 * log_ratio).exp() + (shift * (-log_factors).exp()).square()
        total = (self.precision * squares).sum(2, dtype=torch.float64)
        entropy = log_ratio.sum(2, dtype=torch.float64)
        return 0.5 * total - self.weight * entropy + self.constant


class Orders:
    """Closed: Rényi divergences of single coordinates, each member of its own order.

    With ``M = a var(pi) + (1 - a) var(q)`` the slopes are ``d / M`` in the mean,
    ``(var(q) / M - 1) / a - (1 - a) var(q) (d / M)^2`` in the log deviation, and
    ``(var(pi) - var(q)) / M - a var(pi) (d / M)^2`` in the log of a scale factor.
    """

    def __init__(
        self,
        forms: Sequence[OrderForm],
        member: Member,
        params: torch.Tensor,
        std: torch.Tensor,
        gradient: torch.Tensor,
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
        self.hyper = params[:, 2 * size :]
        self.scales = LearnedScales(member, params, gradient)

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
        in_factor = (prior - variance) / mixed - a * prior * squares
        slopes = self.scales.sums(weight * in_factor)[:, :-1]
        self.scales.for_factors.copy_(slopes)

    def _prior(self, hyper: torch.Tensor) -> torch.Tensor:
        """Variances of the prior, (..., M, P)."""
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


# Distance of the logs of standard deviations from where the divergence is infinite: its
# gradient pushes back before that, unless a step is longer.
LOG_MARGIN = 0.01


class VarianceLimits:
    """Keeps factorized normals narrower than what makes their divergences infinite.

    The gradient of a divergence grows without bound as q approaches its limit, but a
    step of fixed length can exceed it, from where nothing leads back.
    """

    def __init__(
        self, members: Sequence[Member], params: torch.Tensor, gradient: torch.Tensor
    ) -> None:
        target = members[0].target
        ratios = [member.divergence.max_variance_ratio for member in members]
        self.are_finite = (
            min(ratios) < math.inf and target.prior_spec.learned_scales() is not None
        )
        if not self.are_finite:
            return
        normals = [prior_at_one(member).as_normal() for member in members]
        variance = torch.stack([normal.variance for normal in normals])
        limit = variance.new_tensor(ratios)[:, None] * variance
        self.highest = (0.5 * limit.log() - LOG_MARGIN).to(params)
        self.scales = LearnedScales(members[0], params, gradient)
        size = target.layout.size
        self.log_std, self.hyper = params[:, size:].tensor_split([size], 1)

    def confine(self) -> None:
        """Reduce, in place, standard deviations beyond their limits."""
        highest = self.highest + self.scales.log_factors(self.hyper)
        torch.minimum(self.log_std, highest, out=self.log_std)
