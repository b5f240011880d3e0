"""Sums over rows of expected losses and their derivatives, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import torch

from skvi.base._rows import Rows
from skvi.targets._expected_loss import gather, term_chunks
from skvi.targets._rows import shift_mean
from skvi.utils._arrays import like_rows

if TYPE_CHECKING:
    from skvi.targets._supervised import SupervisedTarget

__all__ = ["row_terms"]


def row_terms(
    target: SupervisedTarget,
    of_rows: Callable[[Rows, slice], tuple[torch.Tensor, torch.Tensor]],
    integrate: Callable[..., Sequence[torch.Tensor]],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
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
