"""Free coordinates of a normal, in which a starting point is at zero."""

from typing import Any

import torch

from skvi.base import NormalForm

__all__ = ["Coordinates", "coordinates_of"]

# Floor of own deviations, in units of the conditional ones. Beside a factor the best
# ones can be zero (Heywood cases), where the density is singular; the floor costs
# half its square in nats for each of them. A logarithm would never arrive there.
MIN_SHARE = 1e-3

Gradients = tuple[torch.Tensor | None, ...]


class Coordinates:
    """The mean as ``mean + R a``, own variances as ``floor + c (1 + t)^2``.

    R R' is near the inverse Hessian in the mean, so that the Hessian at the start
    is near the identity.

    Parameters
    ----------
    start : NormalForm
    curvature : object
        With `root` and `root_transposed`, products with R and with R', and the
        `diagonal` of the Hessian.
    """

    def __init__(self, start: NormalForm, curvature: Any) -> None:
        self.start, self.curvature = start, curvature
        self.size = len(start.mean)
        self.n_free = 2 * self.size + self._n_rest()
        floor = MIN_SHARE * curvature.diagonal.rsqrt()
        if start.scale.ndim == 1:
            self.floor = torch.minimum(floor, 0.5 * start.scale).square()
            self.rest = start.scale.square() - self.floor

    def _n_rest(self) -> int:
        return 0

    def normal(self, x: torch.Tensor) -> NormalForm:
        """The normal at a point, (n_free,)."""
        a, t, rest = self._split(x)
        mean = self.start.mean + self.curvature.root(a[:, None])[:, 0]
        return NormalForm(mean, *self._spread(t, rest))

    def gradient(self, x: torch.Tensor, gradients: Gradients) -> torch.Tensor:
        """Gradient at a point from those in mean, scale and factor."""
        _, t, rest = self._split(x)
        g_mean, *others = gradients
        assert g_mean is not None
        g_a = self.curvature.root_transposed(g_mean[:, None])[:, 0]
        return torch.cat([g_a, *self._pull(t, rest, *others)])

    def _split(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.split([self.size, self.size, self.n_free - 2 * self.size])

    def _spread(self, t: torch.Tensor, rest: torch.Tensor) -> tuple:
        return ((self.floor + self.rest * (1 + t).square()).sqrt(),)

    def _pull(self, t: torch.Tensor, rest: torch.Tensor, *gradients: Any) -> tuple:
        move = self.rest * (1 + t)
        return (gradients[0] * move * (self.floor + move * (1 + t)).rsqrt(),)


class _FactorCoordinates(Coordinates):
    """The factor as ``factor + R Z``."""

    def _n_rest(self) -> int:
        return self.start.factor.numel()  # type: ignore[union-attr]

    def _spread(self, t: torch.Tensor, rest: torch.Tensor) -> tuple:
        move = self.curvature.root(rest.reshape(self.size, -1))
        return (*super()._spread(t, rest), self.start.factor + move)

    def _pull(self, t: torch.Tensor, rest: torch.Tensor, *gradients: Any) -> tuple:
        pulled = self.curvature.root_transposed(gradients[1])
        return (*super()._pull(t, rest, gradients[0]), pulled.reshape(-1))


class _FullCoordinates(Coordinates):
    """The scale as ``scale T``, T lower triangular with the diagonal exp(t)."""

    def _n_rest(self) -> int:
        self.rows, self.columns = torch.tril_indices(self.size, self.size, -1)
        return len(self.rows)

    def _spread(self, t: torch.Tensor, rest: torch.Tensor) -> tuple:
        factor = torch.diag(t.exp())
        factor[self.rows, self.columns] = rest
        return (self.start.scale @ factor,)

    def _pull(self, t: torch.Tensor, rest: torch.Tensor, *gradients: Any) -> tuple:
        pulled = self.start.scale.T @ gradients[0]
        return pulled.diagonal() * t.exp(), pulled[self.rows, self.columns]


def coordinates_of(start: NormalForm, curvature: Any) -> Coordinates:
    """Return the coordinates for the shape of a normal."""
    if start.factor is not None:
        return _FactorCoordinates(start, curvature)
    kind = Coordinates if start.is_diagonal else _FullCoordinates
    return kind(start, curvature)
