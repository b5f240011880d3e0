"""Trainings that are judged by rows that they do not see."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from skvi.solvers._adam import Schedule
from skvi.solvers._solution import State

__all__ = ["Validation"]


class Validation:
    """Scores of a training's states, the largest of them, and how long it is ago.

    Parameters
    ----------
    score : callable
        Of a `State`; the larger the better.
    tol : float
        A smaller rise is no progress.
    """

    def __init__(self, score: Callable[[State], float], tol: float) -> None:
        self.score, self.tol = score, tol
        self.scores: list[float] = []
        self.best, self.mark, self.waited = -math.inf, -math.inf, 0

    def judge(self, state: State, counts: bool) -> tuple[float, bool]:
        """Score a state; and whether it is the best one so far.

        Parameters
        ----------
        state : State
        counts : bool
            False for a state that is trained for something else as yet: it is none to
            keep, unless there is nothing else.

        Returns
        -------
        score : float
        is_best : bool
        """
        score = self.score(state)
        self.scores.append(score)
        if not counts:
            return score, True
        rises = score > self.mark + self.tol
        self.mark = score if rises else self.mark
        self.waited = 0 if rises else self.waited + 1
        is_best = score > self.best or not math.isfinite(self.best)
        self.best = score if is_best else self.best
        return score, is_best

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes."""
        names = ("scores", "best", "mark", "waited")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another one was."""
        vars(self).update(state)


class Patience(Schedule):
    """Stops where the score of held-out rows no longer rises; steps stay as they are.

    Parameters
    ----------
    validation : Validation
    patience : int
        Scores without a rise.
    """

    unfinished = "the score of the rows that are held out was still rising"

    def __init__(self, validation: Validation, patience: int) -> None:
        self.validation, self.patience = validation, patience

    @property
    def done(self) -> bool:
        return self.validation.waited >= self.patience

    @property
    def converged(self) -> bool:
        """Whether it stopped."""
        return self.done

    def observe(self, values: torch.Tensor) -> None:
        """The score says it all; the objective may rise meanwhile."""
