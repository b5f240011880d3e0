"""Two groups of coefficients that are correlated pair by pair.

With scales s and t, the pairs (a_k, b_k) are N(0, [[s^2, r s t], [r s t, t^2]]) in the
units of each group. The correlation r is uniform before the data (the LKJ density of
shape 1), as nothing is said of it where the zero of a feature is arbitrary: that moves
it. Its coordinate is ``z = artanh(r)``, the log of a scale: of the ratio of deviations
of sums ``a / s + b / t`` and of differences.
"""

import math
from collections.abc import Mapping, Sequence
from typing import cast

import torch

from skvi.base import NormalForm
from skvi.exceptions import IncompatibleComponentsError
from skvi.priors._blocks import _BuiltBlocks
from skvi.priors._normal import (
    LARGEST_SCALE,
    _BuiltHalfCauchy,
    scale_nodes,
)
from skvi.priors.base import BuiltPrior
from skvi.utils._tensors import LOG_2PI, rand, randn

# Of the nodes of one scale, each of which two at once need; nodes of the slope of one
# coefficient on the other, their reach in deviations, and the farthest x, where cosh^-2
# is none; draws whose densities are computed at once.
STRIDE, N_SLOPES, REACH, FARTHEST, CHUNK = 4, 21, 7.0, 12.0, 32
# Least sums of squares, in squares of the units: rounding, where pairs are proportional.
LEAST = 1e-14


