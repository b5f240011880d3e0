"""Full-rank fits with fewer rows than parameters, beside priors that are not normal.

All work is done in the space of the rows: the precision of q is ``diag(lam) + A'
diag(h) A`` with numbers lam that move as well. A few of them may be negative, where the
log prior is convex: far out in heavy tails.
"""

import math
from functools import cached_property
from typing import NamedTuple, cast

import torch

from skvi.base import NormalForm
from skvi.solvers._anderson import Anderson
from skvi.solvers._mode import factorize, scale_of
from skvi.solvers._reduce import has_few_rows
from skvi.solvers._unknown_scale import find_start
from skvi.solvers.base import Problem
from skvi.targets._row_terms import terms_at_moments

__all__ = ["MixturePoint", "MixtureSpace", "suits_mixtures"]

# Precisions of single coordinates below it are taken to be this large, and corrected.
LEAST = 1e-12
# History of the acceleration: vectors only.
DEPTH = 10


def suits_mixtures(problem: Problem) -> bool:
    """Whether rows are less work: few, under a prior of coordinates, not normal."""
    target = problem.objective.training_target(problem.linear_target)
    is_mixture = target.prior.as_normal() is None and not target.prior.n_unknown_scales
    return (
        is_mixture
        and problem.divergence.is_standard
        and has_few_rows(problem)
        and target.predictor.n_outputs == 1
        and target.loss.is_convex(target.likelihood)
    )


class _Covariance(NamedTuple):
    """``diag(base) + root' diag(signs) root``, and half its log determinant."""

    base: torch.Tensor
    root: torch.Tensor
    signs: torch.Tensor
    half_log_det: torch.Tensor

    @property
    def variance(self) -> torch.Tensor:
        return self.base + self.signs @ self.root.square()

    def times(self, vector: torch.Tensor) -> torch.Tensor:
        inner = self.signs * (self.root @ vector)
        return self.base * vector + inner @ self.root

    def squared(self, weights: torch.Tensor) -> torch.Tensor:
        """``weights' C weights``, C of the squares of all covariances."""
        own = (weights * self.base).square().sum()
        mixed = weights.square() * self.base * (self.signs @ self.root.square())
        inner = (self.root * weights) @ self.root.T
        return own + 2 * mixed.sum() + self.signs @ inner.square() @ self.signs


def _inverse(
    design: torch.Tensor, h: torch.Tensor, lam: torch.Tensor
) -> _Covariance | None:
    """Inverse of ``diag(lam) + A' diag(h) A``; None where that is not positive."""
    least = lam.abs().clamp(min=LEAST)
    base, rows = 1 / least, h.sqrt()[:, None] * design
    inner = (rows * base) @ rows.T
    inner.diagonal().add_(1.0)
    factor = factorize(inner)
    root = torch.linalg.solve_triangular(factor, rows * base, upper=False)
    half_log_det = -0.5 * least.log().sum() - factor.diagonal().log().sum()
    signs = torch.full_like(h, -1.0)
    less = (lam < least).nonzero()[:, 0]
    if not len(less):
        return _Covariance(base, root, signs, half_log_det)
    width = (least - lam)[less].sqrt()
    columns = -(root[:, less].T @ root)  # of the covariance so far
    columns[torch.arange(len(less), device=less.device), less] += base[less]
    small = -(width[:, None] * columns[:, less] * width)
    small.diagonal().add_(1.0)
    factor, info = torch.linalg.cholesky_ex(small)
    if int(info):
        return None
    more = torch.linalg.solve_triangular(factor, width[:, None] * columns, upper=False)
    signs = torch.cat([signs, torch.ones_like(width)])
    half_log_det = half_log_det - factor.diagonal().log().sum()
    return _Covariance(base, torch.cat([root, more]), signs, half_log_det)


