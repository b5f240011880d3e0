"""Progress of a fit: scikit-learn's callbacks, and lines on the terminal."""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from skvi.solvers._solution import Solution, State
from skvi.utils._interrupts import has_callbacks
from skvi.utils._processes import repeats_another

# verbose=1 writes the first iterations, and then a line at this interval in seconds.
FIRST_LINES = 3
SECONDS_BETWEEN_LINES = 1.0


def write_line(estimator: Any, text: str) -> None:
    """Write a line with the name of the estimator, if it is verbose."""
    if estimator.verbose and not repeats_another(estimator):
        print(f"[{type(estimator).__name__}] {text}", flush=True)  # noqa: T201


class EvidenceProgress:
    """Reports the progress of evidence bounds, if the estimator is verbose."""

    def __init__(self, estimator: Any) -> None:
        self.name = type(estimator).__name__
        is_repeated = repeats_another(estimator)
        self.verbose = estimator.verbose and not is_repeated
        self.last_line, self.stage = time.monotonic(), ""

    def __call__(self, what: str, share: float) -> None:
        """Write a line for every stage, and at intervals."""
        now = time.monotonic()
        late = now - self.last_line > SECONDS_BETWEEN_LINES
        if self.verbose and (late or what != self.stage):
            self.last_line, self.stage = now, what
            print(f"[{self.name}] evidence, {what}: {share:.0%}", flush=True)  # noqa: T201


class FitProgress:
    """Reports every iteration of a fit, at most `max_iter`; solvers call it.

    `data` holds "X", "y" and "metadata" for callbacks, and the estimator's
    `_posterior_attributes(state)` what they need to predict.
    """

    def __init__(self, estimator: Any, data: dict, max_iter: int) -> None:
        self.estimator, self.data = estimator, data
        self.verbose = 0 if repeats_another(estimator) else estimator.verbose
        self.max_iter = max_iter
        self.n_iter, self.last_line = 0, time.monotonic()
        self.context = None
        # Reading of `time.monotonic` at which it has to end; set by `EvidenceSearch`.
        self.deadline = vars(estimator).get("_deadline", math.inf)
        self.is_late = False
        if has_callbacks(estimator):
            self.context = estimator._init_callback_context(max_subtasks=self.max_iter)
            self.context.call_on_fit_task_begin(estimator=estimator, **data)

    def __call__(self, value: float, state: Callable[[], State]) -> bool:
        """Report one iteration; return whether a callback requests to stop."""
        self.n_iter += 1
        if self.verbose:
            self._write(value)
        self.is_late = time.monotonic() > self.deadline
        if self.context is None:
            return self.is_late
        hooks = {"estimator": self.estimator, **self.data}
        task = self.context.subcontext(task_name="iteration")
        task.call_on_fit_task_begin(**hooks)

        def attributes() -> dict:
            return self.estimator._posterior_attributes(state())

        ends = task.call_on_fit_task_end(**hooks, reconstruction_attributes=attributes)
        return bool(ends) or self.is_late

    def explain(self, solution: Solution) -> Solution:
        """Say of a solution that time was over, if it was, and it had not converged."""
        if not self.is_late or solution.converged or solution.message:
            return solution
        text = f"max_seconds ended the fit after {self.n_iter} iterations; allow more"
        return replace(solution, message=text)

    def resume(self, n_iter: int, path: Any) -> None:
        """Go on after some iterations, which a checkpoint has."""
        self.n_iter = n_iter
        if n_iter:
            write_line(
                self.estimator, f"resumes after iteration {n_iter} of {str(path)!r}"
            )

    def finish(self, lower_bound: float) -> None:
        """Report the end of the fit."""
        write_line(
            self.estimator, f"{self.n_iter} iterations, ELBO {lower_bound:.4f} nats"
        )
        if self.context is not None:
            self.context.call_on_fit_task_end(
                estimator=self.estimator,
                **self.data,
                reconstruction_attributes={},  # it is fitted
            )

    def _write(self, value: float) -> None:
        now = time.monotonic()
        late = now - self.last_line > SECONDS_BETWEEN_LINES
        if self.verbose > 1 or self.n_iter <= FIRST_LINES or late:
            self.last_line = now
            where = f"iteration {self.n_iter}/{self.max_iter}"
            write_line(self.estimator, f"{where}: minimized {value:.4f} nats")
