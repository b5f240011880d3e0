"""Passes over rows: from f to a loss and its slopes, in buffers, step after step."""

from typing import NamedTuple

import torch

__all__ = ["RowBuffers", "RowPass"]


class RowBuffers(NamedTuple):
    """Buffers of a pass, for M members with S draws of n rows each."""

    f: torch.Tensor  # (M, S, n, K)
    slope: torch.Tensor  # as f; receives derivatives of the weighted sum over rows
    hyper: torch.Tensor  # (M, H), of the likelihood
    for_hyper: torch.Tensor  # (M, H); receives the derivatives in them


class RowPass:
    """The weighted sum of a loss over rows and draws, with its derivatives.

    Buffers stay the same, so that views of them are made only once.
    """

    def __init__(self) -> None:
        self._found: list[tuple[torch.Tensor, ...]] = []

    def __call__(
        self, y: torch.Tensor, weight: torch.Tensor, count: torch.Tensor
    ) -> None:
        """Process some rows with y and weights (M, 1, n), in the dtype of f.

        The count (M,) is the sum of the weights over rows and draws.
        """
        self._found.append(self._visit(y, weight, count))

    def _visit(
        self, y: torch.Tensor, weight: torch.Tensor, count: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Fill the buffers; return what `_values` needs for the step, (M,) each."""
        raise NotImplementedError

    def values(self, hyper: torch.Tensor) -> torch.Tensor:
        """Sums in nats, (T, M), of T passes since the last call, hyper (T, M, H)."""
        columns = [torch.stack(column) for column in zip(*self._found, strict=True)]
        self._found = []
        return self._values(columns, hyper)

    def _values(self, found: list[torch.Tensor], hyper: torch.Tensor) -> torch.Tensor:
        return found[0]
