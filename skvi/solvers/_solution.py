"""What solvers return: a state, how it was reached, and how that ended."""

import math
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from skvi.posteriors import Posterior
from skvi.targets import Target

__all__ = [
    "FLOOR_MESSAGE",
    "INTERRUPTED",
    "Ending",
    "PhaseInterrupted",
    "Solution",
    "State",
    "ending_of",
    "remaining_gain",
]

#: What a solver says of itself after Ctrl-C.
INTERRUPTED = "interrupted: the best posterior so far was kept"

#: Said where a learned scale has no optimum inside its range.
FLOOR_MESSAGE = (
    "a learned scale fell to its floor: the model fits some rows exactly; fix "
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


class Ending(Enum):
    """How a solve ended.

    Examples
    --------
    >>> from skvi.solvers._solution import Ending
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
    >>> from skvi.solvers import PhaseInterrupted
    >>> issubclass(PhaseInterrupted, KeyboardInterrupt)
    True
    """

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state = state


@dataclass(frozen=True)
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
    scores : list of float
        Of the states after every iteration, where `SolverOptions` score them.
    score : float, default=None
        That of the state.

    Examples
    --------
    >>> from skvi.base import Layout
    >>> from skvi.posteriors import MeanFieldNormal
    >>> from skvi.solvers import Solution, State
    >>> from skvi.solvers._solution import Ending
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
    scores: list[float] = field(default_factory=list)
    score: float | None = None

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

    def cut_short(self) -> "Solution":
        """Return the same state, as what Ctrl-C left.

        Returns
        -------
        Solution
        """
        return replace(self, ending=Ending.INTERRUPTED, message=INTERRUPTED)

    def raise_interrupt(self) -> None:
        """Hand Ctrl-C on, where a solve is only a part of a fit.

        Raises
        ------
        PhaseInterrupted
            Ctrl-C ended it; it holds the state.
        """
        if self.interrupted:
            raise PhaseInterrupted(self.state)


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
    >>> from skvi.solvers._solution import ending_of
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
    >>> from skvi.solvers._solution import remaining_gain
    >>> remaining_gain([4.0, 2.0])
    2.0
    """
    if len(gains) < 2:
        return math.inf
    last, previous = gains[-1], gains[-2]
    ratio = min(last / previous, 0.99) if previous > 0 else 0.0
    return max(last, last * ratio / (1 - ratio))
