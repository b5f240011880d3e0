"""Two groups of coefficients that are correlated pair by pair.

With scales s and t, the pairs (a_k, b_k) are N(0, [[s^2, r s t], [r s t, t^2]]) in the
units of each group. The correlation r is uniform before the data (the LKJ density of
shape 1), as nothing is said of it where the zero of a feature is arbitrary: that moves
it. Its coordinate is ``z = artanh(r)``, the log of a scale: of the ratio of deviations
of sums ``a / s + b / t`` and of differences.

What rows say of a slope b and of the level a where its feature is 0 is one thing if
that is far away. So nodes have the numbers of pairs ``(a + m b, b)``, the levels in the
middle of the data: of s, t and r alone the posterior would be a bent ridge. Where it is
not far, m is 0.
"""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import cast

import torch

from skvi.base import NormalForm
from skvi.exceptions import IncompatibleComponentsError
from skvi.priors._blocks import _as_matrix, _BuiltBlocks
from skvi.priors._normal import (
    LARGEST_SCALE,
    _BuiltHalfCauchy,
    log_density,
    scale_nodes,
)
from skvi.priors.base import BuiltPrior
from skvi.utils._tensors import LOG_2PI, rand, randn

# Of the nodes of one scale, each of which two at once need, and nats by which others
# are left out; nodes of the slope of one coefficient on the other, their reach in
# deviations, and the farthest x, where cosh^-2 is none; draws that are taken at once.
STRIDE, NEGLIGIBLE, N_SLOPES, REACH, FARTHEST, CHUNK = 4, 25.0, 21, 7.0, 12.0, 32
# Least sums of squares, in those of the units: rounding, where pairs are proportional.
# Distance of differences.
LEAST, CLOSE = 1e-14, 1e-3


#: Logs of the numbers of a pair of groups.
Logs = tuple[float | None, float | None, float | None]


