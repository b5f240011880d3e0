"""Sums that determine a linear model, and expected losses of its rows."""

import math
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch

from skvi.expectations._rules import (
    Expectations,
    node_groups,
    normal_rule,
    row_derivatives,
)
from skvi.utils._rows import SparseRows
from skvi.utils._tensors import Movable, log_mean_exp
from skvi.utils._validation import like_rows, row_chunks

# Eigenvalues below this fraction of the largest are rounding errors.
SINGULAR = 1e-15
# A Gram matrix squares condition numbers: eigenvalues below this fraction of the
# largest are inaccurate, and the features themselves are decomposed.
SQUARED = 1e-9
# Larger data are decomposed in chunks of this number of elements.
QR_ELEMENTS = 2**21


@dataclass(frozen=True, eq=False)
class LeastSquares(Movable):
    """Sum of squares of a linear model, exactly and without cancellation.

    ``residual + n (b - mean)^2 + sum_k values_k (vectors_k' coef - solution_k)^2``, if
    the weighted mean of the features is zero.
    """

    n: float  # sum of the weights
    values: torch.Tensor  # (k,), positive eigenvalues of the Gram matrix
    vectors: torch.Tensor  # (d, k)
    solution: torch.Tensor  # (k,), coefficients along `vectors`
    residual: float  # smallest sum of squares
    mean: float  # weighted mean of y, or 0 without an intercept
    gram: torch.Tensor | None  # (d, d), only if it was computed
    diagonal: torch.Tensor  # (d,), of the Gram matrix

    @property
    def n_features(self) -> int:
        """Number of coefficients, d."""
        return len(self.diagonal)

    def full_gram(self) -> torch.Tensor:
        """Weighted Gram matrix of the features, (d, d)."""
        if self.gram is not None:
            return self.gram
        return (self.vectors * self.values) @ self.vectors.T

    def sum_of_squares(
        self, coef: torch.Tensor, intercept: torch.Tensor | None
    ) -> torch.Tensor:
        """Weighted sum of squared residuals, (S,), of coefficients (S, d)."""
        shift = coef @ self.vectors - self.solution
        total = self.residual + shift.square() @ self.values
        if intercept is not None:
            total = total + self.n * (intercept - self.mean).square()
        return total


def summarize(
    predictor: Any, X: Any, y: torch.Tensor, weight: torch.Tensor | None
) -> LeastSquares:
    """Least squares of features (n, d) of weighted mean zero, if there is an intercept.

    For a predictor with a single output.
    """
    d, weight = predictor.n_features, torch.ones_like(y) if weight is None else weight
    n, is_dense = float(weight.sum()), not isinstance(X, SparseRows)
    mean = float(weight @ y) / n if predictor.fit_intercept else 0.0
    centered = y - mean
    if is_dense and len(y) < d:
        gram, diagonal = None, predictor.gram_diagonal(X, weight)[:d]
        values, vectors, solution = _from_features(X, weight, centered)
    else:
        gram = predictor.gram(X, weight)[:d, :d]
        diagonal = gram.diagonal()
        values, vectors = torch.linalg.eigh(gram)
        if is_dense and float(values[0]) < SQUARED * values[-1]:
            values, vectors, solution = _from_features(X, weight, centered)
        else:
            keep = values > SINGULAR * max(len(y), d) * values[-1]
            values, vectors = values[keep], vectors[:, keep]
            moment = predictor.pull_back(X, weight * centered)[:d]
            solution = (vectors.T @ moment) / values
    coef = y.new_zeros(predictor.layout.size, 1)
    coef[:d, 0] = vectors @ solution
    rest = centered - predictor.project(X, coef)[:, 0]
    residual = float(weight @ rest.square())
    return LeastSquares(n, values, vectors, solution, residual, mean, gram, diagonal)


