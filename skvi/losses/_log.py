"""The likelihood itself."""

import torch

from skvi.base._protocols import ConditionalDensity
from skvi.expectations._smooth import Expectations
from skvi.losses.base import Loss
from skvi.utils._row_pass import RowBuffers, RowPass

__all__ = ["LogLoss"]


class LogLoss(Loss):
    """Negative log likelihood: standard Bayesian inference.

    Examples
    --------
    >>> import torch
    >>> from skvi.likelihoods import BernoulliLikelihood
    >>> from skvi.losses import LogLoss
    >>> LogLoss()(BernoulliLikelihood(), torch.zeros(1, 1, 1), torch.ones(1))
    tensor([[0.6931]])
    """

    is_log_loss = True

    def __call__(
        self, likelihood: ConditionalDensity, f: torch.Tensor, y: torch.Tensor
    ) -> torch.Tensor:
        """Negative log density of every row, (S, n)."""
        return -likelihood.log_prob(f, y)

    def total(
        self,
        likelihood: ConditionalDensity,
        f: torch.Tensor,
        y: torch.Tensor,
        weight: torch.Tensor | None,
    ) -> torch.Tensor:
        """By the likelihood's own sum; see `Loss.total`."""
        return -likelihood.total_log_prob(f, y, weight)

    def is_convex(self, likelihood: ConditionalDensity) -> bool:
        """Whether the likelihood is log-concave; see `Loss.is_convex`."""
        return likelihood.is_log_concave

    def tail_curvature(self, likelihood: ConditionalDensity) -> float | None:
        """That of the likelihood; see `Loss.tail_curvature`."""
        return likelihood.tail_curvature

    def row_pass(self, likelihood: ConditionalDensity, buffers: RowBuffers) -> RowPass:
        """In closed form if the likelihood has one; see `Loss.row_pass`."""
        closed = likelihood.row_pass(buffers)
        return super().row_pass(likelihood, buffers) if closed is None else closed

    def expected(
        self,
        likelihood: ConditionalDensity,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        refine: int = 1,
    ) -> Expectations:
        """Use the likelihood's own expectation; see `Loss.expected`."""
        return likelihood.expected_log_loss(mean, std_or_cov, y, refine)
