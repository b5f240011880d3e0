"""The result of a solver as fitted attributes, and its evidence bounds."""

from __future__ import annotations  # short types in help()

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from skvi._estimator._model import TrainingData
from skvi._estimator._progress import EvidenceProgress
from skvi.divergences._forms import width_message
from skvi.evidence import EvidenceBounds
from skvi.evidence._summarize import (
    BOUND_DRAWS,
    judge_existence,
    lower_bound,
    upper_elbo,
    weight_diagnostics,
)
from skvi.objectives._network_steps import estimate
from skvi.solvers import Problem, Solver, Stochastic
from skvi.solvers._checkpoint import Checkpoint
from skvi.solvers._solution import INTERRUPTED, Ending, Solution, State
from skvi.utils._interrupts import limit_threads, raising_interrupts
from skvi.utils._tensors import make_generator
from skvi.utils._validation import (
    Interval,
    StrOptions,
    validate_arguments,
    validate_data,
)

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
    lost = what_failed(problem, solution)
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


def what_failed(problem: Problem, solution: Solution) -> str:
    """Describe failures of a posterior, or of a component of it; empty if none."""
    given, prior, source = problem.divergence, solution.target.prior, problem.generator
    for component in solution.posterior.components:
        found = given.collapse(component, prior, source)
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
    is_elbo = objective.kind == "expectation" and problem.divergence.kl_weight == 1
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


# Draws evaluated at once.
N_DRAWS = 64


def evidence_bounds(
    self,
    X: Any,
    y: Any,
    *,
    sample_weight: ArrayLike | None = None,
    method: str = "auto",
    n_draws: int | None = None,
    precision: float | None = None,
    max_seconds: float | None = None,
    random_state: int | np.random.RandomState | None = None,
    **row_data: ArrayLike | None,
) -> EvidenceBounds:
    """Bound the log evidence log p(D) of the model from below and above.

    The evidence is the probability (density) that the model (likelihood, prior,
    features) assigned to these data before it saw them: the number by which
    Bayesian models are compared. It does not depend on objective, divergence or
    posterior family.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        The training features.
    y : array-like of shape (n_samples,)
        The training target; with several columns the evidence of all of them.
    sample_weight : array-like of shape (n_samples,), default=None
        Needed if the fit had weights. Integer weights count repeated rows; with
        others the evidence is a generalized one. Class weights are added by the
        estimator.
    method : {"auto", "exact", "importance", "tempering"}, default="auto"
        "exact", of linear regression: closed forms, with quadrature over at most
        two precisions with hyperpriors. "importance": importance sampling from a
        Student-t fitted to the posterior, and MCMC chains for the upper bound.
        "tempering": chains at all temperatures between posterior and prior, or a
        normal around the posterior, which are exchanged; it costs more, and works
        if no proposal fits. Hidden units of networks can be permuted, and chains
        from the prior reach all equivalent modes. "auto": "exact" where it exists,
        tempering with hidden units, otherwise importance sampling, and tempering if
        that is not reliable, or wider than 0.1 nats. Under an unknown scale, the
        default prior of some models, all of them are for parameters and scale
        together. "auto" then also takes particles that go through the rows, if
        there are fewer rows than features, and no normal is near, as with separable
        classes.
    n_draws : int, default=None
        Draws on each side, at least 64. None chooses as many as `precision`
        needs.
    precision : float, default=None
        Target distance of each bound from log p(D), in nats. None is 0.03, limited
        to about 130,000 (correlated) draws on each side; with tempering 0.25,
        limited to 3,000 sweeps of 16 systems of chains. 0.1 is enough to compare
        models, and can take a third of the time. Not together with `n_draws`.
    max_seconds : float, default=None
        Time limit of all phases, checked between batches of draws and independently
        of their values. Bounds that it cuts short are wider, and otherwise as
        valid; if too little time is left to assess them, ``reliable`` is False, and
        without any bounds ``method`` is "none". None is no limit, but 120 seconds for
        the tempering of ``method="auto"``. ``verbose=1`` of the estimator shows the
        progress.
    random_state : int, RandomState instance or None, default=None
    **row_data : array-like of shape (n_samples,)
        Further data of the rows that the fit had: ``exposure`` of counts, ``offset``,
        ``n_trials``.

    Returns
    -------
    EvidenceBounds
        With ``lower``, ``upper``, their standard errors, ``estimate``,
        ``reliable`` and ``reason``; ``print(bounds)`` shows the
        interval, ``print(bounds.table)`` every bound.

    Raises
    ------
    ValueError
        The data are not those of the fit, the fit had weights and none are given,
        or y is of rates instead of counts.
    IncompatibleComponentsError
        "exact" for a model without closed forms.
    KeyboardInterrupt
        On Ctrl-C; the estimator is not changed.

    Notes
    -----
    Values are in nats, summed over the data, with all constants. With a loss
    other than log loss, or with weights, the result bounds a generalized
    evidence ``log E_prior[exp(-sum of weighted losses)]``, labeled so, which
    is comparable only within the same loss and weights. Quantities taken from y are
    conditioned on, and listed in ``plug_in``: learned hyperparameters, with which
    the evidence is an optimistic score of the model, and location and scale of y
    with ``normalize_y=True``, with which it is not a probability density of y.

    With tempering both bounds are valid if the chains have mixed. Mixing is
    assessed by fitted values and by the log joint density, which are equal for
    equivalent networks, and by how often replicas came from the prior to the
    posterior; half of the chains start from annealed draws of the prior. The row
    "particles" of the table needs no such condition: it is below log p(D) in
    expectation, whatever is found. `khat` is that of weights between neighboring
    temperatures whose variance is not finite by construction (-inf if there are
    none), and `ess` that of the log joint density in the chains.
    """
    check_is_fitted(self)
    options = {"method": method, "n_draws": n_draws, "precision": precision}
    options["max_seconds"] = max_seconds
    rows = {"sample_weight": sample_weight, **row_data}
    return self._evidence(X, y, rows, random_state, options)


