"""How networks are trained, learn on, and get new classes."""

from copy import copy
from dataclasses import replace
from math import sqrt
from numbers import Integral
from typing import Any

import numpy as np
import torch
from sklearn.base import clone

from skvi._estimator._continual import check_next_prior
from skvi._estimator._model import identity_of
from skvi.base import NormalForm
from skvi.divergences import KLDivergence
from skvi.exceptions import IncompatibleComponentsError, SkviWarning
from skvi.neural_network._mlp import at_candidate
from skvi.objectives import ELBO
from skvi.posteriors import MeanFieldNormal
from skvi.posteriors._whitened import WhitenedPosterior
from skvi.predictors import MLPPredictor
from skvi.priors._posterior import prior_of_posterior
from skvi.solvers import Solver, Stochastic
from skvi.solvers._checkpoint import CheckpointFile, checkpoint_path_of
from skvi.solvers._solution import PhaseInterrupted, State
from skvi.solvers.base import Problem
from skvi.utils._processes import repeats_another


def solver_for(network: Any, n_rows: int) -> Solver:
    """The solver with the sizes that suit the data, where none are given."""
    is_named = isinstance(network.solver, str)
    solver = Stochastic() if is_named else clone(network.solver)
    solver.validate()
    if (size := network.batch_size) != "auto":
        if getattr(solver, "batch_size", None) != "auto":
            raise IncompatibleComponentsError(
                f"batch_size={size!r}",
                f"a solver that leaves it open; got {network.solver!r}",
                "Stochastic(), or batch_size='auto'",
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
    if network.early_stopping and network.validation_fraction is None:
        raise ValueError(
            "early_stopping=True stops by the score of held-out rows. Give "
            "validation_fraction=0.1, for example. Without, a fit ends when the bound "
            "is level: use early_stopping=False."
        )
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
    interval, is_read_only = (
        network.solver.checkpoint_interval,
        repeats_another(network),
    )
    return CheckpointFile(path, interval, identity, is_read_only)


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


ONE_OF_MANY = (
    "a mixture cannot be the prior of the next batch, so that partial_fit goes on with "
    "one of the networks of the fit; posterior='mean_field' has one from the start"
)


def check_stream(network: Any) -> None:
    """Raise if a posterior of these parameters cannot be the next prior."""
    if network.early_stopping or network.validation_fraction is not None:
        raise ValueError(
            f"early_stopping={network.early_stopping!r} and validation_fraction="
            f"{network.validation_fraction!r} are for fits: partial_fit makes the "
            "posterior of each batch the prior of the next one, so that every "
            "batch must be learned to its end, from all of its rows. Use "
            "early_stopping=False and validation_fraction=None."
        )
    if checkpoint_path_of(network) is not None:
        raise ValueError(
            "A checkpoint is that of one fit, and every batch is another one. Use "
            "checkpoint_path=None for partial_fit, and keep the estimator itself "
            "(pickle, skops) between batches."
        )
    if hasattr(network, "posterior_"):
        past = posterior_to_continue(network)
        check_next_prior(past.unrefined.as_normal(), network.posterior_family_)
        if past is not network.posterior_:
            network._warn(ONE_OF_MANY, SkviWarning)
    if len(points := getattr(network, "deterministic", ())):
        raise IncompatibleComponentsError(
            "partial_fit",
            "a posterior of all parameters, the prior of the next batch; got "
            f"deterministic={points!r}",
            "deterministic=()",
        )


def posterior_to_continue(network: Any) -> Any:
    """A member of the mixture that "auto" fitted: its networks differ by chance."""
    if not (network._is_auto("posterior") and len(network.posterior_.components) > 1):
        return network.posterior_
    one = copy(network.posterior_.components[0])
    one.units = network.posterior_.units
    return one


def with_new_classes(estimator, past, labels):
    """Give a classifier the outputs of more classes; the past with their prior.

    The posterior of other layers, and of known classes, stays; that of a new class is
    the first prior. Two classes, which have one output f, become the outputs -f/2 and
    f/2, each with half of its variance.
    """
    own = estimator.posterior_.unrefined.as_normal()
    first = past.prior.matching_normal()
    if own is None or not own.is_diagonal or first is None:
        raise IncompatibleComponentsError(
            "A batch with more classes",
            "a factorized normal, and a prior with a scale; got "
            f"posterior={estimator.posterior!r} and prior={estimator.prior!r}",
            "posterior='mean_field' and prior='normal'",
        )
    old, n_classes = estimator._model.predictor, len(labels.classes)
    inner = old.sizes[1:-1], old.activation_name
    new = MLPPredictor(
        old.sizes[0],
        n_classes,
        *inner,
        *estimator._scales,
        skip_outputs=range(n_classes) if old.skip_outputs else (),
    )
    where = np.searchsorted(labels.classes, estimator.classes_)
    family = MeanFieldNormal().build(new.layout)
    prior = _widened(first, first, old.layout, new.layout, where)
    posterior = _widened(own, first, old.layout, new.layout, where)
    units, estimator.posterior_ = estimator.posterior_.units, family.near(posterior)
    estimator.posterior_.units = units
    estimator.classes_ = labels.classes
    return replace(past, prior=prior_of_posterior(family.near(prior), new.layout))


def _widened(normal, first, old, new, where):
    """A normal with the outputs of a new layout, `where` those that it has are.

    The others are as the first output of another normal.
    """
    outputs = [-0.5, 0.5], [sqrt(0.5)] * 2  # of one output, means and deviations
    parts = []
    pairs = (normal.mean, first.mean), (normal.scale, first.scale)
    for (own, other), factors in zip(pairs, outputs, strict=True):
        both = old.unpack(torch.stack([own, other]))
        blocks = {name: values[0] for name, values in both.items()}
        for name, block in new.items():
            known = blocks[name]
            if known.shape != block.shape:
                if known.shape[-1] == 1:
                    known = known * known.new_tensor(factors)
                wide = both[name][1, ..., :1].expand(block.shape).clone()
                wide[..., where] = known
                blocks[name] = wide
        parts.append(torch.cat([blocks[name].flatten() for name in new]))
    return NormalForm(*parts)
