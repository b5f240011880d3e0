"""Linear models."""

from collections.abc import Iterator
from functools import partial, reduce
from typing import Any, cast

import torch
from torch.utils.checkpoint import checkpoint

from skvi.base import Layout, NormalForm
from skvi.predictors.base import Predictor
from skvi.utils._rows import (
    Features,
    SparseRows,
    affine,
    dense_gram,
    dense_moments,
    is_dense,
    row_width,
    rows_times,
    times_rows,
    times_transpose,
    weighted_gram,
    weighted_grams,
)
from skvi.utils._validation import row_chunks

# Rows are processed in chunks whose copy in double precision stays in the cache; if
# results are large, or rows are sparse, in chunks of up to this number of elements.
CACHE_ELEMENTS, CHUNK_ELEMENTS = 2**18, 2**21
# Elements per row if several columns weight its products.
GRAM_WIDTH = 512
# Sums of the rows of singular weights, as fractions of their largest element.
SINGULAR = 1e-13
ALL_ROWS = slice(None)


class LinearPredictor(Predictor):
    """A linear model, f = X coef' + intercept, with K columns.

    The design matrix A maps theta to all f: ``[X, 1]`` for one column, one such block
    for each of K columns. Only `design` builds it: `project`, `pull_back` and `gram`
    apply A, its transpose and ``A' H A``, in float64. With K = 1 their arguments have
    no axis of columns. X, (n, d), may be a tensor or `SparseRows`.
    """

    def __init__(
        self, n_features: int, n_outputs: int = 1, fit_intercept: bool = True
    ) -> None:
        shapes: dict[str, tuple[int, ...]] = {"coef": (n_outputs, n_features)}
        if fit_intercept:
            shapes["intercept"] = (n_outputs,)
        roles = {"intercept": "intercept"} if fit_intercept else {}
        self.layout = Layout(shapes, roles=roles, input_axes={"coef": 1})
        self.n_features, self.n_outputs = n_features, n_outputs
        self.fit_intercept = fit_intercept

    has_design = True

    def forward(self, theta: torch.Tensor, X: Features) -> torch.Tensor:
        """f, (S, n, K); see `Predictor.forward`."""
        blocks = self.layout.unpack(theta)
        n_draws, n_outputs, n_features = blocks["coef"].shape
        coef = blocks["coef"].reshape(-1, n_features)
        shift = blocks["intercept"].reshape(-1, 1) if self.fit_intercept else None
        f = times_rows(coef, X.to(theta.dtype), shift)
        return f.reshape(n_draws, n_outputs, -1).transpose(1, 2)

    def with_design(self, X: Features) -> tuple[Predictor, Features]:
        """For one column, the intercept as a feature of ones; see `Predictor`."""
        n_params = self.layout.size
        is_small = len(X) * n_params <= CACHE_ELEMENTS
        if self.n_outputs > 1 or isinstance(X, SparseRows) or not is_small:
            return self, X
        return LinearPredictor(n_params, fit_intercept=False), self.design(X)

    def project(self, X: Features, matrix: torch.Tensor) -> torch.Tensor:
        """Return ``A @ matrix``, (n, m), or (n, K, m), of a matrix (P, m)."""
        width = self.n_outputs * matrix.shape[1]
        parts = [self.project_chunk(chunk, matrix) for _, chunk in _chunks(X, width)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def project_chunk(self, X: Features, matrix: torch.Tensor) -> torch.Tensor:
        """Return `project` for few rows in float64, without chunks."""
        if self.n_outputs == 1 and not self.fit_intercept:
            return X @ matrix
        k, d, m = self.n_outputs, self.n_features, matrix.shape[1]
        coef = matrix[: k * d]
        if k > 1:
            coef = coef.reshape(k, d, m).transpose(0, 1).reshape(d, k * m)
        intercept = matrix[k * d :].reshape(-1) if self.fit_intercept else None
        out = affine(X, coef, intercept)
        return out if k == 1 else out.reshape(-1, k, m)

    def design(self, X: torch.Tensor) -> torch.Tensor:
        """Build A for one column, (n, P)."""
        X = X.to(torch.float64)
        return torch.nn.functional.pad(X, (0, int(self.fit_intercept)), value=1.0)

    def pull_back(self, X: Features, rows: torch.Tensor) -> torch.Tensor:
        """Return ``A' rows``, (P,), for a value of each f, (n,) or (n, K)."""
        return self.pull_back_draws(X, rows[None])[0]

    def pull_back_draws(self, X: Features, rows: torch.Tensor) -> torch.Tensor:
        """Return ``rows @ A``, (S, P): `pull_back` for S vectors at once."""
        n_draws = rows.shape[0]
        if rows.ndim == 3:
            rows = rows.transpose(1, 2).reshape(n_draws * self.n_outputs, -1)
        # One at a time: each is as large as the result.
        parts = (rows_times(rows[:, i], chunk) for i, chunk in _chunks(X, n_draws))
        out = reduce(torch.add, parts).reshape(n_draws, -1)
        if not self.fit_intercept:
            return out
        return torch.cat([out, rows.sum(1).reshape(n_draws, -1)], 1)

    def gram(self, X: Features, h: torch.Tensor) -> torch.Tensor:
        """Return ``A' H A``, (P, P), with one symmetric block of H for each row.

        H is (n,), or (n, K, K) for K > 1.
        """
        if self.n_outputs == 1:
            if is_dense(X) and float(h.min()) >= 0:
                return dense_gram(X, h, self.fit_intercept)
            # One at a time: each is as large as the result.
            chunks = _chunks(X, 1, self.layout.size**2)
            parts = (weighted_gram(x, h[i], self.fit_intercept) for i, x in chunks)
            return reduce(torch.Tensor.add_, parts)
        is_singular = _rows_sum_to_zero(h)
        pairs, position = _pairs(self.n_outputs, h.device, is_singular)
        weights = h[:, pairs[0], pairs[1]].T.contiguous()
        grams = (
            weighted_grams(x, weights[:, rows], self.fit_intercept)
            for rows, x in _chunks(X, GRAM_WIDTH, CHUNK_ELEMENTS)
        )
        blocks = reduce(torch.Tensor.add_, grams)[:, position]
        if is_singular:
            own = blocks.diagonal(dim1=1, dim2=2).zero_()
            own.copy_(-blocks.sum(2).mT)
        return self._assemble(blocks)

    def _assemble(self, blocks: torch.Tensor) -> torch.Tensor:
        """Symmetric matrix from blocks, (D, K, K, D), of pairs of columns."""
        k, d = self.n_outputs, self.n_features
        full = blocks.transpose(0, 1)
        out = blocks.new_empty(self.layout.size, self.layout.size)
        out[: k * d, : k * d] = full[:, :d, :, :d].reshape(k * d, k * d)
        if self.fit_intercept:
            edge = full[:, d, :, :d].reshape(k, k * d)
            out[k * d :, : k * d], out[: k * d, k * d :] = edge, edge.T
            out[k * d :, k * d :] = full[:, d, :, d]
        return out

    def gram_diagonal(self, X: Features, h: torch.Tensor) -> torch.Tensor:
        """Diagonal of `gram`, (P,), without the matrix."""
        h = h[None] if h.ndim == 1 else h.diagonal(dim1=1, dim2=2).T
        size = self.n_outputs * self.n_features
        out = h.new_zeros(self.layout.size)
        for rows, chunk in _chunks(X, self.n_outputs):
            out[:size] += rows_times(h[:, rows], chunk.square()).reshape(-1)
        if self.fit_intercept:
            out[size:] = h.sum(1)
        return out

    def moments(
        self, X: Features, normal: NormalForm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and (co)variance of each row's f when theta is normal, in float64.

        Of shape (n,) and (n,), or (n, K) and (n, K, K).
        """
        mean, scale, factor = normal.mean, normal.scale, normal.factor
        given = [part for part in (mean, scale, factor) if part is not None]
        is_full = scale.ndim == 2
        if is_full and not any(part.requires_grad for part in given):
            if self.n_outputs == 1 and is_dense(X):
                return dense_moments(X, mean, scale, self.fit_intercept)
            if not isinstance(X, SparseRows) and self._pays(len(X)):
                covariance = self._all_covariances(X, times_transpose(scale))
                return self.project(X, mean[:, None])[..., 0], covariance
        n_columns = normal.n_noise - (0 if is_full else normal.size)
        slices = _slices(X, self.n_outputs * (1 + n_columns))
        if len(slices) == 1:
            return self._moments_of(X, slices[0], *given)
        # Slopes read the rows again: a graph would keep a second copy of them.
        moments_of = partial(checkpoint, self._moments_of, X, use_reentrant=False)
        parts = [moments_of(rows, *given, preserve_rng_state=False) for rows in slices]
        means, variances = zip(*parts, strict=True)
        return torch.cat(means), torch.cat(variances)

    def _moments_of(
        self,
        X: Features,
        rows: slice,
        mean: torch.Tensor,
        scale: torch.Tensor,
        factor: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`moments` of few rows."""
        X = X[rows].to(torch.float64)
        root = scale if scale.ndim == 2 else factor
        columns = mean[:, None] if root is None else torch.cat([mean[:, None], root], 1)
        f = self.project_chunk(X, columns)
        found = []
        if scale.ndim == 1:
            own = self.project_chunk(X.square(), scale.square()[:, None])[..., 0]
            found.append(own if self.n_outputs == 1 else torch.diag_embed(own))
        if root is not None:
            rest = f[..., 1:]
            is_single = self.n_outputs == 1
            found.append(rest.square().sum(1) if is_single else rest @ rest.mT)
        # Not a view of the whole product.
        return f[..., 0].clone(), found[0] if len(found) == 1 else found[0] + found[1]

    def _pays(self, n_rows: int) -> bool:
        """Whether products of all pairs of features take less time than a root."""
        k, width = self.n_outputs, self.layout.size / self.n_outputs
        return k > 1 and n_rows * (width + k) > 2 * k * width**2

    def _all_covariances(self, X: Any, covariance: torch.Tensor) -> torch.Tensor:
        """Covariances of f, (n, K, K), from that of theta: linear in it."""
        k = self.n_outputs
        pairs, position = _pairs(k, X.device)
        order = self._by_columns(X.device)
        blocks = covariance[order[:, None], order].reshape(k, -1, k, len(order) // k)
        blocks = blocks[pairs[0], :, pairs[1]]
        blocks = blocks + blocks.mT  # products of two features count twice
        blocks.diagonal(dim1=1, dim2=2).mul_(0.5)
        out = blocks.new_empty(len(X), k, k)
        for rows, chunk in _chunks(X, 2 * blocks.shape[1]):
            columns = self.design(cast(torch.Tensor, chunk)).T.contiguous()
            found = columns.new_zeros(len(blocks), len(chunk))
            for i, column in enumerate(columns):
                found.addmm_(blocks[:, i, : i + 1], columns[: i + 1] * column)
            out[rows] = found.T[:, position.reshape(-1)].reshape(-1, k, k)
        return out

    def _by_columns(self, device: torch.device) -> torch.Tensor:
        """Positions of the parameters of one column of f after the other."""
        k, d = self.n_outputs, self.n_features
        order = torch.arange(k * d, device=device).reshape(k, d)
        if self.fit_intercept:
            last = torch.arange(k * d, k * d + k, device=device)
            order = torch.cat([order, last[:, None]], 1)
        return order.reshape(-1)


def _rows_sum_to_zero(h: torch.Tensor) -> bool:
    """Whether matrices, (n, K, K), are Hessians of what only depends on contrasts."""
    return bool(h.sum(2).abs().amax() <= SINGULAR * h.abs().amax())


def _pairs(
    n: int, device: torch.device, distinct: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs of columns, (2, pairs), and where each entry of a matrix is, (n, n).

    Without pairs of equal columns the diagonal has the number of an arbitrary pair.
    """
    pairs = torch.tril_indices(n, n, -int(distinct), device=device)
    position, order = pairs.new_zeros(n, n), torch.arange(pairs.shape[1], device=device)
    position[pairs[0], pairs[1]] = position[pairs[1], pairs[0]] = order
    return pairs, position


def _chunks(
    X: Features, width: int, least: int = 0
) -> Iterator[tuple[slice, Features]]:
    """Rows in chunks, as float64: float32 features are stored, but not computed with.

    Chunks of `least` elements pay off although they exceed the cache.
    """
    return ((rows, X[rows].to(torch.float64)) for rows in _slices(X, width, least))


def _slices(X: Features, width: int, least: int = 0) -> list[slice]:
    n_rows = X.shape[0]
    if n_rows * max(width, X.shape[1]) <= CACHE_ELEMENTS:
        return [ALL_ROWS]
    if isinstance(X, SparseRows):
        least = CHUNK_ELEMENTS
    elements = min(max(CACHE_ELEMENTS, least), CHUNK_ELEMENTS)
    return row_chunks(n_rows, max(width, row_width(X)), elements)
