"""Limits of the variances of q within which a divergence is finite."""

import math
from collections.abc import Sequence

import torch

from skvi.objectives._steps import Member

__all__ = ["VarianceLimits"]

# Distance of the logs of standard deviations from where the divergence is infinite: its
# gradient pushes back before that, unless a step is longer.
MARGIN = 0.01


class VarianceLimits:
    """Keeps factorized normals narrower than what makes their divergences infinite.

    The gradient of a divergence grows without bound as q approaches its limit, but a
    step of fixed length can exceed it, from where nothing leads back.

    Parameters
    ----------
    members : sequence of Member
        With equal divergences but for numbers.
    params : Tensor of shape (M, V)
        Means, log standard deviations and hyperparameters of each.

    Attributes
    ----------
    are_finite : bool
        Whether there are any.
    """

    def __init__(self, members: Sequence[Member], params: torch.Tensor) -> None:
        ratios = [member.divergence.max_variance_ratio for member in members]
        target = members[0].target
        factors = target.prior_spec.learned_scales()
        self.are_finite = min(ratios) < math.inf and factors is not None
        if factors is None or not self.are_finite:
            return
        variance = torch.stack([_variance(member) for member in members])
        limit = variance.new_tensor(ratios)[:, None] * variance
        self.highest = (0.5 * limit.log() - MARGIN).to(params)
        size = target.layout.size
        start = 2 * size + len(target.likelihood_spec.learned)
        self.scaled = (factors >= 0).nonzero().ravel().to(params.device)
        self.index = start + factors.to(params.device)[self.scaled]
        self.params, self.log_std = params, params[:, size : 2 * size]

    def confine(self) -> None:
        """Reduce, in place, standard deviations beyond their limits."""
        highest = self.highest
        if len(self.scaled):
            highest = highest.clone()
            highest[:, self.scaled] += self.params[:, self.index]
        torch.minimum(self.log_std, highest, out=self.log_std)


def _variance(member: Member) -> torch.Tensor:
    """Variances of the prior at factors 1 of the scales that are learned, (P,)."""
    spec = member.target.prior_spec
    prior = spec.bind(torch.zeros_like(spec.initial_hyper()))
    found: torch.Tensor = prior.as_normal().variance
    return found
