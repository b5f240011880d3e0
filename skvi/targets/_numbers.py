"""Shared numbers: given them the posterior of a linear model is nearly normal.

A prior has unknown scales, a likelihood a positive number, such as a dispersion. The
coordinate z is the logarithm.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from typing import Any, cast

import torch

from skvi.base import NormalForm
from skvi.priors import BuiltPrior
from skvi.priors._posterior import MixtureAsPrior
from skvi.targets._hierarchical import HierarchicalTarget, beside_number
from skvi.targets._precisions import UnknownNumber
from skvi.targets._supervised import SupervisedTarget, with_prior
from skvi.targets.base import Target
from skvi.utils._tensors import LOG_2PI, Movable

# Distances of the differences that give slopes and curvatures.
NEAR, CLOSE, BESIDE = 1e-3, 0.01, 0.1
# Most steps to the best place beside a normal.
STEPS = 30


class Number(ABC):
    """The log of a positive number of a target, with its prior density."""

    #: Where a search begins; whether it is of two groups that are correlated.
    start, is_paired = 0.0, False

    @abstractmethod
    def log_density(self, z: float) -> float:
        """Log of the prior density, in nats."""

    @abstractmethod
    def bind(self, target: SupervisedTarget, z: float) -> SupervisedTarget:
        """The target where the number is known."""

    def loss(self, known: SupervisedTarget, normal: NormalForm) -> float:
        """What depends on the number, in nats; the divergence is KL of weight 1."""
        return float(known.expected_loss_terms(normal)[0])

    def slope(
        self, target: SupervisedTarget, z: float, normal: NormalForm, weight: float
    ) -> float:
        """Slope of the log integrand at the best normal, by the envelope theorem.

        Given all other numbers; `weight` is that of the divergence.
        """
        low, high = (
            self.log_density(at) - self.loss(self.bind(target, at), normal) / weight
            for at in (z - NEAR, z + NEAR)
        )
        return (high - low) / (2 * NEAR)

    def best(self, target: SupervisedTarget, normal: NormalForm) -> float:
        """The likeliest place beside a normal, by Newton's method."""
        z = self.start
        for _ in range(STEPS):
            slope = self.slope(target, z, normal, 1.0)
            move = slope / max(self.curvature(target, z, normal, 1.0), abs(slope) / 2.0)
            z += move
            if abs(move) < NEAR:
                break
        return z

    def curvature(
        self, target: SupervisedTarget, z: float, normal: NormalForm, weight: float
    ) -> float:
        """About minus the second derivative, by which the first nodes are laid."""
        low, high = (
            self.slope(target, at, normal, weight) for at in (z - BESIDE, z + BESIDE)
        )
        return (low - high) / (2 * BESIDE)


class Scale(Number):
    """An unknown scale of a prior that is normal beside all of them."""

    def __init__(self, target: SupervisedTarget, part: int | None = None) -> None:
        self.prior, self.part = target.prior, part
        self.weights = target.prior.scale_weights(part)
        self.is_paired = part in target.prior.paired

    def log_density(self, z: float) -> float:
        """That of the hyperprior."""
        place = self.weights.new_tensor(z)
        return float(self.prior.log_density_of_scale(place, self.part))

    def bind(self, target: SupervisedTarget, z: float) -> SupervisedTarget:
        """With a prior that is normal, or beside the scales that follow."""
        return with_prior(target, target.prior.given_scale(math.exp(z), self.part))

    def curvature(
        self, target: SupervisedTarget, z: float, normal: NormalForm, weight: float
    ) -> float:
        """As if the losses were quadratic."""
        if self.is_paired:
            pair, part, where = target.prior.pair_at(cast(int, self.part))
            where = where.to(normal.mean.device)
            own = NormalForm(normal.mean[where], normal.scale[where])
            return float(pair.curvature(own, part))
        precision, moved = math.exp(-2 * z), self.weights * normal.mean
        squares = float(self.weights @ (normal.mean.square() + normal.variance))
        root = normal.scale
        if root.ndim == 1:
            follows = 2 * (moved.square() @ normal.variance)
            follows = follows + (self.weights * normal.variance).square().sum()
        else:
            half = self.weights.sqrt()[:, None] * root
            follows = 2 * (root.T @ moved).square().sum()
            follows = follows + (half.T @ half).square().sum()
        rest = squares - precision * float(follows)
        places = self.weights.new_tensor([z - CLOSE, z, z + CLOSE])
        low, mid, high = self.prior.log_density_of_scale(places, self.part).tolist()
        return 2 * precision * rest - (low - 2 * mid + high) / CLOSE**2


