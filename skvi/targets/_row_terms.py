"""Sums over rows of expected losses and their derivatives, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING

import torch

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

__all__ = ["row_terms", "terms_at", "terms_at_moments"]

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
