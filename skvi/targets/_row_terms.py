"""Sums over rows of expected losses and their derivatives, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import torch

from skvi.base import Rows
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
    """Value and weighted derivatives, from mean and deviation of f of some rows.

    Parameters
    ----------
    target : SupervisedTarget
    of_rows : callable
        Maps rows, and where they are, to moments of f without an offset.
    integrate : callable
        Maps a likelihood, these moments and y to losses and derivatives in f.

    Returns
    -------
    value : Tensor
        A scalar in nats, summed over the data.
    slope, curvature : Tensor of shape (n,)
        Of shapes (n, K) and (n, K, K) for K > 1.
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