class BuiltCorrelated(BuiltPrior):
    """Prior of the coefficients of one group, followed by those of the other.

    Both are normal, or have half-Cauchy scales: their numbers are 0 and 1, that of the
    correlation is 2. `log_ratio` is its z, where it is known.
    """

    paired = (0, 1, 2)

    def __init__(
        self,
        parts: Sequence[BuiltPrior],
        names: Sequence[str],
        log_ratio: float | None = None,
    ) -> None:
        self.parts, self.names, self.log_ratio = list(parts), tuple(names), log_ratio
        self._normal: NormalForm | None = None

    def named_scales(self) -> dict[str, int]:
        return {name: k for k, name in enumerate(self.names)}

    @property
    def unknown_scales(self) -> tuple[int, ...]:  # type: ignore[override]
        known = [part.as_normal() is not None for part in self.parts]
        known.append(self.log_ratio is not None)
        return tuple(k for k, is_known in enumerate(known) if not is_known)

    def given_scale(self, scale: float, part: int | None = None) -> BuiltPrior:
        if part == 2:
            return BuiltCorrelated(self.parts, self.names, math.log(scale))
        parts = list(self.parts)
        parts[part or 0] = parts[part or 0].given_scale(scale)
        return BuiltCorrelated(parts, self.names, self.log_ratio)

    def log_density_of_scale(
        self, log_scale: torch.Tensor, part: int | None = None
    ) -> torch.Tensor:
        if part == 2:  # of a uniform correlation
            away = log_scale.abs()
            return math.log(2) - 2 * (away + torch.log1p(torch.exp(-2 * away)))
        return self.parts[part or 0].log_density_of_scale(log_scale)

    def scale_weights(self, part: int | None = None) -> torch.Tensor:
        each = [p.matching_normal().scale.square().reciprocal() for p in self.parts]
        return torch.cat(
            [w if part in (None, k) else 0 * w for k, w in enumerate(each)]
        )

    def unit_of_scale(self, part: int | None = None) -> float:
        return 1.0 if part == 2 else super().unit_of_scale(part)

    def matching_normal(self) -> NormalForm:
        mean, scale = (
            torch.cat([getattr(p.matching_normal(), name) for p in self.parts])
            for name in ("mean", "scale")
        )
        return NormalForm(mean, scale)

    def as_normal(self) -> NormalForm | None:
        if self._normal is None and not self.unknown_scales:
            known = self.matching_normal()
            scale, half = torch.diag(known.scale), known.size // 2
            r, root = self._correlation()
            scale[half:, :half].diagonal().copy_(r * known.scale[half:])
            scale[half:, half:] *= root
            self._normal = NormalForm(known.mean, scale)
        return self._normal

    def _correlation(self) -> tuple[float, float]:
        """The correlation, and the root of 1 minus its square."""
        z = float(self.log_ratio or 0.0)
        return math.tanh(z), 1 / math.cosh(z)

    def slope_of_log_prob(self, normal: NormalForm, part: int) -> float:
        """Slope of its expectation under a normal, in the log of one of its numbers."""
        known, half = self.matching_normal(), normal.size // 2
        moved = normal.mean / known.scale
        squares = moved.square() + normal.variance / known.scale.square()
        product = moved[:half] * moved[half:]
        if not normal.is_diagonal:
            rows = normal.scale / known.scale[:, None]
            product = product + (rows[:half] * rows[half:]).sum(1)
        (r, root), both = self._correlation(), float(product.sum())
        each = [float(part.sum()) for part in squares.split(half)]
        if part < 2:
            return (each[part] - r * both) / root**2 - half
        return half * r + both - r * (sum(each) - 2 * r * both) / root**2

    def marginal(self, where: torch.Tensor) -> BuiltPrior:
        half = len(self.parts[0].matching_normal().mean)
        own = [where[where < half], where[where >= half] - half]
        pairs = zip(self.parts, own, strict=True)
        parts = [p.marginal(w) for p, w in pairs]
        return BuiltCorrelated(parts, self.names, self.log_ratio)

    def tail_precision(self) -> torch.Tensor | None:
        if not self.unknown_scales:
            return None
        return torch.zeros_like(self.matching_normal().mean)

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        r = 2 * rand(generator, n_draws, 1) - 1
        if self.log_ratio is not None:
            r = torch.full_like(r, self._correlation()[0])
        known = self.matching_normal()
        first, second = randn(generator, n_draws, known.size).chunk(2, 1)
        second = r * first + (1 - r * r).sqrt() * second
        each = []
        for k, u in enumerate((first, second)):
            shared = torch.tan(0.5 * math.pi * rand(generator, n_draws, 1))
            is_known = k not in self.unknown_scales
            each.append(u if is_known else shared.clamp(max=LARGEST_SCALE) * u)
        return known.scale * torch.cat(each, 1)

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        normal = self.as_normal()
        if normal is not None:
            return normal.log_prob(theta)
        return torch.cat([self._log_marginal(part) for part in theta.split(CHUNK)])

    def _log_marginal(self, theta: torch.Tensor) -> torch.Tensor:
        """Log density without the numbers: a sum over nodes of three.

        Given the scale s of a, b is normal around ``c a`` with a deviation d, so that
        ``t = d cosh(x)`` where ``c s = d sinh(x)``. The likelihood is a product of
        functions of s, d and c, and the densities of t and r are smooth in x.
        """
        unit = self.matching_normal().scale
        a, b = (theta / unit).chunk(2, 1)
        size, A, B, C = a.shape[1], (a * a).sum(1), (b * b).sum(1), (a * b).sum(1)
        A = A.clamp(min=LEAST)
        rest = torch.maximum(B - C.square() / A, LEAST * (1 + B))
        logs, scales = [], []
        for squares in (A, rest):
            nodes, weights = scale_nodes(squares.detach(), size)
            precisions, weights = nodes[:, ::STRIDE], weights[:, ::STRIDE]
            logs.append(weights - 0.5 * squares[:, None] * precisions)
            scales.append(precisions.rsqrt())
        s, d = scales[0][:, :, None], scales[1][:, None]
        root = A.sqrt()[:, None, None] / s  # c has the deviation (d / s) / root
        middle = (C / A.sqrt())[:, None, None] / d
        ends = [
            torch.asinh((middle + e) / root).clamp(-FARTHEST, FARTHEST).detach()
            for e in (-REACH, REACH)
        ]
        line = torch.linspace(0, 1, N_SLOPES, dtype=theta.dtype, device=theta.device)
        x = torch.lerp(ends[0][..., None], ends[1][..., None], line)
        e, ratio = root[..., None] * x.sinh() - middle[..., None], x.cosh()
        t = d[..., None] * ratio
        # The density of log t for that of log d, which is in its weights.
        inner = torch.exp(-0.5 * e.square()) / (ratio.square() * (t + 1 / t))
        step = (ends[1] - ends[0]) / (N_SLOPES - 1) * (d + 1 / d)
        inner = (inner.sum(-1) * step).log()
        total = logs[0][:, :, None] + logs[1][:, None] + inner
        constant = size * LOG_2PI + unit.log().sum() - math.log(STRIDE**2 / 2)
        return total.flatten(1).logsumexp(1) - constant


def correlated(prior: BuiltPrior, pairs: Mapping[str, Sequence[str]]) -> BuiltPrior:
    """The prior where pairs of entries are correlated, by names of correlations."""
    for name, both in pairs.items():
        prior = _with_pair(cast(_BuiltBlocks, prior), name, *both)
    return prior


def _with_pair(prior: _BuiltBlocks, name: str, *both: str) -> BuiltPrior:
    first, second = (prior.entries.index(entry) for entry in both)
    parts = [prior.priors[k] for k in (first, second)]
    if not all(isinstance(part, _BuiltHalfCauchy) for part in parts):
        raise IncompatibleComponentsError(
            f"The correlated groups {both[0]!r} and {both[1]!r}",
            "scales that are unknown, under Normal(HalfCauchy())",
            "column_groups without a dict in it: independent groups",
        )
    places, priors, entries = prior.positions(), list(prior.priors), list(prior.entries)
    places[first] = torch.cat([places[first], places[second]])
    priors[first] = BuiltCorrelated(parts, (*both, name))
    entries[first] = name
    for found in (places, priors, entries):
        del found[second]
    return _BuiltBlocks(places, priors, entries)
