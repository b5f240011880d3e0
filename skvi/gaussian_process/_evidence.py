"""Log evidence of a Gaussian process with normal noise, between two certain numbers.

Few rows have a closed form. Of many, with the covariance Q that inducing points explain
and noise s, ``A = (Q + s I)^-1/2 (K + s I) (Q + s I)^-1/2`` has eigenvalues of at least
1, whose sum and sum of squares take one pass over K in blocks. Two Gauss-Radau rules
bound the sum of their logarithms (Bai and Golub, 1996, *Bounds for the trace of the
inverse and the determinant of symmetric positive definite matrices*); the quadratic
form is bounded by conjugate gradients, since ``K >= Q``.
"""

import math
from typing import Any

import torch
from torch.linalg import solve_triangular

from skvi.evidence import EvidenceBounds
from skvi.evidence._summarize import PATH_SECONDS
from skvi.evidence._table import ALWAYS, BoundsTable, NamedBound, elbo_row
from skvi.gaussian_process._collapsed import NormalRows, log_evidence
from skvi.gaussian_process._features import InducingFeatures
from skvi.kernels._kernels import covariance, variance
from skvi.utils._interrupts import Clock, OutOfTime, check_time
from skvi.utils._tensors import LOG_2PI
from skvi.utils._validation import row_chunks

# Rows up to which the covariance matrix is factorized.
FEW = 4000
# Width of the bounds in nats at which more points are not worth it, and the largest
# number of points.
PRECISION, MOST_POINTS = 0.1, 4000
# Iterations of conjugate gradients, and the share of the width left to them.
MAX_ITER, SHARE = 500, 0.1
# Elements of a block of the covariance matrix.
BLOCK_ELEMENTS = 2**23
BETWEEN = (
    "between two quadrature rules of the log determinant, and conjugate gradients: "
    "both sides always hold, at this kernel"
)
OVER = "the seconds ended before a pass over all pairs of rows: give more max_seconds"
# Rounding of sums over rows.
ROUNDING = 1e-11


#: Lower and upper bound, in nats.
Bounds = tuple[float, float]


@torch.no_grad()
def evidence_of_process(
    features: InducingFeatures,
    noise: torch.Tensor,
    rows: NormalRows,
    constant: float,
    elbo: tuple[float, float],
    options: dict[str, Any],
) -> EvidenceBounds:
    """Bounds at the features' kernel, of targets in the units of the fit.

    `constant` is added, for the units of y.
    """
    if len(rows.X) <= FEW:
        value = float(log_evidence(features.kernel, features.theta, noise, rows))
        value, error = value + constant, rounding(features, float(noise), rows, value)
        lower, upper = value - error, value + error
        name, reason = "exact", "the log evidence has a closed form at this kernel"
    else:
        lower, upper = _narrowed(features, noise, rows, options)
        lower, upper = max(lower + constant, elbo[0]), upper + constant
        name = "deterministic bounds"
        reason = BETWEEN if upper < math.inf else OVER
    is_bounded = upper < math.inf
    both = {
        f"{name}, {side}": NamedBound(at, 0.0, side, "a bound, always", holds=ALWAYS)
        for side, at in (("lower", lower), ("upper", upper))
    }
    return EvidenceBounds(
        lower=lower,
        upper=upper,
        lower_se=0.0,
        upper_se=0.0,
        estimate=0.5 * (lower + upper) if is_bounded else math.nan,
        gap=upper - lower,
        ess=math.inf,
        khat=-math.inf,
        reliable=is_bounded,
        reason=reason,
        method=name,
        quantity=options["quantity"],
        table=BoundsTable({"ELBO of q": elbo_row(elbo), **both}),
    )


def rounding(
    features: InducingFeatures, noise: float, rows: NormalRows, value: float
) -> float:
    """Nats by which a log density may round, for the condition of its covariance."""
    largest = float(variance(features.kernel, features.theta, rows.X).sum())
    condition = 1 + largest / noise
    size = max(len(rows.X) ** 0.5, abs(value))
    return ROUNDING + float(torch.finfo(torch.float64).eps) * condition * size


def _narrowed(
    features: InducingFeatures,
    noise: torch.Tensor,
    rows: NormalRows,
    options: dict[str, Any],
) -> Bounds:
    """Bounds with more and more points, up to a width, a number, or some seconds.

    The sides are infinite if the seconds are over before the first ones.
    """
    seconds = options["max_seconds"]
    clock = Clock(PATH_SECONDS if seconds is None else seconds)
    width = PRECISION if options["precision"] is None else 2 * options["precision"]
    lower, upper = -math.inf, math.inf
    while True:
        try:
            with clock.enforced():
                found = sandwich(features, noise, rows, SHARE * width)
        except OutOfTime:
            return lower, upper
        lower, upper = max(lower, found[0]), min(upper, found[1])
        n_points = min(2 * len(features.Z), MOST_POINTS, len(rows.X))
        if upper - lower <= width or n_points == len(features.Z):
            return lower, upper
        features = _more_points(features, rows, n_points)


