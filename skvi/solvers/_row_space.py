"""Full-rank normals of linear models with fewer rows than parameters.

Every precision that the natural gradient meets is that of the prior, plus ``A' diag(h)
A`` with one number for each row, and every mean is the prior's, plus ``D^-1 A' a``: all
work can be done in the space of the rows, as for a Gaussian process (Rasmussen and
Williams 2006, section 3.4.3). The covariance over theta is built when it is asked for.
"""

import math
from functools import cached_property

import torch

from skvi.base import NormalForm
from skvi.divergences.base import MomentForm
from skvi.solvers._anderson import Anderson
from skvi.solvers._curvature import kernel_of_rows
from skvi.solvers._mode import factorize, find_mode, scale_of
from skvi.solvers.base import Problem
from skvi.targets import SupervisedTarget

__all__ = ["MIN_SIZE", "RowPoint", "RowSpace", "has_fewer_rows", "suits_rows"]

# With fewer parameters all fits are quick.
MIN_SIZE = 256


def suits_rows(problem: Problem) -> bool:
    """Whether a full-rank posterior is less work to fit in the space of the rows."""
    form = problem.divergence.moment_form(problem.linear_target.prior)
    return form is not None and has_fewer_rows(problem)


def has_fewer_rows(problem: Problem) -> bool:
    """Whether a full covariance has fewer rows than parameters, and convex losses."""
    target = problem.objective.training_target(problem.linear_target)
    return (
        not problem.posterior.is_diagonal
        and target.layout.size > max(MIN_SIZE, target.n_rows)
        and target.predictor.n_outputs == 1
        and target.loss.is_convex(target.likelihood)
    )


class RowSpace:
    """What does not change in a fit: the prior covariance of f, and what follows.

    For a linear predictor with one output, and a divergence of a given `MomentForm`.
    """

    def __init__(self, target: SupervisedTarget, form: MomentForm) -> None:
        self.target, self.weight, self.center = target, form.weight, form.center
        self.variance = form.weight / form.precision
        self.kernel = kernel_of_rows(target, self.variance)
        self.f = target.predictor.project(target.X, form.center[:, None])[:, 0]

    def start(self, normal: NormalForm | None) -> "RowPoint":
        """A Newton step from a normal; from the mode where there is none."""
        target = self.target
        if normal is None:
            prior = NormalForm(self.center, self.variance.sqrt())
            mode = find_mode(target, prior)[0]
            mean = target.predictor.project(target.X, mode[:, None])[:, 0]
            variance = torch.zeros_like(mean)
        else:
            mean, variance = target.predictor.moments(target.X, normal)
        _, slope, h = self.terms(mean, variance)
        aim = h * (mean - self.f) - slope
        return self.point(self.solve(h, aim), h)

    def point(self, mean: torch.Tensor, precision: torch.Tensor) -> "RowPoint":
        """Point of two vectors, (n,)."""
        return RowPoint(self, mean, precision)

    def terms(
        self, mean: torch.Tensor, variance: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Expected loss, and its derivatives in units of the divergence's weight."""
        found = self.target.loss_terms_at(mean, variance)
        h = (found[2] / self.weight).clamp(min=0)  # rounding
        return found[0], found[1] / self.weight, h

    def factor(self, h: torch.Tensor) -> torch.Tensor:
        """Cholesky factor of ``I + H^1/2 K H^1/2``."""
        root = h.sqrt()
        matrix = root[:, None] * self.kernel * root
        matrix.diagonal().add_(1.0)
        return factorize(matrix)

    def solve(self, h: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Return ``(I + H K)^-1 right``."""
        root, factor = h.sqrt(), self.factor(h)
        inner = (root * (self.kernel @ right))[:, None]
        return right - root * torch.cholesky_solve(inner, factor)[:, 0]


class RowPoint:
    """The objective at one normal, given by two vectors, (n,).

    The mean of theta is ``center + variance * A' mean``, its precision ``diag(1 /
    variance) + A' diag(precision) A``: infinite value if one is negative.
    """

    def __init__(
        self, space: RowSpace, mean: torch.Tensor, precision: torch.Tensor
    ) -> None:
        self.space, self.mean, self.precision = space, mean, precision
        self.value = math.inf
        if not bool((precision >= 0).all() & mean.isfinite().all()):
            return
        factor = space.factor(precision)
        shifted = precision.sqrt()[:, None] * space.kernel
        half = torch.linalg.solve_triangular(factor, shifted, upper=False)
        #: Of f.
        self.covariance = torch.addmm(space.kernel, half.T, half, alpha=-1)
        self.variance = self.covariance.diagonal().clamp(min=0)
        shift = space.kernel @ mean
        self.moments = space.f + shift, self.variance
        loss, self.slope, self.curvature = space.terms(*self.moments)
        squared = mean @ shift - precision @ self.variance
        kl = 0.5 * squared + factor.diagonal().log().sum()
        self.divergence = space.weight * float(kl)
        value = float(loss) + self.divergence
        self.value = value if math.isfinite(value) else math.inf

    @cached_property
    def directions(self) -> tuple[torch.Tensor, torch.Tensor, float]:
        """As `NormalPoint.directions`, of both vectors."""
        residual = self.slope + self.mean
        step = -self.space.solve(self.curvature, residual)
        move = self.curvature - self.precision
        squared = move @ (self.covariance.square() @ move)
        gain = 0.5 * squared - residual @ (self.space.kernel @ step)
        return step, move, 0.5 * self.space.weight * float(gain)

    def anderson(self) -> Anderson:
        """Acceleration over both vectors, from here on."""
        return _RowAnderson(self)

    def refined_value(self) -> float:
        """The objective with twice the nodes."""
        loss = self.space.target.loss_terms_at(*self.moments, refine=2)[0]
        return float(loss) + self.divergence

    @cached_property
    def normal(self) -> NormalForm:
        """The normal over theta."""
        target, space = self.space.target, self.space
        shift = target.predictor.pull_back(target.X, self.mean)
        precision = target.predictor.gram(target.X, self.precision)
        precision.diagonal().add_(1 / space.variance)
        scale = scale_of(precision)
        if scale is None:  # far beyond what the features resolve
            scale = torch.linalg.inv(factorize(precision)).T
            scale = torch.linalg.cholesky(scale @ scale.T)
        return NormalForm(space.center + space.variance * shift, scale)


class _RowAnderson(Anderson):
    """Acceleration over both vectors of a `RowPoint`.

    Its moments of f, without correlations, give the metric.
    """

    def __init__(self, start: RowPoint) -> None:
        super().__init__(start.variance.sqrt())
        self.kernel, self.root = start.space.kernel, start.precision.sqrt()

    def _whiten(self, step: torch.Tensor, move: torch.Tensor) -> torch.Tensor:
        width = self.scale.square() * math.sqrt(0.5)
        return torch.cat([self.root * (self.kernel @ step), width * move])
