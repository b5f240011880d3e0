"""A target beside the one unknown scale of its prior, where it is nearly normal."""

from collections.abc import Sequence

import torch

from skvi.base import Layout, NormalForm
from skvi.priors import Normal, build_prior
from skvi.priors._scale_mixture import SomeBlocks
from skvi.targets._reduced import ReducedTarget
from skvi.targets._scale_score import ScaleScore
from skvi.targets._supervised import SupervisedTarget
from skvi.targets.base import Target
from skvi.utils._log_space import LOG_2PI

__all__ = ["UnknownScaleTarget"]

# Standard deviations of starts of chains, in units of those of the posterior.
WIDE, WIDE_SCORE = 3.0, 1.5
# Seed of the directions that are not in the row space.
SEED = 0


class UnknownScaleTarget(Target):
    """A target lifted to its prior's log scale z, with the same evidence.

    Given z, a map of a score u, theta is ``w(z) (m(z) + L(z) e)``, interpolated between
    normals near the posterior at nodes of z: (e, u) is about N(0, I), not a funnel.
    """

    def __init__(
        self,
        target: SupervisedTarget,
        log_scales: torch.Tensor,
        normals: Sequence[NormalForm],
        values: torch.Tensor,
        slopes: torch.Tensor,
        full: ReducedTarget | None = None,
    ) -> None:
        unit = target.prior.given_scale(1.0).as_normal()
        if unit is None:
            raise ValueError("Beside its unknown scale the prior must be normal.")
        self.of_scale, self.unit = target.prior.log_density_of_scale, unit.scale
        self.is_scaled = (target.prior.scale_weights() > 0).to(unit.scale.dtype)
        self.likelihood, self.full = target.with_prior(SomeBlocks(())), full
        self.layout = Layout({"standardized": (unit.size,), "score": (1,)})
        # Not a factor of the density, but what chains start from.
        wide = {"standardized": Normal(WIDE), "score": Normal(WIDE_SCORE)}
        self.prior = build_prior(wide, self.layout)
        self.nodes, self.score = log_scales, ScaleScore(log_scales, values, slopes)
        self.log_widths = torch.stack([0.5 * n.variance.log() for n in normals])
        powers = self.log_widths.diff(dim=0) / log_scales.diff()[:, None]
        self.powers = torch.cat(
            [powers[:1].clamp(0, 1), powers, powers[-1:].clamp(0, 1)]
        )
        widths = self.log_widths.exp()
        self.means = torch.stack([n.mean for n in normals]) / widths
        scales = torch.stack([n.scale for n in normals]) / widths[:, :, None]
        self.diagonals = scales.diagonal(dim1=1, dim2=2)
        # All normals at once: e times one matrix, slopes times the other.
        self.forth = scales.permute(2, 0, 1).flatten(1).contiguous()
        self.back = scales.permute(1, 0, 2).flatten(1).contiguous()

    @property
    def cost_per_draw(self) -> int:
        """Elements that one evaluation touches."""
        return self.likelihood.cost_per_draw

    def theta(self, lifted: torch.Tensor) -> torch.Tensor:
        """Parameters of the target itself, (S, P + 1) -> (S, P)."""
        z, _, _ = self.score.at(lifted[:, -1])
        hats, _ = self._hats(z)
        inner = self._mix(hats, self._at_nodes(lifted)) * self._widths(z)[0].exp()
        if self.full is None:
            return inner
        generator = torch.Generator(z.device).manual_seed(SEED)
        return self.full.expand(inner, self.unit[0] * z.exp(), generator)

    def log_joint(
        self, theta: torch.Tensor, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Log joint density of standardized parameters and the score, (S,)."""
        z, log_slope, _ = self.score.at(theta[:, -1])
        hats, _ = self._hats(z)
        log_width, _ = self._widths(z)
        inner = self._mix(hats, self._at_nodes(theta)) * log_width.exp()
        rest = self._prior_terms(inner, z) + log_width.sum(1) + log_slope
        rest = rest + (hats @ self.diagonals).log().sum(1)
        return self.likelihood.log_joint(inner, rows) + rest

    @torch.no_grad()
    def log_joint_and_gradient(
        self, theta: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log joint density, (S,), and its gradient, (S, P + 1)."""
        z, log_slope, change = self.score.at(theta[:, -1])
        (hats, turns), nodes = self._hats(z), self._at_nodes(theta)
        log_width, power = self._widths(z)
        width, diagonal = log_width.exp(), hats @ self.diagonals
        inner = self._mix(hats, nodes) * width
        value, slope = self.likelihood.log_joint_and_gradient(inner)
        value = value + self._prior_terms(inner, z) + log_slope
        value = value + (log_width + diagonal.log()).sum(1)
        precision = torch.exp(-2 * self._log_scales(z))
        slope = slope - inner * precision
        own = inner.square() * precision - 1
        by_z = (
            (slope * (inner * power + width * self._mix(turns, nodes))).sum(1)
            + (own * self.is_scaled).sum(1)
            + (power + (turns @ self.diagonals) / diagonal).sum(1)
            - torch.tanh(z)
        )
        back = ((slope * width) @ self.back).reshape(len(theta), len(self.nodes), -1)
        by_score = by_z * log_slope.exp() + change
        return value, torch.cat([self._mix(hats, back), by_score[:, None]], 1)

    def _log_scales(self, z: torch.Tensor) -> torch.Tensor:
        """Logs of the prior standard deviations, (S, P)."""
        return self.unit.log() + self.is_scaled * z[:, None]

    def _prior_terms(self, theta: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        """Log densities of theta given the scale, and of its logarithm, (S,)."""
        log_scale = self._log_scales(z)
        squares = (theta * torch.exp(-log_scale)).square()
        terms = 0.5 * squares + log_scale + 0.5 * LOG_2PI
        return self.of_scale(z) - terms.sum(1)

    def _widths(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logs of the units of theta, and their derivatives in z, (S, P)."""
        place = torch.searchsorted(self.nodes, z.contiguous())
        near = (place - 1).clamp(min=0)
        power = self.powers[place]
        return self.log_widths[near] + power * (z - self.nodes[near])[:, None], power

    def _at_nodes(self, lifted: torch.Tensor) -> torch.Tensor:
        """Parameters in units of their widths, by each node's normal, (S, K, P)."""
        shape = len(lifted), len(self.nodes), -1
        return (lifted[:, :-1] @ self.forth).reshape(shape) + self.means

    def _mix(self, weights: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
        return (weights[:, None] @ nodes)[:, 0]

    def _hats(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights of linear interpolation, and their derivatives, (S, K)."""
        n_nodes = len(self.nodes)
        right = torch.searchsorted(self.nodes, z.contiguous()).clamp(1, n_nodes - 1)
        left = (right - 1)[:, None]
        gap = self.nodes.diff()[left]
        part = (z[:, None] - self.nodes[left]) / gap
        inside = part.clamp(0, 1)
        turn = torch.where(part == inside, 1 / gap, 0.0)
        zero = z.new_zeros(len(z), n_nodes)
        hats = zero.scatter(1, left, 1 - inside).scatter(1, left + 1, inside)
        return hats, zero.scatter(1, left, -turn).scatter(1, left + 1, turn)
