"""What solvers return: a state, how it was reached, and how that ended."""

import math
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from skvi.posteriors import Posterior
from skvi.targets import Target

#: Message of a solver after Ctrl-C.
INTERRUPTED = "interrupted: the best posterior so far was kept"

#: Message if a learned scale has no optimum inside its range.
FLOOR_MESSAGE = (
    "a learned scale fell to its lower limit: the model fits some rows exactly; fix "
    "noise_scale, or use fewer parameters"
)


class State(NamedTuple):
    """The state that a fit computes: new objects; the given ones are not changed."""

    posterior: Posterior
    target: Target  # at its hyperparameters


class Ending(Enum):
    """How a solve ended."""

    #: The solver's own criterion was met.
    CONVERGED = "converged"
    #: Not converged: the message says what to change.
    UNFINISHED = "unfinished"
    #: The length that was chosen to predict well is over; the bound may still rise.
    PLANNED = "planned length"
    #: A callback requested to stop.
    STOPPED = "stopped"
    #: Ctrl-C; the solution holds the best state so far.
    INTERRUPTED = "interrupted"


class PhaseInterrupted(KeyboardInterrupt):
    """Ctrl-C in a phase of a fit that already has a result: its state."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state = state


@dataclass(frozen=True)
class Solution:
    """Result of a solver.

    Parameters
    ----------
    solver : str
        Name of the solver.
    state : State
        The posterior, and the target at the fitted hyperparameters.
    value : float
        Minimized loss at the solution, in nats: the loss of an expectation objective,
        an upper bound, or minus a lower bound.
    history : list of float
        Minimized loss, in nats, after every iteration.
    n_iter : int
        Number of iterations.
    ending : Ending
        How it ended.
    message : str
        What to change if it did not converge, or how it stopped.
    diagnostics : dict
        Diagnostics that the solver guarantees.
    is_exact : bool
        Whether `value` is free of Monte Carlo noise.
    value_se : float, default=0.0
        Monte Carlo standard error of `value`, in nats; 0 if it is exact, NaN if an
        interrupted fit left a single value.
    scores : list of float
        Scores of the states after every iteration, if `SolverOptions` request them.
    score : float, default=None
        Score of the state.
    n_draws : int, default=None
        Draws of the posterior in all iterations of a stochastic solver, each counted as
        often as it saw all rows.

    Examples
    --------
    >>> from skvi.base import Layout
    >>> from skvi.posteriors import MeanFieldNormal
    >>> from skvi.solvers._solution import Solution
    >>> from skvi.solvers._solution import State
    >>> from skvi.solvers._solution import Ending
    >>> from skvi.targets import Target
    >>> state = State(MeanFieldNormal().build(Layout({"coef": (1, 3)})), Target())
    >>> found = Solution(
    ...     "natural_gradient", state, 2.0, [3.0, 2.0], 2, Ending.CONVERGED
    ... )
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
    scores: list[float] = field(default_factory=list)
    score: float | None = None
    n_draws: int | None = None

    @property
    def posterior(self) -> Posterior:
        """The fitted posterior."""
        return self.state.posterior

    @property
    def target(self) -> Target:
        """The target at the fitted hyperparameters."""
        return self.state.target

    @property
    def converged(self) -> bool:
        """Whether the solver's own criterion was met."""
        return self.ending is Ending.CONVERGED

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended it."""
        return self.ending is Ending.INTERRUPTED

    def cut_short(self) -> "Solution":
        """Return the same state, marked as interrupted by Ctrl-C.

        Returns
        -------
        Solution
        """
        return replace(self, ending=Ending.INTERRUPTED, message=INTERRUPTED)

    def raise_interrupt(self) -> None:
        """Re-raise Ctrl-C if a solve is only a part of a fit.

        Raises
        ------
        PhaseInterrupted
            Ctrl-C ended the solve; the exception holds the state.
        """
        if self.interrupted:
            raise PhaseInterrupted(self.state)


def ending_of(converged: bool, stopped: bool = False) -> Ending:
    """How an uninterrupted solve ended; `stopped`: by a callback."""
    if stopped:
        return Ending.STOPPED
    return Ending.CONVERGED if converged else Ending.UNFINISHED


def remaining_gain(gains: list[float]) -> float:
    """Remaining gain in nats, a geometric series extrapolated from gains >= 0.

    At least the last gain; infinite before the second.
    """
    if len(gains) < 2:
        return math.inf
    last, previous = gains[-1], gains[-2]
    ratio = min(last / previous, 0.99) if previous > 0 else 0.0
    return max(last, last * ratio / (1 - ratio))
