"""Damped natural gradient for linear models, and further starts."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import cast

import torch

from skvi.base import NormalForm
from skvi.posteriors._mixture import MixtureOverScales, beside
from skvi.solvers._hyper import solve_reduced
from skvi.solvers._mode import (
    DENSE_LIMIT,
    SINGULAR,
    factorize,
    find_mode,
    start_at_mode,
)
from skvi.solvers._newton import Descent, Place, singularity
from skvi.solvers._node_run import CarriedNodes, NodeRun
from skvi.solvers._nodes import Nodes, PlacedNodes
from skvi.solvers._run import (
    Run,
    judge_quadrature,
    known_error,
    missing_for_quadrature,
    refined_value,
    remedy_for,
    unfinished,
)
from skvi.solvers._solution import PhaseInterrupted, Solution, State, remaining_gain
from skvi.solvers._structures import structure_of
from skvi.solvers._whitened_nodes import WhitenedNodes
from skvi.solvers.base import Problem, Solver, SolverOptions, no_progress
from skvi.targets import SupervisedTarget, Target
from skvi.targets._blocks import starting
from skvi.targets._numbers import CarriedScale, Number, Scale, bound_at, numbers_of
from skvi.targets._rows import terms_at
from skvi.targets._supervised import with_design
from skvi.utils._tensors import randn

# Errors of a bad start above this many nats are no measure of those at the end.
NEGLIGIBLE = 0.1
# Steps whose gain is extrapolated where a prior may be nearly flat: single ones differ.
BLOCK = 6
# Gap to reach as a fraction of the error of the quadrature.
RESOLVED = 0.25


class NaturalGradient(Solver):
    """Minimize ``E_q[loss] + D(q || prior)`` without noise.

    f_i is normal under q, so that every E_q[loss_i] is a one-dimensional
    integral. With its derivatives in the mean and the variance of f_i, one
    iteration sets

        precision <- precision + rho (A' diag(E loss'') A + 2 dD/dcov) / c,
        mean      <- mean - rho (A' diag(E loss'') A + d2D/dmean2)^-1 gradient,

    which for KL is the natural gradient (c = 1). Anderson acceleration makes the linear
    convergence superlinear; a step that does not lower the objective is repeated
    without it, and then halved, so that the iteration cannot oscillate if the data are
    nearly separable. Divergences that hardly penalize width have curved valleys, in
    which steps are short: such a fit ends at `max_iter`, and says so.

    Examples
    --------
    >>> import torch
    >>> from skvi.divergences import KLDivergence
    >>> from skvi.likelihoods import GaussianLikelihood
    >>> from skvi.losses import LogLoss
    >>> from skvi.objectives import ELBO
    >>> from skvi.posteriors import FullRankNormal
    >>> from skvi.predictors import LinearPredictor
    >>> from skvi.priors import Normal
    >>> from skvi.solvers._natural_gradient import NaturalGradient
    >>> from skvi.solvers import Problem, SolverOptions
    >>> from skvi.targets import SupervisedTarget
    >>> model, X = LinearPredictor(1, fit_intercept=False), torch.ones(2, 1).double()
    >>> prior, y = Normal().build(model.layout), torch.tensor([1.0, 3.0])
    >>> parts = model, GaussianLikelihood(1.0), LogLoss(), prior, X, y
    >>> target = SupervisedTarget(*parts)
    >>> posterior = FullRankNormal().build(model.layout)
    >>> problem = Problem(target, ELBO(), KLDivergence(), posterior, None)
    >>> solution = NaturalGradient().solve(problem, SolverOptions())
    >>> round(solution.value, 4)  # - log p(D): here the posterior is normal
    4.7205
    >>> solution.posterior.as_normal().mean
    tensor([1.3333], dtype=torch.float64)
    """

    name = "natural_gradient"
    continues = True
    _nodes: type[NodeRun] = Nodes

    @staticmethod
    def missing(problem: Problem) -> str:
        """Say what the problem lacks; see `Solver.missing`."""
        target = problem.target
        if isinstance(target, SupervisedTarget):
            plain, numbers = numbers_of(target)
            if numbers and problem.divergence.kl_weight is None:
                return "only KL divergences average over an unknown number"
            known = bound_at(plain, numbers, [number.start for number in numbers])
            problem = replace(problem, target=known)
        return missing_for_quadrature(problem)

    def solve(self, problem: Problem, options: SolverOptions) -> Solution:
        """Fit without draws: `value` is exact up to quadrature; see `Solver`."""
        numbers = numbers_of(problem.target)[1]
        if numbers or problem.linear_target.prior.as_normal():
            found = solve_reduced(self.solve, problem, options)
            if found is not None:
                return found
        with torch.inference_mode():
            if numbers:
                return self._run_of(numbers)(problem, options).run()
            return _Single(problem, options).run()

    def _run_of(self, numbers: Sequence[Number]) -> type[NodeRun]:
        """How nodes of these numbers are placed."""
        if isinstance(numbers[0], CarriedScale):
            return CarriedNodes
        several = sum(isinstance(number, Scale) for number in numbers) > 1
        return WhitenedNodes if several else self._nodes


class AtPlaces(NaturalGradient):
    """Fit at the places of the nodes of the start, if it has any."""

    _nodes = PlacedNodes


class _Single(Run):
    """A descent that reports its iterations."""

    solver = NaturalGradient.name
    known = {"quadrature_error": None}

    def __init__(self, problem: Problem, options: SolverOptions) -> None:
        super().__init__(problem, options)
        target = with_design(problem.objective.training_target(problem.target))
        if target.hyper.shape[0]:
            with torch.inference_mode(False):  # for derivatives of likelihoods
                target = target.frozen()
        self.problem = replace(problem, target=target)
        self.structure = structure_of(problem.posterior, self.problem.linear_target)
        self.descent = self._start()
        #: Where the quadrature was refined, and what it gave; the gap at the last time
        #: that its error decided on anything.
        self._refined: tuple[NormalForm | None, float] = (None, math.nan)
        self._resolved_at = 0.0

    @property
    def value(self) -> float:
        return self.place.value

    @property
    def place(self) -> Place:
        """Where the descent is."""
        return cast(Place, self.descent.place(0))

    def state(self) -> State:
        with torch.inference_mode(False), torch.no_grad():  # for graphs of others
            posterior = self.given.posterior.near(self.place.normal)
        return State(posterior, self.given.target)

    def _start(self) -> Descent:
        """At the last posterior, or near the mode."""
        target, posterior = self.problem.linear_target, self.problem.posterior
        if self.options.warm_start and (normal := posterior.as_normal()) is not None:
            precision = self.structure.precision_of(normal)
            descent = self._from(normal.mean, precision)
            if descent.place(0) is not None:
                return descent
        descent = self._from(*start_at_mode(target, self.structure))
        if descent.place(0) is None:
            raise ValueError(SINGULAR)
        return descent

    def _from(self, mean: torch.Tensor, precision: torch.Tensor) -> Descent:
        target, divergence = self.problem.linear_target, self.problem.divergence
        begin = mean[None], precision[None]
        return Descent([target], divergence, *begin, self.structure)

    def improve(self) -> Solution:
        while self.may_go_on:
            if self.history and self._is_done():
                break
            self.descent.slack = self._resolution
            self.descent.step()
            self.report()
            if not self.descent.may_go_on(0):  # to the precision of floats
                break
        return self._finish(self._gap())

    def _is_done(self) -> bool:
        """Whether the gap is small, not only relative to errors of a bad start."""
        if self._gap() >= self._tolerance:
            return False
        if self._resolved_at > NEGLIGIBLE:
            self.__dict__.pop("_resolution", None)
        return self._gap() < self._tolerance

    def _gap(self) -> float:
        """Nats to the optimum at this point, by a quadratic model.

        At least what the last steps promise, if the prior may be nearly flat.
        """
        gap = self.place.gap
        if self.problem.linear_target.prior.as_normal() is not None:
            return gap
        last = self.history[-2 * BLOCK - 1 :: BLOCK]
        values = last if len(last) == 3 else self.history[-3:]
        gains = [max(a - b, 0.0) for a, b in pairwise(values)]
        return max(gap, remaining_gain(gains))

    @property
    def _tolerance(self) -> float:
        """Gap to reach: the requested one, or what the quadrature can resolve."""
        return max(self.options.tol, RESOLVED * self._resolution)

    @cached_property
    def _resolution(self) -> float:
        """Error of the quadrature if a loss depends on several f, in nats.

        Values and derivatives have separate errors: the zero of the gradient need not
        be the lowest value. With a single f the error is far below the tolerance.
        """
        if self.problem.linear_target.predictor.n_outputs == 1:
            return 0.0
        known = known_error(self.problem.linear_target)
        if known < RESOLVED * self.options.tol:
            return 2 * known
        self._resolved_at = self._gap()
        return 2 * abs(self._refined_value() - self.value)

    def _finish(self, gap: float) -> Solution:
        normal, target = self.place.normal, self.problem.linear_target
        several = target.predictor.n_outputs > 1
        fine, error = self.value, known_error(target)
        if not (several and error < RESOLVED * self.options.tol):
            fine = self._refined_value()
            error = abs(fine - self.value)
        message, converged = "", gap < self._tolerance
        singular = singularity(self.place) > 1e-3
        if self.stopped:
            pass  # by the user, who knows about it
        elif singular:
            message, converged = f"the result cannot be trusted: {SINGULAR}", False
        elif not converged:
            remedy = remedy_for(self.problem, normal)
            message = unfinished(len(self.history), gap, remedy)
        else:
            message = judge_quadrature(error, target)
        found = {"gap": gap, "quadrature_error": error}
        solution = self.solution(converged, message, found)
        return replace(solution, value=fine) if several else solution

    def _refined_value(self) -> float:
        normal, (where, value) = self.place.normal, self._refined
        if where is not normal:
            prior = self.problem.linear_target.prior
            terms = self.problem.divergence.terms(normal, prior)
            value = refined_value(self.problem, normal, float(terms.value))
            self._refined = normal, value
        return value


# The wide prior has the information of this fraction of one row of the data.
WIDE = 0.01
# Deviation of the log of a number at a start.
NUMBER_WIDTH = 0.1
# Distance from their optima, in nats, at which two starts are compared.
ROUGH_TOL = 0.01


def likelihood_normal(target: Target, is_diagonal: bool = False) -> NormalForm | None:
    """Normal around the mode under a prior so wide that the likelihood decides.

    None if the prior is log-concave, or as wide as this normal in every parameter:
    there is no hidden mode. Factorized above 1500 parameters.
    """
    if not target.has_design or target.reference.is_log_concave:
        return None
    target = starting(cast(SupervisedTarget, target))
    around = target.prior.matching_normal()
    if around is None:
        return None
    _, slope, curvature = terms_at(target, around.mean)
    if curvature.ndim == 1:
        # A likelihood with heavy tails has the wrong curvature there.
        curvature = torch.where(curvature > 0, curvature, slope.square())
    gram = target.predictor.gram_diagonal(target.X, curvature)
    precision = WIDE * gram / target.n_rows
    # Never narrower than the prior itself, which also covers columns of zeros.
    precision = torch.minimum(precision, 1 / around.variance)
    precision = torch.where(precision > 0, precision, 1 / around.variance)
    wide = NormalForm(around.mean, precision.rsqrt())
    mode, curvature = find_mode(target, wide)
    if is_diagonal or target.layout.size > DENSE_LIMIT:
        total = target.predictor.gram_diagonal(target.X, curvature) + precision
        normal = NormalForm(mode, total.rsqrt())
    else:
        gram = target.predictor.gram(target.X, curvature)
        covariance = torch.cholesky_inverse(factorize(gram + torch.diag(precision)))
        normal = NormalForm(mode, factorize(covariance))
    is_hidden = bool((around.variance < normal.variance).any())
    return normal if is_hidden else None


@torch.no_grad()
def choose_start(
    solver: Solver,
    problem: Problem,
    options: SolverOptions,
    start: State | None = None,
) -> State | None:
    """Find the better one of two optima, if there may be two, to start from.

    A prior with a peak at 0 and heavy tails can trap a fit: the second optimum is found
    from large likelihood. Ctrl-C raises PhaseInterrupted if there is a result.
    """
    if not solver.continues:
        return start
    given = problem.state if start is None else start
    far = _likely_state(given)
    if far is None:
        return start
    tol, is_warm = max(options.tol, ROUGH_TOL), start is not None
    rough = replace(options, tol=tol, progress=no_progress, warm_start=is_warm)
    first = solver.solve(problem.at(given), rough)
    first.raise_interrupt()
    try:
        second = solver.solve(problem.at(far), replace(rough, warm_start=True))
    except KeyboardInterrupt:
        raise PhaseInterrupted(first.state) from None
    except (ValueError, torch.linalg.LinAlgError):
        return first.state  # the second start is optional
    best = min((first, second), key=_finite_value)
    if second.interrupted:
        raise PhaseInterrupted(best.state)
    return best.state


def _likely_state(given: State) -> State | None:
    """State at large likelihood, with its best number; None if none can be hidden."""
    (posterior, target), is_diagonal = given, given.posterior.is_diagonal
    plain, numbers = numbers_of(target)
    if not numbers:
        normal = likelihood_normal(target, is_diagonal)
        return None if normal is None else State(posterior.near(normal), target)
    if isinstance(numbers[0], Scale):
        return None  # it is searched for by itself
    known = bound_at(plain, numbers, [number.start for number in numbers])
    if (normal := likelihood_normal(known, is_diagonal)) is None:
        return None
    family = getattr(posterior, "likeliest", posterior)
    node = family.near(beside(normal, numbers[0].best(plain, normal), NUMBER_WIDTH))
    return State(MixtureOverScales([node], [0.0], None), target)


def solve_from_best(
    solver: Solver, problem: Problem, options: SolverOptions
) -> Solution:
    """Solve from the better one of two starts; see `choose_start`."""
    start = choose_start(solver, problem, options)
    if start is None:
        return solver.solve(problem, options)
    return solver.solve(problem.at(start), replace(options, warm_start=True))


def _finite_value(found: Solution) -> float:
    return found.value if math.isfinite(found.value) else math.inf


# Starts from the prior are at most this many standard deviations from its mean.
FARTHEST_START = 10.0
# A normal log density falls by half the squared distance; starts from the prior are
# moved closer while theirs falls by more than this multiple of the square.
STEEPEST_START, MAX_HALVINGS = 2.0, 20
# Inflation of the standard deviations of starts that do not come from the prior.
WIDER = 3.0


def dispersed_starts(
    target: Target, normal: NormalForm, generator: torch.Generator, n_chains: int
) -> torch.Tensor:
    """Starts of chains, (n_chains, P), half of them from a normal near the posterior.

    The others are from the prior; from the normal, wider, for log-concave densities;
    and some at large likelihood, if the prior has a peak that chains do not leave.
    """
    eps = randn(generator, n_chains // 2, normal.size)
    n_rest = n_chains - n_chains // 2
    is_near = target.prior is None or target.noise_hyperprior is not None
    if is_near or target.is_log_concave:
        # Hyperpriors draw numbers that no chain returns from. Where the density is
        # log-concave there is no other mode, and a prior may be wide without end.
        wide = normal.transform(WIDER * randn(generator, n_rest, normal.size))
        return torch.cat([normal.transform(eps), wide])
    prior = target.reference.sample(n_rest, generator)
    around = target.reference.matching_normal()
    if around is not None:
        # Chains do not return from draws of heavy tails.
        reach = FARTHEST_START * around.variance.sqrt()
        prior = prior.clamp(around.mean - reach, around.mean + reach)
    starts = torch.cat([normal.transform(eps), _drawn_back(target, normal, prior)])
    if target.reference.is_log_concave or target.reference.n_unknown_scales:
        return starts
    likely = likelihood_normal(target)
    if likely is not None:
        third = len(starts[::3])
        starts[::3] = likely.transform(randn(generator, third, likely.n_noise))
    return starts


def _drawn_back(
    target: Target, normal: NormalForm, starts: torch.Tensor
) -> torch.Tensor:
    """Halve distances from the normal's mean if the density falls too steeply.

    No step size that suits the posterior is ever accepted there.
    """
    moved = starts - normal.mean
    top = target.log_joint(normal.mean[None])
    for _ in range(MAX_HALVINGS):
        fall = top - target.log_joint(normal.mean + moved)
        distance = normal.whiten(moved).square().sum(1)
        stays = fall <= STEEPEST_START * (distance + moved.shape[1])
        if stays.all():
            break
        moved = torch.where(stays[:, None], moved, 0.5 * moved)
    return normal.mean + moved
