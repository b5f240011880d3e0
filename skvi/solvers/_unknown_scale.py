"""A prior with one unknown scale, without noise: the fit under the scale it implies."""

import math
from dataclasses import replace
from typing import NamedTuple, cast

import torch

from skvi.base import NormalForm
from skvi.posteriors import Posterior
from skvi.priors import BuiltPrior
from skvi.solvers._mode import DENSE_LIMIT, add, find_mode, scale_of
from skvi.solvers._natural_gradient import NaturalGradient
from skvi.solvers._quasi_newton_solver import QuasiNewton
from skvi.solvers._run import Run
from skvi.solvers._solution import Solution, State
from skvi.solvers._verdict import unfinished
from skvi.solvers.base import Problem, Solver, SolverOptions, no_progress

__all__ = ["FIXED_SCALES", "ScaleSearch", "implied_scale"]

# What fits at fixed scales: the first one that can.
FIXED_SCALES: tuple[type[Solver], ...] = (NaturalGradient, QuasiNewton)
INNER_ITER = 100
# The scale is as good as found where it promises so many times the tolerance: a
# hundredth of its own posterior's width, and q is exact for it.
SCALE_TOL = 100
# Fits on the way are as accurate as this, in nats, and as this share of what the next
# step of the scale promises.
ROUGH_TOL, SHARE = 0.03, 0.03
# Modes from which the scale is guessed, until it moves by less than this factor's log.
N_MODES, NEAR = 10, 0.1
# Longest steps of a log scale, and beside the last one; largest elasticity.
LONGEST, LONGER, STEEPEST = 1.5, 3.0, 0.9999
# Differences of scales that are too small to measure an elasticity by.
TOO_NEAR = 1e-3


def implied_scale(prior: BuiltPrior, normal: NormalForm) -> tuple[float, float]:
    """Scale that a normal posterior implies, and its elasticity.

    Parameters
    ----------
    prior : BuiltPrior
        With one unknown scale.
    normal : NormalForm
        Over the parameters of the prior; of a low rank the marginal variances count.

    Returns
    -------
    scale, elasticity : float
        See `BuiltPrior.implied_scale`.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import Layout, NormalForm
    >>> from skvi.priors import HalfCauchy, Normal
    >>> from skvi.solvers import implied_scale
    >>> prior = Normal(HalfCauchy()).build(Layout({"coef": (1, 100)}))
    >>> normal = NormalForm(0.3 * torch.ones(100), 0.4 * torch.ones(100))
    >>> round(implied_scale(prior, normal)[0], 2)  # the root mean square
    0.5
    """
    root = normal.scale if normal.factor is None else normal.variance.sqrt()
    return prior.implied_scale(normal.mean, root)


