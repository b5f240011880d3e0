"""Sums over rows of expected losses and their derivatives, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING

import torch

from skvi.base import NormalForm
from skvi.base._rows import Rows
from skvi.targets._expected_loss import (
    as_std_or_cov,
    gather,
    term_chunks,
)
from skvi.targets._rows import shift_mean
from skvi.utils._arrays import like_rows

if TYPE_CHECKING:
    from skvi.targets._supervised import SupervisedTarget

__all__ = ["row_terms", "stacked_terms", "terms_at", "terms_at_moments"]

# Elements of the products of features with the roots of several covariances.
STACKED_ELEMENTS = 2**21

#: Value in nats, and weighted first and second derivatives in f of all rows.
Terms = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def row_terms(
    target: SupervisedTarget,
    of_rows: Callable[[Rows, slice], tuple[torch.Tensor, torch.Tensor]],
    integrate: Callable[..., Sequence[torch.Tensor]],
) -> Terms:
    """Value in nats, and weighted derivatives of all rows, (n,) or (n, K), (n, K, K).

    `of_rows` gives moments of f without an offset for some rows; `integrate` maps these
    to losses and their derivatives in f.
    """
    likelihood, values = target.likelihood, []

    def of_chunks() -> Iterator[tuple[slice, list[torch.Tensor]]]:
        for chunk in term_chunks(target.n_rows, target.predictor.n_outputs):
            part = target.rows.take(chunk)
            mean, std_or_cov = of_rows(part, chunk)
            value, *terms = integrate(
                likelihood, shift_mean(mean, part), std_or_cov, part.y
            )
            w = part.weight
            if w is not None:
                terms = [like_rows(w, term) * term for term in terms]
            values.append(value.sum() if w is None else w @ value)
            yield chunk, terms

    slope, curvature = gather(of_chunks(), target.n_rows)
    return reduce(torch.add, values) - target.constant, slope, curvature


def terms_at_moments(
    target: SupervisedTarget,
    mean: torch.Tensor,
    variance: torch.Tensor,
    refine: int = 1,
) -> Terms:
    """Return `SupervisedTarget.expected_loss_terms` where the moments of f are known.

    Without an offset, (n,), or (n, K) and covariances (n, K, K).
    """
    std_or_cov = as_std_or_cov(variance)

    def of_rows(_: Rows, chunk: slice) -> tuple[torch.Tensor, torch.Tensor]:
        return mean[chunk], std_or_cov[chunk]

    return row_terms(target, of_rows, partial(target.loss.expected, refine=refine))


def terms_at(target: SupervisedTarget, theta: torch.Tensor) -> Terms:
    """Return `SupervisedTarget.expected_loss_terms` at a single point, (P,)."""

    def of_rows(part: Rows, _: slice) -> tuple[torch.Tensor, torch.Tensor]:
        f = target.predictor.project(part.X, theta[:, None])[..., 0]
        return f, torch.zeros_like(f if f.ndim == 1 else torch.diag_embed(f))

    return row_terms(target, of_rows, target.loss.expected)


def stacked_terms(targets: Sequence[SupervisedTarget], normal: NormalForm) -> Terms:
    """`SupervisedTarget.expected_loss_terms` of targets on the same rows, (K, ...).

    `normal` is a batch, one for each. Few rows take all of them in one pass.
    """
    first, (k, size) = targets[0], normal.mean.shape
    width = k * first.predictor.n_outputs * (size + first.predictor.n_outputs)
    is_small = first.n_rows * width <= STACKED_ELEMENTS
    if k == 1 or not (is_small and isinstance(first.X, torch.Tensor)):
        pairs = zip(targets, normal.mean, normal.scale, strict=True)
        found = [t.expected_loss_terms(NormalForm(m, s)) for t, m, s in pairs]
        value, slope, curvature = map(torch.stack, zip(*found, strict=True))
        return value, slope, curvature
    mean, std_or_cov = _stacked_moments(first, normal)
    value, *terms = _stacked_losses(targets, mean, std_or_cov)
    w = first.rows.weight
    if w is not None:
        value = value * w
        terms = [like_rows(w, term[0]) * term for term in terms]
    return value.sum(1) - first.constant, terms[0], terms[1]


def _stacked_moments(
    target: SupervisedTarget, normal: NormalForm
) -> tuple[torch.Tensor, torch.Tensor]:
    """Means, (K, n) or (K, n, C), and deviations or covariances of f."""
    predictor, X = target.predictor, target.X.to(torch.float64)
    (k, size), several = normal.mean.shape, predictor.n_outputs > 1
    if normal.is_diagonal:
        mean = predictor.project(X, normal.mean.T).movedim(-1, 0)
        own = predictor.project(X.square(), normal.variance.T).movedim(-1, 0)
        std_or_cov = torch.diag_embed(own) if several else own.sqrt()
    else:
        roots = normal.scale.transpose(0, 1).reshape(size, k * size)
        f = predictor.project(X, torch.cat([normal.mean.T, roots], 1))
        mean = f[..., :k].movedim(-1, 0)
        root = f[..., k:].unflatten(-1, (k, size)).movedim(-2, 0)
        std_or_cov = root @ root.mT if several else root.square().sum(-1).sqrt()
    offset = target.rows.offset
    if offset is not None:
        mean = mean + like_rows(offset, mean[0])
    return mean, std_or_cov


def _stacked_losses(
    targets: Sequence[SupervisedTarget], mean: torch.Tensor, std_or_cov: torch.Tensor
) -> list[torch.Tensor]:
    """Expected losses and derivatives, (K, n, ...): all at once for one likelihood."""
    first, likelihood = targets[0], targets[0].likelihood
    k, y, expected = len(targets), first.y, first.loss.expected
    if all(t.likelihood is likelihood for t in targets):
        flat = mean.flatten(0, 1), std_or_cov.flatten(0, 1), y.repeat(k)
        found = expected(likelihood, *flat)
        return [part.unflatten(0, (k, len(y))) for part in found]
    pairs = zip(targets, mean, std_or_cov, strict=True)
    each = [expected(t.likelihood, m, s, y) for t, m, s in pairs]
    return [torch.stack(part) for part in zip(*each, strict=True)]
