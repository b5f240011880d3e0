"""The mode of a generalized linear model: a cheap start for other methods."""

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from skvi.base import NormalForm
from skvi.expectations._softmax import pairwise_split
from skvi.targets import SupervisedTarget
from skvi.targets._blocks import convex_part, starting
from skvi.targets._rows import moments_of, terms_at, terms_at_moments

# The mode is only a starting point: this distance in nats is close enough.
MODE_TOLERANCE, NEXT_TOLERANCE = 0.5, 0.03
# Twice the nats of a step of the mean after which it is the precision's turn.
CLOSE = 0.1
# Shortest fraction of a Newton step: the first one to a count is as long as the count.
LEAST_STEP = 1e-18
# Squares of larger means and scales, times data, exceed the range of floats.
LARGEST = 1e100
# How often a step of the mean, or the scale of a start, is halved until it gains.
MAX_HALVINGS = 8
# Below about this many nats of skewness the curvature at the mode is as good a start.
NEGLIGIBLE = 0.1
# Fraction of a step of the precision: full steps alternate around the solution.
AVERAGE_STEP = 0.7


def find_mode(
    target: SupervisedTarget,
    prior: NormalForm,
    max_iter: int = 50,
    start: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mode of a linear model, (P,), and the curvatures of its losses there.

    Damped Newton iteration under a diagonal normal prior. Curvatures are second
    derivatives of the losses in f, (n,) or (n, K, K), clipped at zero.
    """
    predictor, X = target.predictor, target.X
    precision = 1 / prior.variance
    dense = target.layout.size <= DENSE_LIMIT

    def evaluate(theta: torch.Tensor) -> tuple:
        loss, slope, curvature = terms_at(target, theta)
        deviation = theta - prior.mean
        by_prior = precision * deviation
        value = loss + 0.5 * (by_prior @ deviation)
        return float(value), slope, convex_part(target, curvature), by_prior

    theta = (prior.mean if start is None else start).clone()
    last = 0.0
    value, slope, curvature, by_prior = evaluate(theta)
    for _ in range(max_iter):
        gradient = predictor.pull_back(X, slope) + by_prior
        slope = None  # as large as the rows; so is a trial that is rejected
        step = solve_newton(target, curvature, precision, gradient, dense)
        decrement = float(gradient @ step) / 2
        rho = 1.0
        while rho > LEAST_STEP:
            moved = torch.sub(theta, step, alpha=rho)
            trial = evaluate(moved)
            if trial[0] <= value - 0.1 * rho * decrement:
                break
            del trial
            rho /= 2
        else:
            break
        theta, (value, slope, curvature, by_prior) = moved, trial
        # The next step is smaller by at least the same factor.
        following = decrement * min(decrement / last, 1.0) if last else math.inf
        if decrement < MODE_TOLERANCE or following < NEXT_TOLERANCE:
            break
        last = decrement
    return theta, curvature


def start_at_mode(
    target: SupervisedTarget, structure: Any, start: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and precision of a normal near the posterior, of a `Structure`."""
    if structure.is_full or structure.is_diagonal:  # others know all rows
        target = starting(target)
    prior = cast(NormalForm, target.prior.matching_normal())
    mean, curvature = find_mode(target, prior, start=start)
    precision = structure.add(structure.gram(target, curvature), 1 / prior.variance)
    precision = narrowed(target, structure, mean, precision)
    skewness = target.layout.size**2 / target.n_rows
    if structure.is_full and (curvature.ndim == 3 or skewness > NEGLIGIBLE):
        return alternate(target, prior, mean, precision)
    return mean, precision


def narrowed(
    target: SupervisedTarget,
    structure: Any,
    mean: torch.Tensor,
    precision: torch.Tensor,
) -> torch.Tensor:
    """Make a normal at the mode narrower, where that lowers the objective by far.

    With more columns than rows f can be so wide there that losses, and steps from
    there, are of another order than those of the best normal.
    """
    normal, exists = structure.normal(mean, precision)
    if not exists:
        return precision
    f, variance = _moments(target, normal)
    by_entropy = math.log(2) * len(mean)  # of half the scale
    loss = float(terms_at_moments(target, f, variance)[0])
    for _ in range(MAX_HALVINGS):
        variance = 0.25 * variance
        last, loss = loss, float(terms_at_moments(target, f, variance)[0])
        if last < loss + by_entropy:
            break
        precision = 4 * precision
    return precision


def _moments(
    target: SupervisedTarget, normal: NormalForm
) -> tuple[torch.Tensor, torch.Tensor]:
    """Means and variances of f; without covariances if there are several."""
    f, variance = moments_of(target, normal)
    if f.ndim > 1 and target.likelihood_spec.has_contrasts:
        variance = torch.diag_embed(pairwise_split(f, variance)[0])
    return f, variance


def alternate(
    target: SupervisedTarget,
    prior: NormalForm,
    mean: torch.Tensor,
    precision: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Move from a mode that is far from the best normal, mean and precision in turn.

    Steps of both at once overshoot where f is wide or several f meet in a loss. Steps
    of the mean need the variances of f only once; covariances are left out.
    """
    predictor, X = target.predictor, target.X
    for _ in range(5):
        scale, exists = lower_of_inverse(precision)
        if not exists:
            break
        f, variance = _moments(target, NormalForm(mean, scale))
        last, step = math.inf, torch.zeros_like(mean)
        for n_steps in range(3):
            for n_halved in range(MAX_HALVINGS + 1):
                loss, slope, curvature = terms_at_moments(target, f, variance)
                by_prior = (mean - prior.mean) / prior.variance
                value = float(loss + 0.5 * (by_prior @ (mean - prior.mean)))
                if value <= last or n_halved == MAX_HALVINGS:
                    break
                # After the last halving back to where the step began.
                back = step if n_halved == MAX_HALVINGS - 1 else 0.5 * step
                mean, f = mean + back, f + predictor.project(X, back[:, None])[..., 0]
                step = step - back
            last = value
            gram = predictor.gram(X, convex_part(target, curvature))
            aim = add(gram, 1 / prior.variance)
            if n_steps == 2:  # more of them overshoot at this precision
                break
            gradient = predictor.pull_back(X, slope) + by_prior
            step = torch.cholesky_solve(gradient[:, None], factorize(aim))[:, 0]
            mean, f = mean - step, f - predictor.project(X, step[:, None])[..., 0]
            if float(gradient @ step) < CLOSE:
                break
        precision = precision.lerp(aim, AVERAGE_STEP)
        if n_steps == 0:
            break
    return mean, precision


def add(matrix: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Add to matrices, or to a diagonal, others, which may be diagonals, (..., P)."""
    if matrix.ndim == other.ndim:
        return matrix + other
    out = matrix.clone()
    out.diagonal(dim1=-2, dim2=-1).add_(other)
    return out


def lower_of_inverse(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Lower Cholesky factors of inverses, and whether they exist.

    A matrix without a factor gets one with its diagonal enlarged by rounding.
    """
    # The factor of a matrix in reverse order gives a lower factor of the inverse.
    turned = matrix.flip((-2, -1))
    factor, info = torch.linalg.cholesky_ex(turned)
    if (bad := info != 0).any():
        rounding = 4 * turned.shape[-1] * torch.finfo(turned.dtype).eps
        shift = rounding * turned.diagonal(dim1=-2, dim2=-1).diag_embed()
        again, info = torch.linalg.cholesky_ex(turned + shift)
        factor = torch.where(bad[..., None, None], again, factor)
    upper = factor.flip((-2, -1)).mT
    identity = torch.eye(matrix.shape[-1], dtype=factor.dtype, device=factor.device)
    scale = torch.linalg.solve_triangular(upper, identity.expand_as(upper), upper=False)
    return scale, (info == 0) & (scale.abs() < LARGEST).all(-1).all(-1)


def factorize(matrix: torch.Tensor) -> torch.Tensor:
    """Lower Cholesky factor, with a relative jitter if rounding requires it."""
    for jitter in (0.0, 1e-14, 1e-12, 1e-10, 1e-8):
        shifted = matrix if jitter == 0 else matrix + jitter * matrix.diagonal().diag()
        factor, info = torch.linalg.cholesky_ex(shifted)
        if int(info) == 0 and math.isfinite(float(factor[-1, -1])):
            return factor
    raise ValueError(SINGULAR)


SINGULAR = (
    "The curvature of the objective is numerically singular or not finite. Standardize "
    "the features, remove duplicated columns, or use a prior with a smaller scale."
)

# Above this number of parameters Newton steps use conjugate gradients.
DENSE_LIMIT = 1500


def solve_newton(
    target: SupervisedTarget,
    curvature: torch.Tensor,
    prior_curvature: torch.Tensor,
    gradient: torch.Tensor,
    dense: bool,
) -> torch.Tensor:
    """Solve ``(A' diag(curvature) A + prior_curvature) x = gradient``."""
    if dense or prior_curvature.ndim == 2:
        gram = target.predictor.gram(target.X, curvature)
        factor = factorize(add(gram, prior_curvature))
        return torch.cholesky_solve(gradient[:, None], factor)[:, 0]
    return conjugate_gradients(target, curvature, prior_curvature, gradient)


def conjugate_gradients(
    target: SupervisedTarget,
    curvature: torch.Tensor,
    prior_curvature: torch.Tensor,
    gradient: torch.Tensor,
) -> torch.Tensor:
    """Solve the Newton system by conjugate gradients with a diagonal scaling."""
    predictor, X = target.predictor, target.X
    diagonal = predictor.gram_diagonal(X, curvature) + prior_curvature
    x, r = torch.zeros_like(gradient), gradient.clone()
    z = r / diagonal
    p, rz = z.clone(), float(r @ z)
    goal = 1e-6**2 * rz
    for _ in range(500):
        if rz <= goal or rz == 0 or not math.isfinite(rz):
            break
        f = predictor.project(X, p[:, None])
        f = (curvature @ f)[..., 0] if f.ndim == 3 else curvature * f[:, 0]
        Ap = predictor.pull_back(X, f)
        Ap = Ap + prior_curvature * p
        alpha = rz / float(p @ Ap)
        x, r = x + alpha * p, r - alpha * Ap
        z = r / diagonal
        rz, previous = float(r @ z), rz
        p = z + (rz / previous) * p
    return x


# Number of stored pairs, fewer if they would need too much memory.
MEMORY, MIN_MEMORY, MEMORY_ELEMENTS = 50, 5, 2**24
# Maximum number of evaluations of one line search.
MAX_EVALUATIONS = 40
# Weak Wolfe conditions: sufficient decrease, and curvature.
DECREASE, FLATTENING = 1e-4, 0.9
# Relative increase of the value that is due to rounding.
ROUNDING = 1e-14

Evaluate = Callable[[torch.Tensor], tuple[float, torch.Tensor]]


class LBFGS:
    """State of a minimization from a finite value; `step` moves it.

    No step goes to a value of ``inf``. The Hessian should be close to the identity.
    """

    def __init__(self, evaluate: Evaluate, x: torch.Tensor) -> None:
        self.evaluate, self.x = evaluate, x
        self.value, self.gradient = evaluate(x)
        affordable = MEMORY_ELEMENTS // max(len(x), 1)
        self.pairs: deque = deque(maxlen=max(MIN_MEMORY, min(MEMORY, affordable)))

    def direction(self) -> torch.Tensor:
        """Two-loop recursion (Nocedal and Wright 2006, algorithm 7.4)."""
        q, alphas = self.gradient.clone(), []
        for s, y, rho in reversed(self.pairs):
            alphas.append(rho * (s @ q))
            q -= alphas[-1] * y
        if self.pairs:
            s, y, rho = self.pairs[-1]
            q /= rho * (y @ y)
        for s, y, rho in self.pairs:
            q += (alphas.pop() - rho * (y @ q)) * s
        return -q

    @property
    def decrement(self) -> float:
        """Decrease predicted by the quadratic model, in units of the value."""
        return -0.5 * float(self.gradient @ self.direction())

    def step(self) -> bool:
        """Move to a lower point; False if rounding prevents it."""
        direction = self.direction()
        slope = float(self.gradient @ direction)
        found = self._search(direction, slope) if slope < 0 else None
        if found is None:
            if not self.pairs:
                return False
            self.pairs.clear()  # the history may be the cause
            return self.step()
        x, value, gradient = found
        s, y = x - self.x, gradient - self.gradient
        if float(s @ y) > 1e-12 * float(y @ y):
            self.pairs.append((s, y, 1 / (s @ y)))
        self.x, self.value, self.gradient = x, value, gradient
        return True

    def _search(
        self, direction: torch.Tensor, slope: float
    ) -> tuple[torch.Tensor, float, torch.Tensor] | None:
        """Bisection for the weak Wolfe conditions (Lewis and Overton 2013, 2.6)."""
        low, high, best = 0.0, math.inf, None
        # The very first step has the length of the scale of the coordinates.
        t = 1.0 if self.pairs else min(1.0, 1 / math.sqrt(-slope))
        slack = ROUNDING * abs(self.value)
        for _ in range(MAX_EVALUATIONS):
            x = self.x + t * direction
            value, gradient = self.evaluate(x)
            if not value <= self.value + DECREASE * t * slope + slack:
                high = t
            elif float(gradient @ direction) < FLATTENING * slope:
                low, best = t, (x, value, gradient)
            else:
                return x, value, gradient
            t = (low + high) / 2 if math.isfinite(high) else 2 * low
        return best if best is not None and best[1] < self.value else None


def combined(
    images: Sequence[torch.Tensor], residuals: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Combination of images whose residuals cancel as far as possible, (D,).

    The last image and residual are at the present point. It is the last image itself
    where there is no other, or residuals cannot be told apart.
    """
    image, stacked = images[-1], torch.stack(list(residuals))
    products = stacked @ stacked.T
    # Of the differences of the last residual to the earlier ones.
    lead = products[-1, -1] - products[-1, :-1]
    gram = products[:-1, :-1] - products[-1, -1] + lead + lead[:, None]
    gram.diagonal().mul_(1 + 1e-13)
    factor, info = torch.linalg.cholesky_ex(gram)
    if int(info) or not len(gram):
        return image
    weights = torch.cholesky_solve(lead[:, None], factor)[:, 0].tolist()
    found = (1 - sum(weights)) * image
    for weight, other in zip(weights, images[:-1], strict=True):
        found.add_(other, alpha=weight)
    return found
