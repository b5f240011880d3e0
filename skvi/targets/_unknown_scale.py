"""A target beside the one unknown scale of its prior, where it is nearly normal."""

from collections.abc import Sequence

import torch

from skvi.base import Layout, NormalForm
from skvi.priors import Normal
from skvi.priors._half_cauchy import scale_at_score, score_of_scale
from skvi.priors._scale_mixture import SomeBlocks
from skvi.targets._supervised import SupervisedTarget
from skvi.targets.base import Target
from skvi.utils._log_space import LOG_2PI

__all__ = ["UnknownScaleTarget"]


class UnknownScaleTarget(Target):
    r"""The same evidence as another target's, over the scale of its prior, too.

    The scale is that of a standard normal score u (`scale_at_score`). Given it, the
    parameters, divided by their prior standard deviations, are ``m(u) + L(u) e``, with
    mean and scale interpolated between normals that are near the posterior at known
    scales. Then e is about N(0, I), however large the scale is: without them the
    posterior is a funnel, narrow where the scale is large. Beyond the last of these
    scales it changes no more: all of its mass there is at that scale, where chains
    still move.

    Parameters
    ----------
    target : SupervisedTarget
        With one unknown scale, beside which its prior is normal.
    log_scales : sequence of float
        Ascending, at least two; what lies beyond should have hardly any mass.
    normals : sequence of NormalForm
        Full-rank normals near the posterior at these.
    """

    def __init__(
        self,
        target: SupervisedTarget,
        log_scales: Sequence[float],
        normals: Sequence[NormalForm],
    ) -> None:
        unit = target.prior.given_scale(1.0).as_normal()
        if unit is None:
            raise ValueError("Beside its unknown scale the prior must be normal.")
        self.unit, self.is_scaled = unit.scale, target.prior.scale_weights() > 0
        self.likelihood = target.with_prior(SomeBlocks(()))
        self.layout = Layout({"standardized": (unit.size,), "score": (1,)})
        self.prior = Normal().build(self.layout)
        self.scores = score_of_scale(self.unit.new_tensor(log_scales))
        widths = self._widths(scale_at_score(self.scores)[0])
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
        """Parameters of the target itself at draws.

        Parameters
        ----------
        lifted : Tensor of shape (S, P + 1)

        Returns
        -------
        Tensor of shape (S, P)
        """
        hats, _ = self._hats(lifted[:, -1])
        scale, _ = self._scale(lifted[:, -1])
        return self._mix(hats, self._at_nodes(lifted)) * self._widths(scale)

    def log_joint(
        self, theta: torch.Tensor, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Log joint density of whitened parameters and the score, (S,)."""
        hats, _ = self._hats(theta[:, -1])
        scale, _ = self._scale(theta[:, -1])
        z = self._mix(hats, self._at_nodes(theta))
        below = self.likelihood.log_joint(z * self._widths(scale), rows)
        return below + self._terms(z, theta[:, -1], hats @ self.diagonals)

    @torch.no_grad()
    def log_joint_and_gradient(
        self, theta: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log joint density, (S,), and its gradient, (S, P + 1)."""
        score, nodes = theta[:, -1], self._at_nodes(theta)
        (hats, slopes), (scale, by_score) = self._hats(score), self._scale(score)
        z, widths = self._mix(hats, nodes), self._widths(scale)
        value, slope = self.likelihood.log_joint_and_gradient(z * widths)
        diagonal, slope = hats @ self.diagonals, slope * widths
        by_scale = (slope * z)[:, self.is_scaled].sum(1) * by_score
        by_z = slope - z
        of_score = (
            by_scale
            - score
            + (slopes @ self.diagonals / diagonal).sum(1)
            + (by_z * self._mix(slopes, nodes)).sum(1)
        )
        back = (by_z @ self.back).reshape(len(theta), len(self.scores), -1)
        gradient = torch.cat([self._mix(hats, back), of_score[:, None]], 1)
        return value + self._terms(z, score, diagonal), gradient

    def _scale(self, score: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale, and the derivative of its logarithm."""
        inside = score.clamp(self.scores[0], self.scores[-1])
        scale, slope = scale_at_score(inside)
        return scale, torch.where(score == inside, slope, 0.0)

    def _widths(self, scale: torch.Tensor) -> torch.Tensor:
        """Prior standard deviations at scales, (S, P)."""
        return self.unit * torch.where(self.is_scaled, scale[:, None], 1.0)

    def _at_nodes(self, lifted: torch.Tensor) -> torch.Tensor:
        """Standardized parameters by the normal at each scale, (S, K, P)."""
        shape = len(lifted), len(self.scores), -1
        return (lifted[:, :-1] @ self.forth).reshape(shape) + self.means

    def _mix(self, weights: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
        return (weights[:, None] @ nodes)[:, 0]

    def _hats(self, score: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights of linear interpolation, and their derivatives, (S, K)."""
        n_nodes = len(self.scores)
        right = torch.searchsorted(self.scores, score.contiguous())
        left = (right.clamp(1, n_nodes - 1) - 1)[:, None]
        gap = self.scores.diff()[left]
        part = (score[:, None] - self.scores[left]) / gap
        inside = part.clamp(0, 1)
        slope = torch.where(part == inside, 1 / gap, 0.0)
        zero = score.new_zeros(len(score), n_nodes)
        hats = zero.scatter(1, left, 1 - inside).scatter(1, left + 1, inside)
        return hats, zero.scatter(1, left, -slope).scatter(1, left + 1, slope)

    def _terms(
        self, z: torch.Tensor, score: torch.Tensor, diagonal: torch.Tensor
    ) -> torch.Tensor:
        """Log densities of the standardized and of the score, with the determinant."""
        squares = z.square().sum(1) + score.square()
        constant = 0.5 * (z.shape[1] + 1) * LOG_2PI
        return diagonal.log().sum(1) - 0.5 * squares - constant
