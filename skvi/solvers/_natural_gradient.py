"""Damped, accelerated natural gradient for normal posteriors of linear models."""

import math
from functools import cached_property
from typing import Any

import torch

from skvi.base import NormalForm
from skvi.divergences import DivergenceTerms
from skvi.divergences._linalg import precision_of
from skvi.solvers._anderson import Anderson
from skvi.solvers._mode import (
    DENSE_LIMIT,
    SINGULAR,
    convex_part,
    factorise,
    find_mode,
    solve_newton,
)
from skvi.solvers._quasi_newton import quasi_newton_run
from skvi.solvers.base import Problem, Solution, SolverOptions

__all__ = ["NaturalGradient"]

# Allowed gap, in nats, between the quadrature and one with twice the nodes; each row
# is integrated to 1e-7.
QUADRATURE_TOLERANCE, ROW_TOLERANCE = 1e-4, 1e-7
# The same where several f meet in a loss, in more dimensions than a rule can fill.
COARSE_TOLERANCE = 0.2
# When quasi-Newton runs take over: where steps keep failing, or take too many.
MAX_REJECTIONS = 3
MAX_NATURAL = 25


class NaturalGradient:
    """Minimise ``E_q[loss] + D(q || prior)`` without noise.

    f_i is normal under q, so that every E_q[loss_i] is a one-dimensional
    integral. With its derivatives in the mean and the variance of f_i, one
    iteration sets

        precision <- precision + rho (A' diag(E loss'') A + 2 dD/dcov) / c,
        mean      <- mean - rho (A' diag(E loss'') A + d2D/dmean2)^-1 gradient,

    which for KL is the natural gradient (c = 1). Anderson acceleration makes the
    linear convergence superlinear; a step that does not lower the objective is
    repeated without it, and then halved, so that the iteration cannot oscillate
    where the data are nearly separable. Where steps keep failing (divergences
    that hardly punish width have curved valleys) quasi-Newton runs on the same
    objective finish the work.

    Examples
    --------
    >>> import torch
    >>> from skvi.divergences import KL
    >>> from skvi.likelihoods import GaussianLikelihood
    >>> from skvi.losses import LogLoss
    >>> from skvi.objectives import ELBO
    >>> from skvi.posteriors import FullRankNormal
    >>> from skvi.predictors import LinearPredictor
    >>> from skvi.priors import Normal
    >>> from skvi.solvers import NaturalGradient, Problem, SolverOptions
    >>> from skvi.targets import SupervisedTarget
    >>> model, X = LinearPredictor(1, fit_intercept=False), torch.ones(2, 1).double()
    >>> prior, y = Normal().build(model.layout), torch.tensor([1.0, 3.0])
    >>> target = SupervisedTarget(model, GaussianLikelihood(), LogLoss(), prior, X, y)
    >>> posterior = FullRankNormal().build(model.layout)
    >>> problem = Problem(target, ELBO(), KL(), posterior, None)
    >>> solution = NaturalGradient().solve(problem, SolverOptions())
    >>> round(solution.value, 4)  # - log p(D): here the posterior is normal
    4.7205
    >>> posterior.as_normal().mean
    tensor([1.3333], dtype=torch.float64)
    """

    name = "natural_gradient"

    @staticmethod
    def missing(problem: Problem) -> str:
        """Say what the problem lacks for this solver.

        Parameters
        ----------
        problem : Problem

        Returns
        -------
        str
            Empty where the solver can be used.
        """
        target, posterior = problem.target, problem.posterior
        if problem.objective.kind != "expectation":
            return f"it minimises expectations, and {problem.objective!r} is none"
        if problem.objective.gradient != "auto":
            return f"{problem.objective!r} asks for draws"
        if len(target.hyper):
            return "the target learns hyperparameters"
        if not target.is_linear:
            return "the model is not linear in its parameters"
        if posterior.as_normal() is None:
            return "the posterior family is not normal"
        if not problem.divergence.has_closed_form(target.prior):
            return f"{problem.divergence!r} has no closed form for this prior"
        return ""

    @torch.no_grad()
    def solve(self, problem: Problem, options: SolverOptions) -> Solution:
        """Fit ``problem.posterior`` in place.

        Parameters
        ----------
        problem : Problem
        options : SolverOptions

        Returns
        -------
        Solution
            `value` is the objective in nats, summed over the data, by quadrature
            and closed forms: no draws are used.
        """
        return _Iteration(problem, options).run()


