"""Expected losses by quadrature, for automatic differentiation."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from skvi.expectations._rules import normal_rule
from skvi.utils._arrays import like_rows, row_chunks

__all__ = [
    "ExpectedLoss",
    "as_std_or_cov",
    "gather",
    "hyper_path",
    "term_chunks",
]

# Rows whose expected losses are integrated at once, with all nodes; fewer for many
# outputs, since derivatives are matrices.
TERM_ROWS, TERM_ELEMENTS = 2**16, 2**20


class ExpectedLoss(torch.autograd.Function):
    """Expected loss of every row, differentiable in the mean and variance of f."""

    @staticmethod
    def forward(
        ctx: Any,
        mean: torch.Tensor,
        variance: torch.Tensor,
        loss: Any,
        likelihood: Any,
        y: torch.Tensor,
    ) -> torch.Tensor:
        parts = (
            (i, loss.expected(likelihood, mean[i], as_std_or_cov(variance[i]), y[i]))
            for i in term_chunks(len(y), mean[0].numel())
        )
        value, first, second = gather(parts, len(y))
        ctx.save_for_backward(first, second)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple:
        first, second = ctx.saved_tensors
        # Bonnet and Price: the derivative in the variance is half the curvature.
        by_mean = like_rows(gradient, first) * first
        by_variance = 0.5 * like_rows(gradient, second) * second
        return by_mean, by_variance, None, None, None


def hyper_path(
    mean: torch.Tensor,
    variance: torch.Tensor,
    loss: Any,
    likelihood: Any,
    y: torch.Tensor,
) -> torch.Tensor:
    """Zeros whose gradient is that of the expected loss in the likelihood.

    By quadrature, as in `Loss.expected`, if the expectation is not differentiable.
    """
    mean, std = mean.detach(), as_std_or_cov(variance.detach())
    value = loss.expected(likelihood, mean, std, y)[0]
    if not value.requires_grad:
        width = float(std.max()) / likelihood._length_scale
        nodes, weights = normal_rule(width, device=std.device)
        f = torch.addcmul(mean, nodes[:, None], std)[..., None]
        value = weights @ loss(likelihood, f, y)
    return value - value.detach()


def as_std_or_cov(variance: torch.Tensor) -> torch.Tensor:
    """Standard deviations of a single f; covariance matrices unchanged."""
    return variance.sqrt() if variance.ndim == 1 else variance


def term_chunks(n_rows: int, n_outputs: int) -> list[slice]:
    """Cut rows into pieces whose expected losses are integrated at once."""
    width = max(TERM_ELEMENTS // TERM_ROWS, n_outputs**2)
    return row_chunks(n_rows, width, TERM_ELEMENTS)


def gather(
    parts: Iterable[tuple[slice, Sequence[torch.Tensor]]], n_rows: int
) -> Sequence[torch.Tensor]:
    """Tensors of all rows from those of chunks, one after the other in memory."""
    whole: list[torch.Tensor] = []
    for chunk, values in parts:
        if chunk.stop - chunk.start == n_rows:
            return values
        whole = whole or [v.new_empty(n_rows, *v.shape[1:]) for v in values]
        for all_rows, value in zip(whole, values, strict=True):
            all_rows[chunk] = value
    return whole
