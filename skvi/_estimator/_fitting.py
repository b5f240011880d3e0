"""The steps of a fit after its model: pose the problem, solve, conclude."""

import math
from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning

from skvi._estimator._evidence import better_state, cut_short, describe_fit, judge_fit
from skvi._estimator._progress import FitProgress
from skvi.exceptions import SkviWarning
from skvi.posteriors import Posterior
from skvi.posteriors._mixture import MixtureOverScales, leading
from skvi.solvers import Problem, Solver, Stochastic
from skvi.solvers._checkpoint import CheckpointFile
from skvi.solvers._exact import ExactSolver, MixtureOverPrecisions
from skvi.solvers._mode import DENSE_LIMIT, solve_newton
from skvi.solvers._natural_gradient import NaturalGradient, choose_start
from skvi.solvers._solution import Ending, PhaseInterrupted, Solution, State
from skvi.targets import SupervisedTarget, Target
from skvi.targets._blocks import BlockRows, convex_part
from skvi.targets._numbers import bound_at, numbers_of
from skvi.targets._rows import terms_at
from skvi.utils._interrupts import limit_threads
from skvi.utils._tensors import CPU, generator_on, make_generator, resolve_device


def pose(estimator: Any, target: Any) -> tuple[Problem, Solver]:
    """Check the combination; return the problem at its start, and the solver.

    The problem is on the device of the fit.
    """
    parts = estimator.divergence_, target
    estimator.objective_.check(*parts)
    estimator.posterior_family_.check_size(target.layout.size)
    generator = make_generator(estimator.random_state)
    posterior = estimator.posterior_family_.build(target.layout, generator)
    estimator._check_posterior(posterior)
    # Components of a mixture are trained independently.
    component = posterior.components[0]
    estimator.objective_.check(*parts, component)
    device = resolve_device(estimator.device, estimator._device_work(target))
    if device != CPU:
        target, posterior = target.to(device), posterior.to(device)
        generator = generator_on(generator, device)
    problem = Problem(
        target, estimator.objective_, estimator.divergence_, posterior, generator
    )
    solver = estimator._choose_solver(problem)
    if isinstance(target, SupervisedTarget) and isinstance(target.rows, BlockRows):
        is_able = isinstance(solver, ExactSolver | NaturalGradient)
        if not is_able or device != CPU or target.layout.size > DENSE_LIMIT:
            target.rows.take()
    if isinstance(solver, Stochastic):
        estimator.objective_.check(*parts, component, solver.draws_per_step)
    return problem, solver


def solve(
    estimator: Any,
    problem: Problem,
    solver: Solver,
    before: dict[str, Any],
    data: dict,
    file: CheckpointFile | None = None,
) -> tuple[Solution, FitProgress]:
    """Find a start and solve; after Ctrl-C with the result of the current phase.

    Raises KeyboardInterrupt if there is no result yet.
    """
    start, options = None, estimator._solver_options(problem.target)
    progress = FitProgress(estimator, data, solver.count_iterations(problem, options))
    try:
        if before and (estimator.warm_start or estimator._continues):
            start = estimator._continue(problem, before, solver)
            options = replace(options, warm_up=0.0)
        else:
            start = _start(estimator, problem, solver, file)
        checkpoint = None if file is None else file.at("main")
        if checkpoint is not None:
            progress.resume(checkpoint.n_iter, file.path)
        options = replace(options, progress=progress, checkpoint=checkpoint)
        if start is None:
            return solver.solve(problem, options), progress
        options = replace(options, warm_start=True)
        return solver.solve(problem.at(start), options), progress
    except PhaseInterrupted as phase:
        state = better_state(start or problem.state, phase.state)
    except KeyboardInterrupt:
        if start is None:
            raise
        state = start
    return cut_short(problem.at(state), solver), progress


def _start(
    estimator: Any, problem: Problem, solver: Solver, file: CheckpointFile | None
) -> State | None:
    """Find the start of a first fit; None is the state of the problem."""
    start = begin(estimator, problem, solver)
    first = None if start is None else estimator._first_phase(problem.at(start))
    if first is None:
        return start
    task, options = first
    checkpoint = None if file is None else file.at("start")
    found = solver.solve(task, replace(options, checkpoint=checkpoint))
    found.raise_interrupt()
    return found.state


def begin(estimator: Any, problem: Problem, solver: Solver) -> State | None:
    """Find the start of the first phase of a fit, without gradients."""
    options = estimator._solver_options(problem.target)
    start = estimator._prepare(problem, solver)
    return choose_start(solver, problem, options, start)


def fit_likeliest(
    estimator: Any, X: Any, y: Any, sample_weight: Any, rows: Any
) -> Solution:
    """Fit for predictions alone, at the likeliest numbers that all rows share."""
    target, _ = estimator._make_target(X, y, sample_weight, rows)
    with limit_threads(estimator._work(target), estimator.n_jobs):
        problem, solver = estimator._pose(target)
        options = replace(estimator._solver_options(target), averages=False)
        if (start := begin(estimator, problem, solver)) is not None:
            problem, options = problem.at(start), replace(options, warm_start=True)
        solution = refine(problem, solver.solve(problem, options))
    solution.raise_interrupt()
    vars(estimator).update(estimator._posterior_attributes(solution.state))
    return solution


