"""Objectives of normal posteriors of linear models, without noise."""

import math
from functools import cached_property

import torch

from skvi.base import NormalForm
from skvi.divergences._linalg import precision_of
from skvi.divergences.base import DivergenceTerms
from skvi.solvers._mode import (
    DENSE_LIMIT,
    add,
    clip_eigenvalues,
    convex_part,
    factorize,
    scale_of,
    solve_newton,
)
from skvi.solvers._unknown_scale import UnknownScale
from skvi.solvers.base import Problem
from skvi.utils._dense_rows import congruence

__all__ = ["NOWHERE", "NormalPoint", "point_at", "point_of", "singularity"]


class NormalPoint:
    """The objective at one normal, with derivatives on demand.

    For expectation objectives of linear predictors with a divergence in closed form.
    """

    def __init__(
        self, problem: Problem, normal: NormalForm, precision: torch.Tensor
    ) -> None:
        self.problem, self.normal, self.precision = problem, normal, precision
        self.mean = normal.mean
        self.value = math.inf
        target = self.target = problem.linear_target
        self.terms: DivergenceTerms = problem.divergence.terms(
            normal, target.prior, precision
        )
        if math.isfinite(float(self.terms.value)):
            loss, self.slope, self.curvature = target.expected_loss_terms(normal)
            value = float(loss + self.terms.value)
            self.value = value if math.isfinite(value) else math.inf

    def mean_gradient(self) -> torch.Tensor:
        """Gradient in the mean."""
        target = self.target
        return target.predictor.pull_back(target.X, self.slope) + self.terms.gradient

    @cached_property
    def directions(self) -> tuple[torch.Tensor, torch.Tensor, float]:
        """Newton step of the mean, natural step of the precision, predicted decrease.

        In nats, by a quadratic model: half the squared gradient in the metric of the
        Hessian, that of the posterior times the weight of the entropy.
        """
        terms, gradient = self.terms, self.mean_gradient()
        step = -self._solve(gradient)
        by_cov = self._precision_gradient()
        move = by_cov / terms.entropy_weight
        if self.precision.ndim == 1:
            inner = move / self.precision
            squared = (inner * by_cov / self.precision).sum()
        else:
            inner = congruence(self.normal.scale, move)
            squared = inner.square().sum() * terms.entropy_weight
        gap = float(0.5 * (0.5 * squared - gradient @ step))
        if self.target.prior.n_unknown_scales != 1:
            return step, move, gap
        return self._move_scale(step, move, inner, gap)

    def _move_scale(
        self, step: torch.Tensor, move: torch.Tensor, inner: torch.Tensor, gap: float
    ) -> tuple[torch.Tensor, torch.Tensor, float]:
        """Add the step of an unknown scale; `inner` is `move` in units of q."""
        scale = UnknownScale(self.target.prior, self.mean, self.normal.variance)
        weights, root = scale.weights, self.normal.scale
        prior_gradient = weights * self.mean
        side = self._solve(self.terms.entropy_weight * prior_gradient)
        if root.ndim == 1:
            own = weights * root.square()
        else:
            half = weights.sqrt()[:, None] * root
            own = half.T @ half
        change = 2 * prior_gradient @ step - (own * inner).sum()
        moved = 2 * prior_gradient @ side + own.square().sum()
        shift, gain = scale.shift(float(change), float(moved))
        gain *= float(self.terms.entropy_weight)
        return step - shift * side, add(move, shift * weights), gap + gain

    def _solve(self, right: torch.Tensor) -> torch.Tensor:
        """Solve with the Hessian in the mean."""
        if not self._is_dense:
            curvature = self.terms.curvature
            return solve_newton(self.target, self._convex, curvature, right, False)
        return torch.cholesky_solve(right[:, None], self._factor)[:, 0]

    @property
    def _is_dense(self) -> bool:
        return self.precision.ndim == 2 or self.precision.shape[0] <= DENSE_LIMIT

    @cached_property
    def _convex(self) -> torch.Tensor:
        return convex_part(self.target, self.curvature)

    @cached_property
    def _gram(self) -> torch.Tensor:
        target = self.target
        return target.predictor.gram(target.X, self.curvature)

    @cached_property
    def _factor(self) -> torch.Tensor:
        try:
            return factorize(self._hessian())
        except ValueError:
            if self.curvature.ndim == 1:
                raise
        # Errors of integrals over many classes can destroy their convexity.
        target, clipped = self.target, clip_eigenvalues(self.curvature)
        gram = target.predictor.gram(target.X, clipped)
        return factorize(add(gram, self.terms.curvature))

    def _hessian(self) -> torch.Tensor:
        """Hessian in the mean, without the negative curvature of robust losses."""
        gram, target = self._gram, self.target
        if not self._is_convex:
            gram = target.predictor.gram(target.X, self._convex)
        return add(gram, self.terms.curvature)

    @property
    def _is_convex(self) -> bool:
        if self.curvature.ndim == 1:
            return float(self.curvature.min()) >= 0
        return self._convex is self.curvature

    def _precision_gradient(self) -> torch.Tensor:
        gradient = self.terms.precision_gradient
        if self.precision.ndim == 2:
            return add(self._gram, gradient)
        gradient = gradient if gradient.ndim == 1 else gradient.diagonal()
        if self._is_dense:
            return self._gram.diagonal() + gradient
        target = self.target
        return target.predictor.gram_diagonal(target.X, self.curvature) + gradient


# Squares of larger means and scales, times data, exceed the range of floats.
LARGEST = 1e100


class _Nowhere(NormalPoint):
    """Represents a precision that is not positive definite."""

    def __init__(self) -> None:
        self.value = math.inf


NOWHERE = _Nowhere()


def point_of(problem: Problem, normal: NormalForm) -> NormalPoint:
    """Point at a normal; `NOWHERE` if its values exceed the range of floats."""
    widths = normal.scale if normal.is_diagonal else normal.scale.diagonal()
    size = torch.maximum(normal.mean.abs().max(), normal.scale.abs().max())
    if not bool((widths > 1e-150).all() & (size < LARGEST)):
        return NOWHERE  # a line search that went too far
    return NormalPoint(problem, normal, precision_of(normal))


def point_at(
    problem: Problem, mean: torch.Tensor, precision: torch.Tensor
) -> NormalPoint:
    """Point with a mean and precision; `NOWHERE` if the latter is not positive."""
    scale = scale_of(precision)
    if scale is None:
        return NOWHERE
    return NormalPoint(problem, NormalForm(mean, scale), precision)


def singularity(point: NormalPoint) -> float:
    """Largest disagreement between a precision and the scale derived from it."""
    if point.precision.ndim == 1:
        return 0.0
    scale = point.normal.scale
    product = scale.T @ (point.precision @ scale)
    identity = torch.eye(len(scale), dtype=scale.dtype, device=scale.device)
    return float((product - identity).abs().max())
