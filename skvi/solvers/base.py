"""What every solver is, takes and returns."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple, cast

import torch

from skvi.divergences import Divergence
from skvi.objectives import Objective
from skvi.posteriors import Posterior
from skvi.targets import SupervisedTarget, Target

__all__ = [
    "INTERRUPTED",
    "PhaseInterrupted",
    "Problem",
    "Progress",
    "Solution",
    "Solver",
    "SolverOptions",
    "State",
]

#: What a solver says of itself after Ctrl-C.
INTERRUPTED = "interrupted: the best posterior so far was kept"

#: Said where a learnt scale has no optimum inside its range.
FLOOR_MESSAGE = (
    "a learnt scale fell to its floor: the model fits some rows exactly; fix "
    "noise_scale, or use fewer parameters"
)


class State(NamedTuple):
    """What a fit changes: it makes new ones, and leaves those that it was given.

    Parameters
    ----------
    posterior : Posterior
    target : Target
        At hyperparameters.

    Examples
    --------
    >>> from skvi.base import Layout
    >>> from skvi.posteriors import MeanFieldNormal
    >>> from skvi.solvers import State
    >>> from skvi.targets import Target
    >>> posterior = MeanFieldNormal().build(Layout({"coef": (1, 3)}))
    >>> State(posterior, Target()).posterior.params.shape
    torch.Size([6])
    """

    posterior: Posterior
    target: Target


Progress = Callable[[float, Callable[[], State]], bool]


@dataclass(frozen=True, eq=False)
class Problem:
    """Everything that defines a fit; a solver changes nothing of it.

    Parameters
    ----------
    target : Target
    objective : Objective
    divergence : Divergence
    posterior : Posterior
        Where the solver starts.
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
    >>> from skvi.targets import Target
    >>> problem = Problem(Target(), ELBO(), KL(), posterior, None)
    >>> problem.objective, problem.divergence
    (ELBO(), KL())
    """

    target: Target
    objective: Objective
    divergence: Divergence
    posterior: Posterior
    generator: torch.Generator | None

    @property
    def state(self) -> State:
        """Where the solver starts."""
        return State(self.posterior, self.target)

    def at(self, state: State) -> "Problem":
        """Problem that starts at another state.

        Parameters
        ----------
        state : State

        Returns
        -------
        Problem
        """
        return replace(self, posterior=state.posterior, target=state.target)

    @property
    def source_of_draws(self) -> torch.Generator:
        """The generator, for solvers that take draws."""
        if self.generator is None:
            raise ValueError("This solver takes draws: give Problem a generator.")
        return self.generator

    @property
    def linear_target(self) -> SupervisedTarget:
        """The target, for solvers that have asked whether it `has_design`."""
        return cast(SupervisedTarget, self.target)


def no_progress(value: float, state: Callable[[], State]) -> bool:
    """Report nothing, and never stop.

    Parameters
    ----------
    value : float
    state : callable

    Returns
    -------
    bool
        False.

    Examples
    --------
    >>> from skvi.solvers.base import no_progress
    >>> no_progress(1.0, lambda: problem.state)
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
        Called after every iteration with the minimized quantity in nats and a
        function that returns the `State` as it is then; returns whether to stop.

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
    progress: Progress = no_progress


class Ending(Enum):
    """How a solve ended.

    Examples
    --------
    >>> from skvi.solvers.base import Ending
    >>> Ending.INTERRUPTED.value
    'interrupted'
    """

    #: The solver's own criterion was met.
    CONVERGED = "converged"
    #: Neither that nor any of the others: the message says what to change.
    UNFINISHED = "unfinished"
    #: A callback asked to stop.
    STOPPED = "stopped"
    #: Ctrl-C; the solution holds the best state so far.
    INTERRUPTED = "interrupted"


class PhaseInterrupted(KeyboardInterrupt):
    """Ctrl-C in a phase of a fit that had found something already.

    Parameters
    ----------
    state : State
        What it found.

    Examples
    --------
    >>> from skvi.solvers.base import PhaseInterrupted
    >>> issubclass(PhaseInterrupted, KeyboardInterrupt)
    True
    """

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state = state