@torch.no_grad()
def cost_of_prior(solution: Solution) -> float:
    """Nats of the rows' loss that a linear model can gain by less weight of the prior.

    By a Newton step for the loss alone, from the posterior mean: half of Rao's score
    statistic. Infinite if the posterior is not normal given the shared numbers.
    """
    posterior, (target, numbers) = solution.posterior, numbers_of(solution.target)
    z = [number.start for number in numbers]
    if isinstance(posterior, MixtureOverPrecisions):
        normal, z[-1] = posterior.matching_normal(), -math.log(posterior.noise_variance)
    else:
        if isinstance(posterior, MixtureOverScales):
            z = posterior.places()[int(posterior.log_weights.argmax())].tolist()
        found = getattr(posterior, "likeliest", posterior).as_normal()
        if found is None:
            return math.inf
        normal = leading(found, target.layout.size)
    known = bound_at(target, numbers, z)
    _, slope, curvature = terms_at(known, normal.mean)
    gradient = known.predictor.pull_back(known.X, slope)
    # Next to nothing, where the rows do not say anything of a coefficient.
    beside, dense = 1e-6 / normal.variance, known.layout.size <= DENSE_LIMIT
    curvature = convex_part(known, curvature)
    step = solve_newton(known, curvature, beside, gradient, dense)
    return 0.5 * float(gradient @ step)


def refine(problem: Problem, solution: Solution) -> Solution:
    """Refine the posterior with the data; after Ctrl-C it is unchanged."""
    if solution.interrupted:
        return solution
    (posterior, target), weight = solution.state, problem.divergence.kl_weight
    fixed = target.frozen()
    if posterior.refinement is not None and weight not in (None, 1):
        fixed = fixed.powered(1 / weight)
    try:
        refined = posterior.refine(fixed, problem.generator)
    except KeyboardInterrupt:
        return solution.cut_short()
    if refined is posterior:
        return solution
    return replace(solution, state=State(refined, target), is_exact=False)


def conclude(
    estimator: Any,
    problem: Problem,
    solution: Solution,
    file: CheckpointFile | None = None,
) -> tuple[Solution, dict[str, Any]]:
    """Fitted attributes, after Ctrl-C without slow ones; and how it ended."""
    if not solution.interrupted:
        try:
            found = estimator._posterior_attributes(solution.state)
            report = None if file is None else file.at("report")
            found |= judge_fit(problem, solution, report)
            _compare(estimator, found, solution)
            return solution, found
        except KeyboardInterrupt:
            solution = solution.cut_short()
    found = estimator._posterior_attributes(solution.state)
    return solution, found | describe_fit(problem, solution)


def _compare(estimator: Any, found: dict[str, Any], solution: Solution) -> None:
    """Add a comparison with a constant fit to the diagnostics, and warn."""
    # Before the attributes are set; a copy would use the state of a pickle.
    fitted = object.__new__(type(estimator))
    vars(fitted).update(vars(estimator), **found)
    target, ending = solution.target, solution.ending
    numbers, always, message = fitted._judge_fit(target)
    diagnostics = found["diagnostics_"]
    diagnostics |= numbers
    has_ended = ending in (Ending.CONVERGED, Ending.PLANNED)
    has_ended = has_ended and not diagnostics["message"]
    if has_ended:
        diagnostics["message"] = message
    texts = [always, diagnostics["message"], fitted._input_remedy(target)]
    diagnostics["message"] = "; ".join(filter(None, texts))
    category = SkviWarning if has_ended else ConvergenceWarning
    estimator._warn(diagnostics["message"], category)


def continued_state(
    problem: Problem, before: dict[str, Any], classes: ArrayLike, solver: Solver
) -> State:
    """State in which the last fit ended, as far as the next family can represent it.

    `before` holds "posterior_", "_hyper" and for classifiers "classes_" of the last
    fit. ValueError if its parameters or classes are not those of the next.
    """
    target, posterior = problem.target, problem.posterior
    last = before["posterior_"].layout
    same_classes = np.array_equal(before.get("classes_", ()), classes)
    if dict(last) != dict(target.layout) or not same_classes:
        raise ValueError(
            f"warm_start=True continues from a fit with {last}; these data and "
            f"parameters need {target.layout}, or have other classes. Use the "
            "same features, classes and sizes, or warm_start=False."
        )
    if isinstance(solver, NaturalGradient):
        mixture = before["posterior_"]
        if isinstance(mixture, MixtureOverScales):
            posterior = mixture.in_family(posterior)
            return State(posterior, at_last_scales(target, before))
    # Components of a mixture continue those of the last fit, in turn.
    ends = [_single(end) for end in before["posterior_"].unrefined.components]
    pairs = zip(posterior.components, cycle(ends))
    posterior = posterior.with_components([continued(*pair) for pair in pairs])
    return State(posterior, at_last_scales(target, before))


def continued(posterior: Posterior, last: Posterior) -> Posterior:
    """Posterior at the end of the last one, as far as its family can represent it."""
    normal = last.as_normal()
    if normal is not None:
        return posterior.near(normal)
    if len(last.params) != len(posterior.params):
        return posterior
    device = posterior.params.device
    # Its parameters refer to the normal of its start.
    if last.starts_at_normal and type(last) is type(posterior):
        return last.to(device)
    return posterior.at(last.params.clone().to(device))


def _single(posterior: Posterior) -> Posterior:
    """The likeliest part of a mixture over scales, near which a fit ends."""
    return getattr(posterior, "likeliest", posterior)


def at_last_scales(target: Target, before: dict[str, Any]) -> Target:
    """Target at the scales of the last fit's "_hyper", if it learns as many."""
    hyper = torch.from_numpy(before["_hyper"].copy()).to(target.hyper.device)
    return target.at(hyper) if len(hyper) == len(target.hyper) else target
