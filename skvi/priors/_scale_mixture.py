"""Heavy-tailed priors as normals whose scale is random: a smooth density of both."""

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from skvi.base import NormalForm
from skvi.priors.base import BuiltPrior
from skvi.utils._device import CPU

__all__ = ["GammaScales", "HorseshoeScales", "LogScales", "ScaleMixture", "ScaleTerms"]

# Widest normal that a path over a vague scale starts from, in log units.
WIDEST = 4.0
# Gamma precisions of smaller shapes give tails heavier than those of a Cauchy density.
SPIKE_SHAPE = 0.5
# The log of a Gamma precision of smaller shape has a density that is flat for decades.
VAGUE_SHAPE = 0.1
# Coefficients with a spike at 0 whose combinations mixtures can enumerate.
MANY = 3


class ScaleTerms(NamedTuple):
    """Functions of coordinates x, (S, k): log scales, log densities, their slopes."""

    log_scale: torch.Tensor
    slope: torch.Tensor
    log_prob: torch.Tensor
    log_prob_slope: torch.Tensor


class LogScales(Protocol):
    """Independent scales of coefficients, as functions of unlimited coordinates x."""

    #: Whether the density of a coefficient is infinite, or nearly so, at 0.
    has_spike: bool
    #: Whether scales of all magnitudes are about as likely.
    is_vague: bool
    #: Name of the prior, for messages.
    name: str

    def terms(self, x: torch.Tensor) -> ScaleTerms:
        """Evaluate at coordinates of shape (S, k)."""

    def start(self) -> NormalForm:
        """Normal of x about as wide as the prior, and narrower for a vague one."""


class HorseshoeScales:
    """``scale * lambda`` with a half-Cauchy lambda; x is log lambda."""

    has_spike, is_vague, name = True, False, "horseshoe"

    def __init__(self, scale: torch.Tensor) -> None:
        self.log_unit = scale.log()

    def terms(self, x: torch.Tensor) -> ScaleTerms:
        log_prob = math.log(2 / math.pi) + x - torch.nn.functional.softplus(2 * x)
        return ScaleTerms(
            self.log_unit + x,
            torch.ones_like(x),
            log_prob,
            1 - 2 * torch.sigmoid(2 * x),
        )

    def start(self) -> NormalForm:
        mean = torch.zeros_like(self.log_unit)
        return NormalForm(mean, mean + 0.5 * math.pi)


class GammaScales:
    """``scale / sqrt(precision)`` with a precision of Gamma(shape, shape).

    ``sqrt(shape * precision) = softplus(-x)``: small precisions are exponential in x,
    large ones, which the density excludes sharply, quadratic, so that it falls as a
    normal does.
    """

    def __init__(self, scale: torch.Tensor, shape: float) -> None:
        self.log_unit, self.shape = scale.log() + 0.5 * math.log(shape), shape
        self.has_spike, self.is_vague = shape < SPIKE_SHAPE, shape < VAGUE_SHAPE
        self.name = "ARD" if self.has_spike else "Student-t"

    def terms(self, x: torch.Tensor) -> ScaleTerms:
        root = torch.nn.functional.softplus(-x).clamp(min=1e-300)
        # For large x softplus(-x) is exp(-x), whose logarithm underflows.
        log_root = torch.where(x > 30, -x, root.log())
        share = torch.sigmoid(-x)
        fall = torch.where(x > 30, 1.0, share / root)  # -d log_root / dx
        a = self.shape
        log_prob = (
            (2 * a - 1) * log_root
            - root.square()
            + torch.nn.functional.logsigmoid(-x)
            + (math.log(2) - math.lgamma(a))
        )
        slope = (1 - 2 * a) * fall + 2 * root * share - torch.sigmoid(x)
        return ScaleTerms(self.log_unit - log_root, fall, log_prob, slope)

    def start(self) -> NormalForm:
        a = self.shape
        shape = torch.tensor(a, dtype=torch.float64, device=CPU)
        width = 0.5 * math.sqrt(float(torch.polygamma(1, shape)))
        middle = float(torch.digamma(shape))  # of log(shape * precision)
        if width > WIDEST:
            # Between the smallest scales of a vague prior and coefficients of size 1.
            width, middle = WIDEST, 0.5 * min(math.log(a), 0.0)
        root = math.exp(0.5 * middle)
        x = -math.log(math.expm1(root)) if root < 30 else -root
        mean = torch.full_like(self.log_unit, x)
        return NormalForm(mean, torch.full_like(mean, width))


@dataclass(frozen=True, eq=False)
class ScaleMixture:
    """A prior under which the coordinates `where` are normal with scales of their own.

    `parts` are the scales of `sizes` consecutive ones of them; `rest`, over all P
    parameters, is the density of the others.
    """

    where: torch.Tensor
    parts: tuple[LogScales, ...]
    sizes: tuple[int, ...]
    rest: BuiltPrior

    @property
    def has_spike(self) -> bool:
        """Whether the density of any coefficient has a spike at 0."""
        return any(part.has_spike for part in self.parts)

    @property
    def has_many_spikes(self) -> bool:
        """Whether more coefficients have a spike than mixtures can enumerate."""
        pairs = zip(self.parts, self.sizes, strict=True)
        return sum(size for part, size in pairs if part.has_spike) > MANY

    @property
    def n_vague(self) -> int:
        """Number of scales that are vague."""
        pairs = zip(self.parts, self.sizes, strict=True)
        return sum(size for part, size in pairs if part.is_vague)

    def terms(self, x: torch.Tensor) -> ScaleTerms:
        """Evaluate at coordinates of all scales, (S, k)."""
        pairs = zip(self.parts, x.split(self.sizes, 1), strict=True)
        found = [part.terms(own) for part, own in pairs]
        return ScaleTerms(
            *(torch.cat(columns, 1) for columns in zip(*found, strict=True))
        )

    def start(self) -> NormalForm:
        """Normal of all x, (k,)."""
        forms = [part.start() for part in self.parts]
        mean = torch.cat([form.mean for form in forms])
        return NormalForm(mean, torch.cat([form.scale for form in forms]))


class SomeBlocks(BuiltPrior):
    """Density of some coordinates, over a vector that has others, too."""

    def __init__(self, blocks: tuple[tuple[slice, BuiltPrior], ...]) -> None:
        self.blocks = blocks

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(theta[:, 0])
        for where, prior in self.blocks:
            total = total + prior.log_prob(theta[:, where])
        return total

    def log_prob_gradient(self, theta: torch.Tensor) -> torch.Tensor:
        found = torch.zeros_like(theta)
        for where, prior in self.blocks:
            found[:, where] = prior.log_prob_gradient(theta[:, where])
        return found


def all_mixed(scales: LogScales, like: torch.Tensor) -> ScaleMixture:
    """Mixture over every coordinate of a block."""
    where = torch.arange(len(like), device=like.device)
    return ScaleMixture(where, (scales,), (len(like),), SomeBlocks(()))


def join_mixtures(slices: list[slice], priors: list[BuiltPrior]) -> ScaleMixture | None:
    """Mixture of independent blocks; None where none of them is one."""
    pairs = [(s, p, p.scale_mixture()) for s, p in zip(slices, priors, strict=True)]
    mixed = [(s, m) for s, _, m in pairs if m is not None]
    if not mixed:
        return None
    others = tuple((s, p) for s, p, m in pairs if m is None)
    return ScaleMixture(
        torch.cat([s.start + m.where for s, m in mixed]),
        tuple(part for _, m in mixed for part in m.parts),
        tuple(size for _, m in mixed for size in m.sizes),
        SomeBlocks(others),
    )