@dataclass
class Solution:
    """What a solver found.

    Parameters
    ----------
    solver : str
        Name of the solver.
    state : State
        The posterior, and the target at the hyperparameters that were found.
    value : float
        What was minimized, at the solution, in nats: the loss of an expectation
        objective, an upper bound, or minus a lower bound.
    history : list of float
        The quantity that is minimized, in nats, after every iteration.
    n_iter : int
        Iterations that were made.
    ending : Ending
        How it ended.
    message : str
        What to change if it did not converge, or where it stopped.
    diagnostics : dict
        Numbers that the solver can vouch for.
    is_exact : bool
        Whether `value` is free of Monte Carlo noise.
    value_se : float, default=0.0
        Monte Carlo standard error of `value`, in nats; 0 where it is exact, NaN where
        an interrupted fit left a single value.

    Examples
    --------
    >>> from skvi.base import Layout
    >>> from skvi.posteriors import MeanFieldNormal
    >>> from skvi.solvers import Solution, State
    >>> from skvi.solvers.base import Ending
    >>> from skvi.targets import Target
    >>> state = State(MeanFieldNormal().build(Layout({"coef": (1, 3)})), Target())
    >>> found = Solution("lbfgs", state, 2.0, [3.0, 2.0], 2, Ending.CONVERGED)
    >>> found.value, found.converged, found.posterior is state.posterior
    (2.0, True, True)
    """

    solver: str
    state: State
    value: float
    history: list[float]
    n_iter: int
    ending: Ending
    message: str = ""
    diagnostics: dict = field(default_factory=dict)
    is_exact: bool = False
    value_se: float = 0.0

    @property
    def posterior(self) -> Posterior:
        """The posterior that was found."""
        return self.state.posterior

    @property
    def target(self) -> Target:
        """The target at the hyperparameters that were found."""
        return self.state.target

    @property
    def converged(self) -> bool:
        """Whether the solver's own criterion was met."""
        return self.ending is Ending.CONVERGED

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended it."""
        return self.ending is Ending.INTERRUPTED

    def raise_interrupt(self) -> None:
        """Hand Ctrl-C on, where a solve is only a part of a fit.

        Raises
        ------
        PhaseInterrupted
            Ctrl-C ended it; it holds the state.
        """
        if self.interrupted:
            raise PhaseInterrupted(self.state)


class Solver:
    """Base class of solvers: a subclass must implement `solve`, and say what it needs.

    Examples
    --------
    >>> from skvi.solvers import NaturalGradient, Solver, SolverOptions
    >>> issubclass(NaturalGradient, Solver), NaturalGradient.continues
    (True, True)
    """

    name: str
    #: Whether a quick solve starts at the posterior's own state where `warm_start`
    #: says so, so that solutions from several starts can be compared.
    continues = False

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
        return ""

    @staticmethod
    def needs_start(problem: Problem) -> bool:
        """Whether a fresh posterior is no place from which it finds the data.

        Parameters
        ----------
        problem : Problem

        Returns
        -------
        bool
            By default False: it finds where to start by itself.
        """
        return False

    @staticmethod
    def count_iterations(problem: Problem, options: SolverOptions) -> int:
        """Count the iterations that are reported at most.

        Parameters
        ----------
        problem : Problem
        options : SolverOptions

        Returns
        -------
        int
            By default `max_iter`.
        """
        return options.max_iter

    def solve(self, problem: Problem, options: SolverOptions) -> Solution:
        """Fit the posterior, and the target's hyperparameters where it learns any.

        Parameters
        ----------
        problem : Problem
            It is not changed.
        options : SolverOptions

        Returns
        -------
        Solution
            With the new posterior and target; `value` in nats, summed over the data.

        Raises
        ------
        KeyboardInterrupt
            On Ctrl-C before there is anything to keep; after that a `Solution` says
            that it was interrupted.
        """
        raise NotImplementedError


def ending_of(converged: bool, stopped: bool = False) -> Ending:
    """How a solve ended that Ctrl-C did not end.

    Parameters
    ----------
    converged : bool
    stopped : bool, default=False
        Whether a callback asked to stop.

    Returns
    -------
    Ending

    Examples
    --------
    >>> from skvi.solvers.base import ending_of
    >>> ending_of(converged=True, stopped=True)
    <Ending.STOPPED: 'stopped'>
    """
    if stopped:
        return Ending.STOPPED
    return Ending.CONVERGED if converged else Ending.UNFINISHED


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
