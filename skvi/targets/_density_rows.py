"""A user's log likelihood as a target, of which some rows stand for all."""

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from typing import Any, Self

import torch
from torch.utils.checkpoint import checkpoint

from skvi.targets._density import DensityTarget, as_tensor, unchecked

__all__ = ["RowsDensityTarget", "parts"]

# Log likelihoods of rows at draws that are in the cache at once.
AT_ONCE = 2**18


class RowsDensityTarget(DensityTarget):
    """Log likelihood, a sum over rows of data, plus a log prior.

    That of some rows is scaled up to all, which is unbiased if they are random.
    """

    #: A point, (1, P), its log likelihood, (1,), and the gradient of this, (1, P).
    anchor: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None

    def __init__(
        self,
        log_likelihood: Callable,
        shapes: Mapping[str, Any],
        supports: Mapping[str, Any] | None,
        data: Any,
        log_prior: Callable | None = None,
    ) -> None:
        super().__init__(log_likelihood, shapes, supports, (data,), log_prior)
        self._n_rows = self.n_total = _count(data)

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self._n_rows

    @property
    def cost_per_draw(self) -> int:
        """Elements processed by one evaluation of the log joint: the rows."""
        return self._n_rows

    def subset(self, rows: torch.Tensor | slice) -> Self:
        """Target of some rows, scaled up to all."""
        other = copy(self)
        other.data = (_take(self.data[0], rows),)
        other._n_rows = _count(other.data[0])
        return other

    def anchored(self, theta: torch.Tensor) -> Self:
        """Target whose batches have little noise near a point, (P,).

        Minus their first-order expansion there, plus that of all rows: the mean is the
        same (Johnson and Zhang 2013, *Accelerating stochastic gradient descent using
        predictive variance reduction*).
        """
        other, point = copy(self), theta.detach()[None]
        value, slope = self._expansion(point, None)
        is_finite = bool(value.isfinite().all()) and bool(slope.isfinite().all())
        other.anchor = (point, value, slope) if is_finite else None
        return other

    def log_joint(
        self, theta: torch.Tensor, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Log density, relative to the anchor if rows are given."""
        found = super().log_joint(theta, rows)
        if rows is None or self.anchor is None:
            return found
        point, value, slope = self.anchor
        own, own_slope = self._expansion(point, rows)
        return found + (value - own) + (theta - point) @ (slope - own_slope)[0]

    def _expansion(
        self, point: torch.Tensor, rows: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log likelihood of rows, scaled up, and its gradient at a point."""
        with torch.enable_grad():
            x = point.clone().requires_grad_()
            value = self.likelihood(self.constrain(x)[0], rows)
            (slope,) = torch.autograd.grad(value.sum(), x)
        return value.detach(), slope

    def likelihood(
        self, values: Mapping[str, torch.Tensor], rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Log likelihood of some rows, scaled up to all, (S,).

        In parts, of which graphs are made anew for gradients.
        """
        n_used = self.n_rows if rows is None else len(rows)
        size = max(AT_ONCE // len(next(iter(values.values()))), 1)
        if n_used <= size:
            found = self._of_rows(values, rows)
        else:
            pieces = [slice(k, k + size) for k in range(0, n_used, size)]
            found = torch.stack(
                [
                    checkpoint(
                        self._of_rows,
                        values,
                        piece if rows is None else rows[piece],
                        use_reentrant=False,
                        preserve_rng_state=False,
                    )
                    for piece in pieces
                ]
            ).sum(0)
        return found * (self.n_total / n_used)

    def _of_rows(
        self, values: Mapping[str, torch.Tensor], rows: torch.Tensor | slice | None
    ) -> torch.Tensor:
        """Log likelihood of rows, (S,)."""
        data = self.data[0]
        with unchecked():
            found = self.log_density(
                dict(values), data if rows is None else _take(data, rows)
            )
        if isinstance(found, Mapping):
            raise ValueError(
                "With batch_size log_density must return one number a draw, no "
                f"factors. Got those of {list(found)}."
            )
        return as_tensor(found)


def parts(data: Any) -> Iterator[Any]:
    """Arrays and tensors in tuples, lists and dicts."""
    if isinstance(data, Mapping):
        data = list(data.values())
    if isinstance(data, (tuple, list)):
        for part in data:
            yield from parts(part)
    else:
        yield data


def _count(data: Any) -> int:
    """Number of rows of all parts of data."""
    found = list(parts(data))
    is_rows = all(isinstance(part, torch.Tensor) and part.ndim for part in found)
    lengths = {len(part) for part in found} if is_rows else set()
    if len(lengths) != 1 or not min(lengths):
        shapes = [tuple(getattr(p, "shape", ())) or type(p).__name__ for p in found]
        raise ValueError(
            "With batch_size, data of fit must be a tensor, or a tuple, list or dict "
            "of tensors, all with the same number of rows on their first axis. Got "
            f"{str(shapes)[1:-1]}."
        )
    return lengths.pop()


def _take(data: Any, rows: torch.Tensor | slice) -> Any:
    """Some rows of data of the same kind."""
    if isinstance(data, torch.Tensor):
        return data[rows]
    if isinstance(data, Mapping):
        return {name: _take(part, rows) for name, part in data.items()}
    found = [_take(part, rows) for part in data]
    return found if isinstance(data, list) else tuple(found)