class BuiltCorrelated(BuiltPrior):
    """Prior of the coefficients of one group, followed by those of the other.

    `scale` are their units, and `names` those of the three numbers: two half-Cauchy
    scales and the correlation. `logs` are the logs of two scales, and z, of the pairs
    ``(a + middle b, b)`` in these units; None where they are unknown.
    """

    paired = (0, 1, 2)

    def __init__(
        self,
        scale: torch.Tensor,
        names: Sequence[str],
        middle: float = 0.0,
        logs: Logs = (None, None, None),
    ) -> None:
        self.scale, self.names, self.logs = scale, tuple(names), logs
        self.middle = middle
        self._normal: NormalForm | None = None

    @property
    def unknown_scales(self) -> tuple[int, ...]:  # type: ignore[override]
        return tuple(k for k, z in enumerate(self.logs) if z is None)

    def named_scales(self) -> dict[str, int]:
        return {name: k for k, name in enumerate(self.names)}

    def given_scale(self, scale: float, part: int | None = None) -> BuiltPrior:
        every = enumerate(self.logs)
        logs = tuple(math.log(scale) if k == (part or 0) else z for k, z in every)
        return BuiltCorrelated(self.scale, self.names, self.middle, cast(Logs, logs))

    def declared(self, logs: torch.Tensor) -> torch.Tensor:
        s, t, z = logs.unbind(-1)
        # Deviations of a along b, and given b.
        along, rest = s.exp() * z.tanh() - self.middle * t.exp(), s.exp() / z.cosh()
        return torch.stack([along.hypot(rest).log(), t, (along / rest).asinh()], -1)

    def precisions_at(self, logs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (s, t, z), (u, v) = self.declared(logs).T[..., None], self.scale.chunk(2)
        cosh, sinh = z.cosh(), z.sinh()
        first, second = cosh / (u * s.exp()), cosh / (v * t.exp())
        both = -first * second * sinh / cosh
        precision = torch.diag_embed(torch.cat([first, second], 1).square())
        for k in (len(u), -len(u)):
            precision = precision + torch.diag_embed(both, k)
        # See `log_ratio`; of the determinant, cosh is in both factors.
        own = log_density(s) - 3 * s + log_density(t)
        own = own[:, 0] + 3 * logs[:, 0] + self.log_density_of_scale(logs[:, 2], 2)
        return precision, own + (first * second / cosh).log().sum(1)

    @property
    def log_ratio(self) -> float:  # type: ignore[override]
        if None in self.logs or not self.middle:
            return 0.0
        # The density of s, that of r, which is that of z by 1 - r^2, and the volume.
        ends = self.scale.new_tensor([cast(float, self._plain.logs[0]), self.logs[0]])
        return float(torch.sub(*(log_density(ends) - 3 * ends)))

    @property
    def _plain(self) -> "BuiltCorrelated":
        """The same prior in the numbers that were declared."""
        if None in self.logs or not self.middle:
            return self
        logs = self.declared(self.scale.new_tensor(self.logs)).tolist()
        return BuiltCorrelated(self.scale, self.names, 0.0, cast(Logs, tuple(logs)))

    def log_density_of_scale(
        self, log_scale: torch.Tensor, part: int | None = None
    ) -> torch.Tensor:
        if part != 2:
            return log_density(log_scale)
        away = log_scale.abs()
        return math.log(2) - 2 * (away + torch.log1p(torch.exp(-2 * away)))

    def scale_weights(self, part: int | None = None) -> torch.Tensor:
        each = self.scale.square().reciprocal().chunk(2)
        asked = (part in (None, k) for k in (0, 1))
        return torch.cat(
            [w * is_asked for w, is_asked in zip(each, asked, strict=True)]
        )

    def unit_of_scale(self, part: int | None = None) -> float:
        return 1.0 if part == 2 else super().unit_of_scale(part)

    @property
    def _deviations(self) -> torch.Tensor:
        """Of the coefficients, by scales that are known."""
        pairs = zip(self.scale.chunk(2), self._widths, strict=True)
        return torch.cat([unit * width for unit, width in pairs])

    @property
    def _widths(self) -> list[float]:
        """Scales that are known, in units of the groups."""
        return [math.exp(z or 0.0) for z in self.logs[:2]]

    @property
    def _correlation(self) -> tuple[float, float]:
        """The correlation, and the root of 1 minus its square."""
        z = self.logs[2] or 0.0
        return math.tanh(z), 1 / math.cosh(z)

    def matching_normal(self) -> NormalForm:
        return NormalForm(torch.zeros_like(self.scale), self._plain._deviations)

    def as_normal(self) -> NormalForm | None:
        if self._normal is None and None not in self.logs:
            plain, half = self._plain, len(self.scale) // 2
            own, (r, root) = plain._deviations, plain._correlation
            scale = torch.diag(own)
            scale[half:, :half].diagonal().copy_(r * own[half:])
            scale[half:, half:] *= root
            self._normal = NormalForm(torch.zeros_like(own), scale)
        return self._normal

    def curvature(self, normal: NormalForm, part: int) -> float:
        """Minus the second derivative of the log integral over the coefficients.

        The losses are quadratic, and `normal` is the posterior: it is that of the
        expected log density, less the variance of its slope.
        """
        logs = self.scale.new_tensor([self.logs] * 3)
        logs[:, part] += logs.new_tensor([-CLOSE, 0.0, CLOSE])
        precisions = self.precisions_at(logs)[0]
        weights = self.log_density_of_scale(logs[:, part], part)
        weights += len(self.scale) / 2 * logs[:, 2].cosh().log()
        mean, root = normal.mean, _as_matrix(normal.scale)
        squares = torch.addr(root @ root.mT, mean, mean)
        low, mid, high = weights - 0.5 * (precisions * squares).sum((1, 2))
        change = (precisions[2] - precisions[0]) / (2 * CLOSE) @ root
        variance = 0.5 * (root.mT @ change).square().sum()
        variance = variance + (change.mT @ mean).square().sum()
        return float((2 * mid - low - high) / CLOSE**2 - variance)

    def marginal(self, where: torch.Tensor) -> BuiltPrior:
        return BuiltCorrelated(self.scale[where], self.names, self.middle, self.logs)

    def tail_precision(self) -> torch.Tensor | None:
        return torch.zeros_like(self.scale) if self.unknown_scales else None

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        r = 2 * rand(generator, n_draws, 1) - 1
        if self.logs[2] is not None:
            r = torch.full_like(r, self._correlation[0])
        first, second = randn(generator, n_draws, len(self.scale)).chunk(2, 1)
        each = [first, r * first + (1 - r * r).sqrt() * second]
        for k in {0, 1}.intersection(self.unknown_scales):
            shared = torch.tan(0.5 * math.pi * rand(generator, n_draws, 1))
            each[k] = shared.clamp(max=LARGEST_SCALE) * each[k]
        return self._deviations * torch.cat(each, 1)

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        if (normal := self.as_normal()) is not None:
            return normal.log_prob(theta)
        return torch.cat([self._log_marginal(part) for part in theta.split(CHUNK)])

    def _log_marginal(self, theta: torch.Tensor) -> torch.Tensor:
        """Log density without the numbers: a sum over nodes of three.

        Given the scale s of a, b is normal around ``c a`` with a deviation d, so that
        ``t = d cosh(x)`` where ``c s = d sinh(x)``. The likelihood is a product of
        functions of s, d and c, and the densities of t and r are smooth in x.
        """
        a, b = (theta / self.scale).chunk(2, 1)
        size, A, B, C = a.shape[1], (a * a).sum(1), (b * b).sum(1), (a * b).sum(1)
        A = A.clamp(min=LEAST)
        rest = torch.maximum(B - C.square() / A, LEAST * (1 + B))
        logs, scales = [], []
        for squares in (A, rest):
            nodes, weights = scale_nodes(squares.detach(), size)
            precisions, weights = nodes[:, ::STRIDE], weights[:, ::STRIDE]
            terms = weights - 0.5 * squares[:, None] * precisions
            fall = terms.amax(1, keepdim=True) - terms
            kept = (fall < NEGLIGIBLE).any(0)
            logs.append(terms[:, kept])
            scales.append(precisions[:, kept].rsqrt())
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
        constant = size * LOG_2PI + self.scale.log().sum() - math.log(STRIDE**2 / 2)
        return total.flatten(1).logsumexp(1) - constant


def correlated(
    prior: BuiltPrior,
    pairs: Mapping[str, Sequence[str]],
    middles: Mapping[str, float] = MappingProxyType({}),
) -> BuiltPrior:
    """The prior where pairs of entries are correlated, by names of correlations.

    `middles` are those of ratios of features, the second to the first.
    """
    for name, both in pairs.items():
        middle = middles.get(name, 0.0)
        prior = _with_pair(cast(_BuiltBlocks, prior), name, middle, *both)
    return prior


def _with_pair(prior: _BuiltBlocks, name: str, middle: float, *both: str) -> BuiltPrior:
    first, second = (prior.entries.index(entry) for entry in both)
    parts = [prior.priors[k] for k in (first, second)]
    halves = [part for part in parts if isinstance(part, _BuiltHalfCauchy)]
    if len(halves) < 2:
        raise IncompatibleComponentsError(
            f"A correlation of the groups {both[0]!r} and {both[1]!r}",
            "scales that are unknown, under Normal(HalfCauchy())",
            "column_groups without a dict in it: independent groups",
        )
    places, priors, entries = prior.positions(), list(prior.priors), list(prior.entries)
    places[first] = torch.cat([places[first], places[second]])
    middle *= float(halves[1].scale[0] / halves[0].scale[0])
    scale = torch.cat([p.scale for p in halves])
    priors[first] = BuiltCorrelated(scale, (*both, name), middle)
    entries[first] = name
    for found in (places, priors, entries):
        del found[second]
    return _BuiltBlocks(places, priors, entries)