class CarriedScale(Scale):
    """The scale of a prior that is the posterior of other data, at its nodes."""

    def __init__(self, target: SupervisedTarget) -> None:
        self.prior, self.part = cast(MixtureAsPrior, target.prior), None
        self.weights = torch.ones_like(self.prior.as_one().as_normal().mean)

    def bind(self, target: SupervisedTarget, z: float) -> SupervisedTarget:
        """With the posterior at that scale, which may have been added."""
        return with_prior(target, self.prior.given_scale(math.exp(z)))


class LikelihoodNumber(Number):
    """A positive number of the likelihood with a Gamma prior."""

    def __init__(self, target: SupervisedTarget, number: UnknownNumber) -> None:
        self.number, self.spec = number, target.likelihood_spec
        first = target.likelihood_spec.initial_hyper(target.rows.start.y)
        self.start = float(first[0]) / number.power

    def log_density(self, z: float) -> float:
        """Of the log of a Gamma variable."""
        return float(
            self.number.log_density(
                torch.tensor([z], dtype=torch.float64, device="cpu")
            )
        )

    def bind(self, target: SupervisedTarget, z: float) -> SupervisedTarget:
        """With a likelihood that knows it."""
        found = copy(target)
        with torch.inference_mode(False):  # for derivatives of likelihoods
            place = target.hyper.new_tensor([z])
            found.likelihood_spec = self.number.bind(self.spec, place)
        if target.likelihood_spec is self.spec:  # the others are those of the prior
            found.hyper = target.hyper[len(self.spec.learned) :]
        return found


def numbers_of(target: Target) -> tuple[SupervisedTarget, tuple[Number, ...]]:
    """The target of the predictor's parameters alone, and its unknown numbers."""
    plain, own = cast(SupervisedTarget, target), None
    if target.noise_hyperprior is not None:
        plain, own = beside_number(cast(HierarchicalTarget, target))
    found: tuple[Number, ...] = ()
    if isinstance(plain.prior, MixtureAsPrior):
        found = (CarriedScale(plain),)
    elif plain.prior is not None:
        found = tuple(Scale(plain, part) for part in plain.prior.unknown_scales)
    return plain, found if own is None else (*found, LikelihoodNumber(plain, own))


@torch.inference_mode(False)
def slopes_of(
    target: SupervisedTarget,
    numbers: Sequence[Number],
    z: Sequence[float],
    known: SupervisedTarget,
    normal: NormalForm,
    weight: float,
) -> list[float]:
    """Slopes of the log integrand at the best normal, by the envelope theorem.

    `target` is that of `numbers_of`, and `known` has its numbers.
    """
    rest = [n for n in numbers if not isinstance(n, Scale)]
    slopes = [n.slope(known, z[-1], normal, weight) for n in rest]
    if not (scales := z[: len(numbers) - len(rest)]):
        return slopes
    with torch.enable_grad():
        logs = normal.mean.new_tensor([scales]).requires_grad_()
        precision, value = target.prior.precisions_at(logs)
        around = around_middle(target.prior, normal, precision)
        value = value - 0.5 * (precision[0] * around).sum()
        (own,) = torch.autograd.grad(value, logs)
    return own[0].tolist() + slopes


def around_middle(
    prior: BuiltPrior, normal: NormalForm, precision: torch.Tensor
) -> torch.Tensor:
    """Second moments around the mean of the prior, where its precisions are not 0."""
    with torch.no_grad():
        away = normal.mean - cast(NormalForm, prior.matching_normal()).mean
        if precision.ndim == 2:
            return normal.variance + away.square()
        return normal.covariance() + away[..., :, None] * away[..., None, :]


def bound_at(
    target: SupervisedTarget, numbers: Sequence[Number], z: Sequence[float]
) -> SupervisedTarget:
    """The target of `numbers_of` with known numbers."""
    for number, at in zip(numbers, z, strict=True):
        target = number.bind(target, at)
    return target


# Points between two nodes at which the distribution function is known.
N_FINE = 32
# Left and right ends of the gaps between nodes.
BEFORE, AFTER = slice(None, -1), slice(1, None)


