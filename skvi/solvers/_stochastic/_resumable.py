"""Trainings that continue those of another process."""

from skvi.objectives._steps import Steps
from skvi.solvers._checkpoint import Tree
from skvi.solvers._stochastic._ends import Best, EpochEnd, Validation
from skvi.solvers._stochastic._optimizers import Adam
from skvi.solvers._stochastic._schedules import Patience, StableDecay
from skvi.solvers.base import Problem, SolverOptions
from skvi.utils._tensors import to_device

# Attributes that change from step to step, besides objects with their own state.
CHANGING = (
    "params",
    "start",
    "history",
    "message",
    "stopped",
    "_rows",
    "_epoch",
    "_n_of_epoch",
    "_sweep",
    "_total",
)
END = ("total", "last", "values", "length", "score")


class Resumable:
    """Part of `Training` that writes its state to a checkpoint, and restores it.

    Sources of draws are stored, too: a resumed training equals an uninterrupted one.
    """

    problem: Problem
    options: SolverOptions
    optimizer: Adam
    schedule: StableDecay | Patience
    validation: Validation | None
    _end: EpochEnd | None
    _best: Best | None
    _found: Tree | None = None

    @property
    def is_done(self) -> bool:
        """Whether there are no more steps to make."""
        raise NotImplementedError

    def save(self, steps: Steps) -> None:
        """Write a checkpoint, if there is one, when it is due or at the end."""
        checkpoint = self.options.checkpoint
        if checkpoint is not None and (checkpoint.is_due or self.is_done):
            checkpoint.save(self._state(steps))

    def _state(self, steps: Steps) -> Tree:
        best = self._best
        own = {
            "end": _taken_apart(self._end),
            "best": None
            if best is None
            else {
                "end": _taken_apart(best.end),
                "optimizer": best.optimizer,
                "rest": best.rest,
            },
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
        }
        if self.validation is not None:
            own["validation"] = self.validation.state_dict()
        return {
            "own": own | {name: getattr(self, name) for name in CHANGING},
            "sources": [source.get_state() for source in steps.sources],
            "generator": self.problem.source_of_draws.get_state(),
        }

    def resume(self) -> None:
        """Restore the state of the checkpoint, if there is one."""
        checkpoint = self.options.checkpoint
        if checkpoint is None or checkpoint.state is None:
            return
        self._found = checkpoint.state
        own = to_device(self._found["own"], self.problem.posterior.params.device)
        vars(self).update({name: own[name] for name in CHANGING})
        self._end = None if own["end"] is None else EpochEnd(**own["end"])
        if own["best"] is not None:
            end = EpochEnd(**own["best"]["end"])
            self._best = Best(**own["best"] | {"end": end})
        self.optimizer.load_state_dict(own["optimizer"])
        self.schedule.load_state_dict(own["schedule"])
        if self.validation is not None:
            self.validation.load_state_dict(own["validation"])
        self._set_generator(self._found)

    def go_on(self, steps: Steps) -> None:
        """Restore new steps to the state of the checkpoint; else begin a checkpoint."""
        if not steps.weigh_divergence([1.0] * len(steps.params)):
            self.schedule.warm_up = 0
        if self._found is None:
            if self.options.checkpoint is not None:  # if this fails, raise now
                self.options.checkpoint.save(self._state(steps))
            return
        for source, state in zip(steps.sources, self._found["sources"], strict=True):
            source.set_state(state)
        self._set_generator(self._found)  # the new steps took seeds from it

    def _set_generator(self, state: Tree) -> None:
        self.problem.source_of_draws.set_state(state["generator"])


def _taken_apart(end: EpochEnd | None) -> Tree:
    return None if end is None else {name: getattr(end, name) for name in END}
