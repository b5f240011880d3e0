"""Base of runs of solvers without draws: reports, and how they end."""

import math

import torch

from skvi.solvers._solution import Solution, State, ending_of
from skvi.solvers.base import Problem, SolverOptions

__all__ = ["Run"]


class Run:
    """Improves a state, one iteration after the other, until Ctrl-C at any moment.

    A subclass must implement `value`, `state` and `improve`.
    """

    solver: str
    #: Whether there is a state to keep.
    is_usable = True
    #: Diagnostics of the state that need no further computation.
    known: dict = {}

    def __init__(self, problem: Problem, options: SolverOptions) -> None:
        self.given, self.options = problem, options
        self.history: list[float] = []
        self.stopped = False

    @property
    def value(self) -> float:
        """Value of the loss at the current state."""
        raise NotImplementedError

    def state(self) -> State:
        """Best state so far."""
        raise NotImplementedError

    def improve(self) -> Solution:
        """Iterate to the end, and assess convergence."""
        raise NotImplementedError

    def run(self) -> Solution:
        """Improve; after Ctrl-C return the current state, if there is one."""
        try:
            return self.improve()
        except KeyboardInterrupt:
            if not self.is_usable:
                raise
            found = {**self.known, "gap": math.inf}
            return self.solution(False, "", found).cut_short()

    @property
    def may_go_on(self) -> bool:
        """Whether to continue, according to the callback and `max_iter`."""
        return not self.stopped and len(self.history) < self.options.max_iter

    def report(self) -> None:
        """Say that an iteration is over."""
        self.history.append(self.value)
        with torch.inference_mode(False):  # callbacks may do anything
            self.stopped = self.options.progress(self.value, self.state)

    def solution(self, converged: bool, message: str, found: dict) -> Solution:
        """The current state, without Monte Carlo noise in its value."""
        return Solution(
            solver=self.solver,
            state=self.state(),
            value=self.value,
            history=self.history,
            n_iter=len(self.history),
            ending=ending_of(converged, self.stopped),
            message=message,
            diagnostics=found,
            is_exact=True,
        )
