"""Passes over rows: from f to a loss and its slopes, in buffers, step after step."""

from typing import NamedTuple

import torch

__all__ = ["RowBuffers", "RowPass"]


class RowBuffers(NamedTuple):
    """Buffers of a pass, for M members with S draws of n rows each.

    Parameters
    ----------
    f : Tensor of shape (M, S, n, K)
    slope : Tensor of shape (M, S, n, K)
        Receives the derivatives of the weighted sum over rows and draws in `f`.
    hyper : Tensor of shape (M, H)
        Hyperparameters of the likelihood.
    for_hyper : Tensor of shape (M, H)
        Receives the derivatives in them.
    """

    f: torch.Tensor
    slope: torch.Tensor
    hyper: torch.Tensor
    for_hyper: torch.Tensor


class RowPass:
    """The weighted sum of a loss over rows and draws, with its derivatives.

    Buffers stay the same, so that views of them are made only once.

    Examples
    --------
    >>> import torch
    >>> from skvi.likelihoods import BernoulliLikelihood
    >>> from skvi.utils._row_pass import RowBuffers
    >>> f, nothing = torch.zeros(1, 1, 2, 1), torch.zeros(1, 0)
    >>> buffers = RowBuffers(f, f.clone(), nothing, nothing)
    >>> visit = BernoulliLikelihood().row_pass(buffers)
    >>> y, weight = torch.tensor([[[0.0, 1.0]]]), torch.ones(1, 1, 2)
    >>> visit(y, weight, count=weight.sum((1, 2)))
    >>> visit.values(nothing[None]), buffers.slope[0, 0, :, 0]
    (tensor([[1.3863]]), tensor([ 0.5000, -0.5000]))
    """

    def __init__(self) -> None:
        self._found: list[tuple[torch.Tensor, ...]] = []

    def __call__(
        self, y: torch.Tensor, weight: torch.Tensor, count: torch.Tensor
    ) -> None:
        """Process some rows.

        Parameters
        ----------
        y, weight : Tensor of shape (M, 1, n)
            In the dtype of f.
        count : Tensor of shape (M,)
            Sum of the weights over rows and draws.
        """
        self._found.append(self._visit(y, weight, count))

    def _visit(
        self, y: torch.Tensor, weight: torch.Tensor, count: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Fill the buffers; return what `_values` needs for the step, (M,) each."""
        raise NotImplementedError

    def values(self, hyper: torch.Tensor) -> torch.Tensor:
        """Sums of all passes since the last call.

        Parameters
        ----------
        hyper : Tensor of shape (T, M, H)
            Hyperparameters at that time.

        Returns
        -------
        Tensor of shape (T, M)
            In nats.
        """
        columns = [torch.stack(column) for column in zip(*self._found, strict=True)]
        self._found = []
        return self._values(columns, hyper)

    def _values(self, found: list[torch.Tensor], hyper: torch.Tensor) -> torch.Tensor:
        return found[0]