class MixtureSpace:
    """What does not change in a fit: the rows of the design, if `suits_mixtures`."""

    def __init__(self, problem: Problem) -> None:
        target = self.target = problem.linear_target
        self.problem, self.prior = problem, target.prior
        n_rows, like = target.n_rows, target.prior.matching_normal().mean
        identity = torch.eye(n_rows, dtype=like.dtype, device=like.device)
        self.design = target.predictor.pull_back_draws(target.X, identity)

    def start(self, normal: NormalForm | None) -> "MixturePoint":
        """Point at a normal, up to what its precision has beside two diagonals."""
        target = self.target
        if normal is None:
            form, mean, h = find_start(target, is_diagonal=False)
            return self.point(mean, torch.cat([1 / form.variance, h]))
        mean, ones = normal.mean, torch.ones_like(normal.mean)
        form = NormalForm(mean, normal.variance.sqrt())
        terms = self.problem.divergence.terms(form, self.prior, ones)
        h = target.expected_loss_terms(normal)[2].clamp(min=0)
        return self.point(mean, torch.cat([terms.precision_gradient + ones, h]))

    def point(self, mean: torch.Tensor, precision: torch.Tensor) -> "MixturePoint":
        """Point of that mean, (P,), and of both diagonals, (P + n,)."""
        return MixturePoint(self, mean, precision)


class MixturePoint:
    """The objective at one normal, given by its mean and both diagonals."""

    def __init__(
        self, space: MixtureSpace, mean: torch.Tensor, precision: torch.Tensor
    ) -> None:
        self.space, self.mean, self.precision = space, mean, precision
        self.value = math.inf
        lam, h = precision[: len(mean)], precision[len(mean) :]
        finite = mean.isfinite().all() & precision.isfinite().all()
        found = _inverse(space.design, h, lam) if finite & (h >= 0).all() else None
        if found is None or not bool((found.variance > 0).all()):
            return
        self.cov = found
        projected = space.design @ found.root.T
        self.f_covariance = (space.design * found.base) @ space.design.T
        self.f_covariance += (projected * found.signs) @ projected.T
        self.cross = space.design * found.base + (projected * found.signs) @ found.root
        self.moments = space.design @ mean, self.f_covariance.diagonal().clamp(min=0)
        loss, self.slope, self.curvature = terms_at_moments(space.target, *self.moments)
        form = NormalForm(mean, found.variance.sqrt())
        self.terms = space.problem.divergence.terms(form, space.prior, lam)
        # That of a factorized normal; the entropy is another one.
        entropy = form.half_log_det - found.half_log_det
        self.divergence = float(self.terms.value + entropy)
        value = float(loss) + self.divergence
        self.value = value if math.isfinite(value) else math.inf

    @cached_property
    def directions(self) -> tuple[torch.Tensor, torch.Tensor, float]:
        """As `NormalPoint.directions`, of mean and diagonals."""
        space, size = self.space, len(self.mean)
        h = self.curvature.clamp(min=0)
        gradient = self.slope @ space.design + self.terms.gradient
        hessian = _inverse(space.design, h, self.terms.curvature.clamp(min=LEAST))
        hessian = cast(_Covariance, hessian)  # of positive numbers
        step = -hessian.times(gradient)
        lam, rows = self.terms.precision_gradient, h - self.precision[size:]
        squared = self.cov.squared(lam) + 2 * rows @ self.cross.square() @ lam
        squared = squared + rows @ self.f_covariance.square() @ rows
        gap = 0.5 * (0.5 * squared - gradient @ step)
        return step, torch.cat([lam, rows]), float(gap)

    def anderson(self) -> Anderson:
        """Acceleration over mean and diagonals, from here on."""
        return _MixtureAnderson(self)

    def refined_value(self) -> float:
        """The objective with twice the nodes."""
        loss = terms_at_moments(self.space.target, *self.moments, refine=2)[0]
        return float(loss) + self.divergence

    @cached_property
    def normal(self) -> NormalForm:
        """The normal over theta."""
        size, design = len(self.mean), self.space.design
        matrix = (design.T * self.precision[size:]) @ design
        matrix.diagonal().add_(self.precision[:size])
        scale = scale_of(matrix)
        if scale is None:
            covariance = self.cov.root.T * self.cov.signs @ self.cov.root
            covariance.diagonal().add_(self.cov.base)
            scale = factorize(covariance)
        return NormalForm(self.mean, scale)


class _MixtureAnderson(Anderson):
    def __init__(self, start: MixturePoint) -> None:
        super().__init__(start.cov.variance.sqrt())
        self.depth = DEPTH
        variance = torch.cat([self.scale.square(), start.moments[1]])
        self.widths = math.sqrt(0.5) * variance

    def _whiten(self, step: torch.Tensor, move: torch.Tensor) -> torch.Tensor:
        return torch.cat([step / self.scale, self.widths * move])
