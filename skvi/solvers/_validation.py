"""Trainings that are evaluated on held-out rows."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from skvi.solvers._adam import Schedule
from skvi.solvers._optimizer import Optimizer
from skvi.solvers._solution import State

__all__ = ["Validation"]


class Validation:
    """Scores of a training's states, the largest of them, and its age.

    Larger is better; an increase below `tol` counts as no progress.
    """

    def __init__(self, score: Callable[[State], float], tol: float) -> None:
        self.score, self.tol = score, tol
        self.scores: list[float] = []
        self.best, self.mark, self.waited = -math.inf, -math.inf, 0

    def judge(self, state: State, counts: bool) -> tuple[float, bool]:
        """Score a state, and say whether it is the best so far.

        A state before the final loss is trained does not count as the best score.
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
        """Continue from the state of another one."""
        vars(self).update(state)


class Patience(Schedule):
    """Stops if the score of held-out rows no longer increases; step sizes are constant.

    `patience` is the number of scores without an increase.
    """

    unfinished = "the score of the held-out rows was still increasing"

    def __init__(
        self,
        optimizer: Optimizer,
        validation: Validation,
        patience: int,
        warm_up: int = 0,
    ) -> None:
        super().__init__(optimizer, warm_up)
        self.validation, self.patience = validation, patience

    @property
    def done(self) -> bool:
        return self.validation.waited >= self.patience

    @property
    def converged(self) -> bool:
        """Whether it stopped."""
        return self.done

    @property
    def drifted(self) -> bool:
        """Never: only the score counts, and the objective may increase."""
        return False
