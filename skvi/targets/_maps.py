"""Maps from coordinates without limits onto supports, and who has which."""

import math
from typing import Any

import torch
from torch.distributions import constraints, transforms
from torch.distributions.constraint_registry import biject_to
from torch.distributions.transforms import Transform
from torch.nn.functional import logsigmoid, pad

# Log of the least float64.
LEAST = -708.0


def exp_inside(logs: torch.Tensor) -> torch.Tensor:
    """Exponentials that are not 0; infinite ones are, so that densities end there."""
    return logs.clamp(min=LEAST).exp()


class Map(Transform):
    """A torch transform that its arguments define."""

    domain: Any = constraints.real_vector
    codomain: Any = constraints.real_vector
    bijective = True

    def __init__(self, *args: Any) -> None:
        super().__init__()
        self.args = args

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.args == self.args  # type: ignore[attr-defined]

    __hash__ = None  # type: ignore[assignment]


class Between(Map):
    """Numbers between two ends: ``low + exp(x)``, or the logit of their place.

    An end may be infinite.
    """

    domain = codomain = constraints.real

    def __init__(self, low: float, high: float) -> None:
        super().__init__(low, high)
        self.low, self.high = low, high
        self.is_finite = math.isfinite(high - low)

    def _call(self, x: torch.Tensor) -> torch.Tensor:
        low, high = self.low, self.high
        if self.is_finite:
            width = high - low
            near_low = low + width * exp_inside(logsigmoid(x))
            value = near_low.where(x < 0, high - width * exp_inside(logsigmoid(-x)))
        elif math.isfinite(low):
            value = low + exp_inside(x)
        else:
            value = high - exp_inside(x)
        last = math.nextafter(high, low) if math.isfinite(high) else math.inf
        return value.clamp(math.nextafter(low, high), last)

    def _inverse(self, y: torch.Tensor) -> torch.Tensor:
        logs = (y - self.low).log(), (self.high - y).log()
        if self.is_finite:
            return logs[0] - logs[1]
        return logs[0] if math.isfinite(self.low) else logs[1]

    def log_abs_det_jacobian(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Logs of the derivatives."""
        if not self.is_finite:
            return x
        return logsigmoid(x) + logsigmoid(-x) + math.log(self.high - self.low)


class Simplex(Map):
    """Stick breaking: logits of the share that each element takes of the rest.

    Equal elements have coordinates 0.
    """

    codomain = constraints.simplex

    def _logs(self, x: torch.Tensor) -> torch.Tensor:
        """Logs of the elements."""
        u = x - torch.arange(x.shape[-1], 0, -1, dtype=x.dtype, device=x.device).log()
        return pad(logsigmoid(u), (0, 1)) + pad(logsigmoid(-u).cumsum(-1), (1, 0))

    def _call(self, x: torch.Tensor) -> torch.Tensor:
        return exp_inside(self._logs(x)).clamp(max=math.nextafter(1.0, 0.0))

    def _inverse(self, y: torch.Tensor) -> torch.Tensor:
        n = y.shape[-1]
        left = y.flip(-1).cumsum(-1).flip(-1)[..., 1:]
        offset = torch.arange(n - 1, 0, -1, dtype=y.dtype, device=y.device).log()
        return y[..., :-1].log() - left.log() + offset

    def log_abs_det_jacobian(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Of all elements but the last: the sum of the logs of all."""
        return self._logs(x).sum(-1)

    def forward_shape(self, shape: torch.Size) -> torch.Size:
        """One element more."""
        return torch.Size((*shape[:-1], shape[-1] + 1))

    def inverse_shape(self, shape: torch.Size) -> torch.Size:
        """One element less."""
        _check_vector(shape, 2)
        return torch.Size((*shape[:-1], shape[-1] - 1))


class Ordered(Map):
    """Increasing vectors: the first element, and the logs of the gaps after it.

    With `positive` the first element is the gap after 0.
    """

    def __init__(self, positive: bool = False) -> None:
        super().__init__(positive)
        self.first = 0 if positive else 1

    def _call(self, x: torch.Tensor) -> torch.Tensor:
        gaps = [x[..., : self.first], exp_inside(x[..., self.first :])]
        return torch.cat(gaps, -1).cumsum(-1)

    def _inverse(self, y: torch.Tensor) -> torch.Tensor:
        gaps = torch.cat([y[..., :1], y.diff(dim=-1)], -1)
        return torch.cat([gaps[..., : self.first], gaps[..., self.first :].log()], -1)

    def log_abs_det_jacobian(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Sum of the logs of the gaps."""
        return x[..., self.first :].sum(-1)


class UnitVector(Map):
    """Directions of vectors, whose lengths are those of standard normal ones.

    A uniform direction has standard normal coordinates. Densities are with respect to
    the area of the sphere. The inverse is the vector of length 1.
    """

    def _call(self, x: torch.Tensor) -> torch.Tensor:
        return x / x.norm(dim=-1, keepdim=True)

    def _inverse(self, y: torch.Tensor) -> torch.Tensor:
        return y

    def log_abs_det_jacobian(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Log density of the coordinates of a uniform direction, times the area."""
        half = x.shape[-1] / 2
        log_area = math.log(2) + half * math.log(math.pi) - math.lgamma(half)
        return log_area - half * math.log(2 * math.pi) - 0.5 * x.square().sum(-1)

    def inverse_shape(self, shape: torch.Size) -> torch.Size:
        """The same."""
        _check_vector(shape, 2)
        return shape


class Triangular(Map):
    """Lower triangular matrices L with a positive diagonal, or products ``L L'``.

    Coordinates are the elements below the diagonal, row by row, then the logs of the
    diagonal; with `correlation` rows of L have length 1, and coordinates are artanh of
    partial correlations (Lewandowski, Kurowicka and Joe 2009).
    """

    def __init__(self, correlation: bool, product: bool) -> None:
        super().__init__(correlation, product)
        self.correlation, self.product = correlation, product

    def _below(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Matrix of the coordinates below the diagonal, and its size."""
        n = _order(x.shape[-1], self.correlation)
        rows, columns = torch.tril_indices(n, n, -1, device=x.device)
        flat = torch.zeros(*x.shape[:-1], n * n, dtype=x.dtype, device=x.device)
        parts = x[..., : len(rows)]
        where = (rows * n + columns).expand(parts.shape)
        return flat.scatter(-1, where, parts).reshape(*x.shape[:-1], n, n), n

    def _factor(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """L, and the log of its Jacobian."""
        below, n = self._below(x)
        if not self.correlation:
            logs = x[..., -n:]
            return below + exp_inside(logs).diag_embed(), logs.sum(-1)
        size = below.abs()
        log_sech = math.log(2) - size - (-2 * size).exp().log1p()  # 0 at 0
        left = log_sech.cumsum(-1) - log_sech
        identity = torch.eye(n, dtype=x.dtype, device=x.device)
        jacobian = (log_sech + (left + log_sech).tril(-1)).sum((-2, -1))
        return (below.tanh() + identity) * exp_inside(left), jacobian

    def _call(self, x: torch.Tensor) -> torch.Tensor:
        L, _ = self._factor(x)
        return L @ L.mT if self.product else L

    def _inverse(self, y: torch.Tensor) -> torch.Tensor:
        L = torch.linalg.cholesky(y) if self.product else y
        n = y.shape[-1]
        rows, columns = torch.tril_indices(n, n, -1, device=y.device)
        diagonal = L.diagonal(dim1=-2, dim2=-1)
        if not self.correlation:
            return torch.cat([L[..., rows, columns], diagonal.log()], -1)
        left = L.square().flip(-1).cumsum(-1).flip(-1)[..., rows, columns + 1].sqrt()
        return torch.asinh(L[..., rows, columns] / left)

    def log_abs_det_jacobian(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Of the elements on and below the diagonal, of those below it with 1 on it."""
        L, jacobian = self._factor(x)
        if not self.product:
            return jacobian
        n = L.shape[-1]
        powers = torch.arange(n, 0, -1, dtype=x.dtype, device=x.device)
        if self.correlation:
            powers = powers - 1
        else:
            jacobian = jacobian + n * math.log(2)
        return jacobian + (powers * L.diagonal(dim1=-2, dim2=-1).log()).sum(-1)

    def forward_shape(self, shape: torch.Size) -> torch.Size:
        """A square matrix."""
        n = _order(shape[-1], self.correlation)
        return torch.Size((*shape[:-1], n, n))

    def inverse_shape(self, shape: torch.Size) -> torch.Size:
        """Coordinates of a square matrix."""
        if len(shape) < 2 or shape[-1] != shape[-2]:
            raise ValueError("it must end in those of a square matrix")
        n = shape[-1]
        return torch.Size((*shape[:-2], n * (n - 1) // 2 + (not self.correlation) * n))


def _order(size: int, correlation: bool) -> int:
    """Rows of a matrix with this number of coordinates."""
    n = (math.isqrt(8 * size + 1) - 1) // 2
    return n + 1 if correlation else n


def _check_vector(shape: torch.Size, least: int) -> None:
    if not shape or shape[-1] < least:
        raise ValueError(f"its last axis must have at least {least} elements")


class Integers(Map):
    """Integers between two limits, which are their own coordinates.

    Without `is_index` they are floats: factors of 0 and 1.
    """

    domain = codomain = constraints.real

    def __init__(self, low: int, high: int, is_index: bool = True) -> None:
        super().__init__(low, high, is_index)
        self.limits, self.is_index = (low, high), is_index

    def _call(self, x: torch.Tensor) -> torch.Tensor:
        return x.long() if self.is_index else x

    def _inverse(self, y: torch.Tensor) -> torch.Tensor:
        return y.double()

    def log_abs_det_jacobian(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Zeros: densities are probabilities."""
        return torch.zeros_like(x)


#: Supports by name.
SUPPORTS: dict[str, Transform] = {
    "real": biject_to(constraints.real),
    "positive": Between(0.0, math.inf),
    "unit_interval": Between(0.0, 1.0),
    "simplex": Simplex(),
    "ordered": Ordered(),
    "positive_ordered": Ordered(True),
    "unit_vector": UnitVector(),
    "lower_cholesky": Triangular(correlation=False, product=False),
    "positive_definite": Triangular(correlation=False, product=True),
    "corr_cholesky": Triangular(correlation=True, product=False),
    "corr_matrix": Triangular(correlation=True, product=True),
    "boolean": Integers(0, 1, False),
}
# Those with a name here, by the type of the constraint or transform of torch.
_NAMES: dict[type, str] = {
    type(constraints.simplex): "simplex",
    type(constraints.lower_cholesky): "lower_cholesky",
    type(constraints.positive_definite): "positive_definite",
    type(constraints.positive_semidefinite): "positive_definite",
    type(constraints.corr_cholesky): "corr_cholesky",
    type(constraints.boolean): "boolean",
    transforms.ExpTransform: "positive",
    transforms.SigmoidTransform: "unit_interval",
    transforms.StickBreakingTransform: "simplex",
    transforms.CorrCholeskyTransform: "corr_cholesky",
}


def find_bijection(transform: Transform) -> str:
    """Bijection of a block of a layout that families know; "identity" for others."""
    if isinstance(transform, Integers):
        return "integer"
    kinds = {"exp": "positive", "sigmoid": "unit_interval"}
    found = (kind for kind, name in kinds.items() if transform == SUPPORTS[name])
    return next(found, "identity")


def find_transform(name: str, support: Any) -> Transform:
    """Map onto a support: a name, a torch constraint or a torch transform."""
    if isinstance(support, str) and support in SUPPORTS:
        return SUPPORTS[support]
    if type(support) in _NAMES:
        return SUPPORTS[_NAMES[type(support)]]
    if isinstance(support, Transform) and support.bijective:
        return support
    if isinstance(support, constraints.independent):
        return find_transform(name, support.base_constraint)
    if isinstance(support, constraints.integer_interval):
        return Integers(int(support.lower_bound), int(support.upper_bound))
    if isinstance(support, constraints.Constraint):
        try:
            found = biject_to(support)
            return _between(support) or found
        except NotImplementedError:
            pass
    raise ValueError(
        f"The support of {name!r} must be one of {sorted(SUPPORTS)}, a constraint of "
        "torch.distributions.constraints that has a bijection, constraints."
        "integer_interval(low, high) for a discrete parameter, or a bijective torch "
        f"transform. Got {support!r}."
    )


def _between(support: constraints.Constraint) -> Between | None:
    """The map onto an interval whose ends are numbers, if it is one."""
    given = [getattr(support, f"{side}_bound", None) for side in ("lower", "upper")]
    if given == [None, None] or any(
        isinstance(end, torch.Tensor) and end.numel() > 1 for end in given
    ):
        return None
    low, high = given
    return Between(
        -math.inf if low is None else float(low),
        math.inf if high is None else float(high),
    )
