"""Log evidence of a Gaussian process with normal noise, exactly and from below.

The inducing values are integrated out: the bound is a function of hyperparameters and
inducing points alone (Titsias, 2009). All quantities are sums over K columns of y.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from skvi.kernels._kernels import covariance, variance
from skvi.utils._tensors import LOG_2PI
from skvi.utils._validation import row_chunks

# Variance that is added to inducing points while they move, relative to their mean
# variance: a start, and where to give up.
JITTER, MOST_JITTER = 1e-8, 1e-2
# Elements of covariances of rows and inducing points beyond which they come in blocks.
MOST_ELEMENTS = 2**23


@dataclass(frozen=True, eq=False)
class NormalRows:
    """Features (n, d), targets (n, K), and weights (n,), or None if all are 1."""

    X: torch.Tensor
    y: torch.Tensor
    weight: torch.Tensor | None = None

    @property
    def total(self) -> float:
        """Sum of the weights."""
        return float(len(self.X) if self.weight is None else self.weight.sum())

    def take(self, index: slice | torch.Tensor) -> tuple:
        """Features of some rows, their first target, and weights or None."""
        weight = None if self.weight is None else self.weight[index]
        return self.X[index], self.y[index, 0], weight

    def some(self, index: slice | torch.Tensor) -> "NormalRows":
        """Return some of the rows."""
        X, _, weight = self.take(index)
        return NormalRows(X, self.y[index], weight)

    def scaled(self, columns: torch.Tensor) -> torch.Tensor:
        """Multiply columns, (..., n), by the roots of the weights."""
        return columns if self.weight is None else columns * self.weight.sqrt()


def cholesky(K: torch.Tensor) -> torch.Tensor:
    """Root of a covariance matrix, with the least added variance that it needs."""
    scale = K.diagonal().mean().detach()
    eye = torch.eye(len(K), dtype=K.dtype, device=K.device)
    jitter = JITTER
    while jitter <= MOST_JITTER:
        root, failed = torch.linalg.cholesky_ex(K + jitter * scale * eye)
        if not failed:
            return root
        jitter *= 10
    raise np.linalg.LinAlgError("the covariances of the inducing points are singular")


class LogDensity(torch.autograd.Function):
    """Log density of normal columns, (n, K), of mean 0 and one covariance, (n, n)."""

    @staticmethod
    def forward(ctx: Any, C: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        root = torch.linalg.cholesky(C)
        solution = torch.cholesky_solve(y, root)
        ctx.save_for_backward(root, solution)
        squares = (y * solution).sum() + y.numel() * LOG_2PI
        return -0.5 * squares - y.shape[1] * root.diagonal().log().sum()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple:
        root, solution = ctx.saved_tensors
        inverse = torch.cholesky_inverse(root)
        found = torch.addmm(inverse, solution, solution.T, beta=-solution.shape[1])
        return found.mul_(0.5 * gradient), None


class Whitened(torch.autograd.Function):
    """``A A'`` and ``A y`` of ``A = L^-1 K``: one product forward, one backward."""

    @staticmethod
    def forward(
        ctx: Any, L: torch.Tensor, K: torch.Tensor, y: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        A = torch.linalg.solve_triangular(L, K, upper=False)
        gram, moment = A @ A.T, A @ y
        ctx.save_for_backward(L, A, gram, moment, y)
        return gram, moment

    @staticmethod
    def backward(ctx: Any, for_gram: torch.Tensor, for_moment: torch.Tensor) -> tuple:
        L, A, gram, moment, y = ctx.saved_tensors
        both = torch.cat([for_gram + for_gram.T, for_moment], 1)
        both = torch.linalg.solve_triangular(L.T, both, upper=True)
        S, u = both[:, : len(L)], both[:, len(L) :]
        for_K = torch.addmm(u @ y.T, S, A)
        return -(S @ gram + u @ moment.T).tril(), for_K, None


def log_evidence(
    kernel: Any, theta: torch.Tensor, noise: torch.Tensor, rows: NormalRows
) -> torch.Tensor:
    """Log density of all targets, of noise with a variance; differentiable."""
    C = covariance(kernel, theta, rows.X, rows.X)
    ones = torch.ones_like(rows.y[:, 0])
    own = noise * (ones if rows.weight is None else 1 / rows.weight)
    value = LogDensity.apply(C + torch.diag_embed(own), rows.y)
    if rows.weight is None:
        return value
    # A row that counts w times is one of a w-th of the variance, with this factor.
    excess = (rows.total - len(rows.X)) * (LOG_2PI + noise.log())
    return value - 0.5 * rows.y.shape[1] * (excess + rows.weight.log().sum())


def collapsed_bound(
    kernel: Any,
    theta: torch.Tensor,
    noise: torch.Tensor,
    rows: NormalRows,
    Z: torch.Tensor,
) -> torch.Tensor:
    """Largest ELBO over all q of the inducing values; differentiable."""
    k, y = rows.y.shape[1], rows.scaled(rows.y.T).T
    L = cholesky(covariance(kernel, theta, Z, Z))

    def sums_of(L: torch.Tensor, Z: torch.Tensor, part: NormalRows) -> tuple:
        K = part.scaled(covariance(kernel, theta, Z, part.X))
        return Whitened.apply(L, K, part.scaled(part.y.T).T)

    gram, moment = L.new_zeros(len(Z), len(Z)), L.new_zeros(len(Z), k)
    for index in (chunks := row_chunks(len(y), len(Z), MOST_ELEMENTS)):
        parts = L, Z, rows.some(index)
        if len(chunks) > 1:  # what backward needs is computed again
            own = checkpoint(sums_of, *parts, use_reentrant=False)
        else:
            own = sums_of(*parts)
        gram, moment = gram + own[0], moment + own[1]
    eye = torch.eye(len(Z), dtype=L.dtype, device=L.device)
    root = torch.linalg.cholesky(eye + gram / noise)
    fitted = torch.linalg.solve_triangular(root, moment, upper=False) / noise
    total = rows.scaled(rows.scaled(variance(kernel, theta, rows.X))).sum()
    rest = (total - gram.diagonal().sum()).clamp(min=0)
    log_det = 2 * root.diagonal().log().sum() + rows.total * (noise.log() + LOG_2PI)
    squares = y.square().sum() / noise - fitted.square().sum()
    return -0.5 * (k * (log_det + rest / noise) + squares)