class _Point:
    """The objective at one normal, with derivatives on demand."""

    def __init__(
        self, problem: Problem, normal: NormalForm, precision: torch.Tensor
    ) -> None:
        self.problem, self.normal, self.precision = problem, normal, precision
        self.value = math.inf
        target = problem.target
        self.terms: DivergenceTerms = problem.divergence.terms(
            normal, target.prior, precision
        )
        if math.isfinite(float(self.terms.value)):
            loss, self.slope, self.curvature = target.expected_loss_terms(normal)
            value = float(loss + self.terms.value)
            self.value = value if math.isfinite(value) else math.inf

    def mean_gradient(self) -> torch.Tensor:
        target = self.problem.target
        return target.predictor.pull_back(target.X, self.slope) + self.terms.gradient

    @cached_property
    def directions(self) -> tuple[torch.Tensor, torch.Tensor, float]:
        """Newton step of the mean, natural step of the precision, and their promise.

        The latter is the decrease in nats that a quadratic model predicts: half the
        squared gradient in the metric of the Hessian, which is that of the posterior
        times the weight of the entropy.
        """
        terms, gradient = self.terms, self.mean_gradient()
        if not self._is_dense:
            step = solve_newton(
                self.problem.target, self._convex, terms.curvature, gradient, False
            )
        else:
            factor = factorise(self._hessian())
            step = torch.cholesky_solve(gradient[:, None], factor)[:, 0]
        move = self._precision_gradient() / terms.entropy_weight
        if self.precision.ndim == 1:
            squared = (move / self.precision).square().sum()
        else:
            scale = self.normal.scale
            squared = (scale.T @ move @ scale).square().sum()
        gap = 0.5 * (gradient @ step + 0.5 * terms.entropy_weight * squared)
        return -step, move, float(gap)

    def covariance_gradient(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradient in the mean, and twice the gradient in the covariance."""
        return self.mean_gradient(), self._precision_gradient()

    def mean_root(self) -> torch.Tensor:
        """Root of the inverse Hessian in the mean."""
        if not self._is_dense:
            return self.normal.scale
        factor = factorise(self._hessian())
        identity = torch.eye(len(factor), dtype=factor.dtype)
        return torch.linalg.solve_triangular(factor, identity, upper=False).T

    @property
    def _is_dense(self) -> bool:
        return self.precision.ndim == 2 or len(self.precision) <= DENSE_LIMIT

    @cached_property
    def _convex(self) -> torch.Tensor:
        return convex_part(self.problem.target, self.curvature)

    @cached_property
    def _gram(self) -> torch.Tensor:
        target = self.problem.target
        return target.predictor.gram(target.X, self.curvature)

    def _hessian(self) -> torch.Tensor:
        """Hessian in the mean, without the negative curvature of robust losses."""
        gram, target = self._gram, self.problem.target
        if not self._is_convex:
            gram = target.predictor.gram(target.X, self._convex)
        return _add(gram, self.terms.curvature)

    @property
    def _is_convex(self) -> bool:
        if self.curvature.ndim == 1:
            return float(self.curvature.min()) >= 0
        return self._convex is self.curvature

    def _precision_gradient(self) -> torch.Tensor:
        pull = self.terms.precision_gradient
        if self.precision.ndim == 2:
            return _add(self._gram, pull)
        pull = pull if pull.ndim == 1 else pull.diagonal()
        if self._is_dense:
            return self._gram.diagonal() + pull
        target = self.problem.target
        return target.predictor.gram_diagonal(target.X, self.curvature) + pull


class _Iteration:
    def __init__(self, problem: Problem, options: SolverOptions) -> None:
        self.problem, self.options = problem, options
        self.point = self._start()
        self.anderson = Anderson(self.point.precision)
        self.rejections, self.stalled, self.last_gain = 0, False, 0.0
        self.stopped = False
        self.history: list[float] = []

    def _keep(self) -> None:
        self.problem.posterior.set_normal(self.point.normal)

    def _start(self) -> _Point:
        target = self.problem.target
        if self.options.warm_start:
            normal = self.problem.posterior.as_normal()
            point = _Point(self.problem, normal, precision_of(normal))
            if math.isfinite(point.value):
                return point
        prior = target.prior.matching_normal()
        mean, curvature = find_mode(target, prior)
        if self.problem.posterior.is_diagonal:
            gram = target.predictor.gram_diagonal(target.X, curvature)
        else:
            gram = target.predictor.gram(target.X, curvature)
        point = self._at(mean, _add(gram, 1 / prior.variance))
        if not math.isfinite(point.value):
            raise ValueError(SINGULAR)
        return point

    def _at(self, mean: torch.Tensor, precision: torch.Tensor) -> _Point:
        scale = _scale_of(precision)
        if scale is None:
            return _NOWHERE
        return _Point(self.problem, NormalForm(mean, scale), precision)

    def run(self) -> Solution:
        interrupted = False
        try:
            while len(self.history) < self.options.max_iter and not self.stalled:
                if self.history and self._gap() < self._tolerance:
                    break
                self._iterate()
                self.history.append(self.point.value)
                self.stopped = self.options.progress(self.point.value, self._keep)
                if self.stopped:
                    break
        except KeyboardInterrupt:
            interrupted = True
        return self._finish(self._gap(), interrupted)

    def _gap(self) -> float:
        """Nats to the optimum, measured here; at least the last quasi-Newton gain."""
        return max(self.point.directions[2], self.last_gain)

    def _iterate(self) -> None:
        """Move to a better point."""
        slow = self.rejections >= MAX_REJECTIONS or len(self.history) >= MAX_NATURAL
        # A line search needs values that agree with their gradients.
        if slow and self._resolution < 10 * self.options.tol:
            return self._quasi_newton()
        point, mean = self.point, self.point.normal.mean
        step, move, _ = point.directions
        self.anderson.observe(mean, point.precision, step, move)
        proposal = self.anderson.propose()
        if proposal is not None:
            trial = self._at(*proposal)
            if trial.value < point.value + self._resolution:
                self.point = trial
                return None
            self.rejections += 1
            self.anderson.forget()
        rho, slack = 1.0, self._slack()
        while rho > 1e-3:
            trial = self._at(mean + rho * step, point.precision + rho * move)
            if trial.value <= point.value + slack:
                self.point = trial
                return None
            rho /= 2
            self.rejections += 1
        return None

    def _quasi_newton(self) -> None:
        before = self.point.value

        def evaluate(normal: NormalForm) -> _Point:
            widths = normal.scale if normal.is_diagonal else normal.scale.diagonal()
            if not bool((widths > 1e-150).all() & torch.isfinite(widths).all()):
                return _NOWHERE  # a line search that went too far
            return _Point(self.problem, normal, precision_of(normal))

        self.point = quasi_newton_run(evaluate, self.point, self.point.mean_root())
        self.last_gain = before - self.point.value
        # Within rounding, or the quadrature cannot resolve the objective.
        self.stalled = self.last_gain <= self._slack()

    def _slack(self) -> float:
        """Increase of the objective that means nothing: rounding, quadrature."""
        return 1e-13 * abs(self.point.value) + self._resolution

    @property
    def _tolerance(self) -> float:
        """Gap to reach: the one asked for, or what the quadrature can resolve."""
        return max(self.options.tol, 0.05 * self._resolution)

    @cached_property
    def _resolution(self) -> float:
        """Error of the quadrature where several f meet in a loss, in nats.

        With a single f it is far below the tolerance. With several the value of the
        objective and its derivatives have errors of their own, so that the solution
        of the gradient equations need not be the lowest value.
        """
        point, target = self.point, self.problem.target
        if point.curvature.ndim == 1:
            return 0.0
        fine = target.expected_loss_terms(point.normal, refine=2)[0]
        return 2 * abs(float(fine + point.terms.value) - point.value)

    def _finish(self, gap: float, interrupted: bool) -> Solution:
        point, target = self.point, self.problem.target
        self.problem.posterior.set_normal(point.normal)
        fine = float(target.expected_loss_terms(point.normal, refine=2)[0])
        fine += float(point.terms.value)
        error = abs(fine - point.value)
        several = point.curvature.ndim == 3
        message, converged = "", gap < self._tolerance
        singular = _singularity(point) > 1e-3
        if interrupted:
            message = "interrupted: the best posterior so far was kept"
        elif self.stopped:
            pass  # by the user, who knows
        elif singular:
            message, converged = f"the result cannot be trusted: {SINGULAR}", False
        elif not converged:
            message = (
                f"after {len(self.history)} iterations the objective may still be "
                f"{gap:.2g} nats from its optimum; {self._remedy()}"
            )
        elif error > self._allowed_error():
            remedy = "posterior='mean_field'" if several else "loss='log'"
            message = (
                f"the quadrature may be wrong by {error:.2g} nats; use {remedy} or a "
                "prior with a smaller scale"
            )
        found = {"gap": gap, "quadrature_error": error, "interrupted": interrupted}
        found["stopped"] = self.stopped
        return Solution(
            solver=NaturalGradient.name,
            value=fine if several else point.value,
            history=self.history,
            n_iter=len(self.history),
            converged=converged,
            message=message,
            diagnostics=found,
            is_exact=True,
        )

    def _allowed_error(self) -> float:
        if self.point.curvature.ndim == 3:
            return COARSE_TOLERANCE
        return max(QUADRATURE_TOLERANCE, ROW_TOLERANCE * len(self.point.curvature))

    def _remedy(self) -> str:
        prior = self.problem.target.prior.matching_normal()
        width = float((self.point.normal.variance / prior.variance).max().sqrt())
        if width < 2:
            return "increase max_iter, or standardise the features"
        return (
            f"it hardly punishes width here, so that the posterior became {width:.0f} "
            "times as wide as the prior: use divergence='kl', an order closer to 1, "
            "or posterior='mean_field'"
        )


class _Nowhere:
    """Stands for a precision that is not positive definite."""

    value = math.inf


_NOWHERE: Any = _Nowhere()


def _singularity(point: _Point) -> float:
    """Largest disagreement between a precision and the scale derived from it."""
    if point.precision.ndim == 1:
        return 0.0
    scale = point.normal.scale
    product = scale.T @ (point.precision @ scale)
    return float((product - torch.eye(len(scale), dtype=scale.dtype)).abs().max())


def _scale_of(precision: torch.Tensor) -> torch.Tensor | None:
    """Standard deviations, or the lower Cholesky factor of the inverse."""
    if precision.ndim == 1:
        return precision.rsqrt() if bool((precision > 0).all()) else None
    # The factor of the matrix in reverse order gives a lower factor of the inverse.
    factor, info = torch.linalg.cholesky_ex(precision.flip((0, 1)))
    if int(info):
        return None
    upper = factor.flip((0, 1)).T
    identity = torch.eye(len(precision), dtype=precision.dtype)
    return torch.linalg.solve_triangular(upper, identity, upper=False)


def _add(matrix: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    if matrix.ndim == 2 and other.ndim == 1:
        return matrix + torch.diag(other)
    return matrix + other
