"""A user's log density as a target over unconstrained coordinates."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributions import Distribution
from torch.distributions.transforms import Transform

from skvi.base import Layout
from skvi.targets._maps import Integers
from skvi.targets._supports import find_bijection, find_transform
from skvi.targets._switched import Switches
from skvi.targets.base import Target

__all__ = ["FAILURES", "DensityTarget", "unchecked"]

#: What decompositions and other functions raise far out, where a density is 0.
FAILURES = (torch.linalg.LinAlgError, ArithmeticError, ValueError)


class DensityTarget(Target):
    """``log_density`` of named parameters on their supports, plus the log Jacobian."""

    starts_at_fit = True

    def __init__(
        self,
        log_density: Callable,
        shapes: Mapping[str, Any],
        supports: Mapping[str, Any] | None,
        data: tuple = (),
        log_prior: Callable | None = None,
    ) -> None:
        self.log_density, self.data, self.log_prior = log_density, data, log_prior
        self.transforms = _transforms(shapes, supports or {})
        self.shapes = {name: _shape(name, shapes[name]) for name in shapes}
        inner = {}
        for name, transform in self.transforms.items():
            shape = torch.Size(self.shapes[name])
            try:
                inner[name] = tuple(transform.inverse_shape(shape))
            except ValueError as error:
                raise ValueError(
                    f"shapes[{name!r}] is {tuple(shape)}, but its support needs a "
                    f"vector: {error}"
                ) from error
        kinds = {name: find_bijection(t) for name, t in self.transforms.items()}
        discrete = {k: t for k, t in self.transforms.items() if isinstance(t, Integers)}
        limits = {name: t.limits for name, t in discrete.items()}
        self.layout = Layout(inner, kinds, limits=limits)

    def constrain(self, theta: torch.Tensor) -> tuple[dict, torch.Tensor]:
        """Parameters on their supports, each (S, *shape), and log Jacobians, (S,)."""
        values, log_jacobian = {}, torch.zeros_like(theta[:, 0])
        for name, transform in self.transforms.items():
            block = self.layout[name]
            x = theta[:, block.slice].reshape(-1, *block.shape)
            values[name] = transform(x)
            part = transform.log_abs_det_jacobian(x, values[name])
            log_jacobian = log_jacobian + part.reshape(len(theta), -1).sum(1)
        return values, log_jacobian

    def unconstrain(self, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Inverse of `constrain`: coordinates, (S, P)."""
        parts = [
            transform.inv(values[name]).reshape(-1, self.layout[name].size)
            for name, transform in self.transforms.items()
        ]
        return torch.cat(parts, 1)

    def images(self, theta: torch.Tensor) -> torch.Tensor:
        """Points with labels switched, or other signs; see `Switches`."""
        values, _ = self.constrain(theta[None])
        shapes = {name: value.shape[1:] for name, value in values.items()}
        flat = torch.cat([value.flatten() for value in values.values()])
        found = Switches(shapes, self.transforms).images(flat)
        parts = found.split([shape.numel() for shape in shapes.values()], 1)
        pairs = zip(shapes.items(), parts, strict=True)
        return self.unconstrain({k: part.reshape(-1, *s) for (k, s), part in pairs})

    def log_joint(
        self, theta: torch.Tensor, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Log density of coordinates; -inf where it is NaN, inf or raises."""
        values, log_jacobian = self.constrain(theta)
        log_p = self.density(values, rows) + log_jacobian
        return torch.where(log_p < torch.inf, log_p, -torch.inf)

    def evaluate(
        self, values: Mapping[str, torch.Tensor], rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """What the user's functions return, (S,)."""
        found = self.likelihood(values, rows)
        if self.log_prior is None or getattr(found, "ndim", 0) != 1:
            return found  # checks name another shape
        return found + self.log_prior(dict(values))

    def likelihood(
        self, values: Mapping[str, torch.Tensor], rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Log density without the log prior, (S,); all rows here."""
        return self.log_density(dict(values), *self.data)

    def density(
        self, values: dict[str, torch.Tensor], rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The user's log density, (S,); -inf for draws at which it fails.

        Draws go where a scale is 0 or infinite as a float, and where a matrix is not
        positive definite: torch would raise for all of them.
        """
        try:
            with unchecked():
                return self.evaluate(values, rows)
        except FAILURES:
            first = next(iter(values.values()))
            if len(first) == 1:  # with a gradient, of 0
                return 0 * first.double().sum()[None] - torch.inf
            parts = ({k: v[half] for k, v in values.items()} for half in _halves(first))
            return torch.cat([self.density(part, rows) for part in parts])


def _halves(draws: torch.Tensor) -> tuple[slice, slice]:
    middle = len(draws) // 2
    return slice(middle), slice(middle, None)


@contextmanager
def unchecked() -> Iterator[None]:
    """Let torch's distributions take any arguments."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


def _shape(name: str, shape: Any) -> tuple[int, ...]:
    shape = (shape,) if isinstance(shape, int) else shape
    if not all(isinstance(n, int) and n > 0 for n in shape):
        raise ValueError(
            f"shapes[{name!r}] must be a tuple of positive integers, () for a number. "
            f"Got {shape!r}."
        )
    return tuple(shape)


def _transforms(
    shapes: Mapping[str, Any], supports: Mapping[str, Any]
) -> dict[str, Transform]:
    if not shapes:
        raise ValueError("shapes must name at least one parameter. Got {}.")
    if unknown := sorted(set(supports) - set(shapes)):
        raise ValueError(
            f"supports names {unknown}, which are not in shapes: {sorted(shapes)}."
        )
    return {name: find_transform(name, supports.get(name, "real")) for name in shapes}
