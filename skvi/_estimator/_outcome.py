"""The result of a solver, as fitted attributes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from skvi.divergences._messages import width_message
from skvi.evidence._fit_checks import (
    BOUND_DRAWS,
    judge_existence,
    lower_bound,
    upper_elbo,
    weight_diagnostics,
)
from skvi.objectives._ensemble_steps import estimate
from skvi.solvers import Problem, Solver, Stochastic
from skvi.solvers._checkpoint import Checkpoint
from skvi.solvers._solution import INTERRUPTED, Ending, Solution, State

__all__ = [
    "better_state",
    "cut_short",
    "describe_fit",
    "joined_rows",
    "judge_fit",
    "learned_scales",
    "without_rows",
]

# Draws for the bound of a stochastic fit: an eighth of those of the fit, whose
# gradients cost twice as much, and at least a few; after Ctrl-C, and for a fit that is
# one of many, at most a hundred.
PER_DRAW, LEAST_DRAWS, FEW_DRAWS = 8, 10, 100


def judge_fit(
    problem: Problem,
    solution: Solution,
    report: Checkpoint | None = None,
) -> dict[str, Any]:
    """Fitted attributes by name, with all diagnostics; "message" is that of a warning.

    Estimates are stored in the checkpoint `report`, if given: a loaded fit does not
    repeat them.
    """
    (posterior, target), generator = solution.state, problem.generator
    known = None if report is None else report.state
    if known is None:
        bound = _bound(problem, solution)
        weights = weight_diagnostics(
            target,
            posterior,
            solution.n_iter,
            generator,
            solution.solver,
            solution.n_draws,
        )
        weights |= upper_elbo(target, posterior, generator, _bound_draws(solution))
        known = {"bound": list(bound), "weights": weights}
        if report is not None:
            report.save(known)
    found = describe_fit(problem, solution, known["bound"])
    lost = _lost(problem, solution)
    converged = solution.converged and not lost
    bound_exists, message = judge_existence(
        problem.objective, target, posterior, lost or solution.message
    )
    found["converged_"] = converged
    found["diagnostics_"] |= {
        "converged": converged,
        **known["weights"],
        "bound_exists": bound_exists,
        "message": message,
    }
    return found


def _lost(problem: Problem, solution: Solution) -> str:
    """Describe failures of a posterior, or of a component of it; empty if none."""
    given, prior, source = problem.divergence, solution.target.prior, problem.generator
    # Sums over blocks are unbounded: only draws can lose them.
    is_safe = solution.is_exact and given.is_additive
    for component in solution.posterior.components:
        found = "" if is_safe else given.collapse(component, prior, source)
        if not found and given.is_weak:
            found = width_message(given, component, prior)
        if found:
            return found
    return ""


def describe_fit(
    problem: Problem,
    solution: Solution,
    bound: Sequence[float] | None = None,
) -> dict[str, Any]:
    """Fitted attributes by name, without slow diagnostics.

    `bound` is the final ELBO and its standard error, in nats; None computes them.
    """
    objective = problem.objective
    sign = 1 if objective.direction == "upper" else -1
    objective_value = sign * solution.value
    bound = _bound(problem, solution) if bound is None else bound
    diagnostics = {
        "solver": solution.solver,
        "converged": solution.converged,
        "ending": solution.ending.value,
        **solution.diagnostics,
        "n_draws": solution.n_draws,
        "efficiency": None,
        "khat": None,
        "learned": learned_scales(solution.target),
        "bound_exists": None,
        "message": solution.message,
    }
    found = {
        "n_iter_": solution.n_iter,
        "loss_curve_": np.asarray(solution.history),
        "objective_value_": objective_value,
        "objective_value_se_": solution.value_se,
        "lower_bound_": bound[0],
        "lower_bound_se_": bound[1],
        "converged_": solution.converged,
        "diagnostics_": diagnostics,
    }
    if solution.scores:
        found["validation_scores_"] = np.asarray(solution.scores)
        found["best_validation_score_"] = solution.score
    return found


def _bound(problem: Problem, solution: Solution) -> Sequence[float]:
    """The final ELBO and its standard error."""
    objective = problem.objective
    is_elbo = objective.kind == "expectation" and problem.divergence.is_standard
    if solution.is_exact and is_elbo:
        return -solution.value, 0.0
    draws = _bound_draws(solution)
    return lower_bound(solution.target, solution.posterior, problem.generator, draws)


def _bound_draws(solution: Solution) -> int:
    """Draws for the final ELBO: a few percent of the work of a stochastic fit."""
    most = FEW_DRAWS if solution.interrupted else BOUND_DRAWS
    if solution.n_draws is None:
        return most
    return min(max(solution.n_draws // PER_DRAW, LEAST_DRAWS), most)


@torch.no_grad()
def cut_short(problem: Problem, solver: Solver) -> Solution:
    """Solution of a fit that was interrupted before its solver had a result.

    It has the posterior of `problem`, and an estimate of the objective's value.
    """
    value = estimate(problem.objective, problem, None, LEAST_DRAWS)
    # A single estimate gives no error.
    return Solution(
        solver=solver.name,
        state=problem.state,
        value=float(value),
        history=[],
        n_iter=0,
        ending=Ending.INTERRUPTED,
        message=INTERRUPTED,
        value_se=math.nan,
        n_draws=0 if isinstance(solver, Stochastic) else None,
    )


def better_state(first: State, second: State) -> State:
    """Return the second state, unless the first has the larger ELBO, up to its error.

    Each at its own scales; same draws. The result of a phase for another problem need
    not be better for this one.
    """

    def bound(state: State) -> Any:
        generator = torch.Generator(state.target.hyper.device).manual_seed(0)
        return lower_bound(state.target, state.posterior, generator, FEW_DRAWS)

    before, after = bound(first), bound(second)
    return first if after.value < before.value + after.se else second


def learned_scales(target: Any, prefix: str = "") -> dict[str, float]:
    """Learned parameters of likelihood and prior whose names begin with `prefix`.

    The prefix is removed, so that scales of blocks have the names of the blocks.
    """
    if not target.hyper.shape[0]:
        return {}
    layout = target.point_layout
    values = layout.unpack(target.hyper.detach()[None])
    found = {
        name: float(values[name])
        for name, block in layout.items()
        if block.role in ("noise", "prior") and name.startswith(prefix)
    }
    if not prefix:
        return found
    return {name.removeprefix(f"{prefix}[").rstrip("]"): v for name, v in found.items()}


def joined_rows(scales: Mapping[str, float]) -> dict[str, float | np.ndarray]:
    """Scales by block, from scales named "block", or "block, row" in order of rows.

    A block whose rows have their own scales has an array of them.
    """
    rows: dict[str, list[float]] = {}
    for name, value in scales.items():
        rows.setdefault(name.partition(", ")[0], []).append(value)
    return {
        name: values[0] if name in scales else np.array(values)
        for name, values in rows.items()
    }


def without_rows(names: Sequence[str]) -> tuple[str, ...]:
    """Names of learned parameters, one for all rows of a block: "scale[block]"."""
    heads = [name.partition(", ") for name in names]
    return tuple(dict.fromkeys(f"{head}]" if tail else head for head, _, tail in heads))
