"""What every solver takes and returns."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["Problem", "Solution", "SolverOptions"]

#: Said where a learnt scale has no optimum inside its range.
FLOOR_MESSAGE = (
    "a learnt scale fell to its floor: the model fits some rows exactly; fix "
    "noise_scale, or use fewer parameters"
)


@dataclass(frozen=True, eq=False)
class Problem:
    """Everything that defines a fit.

    Parameters
    ----------
    target : Target
    objective : Objective
    divergence : Divergence
    posterior : Posterior
        Where the solver starts; it is changed in place.
    generator : torch.Generator or None
        Source of all draws; None where the solver takes none.

    Examples
    --------
    >>> from skvi.base import Layout
    >>> from skvi.divergences import KL
    >>> from skvi.objectives import ELBO
    >>> from skvi.posteriors import MeanFieldNormal
    >>> from skvi.solvers import Problem
    >>> posterior = MeanFieldNormal().build(Layout({"coef": (1, 3)}))
    >>> problem = Problem(None, ELBO(), KL(), posterior, None)  # a target is missing
    >>> problem.objective, problem.divergence
    (ELBO(), KL())
    """

    target: Any
    objective: Any
    divergence: Any
    posterior: Any
    generator: torch.Generator | None


def no_progress(value: float, update: Callable[[], None]) -> bool:
    """Report nothing, and never stop.

    Parameters
    ----------
    value : float
    update : callable

    Returns
    -------
    bool
        False.

    Examples
    --------
    >>> from skvi.solvers.base import no_progress
    >>> no_progress(1.0, lambda: None)
    False
    """
    return False


@dataclass(frozen=True)
class SolverOptions:
    """How long and how accurately to solve.

    Parameters
    ----------
    max_iter : int, default=100
        Iterations; for the stochastic solver epochs with minibatches, and sweeps of
        `steps_per_iter` gradient steps without.
    tol : float, default=1e-5
        Nats: stop when the solver's own estimate of what is left to gain is below it;
        for the stochastic solver, the smallest fall that counts as one.
    n_draws : int, default=10
        Draws of q per stochastic gradient step.
    learning_rate : float, default=0.05
        Step size of the stochastic solver.
    batch_size : int, default=None
        Rows per gradient step of the stochastic solver; None is all rows.
    steps_per_iter : int, default=100
        Gradient steps of one iteration of the stochastic solver without minibatches.
    early_stopping : bool, default=True
        Whether the stochastic solver stops where the objective no longer falls;
        else it lets the step size fall linearly over `max_iter` iterations.
    n_iter_no_change : int, default=None
        Iterations without progress before the stochastic solver halves its step
        size; None is 300 gradient steps.
    warm_start : bool, default=False
        Whether the posterior's own state is the start.
    progress : callable, default=no_progress
        Called after every iteration with the minimised quantity in nats and a
        function that puts the current state into the posterior; returns whether
        to stop.

    Examples
    --------
    >>> from skvi.solvers import SolverOptions
    >>> SolverOptions(max_iter=5).max_iter
    5
    """

    max_iter: int = 100
    tol: float = 1e-5
    n_draws: int = 10
    learning_rate: float = 0.05
    batch_size: int | None = None
    steps_per_iter: int = 100
    early_stopping: bool = True
    n_iter_no_change: int | None = None
    warm_start: bool = False
    progress: Callable[[float, Callable[[], None]], bool] = no_progress


@dataclass
class Solution:
    """What a solver found; the posterior itself was changed in place.

    Parameters
    ----------
    solver : str
        Name of the solver.
    value : float
        What was minimised, at the solution, in nats: the loss of an expectation
        objective, an upper bound, or minus a lower bound.
    history : list of float
        The quantity that is minimised, in nats, after every iteration.
    n_iter : int
        Iterations that were made.
    converged : bool
        Whether the solver's own criterion was met.
    message : str
        What to change if it did not converge, or where it stopped.
    diagnostics : dict
        Numbers that the solver can vouch for.
    is_exact : bool
        Whether `value` is free of Monte Carlo noise.
    value_se : float, default=0.0
        Monte Carlo standard error of `value`, in nats; 0 where it is exact.

    Examples
    --------
    >>> from skvi.solvers import Solution
    >>> Solution("natural_gradient", 2.0, [3.0, 2.0], 2, True).value
    2.0
    """

    solver: str
    value: float
    history: list[float]
    n_iter: int
    converged: bool
    message: str = ""
    diagnostics: dict = field(default_factory=dict)
    is_exact: bool = False
    value_se: float = 0.0


def remaining_gain(gains: list[float]) -> float:
    """Nats that a geometric series of gains still promises.

    Parameters
    ----------
    gains : list of float
        Of successive iterations, not negative.

    Returns
    -------
    float
        At least the last gain; infinite before the second.

    Examples
    --------
    >>> from skvi.solvers.base import remaining_gain
    >>> remaining_gain([4.0, 2.0])
    2.0
    """
    if len(gains) < 2:
        return math.inf
    last, previous = gains[-1], gains[-2]
    ratio = min(last / previous, 0.99) if previous > 0 else 0.0
    return max(last, last * ratio / (1 - ratio))
