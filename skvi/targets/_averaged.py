"""A log density averaged over draws of its discrete parameters."""

import torch

from skvi.base import NormalForm
from skvi.targets.base import Target

__all__ = ["AveragedTarget"]


class AveragedTarget(Target):
    """Mean of a log joint density over draws, (M, P), of its discrete blocks.

    A smooth log density of the other blocks: ELBO and optimum of a posterior of these,
    if the discrete ones are independent and as likely as among the draws.
    """

    def __init__(self, target: Target, draws: torch.Tensor) -> None:
        self.inner, self.draws = target, draws
        self.layout = target.layout.without(*target.layout.discrete)
        self.where = target.layout.positions(self.layout)

    def log_joint(
        self, theta: torch.Tensor, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Mean over the draws, (S,)."""
        every = self.draws.expand(len(theta), -1, -1).clone()
        every[:, :, self.where] = theta[:, None]
        logs = self.inner.log_joint(every.flatten(0, 1), rows)
        return logs.reshape(len(theta), -1).mean(1)

    def over_all(self, normal: NormalForm) -> NormalForm:
        """A normal of the smooth blocks, with N(0, 1) for each discrete coordinate."""
        mean = torch.zeros_like(self.draws[0])
        scale = torch.diag(torch.ones_like(mean))
        mean[self.where] = normal.mean
        full = torch.diag(normal.scale) if normal.is_diagonal else normal.scale
        scale[self.where[:, None], self.where] = full
        return NormalForm(mean, scale)
