"""A user's log density as a target, whole or by some of its rows."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from typing import Any, Self, cast

import numpy as np
import torch
from torch.autograd.function import once_differentiable
from torch.distributions import Distribution
from torch.distributions.transforms import Transform
from torch.utils.checkpoint import checkpoint

from skvi.base import Layout
from skvi.exceptions import IncompatibleComponentsError
from skvi.posteriors import Posterior
from skvi.priors import BuiltPrior
from skvi.priors._blocks import build_prior
from skvi.targets._maps import SUPPORTS, Integers, find_bijection, find_transform
from skvi.targets._switched import Switches
from skvi.targets.base import Target

#: What decompositions and other functions raise far out, where a density is 0.
FAILURES = (torch.linalg.LinAlgError, ArithmeticError, ValueError)


# Step of central differences, relative to 1 + abs(theta): errors of the order of its
# square, and of rounding over it, are equal here.
STEP = torch.finfo(torch.float64).eps ** (1 / 3)


class DensityTarget(Target):
    """``log_density`` of named parameters on their supports, plus the log Jacobian.

    It may return factors, by the names of the parameters that each depends on.
    """

    def __init__(
        self,
        log_density: Callable,
        shapes: Mapping[str, Any],
        supports: Mapping[str, Any] | None,
        data: tuple = (),
        prior: Any = None,
    ) -> None:
        self.log_density, self.data = log_density, data
        #: Whether torch differentiates the density; if not, gradients are differences.
        self.is_differentiable = True
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
        self.log_prior = prior
        if prior is not None and not callable(prior):
            self.log_prior = _OnSupports(self, prior)

    def powered(self, power: float) -> Self:
        """Target with a power of the likelihood; see `SupervisedTarget.powered`."""
        other = copy(self)
        other.log_density = _Powered(self.log_density, power)
        return other

    def with_prior(self) -> Self:
        """Target that knows which part of its density is the prior."""
        other, given = copy(self), self.log_prior
        if isinstance(given, _OnSupports):
            other.prior = given.built
        elif given is not None:
            part = copy(self)
            part.log_density, part.data, part.log_prior = given, (), None
            other.prior = _DensityAsPrior(part)
        return other

    def constrain(self, theta: torch.Tensor) -> tuple[dict, torch.Tensor]:
        """Parameters on their supports, each (S, *shape), and log Jacobians, (S,)."""
        values, jacobians = self._on_supports(theta)
        return values, sum(jacobians.values(), torch.zeros_like(theta[:, 0]))

    def _on_supports(self, theta: torch.Tensor) -> tuple[dict, dict]:
        """Parameters on their supports, and the log Jacobian of each, (S,)."""
        values, jacobians = {}, {}
        for name, transform in self.transforms.items():
            block = self.layout[name]
            x = theta[:, block.slice].reshape(-1, *block.shape)
            values[name] = transform(x)
            part = transform.log_abs_det_jacobian(x, values[name])
            jacobians[name] = part.reshape(len(theta), -1).sum(1)
        return values, jacobians

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
        if theta.requires_grad and torch.is_grad_enabled():
            if not self.is_differentiable:
                return cast(torch.Tensor, _Differences.apply(theta, self, rows))
        values, log_jacobian = self.constrain(theta)
        log_p = self.density(values, rows) + log_jacobian
        return torch.where(log_p < torch.inf, log_p, -torch.inf)

    def log_joint_by_group(
        self,
        theta: torch.Tensor,
        groups: torch.Tensor,
        rows: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log density, and its factors that a group is in, Jacobians included."""
        values, jacobians = self._on_supports(theta)
        try:
            with unchecked():
                factors = self.factors(values, rows)
        except FAILURES:
            if len(theta) == 1:
                every = theta.new_zeros(1, int(groups.max()) + 1)
                return theta[:, 0] - torch.inf, every - torch.inf
            halves = (theta[half] for half in _halves(theta))
            found = [self.log_joint_by_group(half, groups, rows) for half in halves]
            return torch.cat([v for v, _ in found]), torch.cat([t for _, t in found])
        terms = theta.new_zeros(len(theta), int(groups.max()) + 1)
        total = torch.zeros_like(theta[:, 0])
        own = [((name,), jacobian) for name, jacobian in jacobians.items()]
        for names, factor in [*factors, *own]:
            total = total + factor
            own_groups = groups[self.layout.positions(names)].unique()
            terms[:, own_groups] += factor[:, None]
        total = torch.where(total < torch.inf, total, -torch.inf)
        return total, torch.where(total[:, None] > -torch.inf, terms, -torch.inf)

    def evaluate(
        self, values: Mapping[str, torch.Tensor], rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Sum of what the user's functions return, (S,)."""
        first, *others = (value for _, value in self.factors(values, rows))
        # Checks name another shape of the first.
        return sum(others, first) if getattr(first, "ndim", 0) == 1 else first

    def factors(
        self, values: Mapping[str, torch.Tensor], rows: torch.Tensor | None = None
    ) -> list[tuple[tuple[str, ...], torch.Tensor]]:
        """Factors of the density, each (S,), and the parameters that each is of."""
        found = []
        parts = [self.likelihood(values, rows)]
        if self.log_prior is not None:
            parts.append(self.log_prior(dict(values)))
        for part in parts:
            given = part if isinstance(part, Mapping) else {tuple(self.shapes): part}
            for key, value in given.items():
                found.append((_names_of(key, self.shapes), as_tensor(value)))
        return found

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


class _DensityAsPrior(BuiltPrior):
    """A user's log prior over coordinates, which is the target of a density, too."""

    def __init__(self, target: DensityTarget) -> None:
        self.target = target

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        return self.target.log_joint(theta)

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        raise IncompatibleComponentsError(
            "The divergence",
            "draws of the prior, which its log density does not give",
            "a prior of skvi.priors, or divergence='kl' or 'renyi'",
        )


class _OnSupports:
    """A prior over coordinates as the log density of parameters on their supports."""

    def __init__(self, target: DensityTarget, prior: Any) -> None:
        real = SUPPORTS["real"]
        bent = [name for name, t in target.transforms.items() if t != real]
        if bent and not isinstance(prior, Posterior):
            raise IncompatibleComponentsError(
                f"prior={prior!r}",
                f"real numbers, which {bent} are not",
                "a function that returns the log density of all parameters, or the "
                "posterior_ of another fit",
            )
        self.target, self.built = target, build_prior(prior, target.layout)
        if self.built.learned:
            raise IncompatibleComponentsError(
                f"prior={prior!r}",
                f"an estimator, which learns {list(self.built.learned)}",
                "scales that are numbers or HalfCauchy(), or parameters of log_density",
            )

    def __call__(self, values: Mapping[str, torch.Tensor]) -> Any:
        theta, built = self.target.unconstrain(values), self.built
        jacobians = self.target._on_supports(theta)[1]
        if not built.has_log_prob_terms:
            return built.log_prob(theta) - sum(jacobians.values())
        terms, layout = built.log_prob_terms(theta), self.target.layout
        return {
            name: terms[:, layout[name].slice].sum(1) - jacobian
            for name, jacobian in jacobians.items()
        }


class _Powered:
    """Multiples of a log density, or of each of its factors."""

    def __init__(self, log_density: Callable, power: float) -> None:
        self.log_density, self.power = log_density, power

    def __call__(self, *given: Any) -> Any:
        found = self.log_density(*given)
        if isinstance(found, Mapping):
            return {names: self.power * value for names, value in found.items()}
        return self.power * found


class _Differences(torch.autograd.Function):
    """A log density that torch cannot differentiate, by central differences."""

    @staticmethod
    def forward(
        ctx: Any, theta: torch.Tensor, target: DensityTarget, rows: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.save_for_backward(theta)
        ctx.target, ctx.rows = target, rows
        return target.log_joint(theta.detach(), rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weight: torch.Tensor) -> tuple:  # type: ignore[override]
        (theta,) = ctx.saved_tensors
        slopes = torch.zeros_like(theta)
        smooth = ctx.target.layout.without(*ctx.target.layout.discrete)
        for k in ctx.target.layout.positions(smooth).tolist():
            step = torch.zeros_like(theta)
            step[:, k] = STEP * (1 + theta[:, k].abs())
            both = torch.cat([theta + step, theta - step])
            ahead, behind = ctx.target.log_joint(both, ctx.rows).chunk(2)
            width = both[: len(theta), k] - both[len(theta) :, k]
            slope = (ahead - behind) / width
            slopes[:, k] = slope.where(~slope.isnan(), 0.0)  # where it is 0 around
        return weight[:, None] * slopes, None, None


def _names_of(key: Any, shapes: Mapping[str, Any]) -> tuple[str, ...]:
    """Parameters that a key of a mapping of factors names: "mu, sigma", or a tuple."""
    given = key.split(",") if isinstance(key, str) else key
    names = {str(name).strip() for name in given}
    if unknown := sorted(names - set(shapes)):
        raise ValueError(
            f"log_density returns a factor of {key!r}, but shapes does not name "
            f"{unknown}. Keys are names of parameters, such as 'mu, sigma': "
            f"{sorted(shapes)}."
        )
    return tuple(name for name in shapes if name in names)


def as_tensor(found: Any) -> Any:
    """A tensor for an array of numpy; anything else as it is, for the checks."""
    if isinstance(found, np.ndarray) and found.dtype.kind in "fiuO":
        return torch.from_numpy(np.ascontiguousarray(found, dtype=np.float64))
    return found


def _halves(draws: torch.Tensor) -> tuple[slice, slice]:
    middle = len(draws) // 2
    return slice(middle), slice(middle, None)


@contextmanager
def unchecked() -> Iterator[None]:
    """Let torch's distributions take any arguments, and numpy overflow in silence."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        with np.errstate(all="ignore"):
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
        prior: Any = None,
    ) -> None:
        super().__init__(log_likelihood, shapes, supports, (data,), prior)
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