def _from_features(
    X: torch.Tensor, weight: torch.Tensor, y: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Eigenvalues, eigenvectors and least squares by singular values."""
    return _decomposed(_triangle(X, weight.sqrt(), y), max(X.shape))


def _decomposed(
    A: torch.Tensor, length: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    left, size, right = torch.linalg.svd(A[:, :-1], full_matrices=False)
    keep = size > SINGULAR * length * size[0]
    size, left, right = size[keep], left[:, keep], right[keep]
    return size.square(), right.T.contiguous(), (left.T @ A[:, -1]) / size


def _triangle(X: torch.Tensor, root: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """``[X, y]`` times roots of weights, or R of their QR decomposition.

    R has the same singular values and right vectors; it is updated by chunks of rows.
    """
    chunks = row_chunks(len(y), X.shape[1] + 1, max(QR_ELEMENTS, 4 * X.shape[1] ** 2))
    found: torch.Tensor | None = None
    for rows in chunks:
        block = torch.cat([X[rows].double(), y[rows, None]], 1) * root[rows, None]
        if len(chunks) == 1:
            return block
        block = block if found is None else torch.cat([found, block])
        found = torch.linalg.qr(block, mode="r").R
    return found


@dataclass(frozen=True, eq=False)
class Triangle(Movable):
    """R of the QR decomposition of rows ``[1, X, y]``, or ``[X, y]``, by root weights.

    Those of blocks add up to that of all rows, without loss of precision.
    """

    matrix: torch.Tensor

    @classmethod
    def of(
        cls, X: Any, y: torch.Tensor, weight: torch.Tensor | None, has_ones: bool
    ) -> "Triangle":
        """Decompose rows in memory."""
        root = torch.ones_like(y) if weight is None else weight.sqrt()
        ones = [torch.ones_like(y)[:, None]] * has_ones
        rows = torch.cat([*ones, X.to(torch.float64), y[:, None]], 1)
        return cls(torch.linalg.qr(rows * root[:, None], mode="r").R)

    def __add__(self, other: "Triangle") -> "Triangle":
        """Add other rows."""
        rows = torch.cat([self.matrix, other.matrix])
        return Triangle(torch.linalg.qr(rows, mode="r").R)

    def least_squares(self, n: float, n_rows: int, has_ones: bool) -> LeastSquares:
        """Sum of squares of rows whose weights sum to n, about the means with ones."""
        A, mean = self.matrix, 0.0
        if has_ones:
            mean, A = float(A[0, -1] / A[0, 0]), A[1:, 1:]
        values, vectors, solution = _decomposed(A, max(n_rows, A.shape[1]))
        rest = A[:, -1] - A[:, :-1] @ (vectors @ solution)
        diagonal = A[:, :-1].square().sum(0)
        parts = values, vectors, solution, float(rest @ rest), mean
        return LeastSquares(n, *parts, None, diagonal)


# Steps toward the center of the integrand, which need not be exact.
CENTER_STEPS = 12


class FreeEnergy:
    """A loss under ``-log E_q[exp(-alpha loss)] / alpha``, alpha > 0, instead of E_q.

    The limit at alpha = 0 is E_q, which differs by less than the range of the loss.
    """

    #: exp(-loss) is not a likelihood, and must not be used as one.
    is_log_loss = False

    def __init__(self, loss: Any, alpha: float) -> None:
        self.loss, self.alpha = loss, alpha

    def reduce(
        self, losses: torch.Tensor, log_ratio: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Estimate from draws (S, n): nats per row, (n,), biased upwards by O(1/S).

        `log_ratio` (S,) is added to minus the loss of every row.
        """
        if log_ratio is not None:
            losses = losses - log_ratio[:, None]
        return -log_mean_exp(-self.alpha * losses, 0) / self.alpha

    def expected(
        self,
        likelihood: Any,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        refine: int = 1,
    ) -> Expectations:
        """Free energy under a normal f_i, and its derivatives, without noise.

        The third value is twice the derivative in the *variance*, ``second + alpha
        first^2``: only for expectations is that the second derivative in the mean.
        """
        if not bool(std_or_cov.any()):
            return self.loss.expected(likelihood, mean, std_or_cov, y, refine)
        if mean.ndim == 2:
            return self._vector(likelihood, mean, std_or_cov, y, refine)
        reach = likelihood._length_scale / math.sqrt(max(self.alpha, 1.0))
        nodes, weights = normal_rule(
            float(std_or_cov.max()) / reach, refine, std_or_cov.device
        )
        shift = self._center(likelihood, mean, std_or_cov, y)
        f = mean + std_or_cov * (nodes[:, None] + shift)
        # The normal density around its own mean, at nodes that are spaced elsewhere.
        tilt = -nodes[:, None] * shift - 0.5 * shift.square()
        gain, first, second = self._derivatives(likelihood, f[..., None], y)
        w, value = self._weigh(weights.log()[:, None] + tilt, gain)
        second = second + self.alpha * first.square()
        return value, -(w * first).sum(0), -(w * second).sum(0)

    def _vector(
        self,
        likelihood: Any,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        refine: int,
    ) -> Expectations:
        value, first = torch.empty_like(mean[:, 0]), torch.empty_like(mean)
        second = torch.empty_like(std_or_cov)
        for rows, factor, nodes, weights in node_groups(std_or_cov, refine):
            f = (mean[rows, :, None] + factor @ nodes).permute(2, 0, 1)
            gain, slope, curvature = self._derivatives(likelihood, f, y[rows])
            w, value[rows] = self._weigh(weights.log()[:, None], gain)
            curvature = curvature + self.alpha * slope[..., None] * slope[..., None, :]
            first[rows] = -(w[..., None] * slope).sum(0)
            second[rows] = -(w[..., None, None] * curvature).sum(0)
        return value, first, second

    def _derivatives(
        self, likelihood: Any, f: torch.Tensor, y: torch.Tensor
    ) -> Expectations:
        """Minus the loss, with its first and second derivative in f."""
        if self.loss.is_log_loss:
            return likelihood.log_prob_derivatives(f, y)
        return row_derivatives(lambda g: -self.loss(likelihood, g, y), f)

    def _weigh(
        self, log_weights: torch.Tensor, gain: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Normalized weights of the nodes, and the free energy."""
        terms = log_weights + self.alpha * gain
        total = torch.logsumexp(terms, 0)
        return torch.exp(terms - total), -total / self.alpha

    def _center(
        self,
        likelihood: Any,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
    ) -> torch.Tensor:
        """Mode of the integrand, in standard deviations from the mean.

        It is far out in a badly misclassified row. By safeguarded Newton steps.
        """
        shift = torch.zeros_like(mean)
        low, high = shift, shift
        for step in range(CENTER_STEPS):
            f = (mean + std_or_cov * shift)[None, :, None]
            _, first, second = self._derivatives(likelihood, f, y)
            gradient = self.alpha * std_or_cov * first[0]
            if step == 0:
                if float(gradient.abs().max()) < 0.5:
                    return shift
                low, high = gradient.clamp(max=0), gradient.clamp(min=0)
            excess = gradient - shift
            low = torch.where(excess > 0, shift, low)
            high = torch.where(excess < 0, shift, high)
            curvature = (self.alpha * std_or_cov.square() * -second[0]).clamp(min=0)
            newton = shift + excess / (1 + curvature)
            inside = (newton > low) & (newton < high)
            shift = torch.where(inside, newton, 0.5 * (low + high))
        return shift


def with_free_energy(target: Any, alpha: float) -> Any:
    """Copy of a supervised target whose expected loss is a sum of free energies.

    In `expected_loss` without draws and in `expected_loss_terms`: for solvers that need
    only these, on the same data.
    """
    found = copy(target)
    found.loss = FreeEnergy(target.loss, alpha)
    return found


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
