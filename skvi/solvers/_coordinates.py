"""Unconstrained coordinates of a normal, with the starting point at zero."""

from typing import cast

import torch

from skvi.base import NormalForm
from skvi.solvers._curvature import Curvature

__all__ = ["Coordinates", "coordinates_of"]

# Floor of unique standard deviations, in units of the conditional ones. With a factor
# the best ones can be zero (Heywood cases), which makes the density singular; the floor
# costs half its square in nats for each of them. A logarithm would never get there.
MIN_FRACTION = 1e-3

Gradients = tuple[torch.Tensor, ...]


class Coordinates:
    """The mean as ``mean + R a``, uniquenesses as ``floor + c (1 + t)^2``.

    R, the curvature's root, makes the Hessian at the start close to the identity.
    """

    def __init__(self, start: NormalForm, curvature: Curvature) -> None:
        self.start, self.curvature = start, curvature
        self.size = len(start.mean)
        self.n_free = 2 * self.size + self._n_rest()
        floor = MIN_FRACTION * curvature.diagonal.rsqrt()
        if start.scale.ndim == 1:
            self.floor = torch.minimum(floor, 0.5 * start.scale).square()
            self.free = start.scale.square() - self.floor

    def _n_rest(self) -> int:
        return 0

    def normal(self, x: torch.Tensor) -> NormalForm:
        """The normal at a point, (n_free,)."""
        a, t, rest = self._split(x)
        moved = self.curvature.root(self._columns(a, rest))
        return NormalForm(self.start.mean + moved[:, 0], *self._shape(t, rest, moved))

    def gradient(self, x: torch.Tensor, gradients: Gradients) -> torch.Tensor:
        """Gradient at a point from those in mean, scale and factor."""
        t = self._split(x)[1]
        g_mean, g_scale, *g_factor = gradients
        columns = torch.cat([g_mean[:, None], *g_factor], 1)
        g_root = self.curvature.root_transposed(columns)
        return torch.cat([g_root[:, 0], *self._shape_gradient(t, g_scale, g_root)])

    def _split(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.split([self.size, self.size, self.n_free - 2 * self.size])

    def _columns(self, a: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
        """The columns that R multiplies, (P, 1 + r)."""
        return a[:, None]

    def _shape(
        self, t: torch.Tensor, rest: torch.Tensor, moved: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Scale, and factor if there is one."""
        return ((self.floor + self.free * (1 + t).square()).sqrt(),)

    def _shape_gradient(
        self, t: torch.Tensor, g_scale: torch.Tensor, g_root: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Gradients in t, and in the coordinates after it."""
        move = self.free * (1 + t)
        return (g_scale * move * (self.floor + move * (1 + t)).rsqrt(),)


class _FactorCoordinates(Coordinates):
    """The factor as ``factor + R Z``."""

    @property
    def factor(self) -> torch.Tensor:
        return cast(torch.Tensor, self.start.factor)

    def _n_rest(self) -> int:
        return self.factor.numel()

    def _columns(self, a: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
        return torch.cat([a[:, None], rest.reshape(self.size, -1)], 1)

    def _shape(
        self, t: torch.Tensor, rest: torch.Tensor, moved: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        return *super()._shape(t, rest, moved), self.factor + moved[:, 1:]

    def _shape_gradient(
        self, t: torch.Tensor, g_scale: torch.Tensor, g_root: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        return *super()._shape_gradient(t, g_scale, g_root), g_root[:, 1:].reshape(-1)


class _FullCoordinates(Coordinates):
    """The scale as ``scale T``, T lower triangular with the diagonal exp(t)."""

    def _n_rest(self) -> int:
        device = self.start.mean.device
        self.rows, self.columns = torch.tril_indices(
            self.size, self.size, -1, device=device
        )
        return len(self.rows)

    def _shape(
        self, t: torch.Tensor, rest: torch.Tensor, moved: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        factor = torch.diag(t.exp())
        factor[self.rows, self.columns] = rest
        return (self.start.scale @ factor,)

    def _shape_gradient(
        self, t: torch.Tensor, g_scale: torch.Tensor, g_root: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        inner = self.start.scale.T @ g_scale
        return inner.diagonal() * t.exp(), inner[self.rows, self.columns]


def coordinates_of(start: NormalForm, curvature: Curvature) -> Coordinates:
    """Return the coordinates for the shape of a normal."""
    if start.factor is not None:
        return _FactorCoordinates(start, curvature)
    kind = Coordinates if start.is_diagonal else _FullCoordinates
    return kind(start, curvature)