class ScaleSearch(Run):
    """Minimize ``E_q[loss] + w KL(q || prior)`` for a prior with one unknown scale.

    At the optimum q is the fit under a normal prior of the scale that q itself
    implies, `BuiltPrior.implied_scale`. Newton and secant steps of the log scale find
    it. Every fit starts at the last one; the first one has the scale of posterior
    modes, which cost little.
    """

    solver = "empirical_bayes"

    def __init__(self, problem: Problem, options: SolverOptions) -> None:
        super().__init__(problem, options)
        self.prior: BuiltPrior = problem.linear_target.prior
        self.inner = replace(options, max_iter=INNER_ITER, progress=no_progress)
        self.kept: list[_Fit] = []  # none or one
        self.gap, self.last_step, self.n_inner = math.inf, math.inf, 0

    @property
    def is_usable(self) -> bool:  # type: ignore[override]
        return bool(self.kept)

    @property
    def known(self) -> dict:  # type: ignore[override]
        return self.kept[0].found.diagnostics

    @property
    def value(self) -> float:
        return self.kept[0].value

    def state(self) -> State:
        return State(self.kept[0].found.posterior, self.given.target)

    def improve(self) -> Solution:
        best = self._fit(self._first_scale(), self.given.posterior, ROUGH_TOL)
        self.kept, self.inner = [best], replace(self.inner, warm_start=True)
        stalled = False
        while self.may_go_on and not stalled:
            step, self.gap = self._step(best)
            if self.gap < SCALE_TOL * self.options.tol and best.is_accurate:
                break
            found = self._move(best, step)
            stalled = found is None
            best = best if found is None else found
            self.kept = [best]
            self.report()
        return self._finish(best)

    def _move(self, best: "_Fit", step: float) -> "_Fit | None":
        """Take the step, or as much of it as lowers the objective."""
        slack = 1e-12 * abs(best.value) + best.found.diagnostics["gap"]
        while abs(step) > 1e-6 or not best.is_accurate:
            scale = best.log_scale + step
            trial = self._fit(scale, best.found.posterior, SHARE * self.gap)
            if trial.value <= best.value + slack:
                self.last_step = abs(step)
                return trial.beside(best)
            step /= 4
        return None

    def _step(self, fit: "_Fit") -> tuple[float, float]:
        """Newton step of the log scale, and the nats that it promises."""
        lack = fit.implied - fit.log_scale
        longest = min(LONGEST, LONGER * self.last_step)
        step = lack / (1 - min(fit.elasticity, STEEPEST))
        step = max(-longest, min(longest, step))
        # The derivative of the objective is about 2 P times what the scale lacks.
        return step, self.given.target.layout.size * abs(lack * step)

    def _first_scale(self) -> float:
        """Where posterior modes, or the posterior of a warm start, have the scale."""
        log_scale = 0.0
        if self.options.warm_start:
            normal = cast(NormalForm, self.given.posterior.as_normal())
            return self._implied(normal)[0]
        target, mean = self.given.linear_target.with_design(), None
        for _ in range(N_MODES):
            prior = cast(NormalForm, self._prior_at(log_scale).as_normal())
            mean, curvature = find_mode(target, prior, start=mean)
            around = self._around(mean, curvature, prior)
            step, _ = self._step(_Fit(log_scale, *self._implied(around)))
            log_scale += step
            if abs(step) < NEAR:
                break
        return log_scale

    def _around(
        self, mean: torch.Tensor, curvature: torch.Tensor, prior: NormalForm
    ) -> NormalForm:
        """Normal with the curvature at a mode."""
        target = self.given.linear_target
        if self.given.posterior.is_diagonal or target.layout.size > DENSE_LIMIT:
            precision = target.predictor.gram_diagonal(target.X, curvature)
        else:
            precision = target.predictor.gram(target.X, curvature)
        scale = scale_of(add(precision, 1 / prior.variance))
        return prior if scale is None else NormalForm(mean, scale)

    def _prior_at(self, log_scale: float) -> BuiltPrior:
        return self.prior.given_scale(math.exp(log_scale))

    def _implied(self, normal: NormalForm) -> tuple[float, float]:
        """Log of the scale that a normal implies, and the elasticity."""
        scale, elasticity = implied_scale(self.prior, normal)
        return math.log(scale), elasticity

    def _fit(self, log_scale: float, start: Posterior, tol: float) -> "_Fit":
        """Best posterior at a scale, and the objective there."""
        tol, prior = (
            max(min(tol, ROUGH_TOL), self.options.tol),
            self._prior_at(log_scale),
        )
        target = self.given.linear_target.with_prior(prior)
        problem = self.given.at(State(start, target))
        solver = next(s for s in FIXED_SCALES if not s.missing(problem))
        found = solver().solve(problem, replace(self.inner, tol=tol))
        normal = cast(NormalForm, found.posterior.as_normal())
        change = self._divergence(normal, self.prior) - self._divergence(normal, prior)
        fit = _Fit(log_scale, *self._implied(normal), found.value + change, found)
        fit = fit._replace(is_accurate=tol <= self.options.tol)
        if not self.kept:  # all that there is, should Ctrl-C come now
            self.kept = [fit]
        found.raise_interrupt()
        return fit

    def _divergence(self, normal: NormalForm, prior: BuiltPrior) -> float:
        return float(self.given.divergence.closed_form(normal, prior))

    def _finish(self, best: "_Fit") -> Solution:
        inner, tol = best.found, self.options.tol
        gap = self.gap + inner.diagnostics["gap"]
        converged = self.gap < SCALE_TOL * tol and inner.converged
        message = "" if self.stopped else inner.message
        if not (converged or message or self.stopped):
            message = unfinished(len(self.history), gap)
        return self.solution(converged, message, {**self.known, "gap": gap})


class _Fit(NamedTuple):
    """A fit at a scale, and the scale that it implies; logarithms of both."""

    log_scale: float
    implied: float
    elasticity: float
    value: float = math.inf
    found: Solution = None  # type: ignore[assignment]
    is_accurate: bool = False

    def beside(self, other: "_Fit") -> "_Fit":
        """With the elasticity between two fits, where that is larger.

        The one that a fit knows by itself leaves out that losses flatten.
        """
        distance = self.log_scale - other.log_scale
        if abs(distance) < TOO_NEAR:
            return self
        secant = (self.implied - other.implied) / distance
        known = secant if self.elasticity < secant < 1 else self.elasticity
        return self._replace(elasticity=known)
