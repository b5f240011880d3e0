"""How networks are trained: solver, starts, checkpoints."""

from dataclasses import replace
from numbers import Integral
from typing import Any

import torch
from sklearn.base import clone

from skvi._estimator._identity import identity_of
from skvi.base import NormalForm
from skvi.divergences import KLDivergence
from skvi.exceptions import IncompatibleComponentsError
from skvi.neural_network._mixed import at_candidate
from skvi.objectives import ELBO
from skvi.posteriors import MeanFieldNormal
from skvi.posteriors._whitened import WhitenedPosterior
from skvi.solvers import Solver, Stochastic
from skvi.solvers._checkpoint import CheckpointFile, checkpoint_path_of
from skvi.solvers._solution import PhaseInterrupted, State
from skvi.solvers.base import Problem

__all__ = ["check_training", "checkpoint_file", "first_state", "solver_for"]


def solver_for(network: Any, n_rows: int) -> Solver:
    """The solver with the sizes that suit the data, where none are given."""
    is_named = isinstance(network.solver, str)
    solver = Stochastic() if is_named else clone(network.solver)
    solver.validate()
    if (size := network.batch_size) != "auto":
        if getattr(solver, "batch_size", None) != "auto":
            raise IncompatibleComponentsError(
                f"solver={network.solver!r} sets the rows of its steps itself: leave "
                f"batch_size={size!r} out."
            )
        solver.set_params(batch_size=size)
    if isinstance(solver, Stochastic):
        solver.checkpoint_path = None  # whose file is that of the whole fit
        if solver.batch_size == "auto":
            solver.batch_size = network._batch_size(n_rows)
        if solver.n_draws == "auto":
            has_batches = solver.rows_per_step(n_rows) < n_rows
            solver.n_draws = network._draws_per_step(n_rows, has_batches)
    return solver


def check_training(network: Any, n_rows: int) -> None:
    """Refuse settings that no fit can have, before anything is trained."""
    solver_for(network, n_rows)
    path = checkpoint_path_of(network)
    if path is None or isinstance(network.random_state, Integral):
        return
    raise ValueError(
        "A fit that another process can resume needs an int as random_state. Got "
        f"{network.random_state!r} with checkpoint_path={path!r}: use random_state=0, "
        "for example."
    )


def checkpoint_file(
    network: Any, target: Any, problem: Problem, before: dict
) -> CheckpointFile | None:
    """The file of `checkpoint_path`; refused if it belongs to another fit."""
    if (path := checkpoint_path_of(network)) is None:
        return None
    last = before["posterior_"].params if network.warm_start and before else None
    rows = target.rows
    data = {"X": rows.X, "y": rows.y, "weights": rows.weight, "warm start": last}
    if target.held_out is not None:
        held_out = target.held_out.rows
        data |= {"X held out": held_out.X, "y held out": held_out.y}
        data["weights held out"] = held_out.weight
    identity = identity_of(network, data)
    identity["device"] = str(problem.posterior.params.device)
    return CheckpointFile(path, network.solver.checkpoint_interval, identity)


def first_state(network: Any, problem: Problem) -> State:
    """Whatever the solver: another start for each member."""
    target, generator = problem.target, problem.generator
    members = [  # from another start for each
        c.near(_start(network, target.predictor, generator))
        for c in problem.posterior.components
    ]
    posterior = problem.posterior.with_components(members)
    posterior = posterior.at(posterior.params.to(network._posterior_dtype(target)))
    network._draw_seed = int(
        torch.randint(2**31, (1,), generator=generator, device=generator.device)
    )
    if network._choice is not None and network._choice.kept is not None:
        state = State(posterior, target)
        raise PhaseInterrupted(at_candidate(network._choice.kept, state))
    if isinstance(posterior, WhitenedPosterior):
        return at_normal_fit(network, problem.at(State(posterior, target)))
    return State(posterior, target)


def _start(network: Any, predictor: Any, generator: torch.Generator) -> NormalForm:
    """Random start, at 0 where parameters stay there."""
    normal: NormalForm = predictor.initial_normal(generator)
    if zeros := network._zeros:
        still = predictor.zeros_of(zeros).to(normal.mean.device)
        return replace(normal, mean=normal.mean.masked_fill(still, 0.0))
    return normal


def at_normal_fit(network: Any, problem: Problem) -> State:
    """State of a family in coordinates of a normal: those of a factorized fit."""
    posterior, target = problem.posterior, problem.target
    normal = MeanFieldNormal().build(target.layout).near(posterior.anchor)
    normal = normal.at(normal.params.to(posterior.params))
    start = replace(
        problem, objective=ELBO(), divergence=KLDivergence(), posterior=normal
    )
    options = replace(network._solver_options(target), score=None)
    found = network._choose_solver(start).solve(start, options)
    found.raise_interrupt()
    return State(posterior.near(found.posterior.as_normal()), found.target)
