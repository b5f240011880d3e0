"""Limits of the variances of q within which a divergence is finite."""

import math
from collections.abc import Sequence

import torch

from skvi.objectives._scaled_moments import LearnedScales, prior_at_one
from skvi.objectives._steps import Member

__all__ = ["VarianceLimits"]

# Distance of the logs of standard deviations from where the divergence is infinite: its
# gradient pushes back before that, unless a step is longer.
MARGIN = 0.01


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
        self.highest = (0.5 * limit.log() - MARGIN).to(params)
        self.scales = LearnedScales(members[0], params, gradient)
        size = target.layout.size
        self.log_std, self.hyper = params[:, size:].tensor_split([size], 1)

    def confine(self) -> None:
        """Reduce, in place, standard deviations beyond their limits."""
        highest = self.highest + self.scales.log_factors(self.hyper)
        torch.minimum(self.log_std, highest, out=self.log_std)
