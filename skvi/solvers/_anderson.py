"""Acceleration of fixed-point iterations."""

import math
from collections.abc import Sequence

import torch

from skvi.utils._dense_rows import congruence

__all__ = ["Anderson", "combined"]

# History length by number of parameters: each entry holds a full precision.
_DEPTHS = ((1100, 10), (4096, 2))


def combined(
    images: Sequence[torch.Tensor], residuals: Sequence[torch.Tensor]
) -> torch.Tensor | None:
    """Combination of the last images whose residuals cancel as far as possible, (k,).

    None for fewer than two, or if the residuals cannot be told apart.
    """
    stacked = torch.stack(list(residuals))
    return _combine(images, stacked @ stacked.T)


def _combine(
    images: Sequence[torch.Tensor], products: torch.Tensor
) -> torch.Tensor | None:
    """`combined`, by the products of all residuals with each other, (m, m)."""
    if len(images) < 2:
        return None
    # Of the differences of the last residual to the earlier ones.
    lead = products[-1, -1] - products[-1, :-1]
    gram = products[:-1, :-1] - products[-1, -1] + lead + lead[:, None]
    gram.diagonal().mul_(1 + 1e-13)
    factor, info = torch.linalg.cholesky_ex(gram)
    if int(info):
        return None
    weights = torch.cholesky_solve(lead[:, None], factor)[:, 0].tolist()
    *earlier, last = images
    found = (1 - sum(weights)) * last
    for weight, image in zip(weights, earlier, strict=True):
        found.add_(image, alpha=weight)
    return found


class Anderson:
    """Combine the last steps so that their residuals cancel (Walker and Ni 2011).

    Steps are of a mean and a precision, in the metric of a posterior covariance ``S
    S'``: ``|S^-1 step|^2 + |S' move S|^2 / 2`` is twice the predicted decrease in nats.
    """

    def __init__(self, scale: torch.Tensor) -> None:
        size = len(scale)
        depth = next((d for limit, d in _DEPTHS if size <= limit), 0)
        # A factorized posterior stores only vectors.
        self.depth = _DEPTHS[0][1] if scale.ndim == 1 else depth
        self.scale = scale
        self.images: list[torch.Tensor] = []
        self.steps: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.residuals: list[torch.Tensor] = []
        self.products = scale.new_zeros(0, 0)

    def forget(self) -> None:
        """Drop the older half of the history."""
        self._drop(len(self.images) // 2)

    def _drop(self, oldest: int) -> None:
        self.images, self.residuals = self.images[oldest:], self.residuals[oldest:]
        self.steps, self.products = self.steps[oldest:], self.products[oldest:, oldest:]

    def renew(self, scale: torch.Tensor) -> None:
        """Measure all steps by another posterior, from which the first one is far."""
        self.scale = scale
        self.residuals = [self._whiten(*step) for step in self.steps]
        if self.residuals:
            stacked = torch.stack(self.residuals)
            self.products = stacked @ stacked.T

    def observe(
        self,
        mean: torch.Tensor,
        precision: torch.Tensor,
        step: torch.Tensor,
        move: torch.Tensor,
        share: float = 1.0,
    ) -> None:
        """Record a point and its plain step, with a fraction of the precision's."""
        if self.depth:
            self._drop(max(len(self.images) - self.depth, 0))
            self.images.append(_flat(mean + step, precision + share * move))
            self.steps.append((step, move))
            self.residuals.append(self._whiten(step, move))
            last = torch.stack([r @ self.residuals[-1] for r in self.residuals])
            products = torch.nn.functional.pad(self.products, (0, 1, 0, 1))
            products[-1] = products[:, -1] = last
            self.products = products

    def propose(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the accelerated next point, or None without a history."""
        point = _combine(self.images, self.products)
        if point is None:
            return None
        size = len(self.scale)
        return point[:size], point[size:].reshape(-1, *self.scale.shape[1:])

    def _whiten(self, step: torch.Tensor, move: torch.Tensor) -> torch.Tensor:
        scale = self.scale
        if scale.ndim == 1:
            parts = step / scale, move * scale.square()
        else:
            solve = torch.linalg.solve_triangular
            parts = solve(scale, step[:, None], upper=False), congruence(scale, move)
        return torch.cat([parts[0].reshape(-1), parts[1].reshape(-1) * math.sqrt(0.5)])


def _flat(vector: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    return torch.cat([vector, matrix.reshape(-1)])
