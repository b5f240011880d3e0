"""Moments of linear functions of a normal theta, without a graph over the data."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from skvi.utils._sparse import Features, rows_times

__all__ = ["FactorMoments", "FullMoments"]

Chunks = Callable[[], Iterator[tuple[slice, Features]]]


class FactorMoments(torch.autograd.Function):
    """Mean and (co)variance of f for cov = diag(scale^2) + factor factor'.

    Automatic differentiation would keep a second copy of X, squared; here gradients
    read X once more. A factorized normal has a factor without columns.
    """

    @staticmethod
    def forward(
        ctx: Any,
        mean: torch.Tensor,
        scale: torch.Tensor,
        factor: torch.Tensor,
        predictor: Any,
        chunks: Chunks,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        columns, variance = torch.cat([mean[:, None], factor], 1), scale.square()
        means, variances, roots = [], [], []
        for _, chunk in chunks():
            out = predictor.project_chunk(chunk, columns)
            own = predictor.project_chunk(chunk.square(), variance[:, None])[..., 0]
            root = out[..., 1:]
            own = own if own.ndim == 1 else torch.diag_embed(own)
            variances.append(own + _squares(root) if root.shape[-1] else own)
            means.append(out[..., 0])
            roots.append(root)
        ctx.save_for_backward(scale, torch.cat(roots))
        ctx.predictor, ctx.chunks = predictor, chunks
        return torch.cat(means), torch.cat(variances)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g_mean: torch.Tensor, g_variance: torch.Tensor) -> tuple:
        scale, root = ctx.saved_tensors
        if g_variance.ndim == 1:
            rows = torch.cat([g_mean[:, None], 2 * g_variance[:, None] * root], 1)
            weights = g_variance[:, None]
        else:
            both = g_variance + g_variance.mT
            rows = torch.cat([g_mean[..., None], both @ root], 2)
            weights = g_variance.diagonal(dim1=1, dim2=2)
        sums, squared = _pull_back(ctx.predictor, ctx.chunks, rows, weights)
        return sums[0], 2 * scale * squared, sums[1:].T, None, None


class FullMoments(torch.autograd.Function):
    """Mean and (co)variance of f for cov = scale scale', from one pass over X.

    Gradients need two more: the derivative of the variances in `scale` is the Gram
    matrix weighted by their gradient, times `scale`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        mean: torch.Tensor,
        scale: torch.Tensor,
        predictor: Any,
        X: Features,
        chunks: Chunks,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        columns, means, variances = torch.cat([mean[:, None], scale], 1), [], []
        for _, chunk in chunks():
            out = predictor.project_chunk(chunk, columns)
            means.append(out[..., 0].clone())  # not a view of the whole product
            variances.append(_squares(out[..., 1:]))
        ctx.save_for_backward(scale)
        ctx.predictor, ctx.X = predictor, X
        return torch.cat(means), torch.cat(variances)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g_mean: torch.Tensor, g_variance: torch.Tensor) -> tuple:
        (scale,) = ctx.saved_tensors
        both = 2 * g_variance if g_variance.ndim == 1 else g_variance + g_variance.mT
        by_scale = ctx.predictor.gram(ctx.X, both) @ scale
        return ctx.predictor.pull_back(ctx.X, g_mean), by_scale, None, None, None


def _squares(root: torch.Tensor) -> torch.Tensor:
    """Variances of f from roots (n, m), or covariances from (n, K, m)."""
    return root.square().sum(1) if root.ndim == 2 else root @ root.mT


def _pull_back(
    predictor: Any,
    chunks: Chunks,
    rows: torch.Tensor,
    weights: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``rows' A``, (m, P), and ``weights' A^2``, (P,), in one pass over X.

    `rows` is (n, m) or (n, K, m), `weights` (n, K).
    """
    n_draws, n_outputs = rows.shape[-1], weights.shape[1]
    # The columns of f first, as in theta; the last axis is that of the draws.
    flat = rows.reshape(len(rows), n_outputs, n_draws).permute(2, 1, 0)
    flat = flat.reshape(n_draws * n_outputs, -1)
    size = n_outputs * predictor.n_features
    first = flat.new_zeros(len(flat), predictor.n_features)
    second = flat.new_zeros(n_outputs, predictor.n_features)
    for i, chunk in chunks():
        first = first + rows_times(flat[:, i], chunk)
        second = second + rows_times(weights[i].T, chunk.square())
    if not predictor.fit_intercept:
        return first.reshape(n_draws, size), second.reshape(size)
    edge = flat.sum(1).reshape(n_draws, -1)
    return (
        torch.cat([first.reshape(n_draws, size), edge], 1),
        torch.cat([second.reshape(size), weights.sum(0)]),
    )