def evidence_of(
    estimator: Any, X: Any, y: Any, rows: dict, random_state: Any, options: dict
) -> EvidenceBounds:
    """Bounds of a fitted estimator; `rows` are weights and further data of rows."""
    positive = [None, Interval(Real, 0, None, closed="neither")]
    allowed = {
        "method": [StrOptions(estimator._evidence_methods)],
        "n_draws": [None, Interval(Integral, 64, None, closed="left")],
        "precision": positive,
        "max_seconds": positive,
    }
    validate_arguments(type(estimator).__name__, options, allowed)
    if options["n_draws"] is not None and options["precision"] is not None:
        raise ValueError("Give n_draws or precision, not both.")
    data = data_of_fit(estimator, X, y, **rows)
    is_log_loss = estimator.loss_function_.is_log_loss
    is_counted = not data.is_weighted or repeats_rows(data, rows["sample_weight"])
    plain = is_log_loss and is_counted
    model, hyper = estimator._model, torch.from_numpy(estimator._hyper.copy())
    target = model.target(data).at(hyper)
    work = N_DRAWS * len(data.y) * target.layout.size
    n_jobs = getattr(estimator, "n_jobs", None)
    with raising_interrupts(), limit_threads(work, n_jobs):
        bounds = estimator._bound_evidence(
            target.frozen(),
            make_generator(random_state),
            quantity="log evidence" if plain else "generalized log evidence",
            report=EvidenceProgress(estimator),
            **options,
        )
    if is_log_loss and model.likelihood.is_discrete:
        # Also with weights: a power of a probability is at most 1.
        bounds = bounds.of_probability()
    learned = without_rows(target.learned)
    return replace(bounds, plug_in=learned + model.taken_from_y)


def data_of_fit(
    estimator: Any, X: Any, y: Any, sample_weight: Any, **rows: Any
) -> TrainingData:
    """The training data again; ValueError if they are different."""
    options = {**estimator._input, **estimator._input_with_target, "reset": False}
    y = estimator._with_row_data(y, rows)
    X, y = validate_data(estimator, X, y, **options)
    n_rows = estimator._fingerprint[0]
    if X.shape[0] != n_rows:
        raise ValueError(
            f"X and y must be the {n_rows} rows of the fit; "
            f"got {X.shape[0]} rows. For other data use predict_log_density."
        )
    if estimator._had_weights and sample_weight is None:
        raise ValueError(
            "The model was fitted with sample_weight, which define the evidence: "
            "pass the same sample_weight again."
        )
    sample_weight = estimator._check_weights(X, sample_weight)
    offset = estimator._offset_of(rows, X.shape[0])
    response = estimator._model.response
    data = TrainingData.gather(response, X, y, sample_weight, offset)
    if data.fingerprint != estimator._fingerprint:
        *first, last = "X", "y", "sample_weight", *estimator._row_data
        raise ValueError(
            f"Give the {', '.join(first)} and {last} of the fit; these "
            "differ. For other data use predict_log_density."
        )
    return estimator._trained_rows(data)


def repeats_rows(data: TrainingData, sample_weight: Any) -> bool:
    """Whether the weights are integers, and the user's own: no class weights."""
    if sample_weight is None:
        return False
    weight = np.asarray(sample_weight, dtype=np.float64)
    weight = weight[weight > 0] if weight.ndim else np.full(len(data.y), weight)
    is_own = np.array_equal(weight, data.weight)
    return is_own and bool((weight == np.round(weight)).all())