def _more_points(
    features: InducingFeatures, rows: NormalRows, n_points: int
) -> InducingFeatures:
    """Features with further rows, those that vary most given the points so far."""
    rest = rows.scaled(rows.scaled(features(rows.X)[:, -1]))
    order = rest.argsort(descending=True)[: n_points - len(features.Z)]
    Z = torch.cat([features.Z, rows.X[order]])
    return InducingFeatures.of(features.kernel, features.theta, Z)


@torch.no_grad()
def sandwich(
    features: InducingFeatures, noise: torch.Tensor, rows: NormalRows, tol: float
) -> Bounds:
    """Bounds with the points of the features."""
    whole = _Whole(features, noise, rows)
    ends = zip(whole.log_determinant(), whole.quadratic_form(tol), strict=True)
    excess = (rows.total - len(rows.X)) * (LOG_2PI + math.log(float(noise)))
    rest = excess + len(rows.X) * LOG_2PI
    upper, lower = (-0.5 * (rest + log_det + square) for log_det, square in ends)
    return lower, upper


class _Whole:
    """The covariance of all rows times roots of their weights, in blocks.

    ``A' A = Q``, and ``(Q + s I)^-1 = (I - W' W) / s``.
    """

    def __init__(
        self, features: InducingFeatures, noise: torch.Tensor, rows: NormalRows
    ) -> None:
        self.features, self.rows, self.s = features, rows, float(noise)
        self.A = rows.scaled(features(rows.X)[:, :-1].T)
        eye = torch.eye(len(self.A), dtype=self.A.dtype, device=self.A.device)
        root = torch.linalg.cholesky(eye + self.A @ self.A.T / self.s)
        self.log_det_of_Q = 2 * float(root.diagonal().log().sum())
        self.log_det_of_Q += len(rows.X) * math.log(self.s)
        self.W = solve_triangular(root, self.A, upper=False) / math.sqrt(self.s)
        self.blocks = row_chunks(len(rows.X), len(rows.X), BLOCK_ELEMENTS)

    def block(self, index: slice) -> torch.Tensor:
        """Some rows of the covariances of all."""
        check_time()
        K, X, part = self.features, self.rows.X, self.rows.some(index)
        found = self.rows.scaled(covariance(K.kernel, K.theta, part.X, X))
        found = part.scaled(found.T).T
        # The diagonal of blocks does not know that it is one.
        own = part.scaled(part.scaled(variance(K.kernel, K.theta, part.X)))
        found.diagonal(offset=index.start).copy_(own)
        return found

    def log_determinant(self) -> Bounds:
        """Bounds of log |K + s I|."""
        squares, largest, trace, products = 0.0, 0.0, 0.0, []
        for index in self.blocks:
            R = self.block(index).addmm_(self.A[:, index].T, self.A, alpha=-1)
            own = R.diagonal(offset=index.start).clamp_(min=0)
            trace += float(own.sum())
            squares += float(R.square().sum())
            largest = max(largest, float(R.abs().sum(1).max()))
            products.append(R @ self.W.T)
        E = torch.cat(products)
        inner, n, s = self.W @ E, len(E), self.s
        first = (trace - float(inner.diagonal().sum())) / s
        second = squares - 2 * float(E.square().sum()) + float(inner.square().sum())
        second = max(second / s**2, 0.0)
        top = 1 + min(largest / s, math.sqrt(second)) * (1 + ROUNDING) + ROUNDING
        sums = n + first, n + 2 * first + second
        ends = sorted(_radau(end, n, *sums) for end in (1.0, top))
        error = self.error(self.log_det_of_Q)
        return self.log_det_of_Q + ends[0] - error, self.log_det_of_Q + ends[1] + error

    def quadratic_form(self, tol: float) -> Bounds:
        """Bounds of ``y' (K + s I)^-1 y``, at most about `tol` apart."""
        y = self.rows.scaled(self.rows.y[:, 0])
        v = self._solve_near(y)
        r = y - self._times(v)
        z = self._solve_near(r)
        direction, rz = z.clone(), float(r @ z)
        # r' (K + s I)^-1 r is at most r' (Q + s I)^-1 r.
        for _ in range(MAX_ITER):
            if rz <= tol:
                break
            image = self._times(direction)
            step = rz / float(direction @ image)
            v, r = v + step * direction, r - step * image
            z = self._solve_near(r)
            rz, last = float(r @ z), rz
            direction = z + (rz / last) * direction
        lower = 2 * float(y @ v) - float(v @ (y - r))
        error = self.error(lower)
        return lower - error, lower + max(rz, 0.0) + error

    def error(self, value: float) -> float:
        """Rounding of a sum over rows."""
        return rounding(self.features, self.s, self.rows, value)

    def _times(self, v: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.block(index) @ v for index in self.blocks]) + self.s * v

    def _solve_near(self, v: torch.Tensor) -> torch.Tensor:
        return (v - self.W.T @ (self.W @ v)) / self.s


def _radau(node: float, n: int, first: float, second: float) -> float:
    """Sum of the logs of n eigenvalues, by a rule with a given node and their sums.

    It is exact for those with two values, and a bound if the node is outside of all.
    """
    other = (node * first - second) / (node * n - first)
    weight = (first - n * other) / (node - other)
    return weight * math.log(node) + (n - weight) * math.log(other)