class ScaleScore(Movable):
    """Monotone map from a score u, N(0, 1), to a log scale z of given density.

    The log density of z is cubic between nodes (K,), with values and slopes (K,) or (M,
    K) of M densities, and falls like ``exp(-|z|)`` beyond: no posterior of z has a
    heavier tail if the likelihood is bounded.
    """

    def __init__(
        self, log_scales: torch.Tensor, values: torch.Tensor, slopes: torch.Tensor
    ) -> None:
        part = torch.arange(N_FINE, dtype=values.dtype, device=values.device) / N_FINE
        gap = log_scales.diff()[:, None]
        z = (log_scales[:-1, None] + part * gap).flatten()
        value = _cubic(part, gap, values, slopes)[0].flatten(-2)
        self.z = torch.cat([z, log_scales[-1:]]).expand(*values.shape[:-1], -1)
        value = torch.cat([value, values[..., -1:]], -1)
        value = value - values.amax(-1, keepdim=True)
        density = value.exp()
        mass = 0.5 * (density[..., 1:] + density[..., :-1]) * self.z.diff()
        below = torch.cat([density[..., :1], mass], -1).cumsum(-1)
        above = torch.cat([mass, density[..., -1:]], -1).flip(-1).cumsum(-1).flip(-1)
        total = below[..., -1:] + density[..., -1:]
        first = below < 0.5 * total
        self.score = torch.where(
            first,
            torch.special.ndtri(below / total),
            -torch.special.ndtri(above / total),
        )
        # dz / du: the ratio of the densities.
        log_normal = -0.5 * (self.score.square() + LOG_2PI)
        self.slope = torch.exp(log_normal - value + total.log())

    def map(self, score: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Log scale z at scores u, and log dz/du, (S,) or (M, S), with gradients."""
        return _Map.apply(score, self)

    def at(
        self, score: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Log scale z at scores u, log dz/du, and its derivative, (S,) or (M, S)."""
        size = self.score.shape[-1]
        score = score.expand(*self.score.shape[:-1], -1).contiguous()
        right = torch.searchsorted(self.score, score).clamp(1, size - 1)

        def near(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return values.gather(-1, right - 1), values.gather(-1, right)

        (start, stop), z, slope = near(self.score), near(self.z), near(self.slope)
        part = ((score - start) / (stop - start)).clamp(0, 1)
        value, slope, curvature = _hermite(part, stop - start, *z, *slope)
        log_slope, change = slope.log(), curvature / slope
        for sign, end in ((-1, 0), (1, size - 1)):
            last = self.score[..., end, None]
            out = sign * (score - last) > 0
            far = torch.where(out, sign * score, 0.0)
            # Mills's ratio, without cancellation however far out.
            log_ratio = -torch.log(math.sqrt(math.pi / 2) * _scaled_tail(far))
            log_tail = torch.log(0.5 * _scaled_tail(far)) - 0.5 * far.square()
            log_start = torch.special.log_ndtr(-sign * last)
            beyond = self.z[..., end, None] + sign * (log_start - log_tail)
            value = torch.where(out, beyond, value)
            log_slope = torch.where(out, log_ratio, log_slope)
            change = torch.where(out, sign * (log_ratio.exp() - far), change)
        return value, log_slope, change


class _Map(torch.autograd.Function):
    """A `ScaleScore` with its known derivatives: a tape is three times slower."""

    @staticmethod
    def forward(ctx: Any, score: torch.Tensor, score_map: ScaleScore) -> Any:
        """Values, and what backward needs."""
        z, log_slope, change = score_map.at(score)
        ctx.save_for_backward(log_slope.exp(), change)
        return z, log_slope

    @staticmethod
    def backward(ctx: Any, by_z: torch.Tensor, by_slope: torch.Tensor) -> Any:
        """Chain rule, summed over the M maps of one score."""
        slope, change = ctx.saved_tensors
        total = by_z * slope + by_slope * change
        return total.reshape(-1, total.shape[-1]).sum(0), None


def _scaled_tail(x: torch.Tensor) -> torch.Tensor:
    """``2 exp(x^2 / 2) P(U > x)`` of a standard normal U."""
    return torch.special.erfcx(x / math.sqrt(2))


def _cubic(
    part: torch.Tensor, gap: torch.Tensor, values: torch.Tensor, slopes: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hermite's cubic between neighboring nodes, (..., K - 1, N)."""
    values, slopes = values[..., None], slopes[..., None]
    ends = (x[..., some, :] for x in (values, slopes) for some in (BEFORE, AFTER))
    return _hermite(part, gap, *ends)


def _hermite(
    t: torch.Tensor,
    gap: torch.Tensor,
    first: torch.Tensor,
    last: torch.Tensor,
    slope: torch.Tensor,
    end_slope: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Value, first and second derivative of the cubic at a part t of a gap."""
    secant = (last - first) / gap
    # Newton's form: slope at the start, and two divided differences.
    second, third = secant - slope, slope + end_slope - 2 * secant
    value = first + gap * t * (slope + t * (second + (t - 1) * third))
    derivative = slope + t * (2 * second + (3 * t - 2) * third)
    return value, derivative, (2 * second + (6 * t - 2) * third) / gap
