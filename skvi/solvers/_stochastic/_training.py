"""Training of one member of a stochastic fit: schedule, averages, its end."""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

import torch

from skvi.base._rows import deal
from skvi.objectives._network_steps import estimate, stack_structure
from skvi.solvers._hyper import hyper_range, runaway_message, suspicion
from skvi.solvers._solution import INTERRUPTED, Ending, Solution, State, ending_of
from skvi.solvers._stochastic._ends import (
    Best,
    EpochEnd,
    Validation,
    divergence_at,
    fresh_value,
    level_part,
    mean_and_error,
    non_finite_message,
    weight_efficiency,
)
from skvi.solvers._stochastic._optimizers import Adam
from skvi.solvers._stochastic._resumable import Resumable
from skvi.solvers._stochastic._schedules import (
    LONG_STEPS_SHARE,
    MAX_WARM_UP,
    START,
    Patience,
    StableDecay,
)
from skvi.solvers.base import Problem, SolverOptions

STEPS_PER_SWEEP = 100
# Steps, at most, on whose draws and rows states are compared: after Ctrl-C; else as
# many as a sweep, but a small fraction of the training.
FEW_JUDGED, JUDGED_SHARE = 4, 0.02
# Below this fraction of effective draws self-normalized gradients are mostly bias.
MIN_EFFICIENCY = 0.1
# Distance of an average over steps from the limit of a learned scale.
END_MARGIN = math.log(3.0)


class Training(Resumable):
    """One member: its problem, its progress, and its solution.

    `make_optimizer` takes the problem and the vector of all its parameters; `n_rows`
    and `n_draws` are those of a gradient step.
    """

    def __init__(
        self,
        problem: Problem,
        options: SolverOptions,
        solver: str,
        make_optimizer: Callable[[Problem, torch.Tensor], Adam],
        n_rows: int,
        n_draws: int,
    ) -> None:
        self._dtype = problem.posterior.params.dtype
        if options.dtype is not None:
            problem = problem.with_params(problem.params.to(options.dtype))
        self.problem, self.options, self.solver = problem, options, solver
        self.split = len(problem.posterior.params)
        #: Current state: changed in place by the code that makes the steps.
        self.params = problem.params
        hyper, dtype = self.params[self.split :].clone(), self.params.dtype
        low, high = hyper_range(problem.target, has_small_steps=True)
        self.floor = torch.minimum(low.to(dtype), hyper)
        self.ceiling = torch.maximum(high.to(dtype), hyper)
        self.start = self.params.clone()
        self.optimizer = make_optimizer(problem, self.params)
        self._fresh = self.optimizer.state_dict()
        self.n_rows, self.n_draws = n_rows, n_draws
        batches = math.ceil(problem.target.n_rows / max(n_rows, 1))
        self.has_batches = batches > 1
        self.steps = batches if self.has_batches else options.steps_per_iter
        self.epochs_per_sweep = math.ceil(STEPS_PER_SWEEP / self.steps)
        self.validation: Validation | None = None
        if options.score is not None:
            self.validation = Validation(options.score, options.tol)
        self.schedule = self._schedule()
        if options.long_steps:
            self.schedule.first_share = LONG_STEPS_SHARE
        self.history: list[float] = []
        self.message, self.stopped = "", False
        #: The result, once it is finished.
        self.solution: Solution | None = None
        self._rows: list[torch.Tensor | None] = []
        self._epoch: list[torch.Tensor] = []
        self._n_of_epoch = 0
        self._sweep: list[torch.Tensor] = []
        self._total = torch.zeros_like(self.params)
        self._end: EpochEnd | None = None
        self._best: Best | None = None
        self.resume()

    @property
    def batch_size(self) -> int | None:
        """Maximum number of rows of one step; None is all rows."""
        if not self.has_batches:
            return None
        return math.ceil(self.problem.target.n_rows / self.steps)

    @property
    def n_terms(self) -> float:
        """Number of rows and parameters: what nats are compared with.

        A row counts as often as its weight says.
        """
        target = self.problem.target
        rows = getattr(target, "rows", None)
        n_rows = target.n_rows if rows is None else rows.total_weight
        return n_rows + target.layout.size

    def structure(self) -> Hashable | None:
        """What members must share to be trained in one stack; None if they cannot."""
        found = stack_structure(self.problem.objective, self.problem)
        if found is None:
            return None
        sizes = self.n_draws, self.n_rows if self.has_batches else None
        return repr(self.problem.objective), found, sizes

    def identity(self) -> tuple:
        """What is equal in processes that run the same fit."""
        rows = getattr(self.problem.target, "rows", None)
        found = None if rows is None else rows.fingerprint()
        return float(self.start.double().sum()), len(self.start), found

    def _schedule(self) -> StableDecay | Patience:
        options, optimizer = self.options, self.optimizer
        n_sweeps = math.ceil(options.max_iter / self.epochs_per_sweep)
        warm_up = min(int(options.warm_up * n_sweeps), MAX_WARM_UP)
        if options.early_stopping and self.validation is not None:
            patience = options.n_iter_no_change
            return Patience(optimizer, self.validation, patience, warm_up)
        return StableDecay(optimizer, n_sweeps, options.tol, self.n_terms, warm_up)

    # --- steps ------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        """Whether there are no more steps to make."""
        ends = bool(self.message) or self.stopped or self.schedule.done
        return ends or len(self.history) >= self.options.max_iter

    def pending(self, spans_epochs: bool) -> int:
        """Steps until the next evaluation: the epoch, or its sweep."""
        if not spans_epochs:
            return self.steps - self._n_of_epoch
        epochs = self.epochs_per_sweep - len(self._sweep)
        epochs = min(epochs, self.options.max_iter - len(self.history))
        return epochs * self.steps - self._n_of_epoch

    def take(self, count: int) -> list[torch.Tensor | None]:
        """Rows of the next steps."""
        while len(self._rows) < count:
            self._rows += self._row_batches()
        taken, self._rows = self._rows[:count], self._rows[count:]
        return taken

    def _row_batches(self) -> list[torch.Tensor | None]:
        if not self.has_batches:
            return [None] * self.steps
        return [
            *deal(self.problem.target.n_rows, self.steps, self.problem.source_of_draws)
        ]

    def record(
        self, values: torch.Tensor, trail: torch.Tensor, is_finite: bool
    ) -> None:
        """Record some steps, up to the first that is not finite.

        Losses in nats before each step, (T,); states before and after each, (T + 1, V).
        """
        end = len(values)
        if not is_finite:
            finite = torch.isfinite(values) & torch.isfinite(trail[1:]).all(1)
            is_finite = bool(finite.all())
            end = end if is_finite else int(finite.long().argmin())
        start = 0
        while start < end and not (self.stopped or self.schedule.done):
            stop = min(end, start + self.steps - self._n_of_epoch)
            self._epoch.append(values[start:stop])
            self._n_of_epoch += stop - start
            self._total += trail[start + 1 : stop + 1].sum(0)
            if self._n_of_epoch == self.steps:
                self._end_epoch(trail[stop].clone())
            start = stop
        if not (is_finite or self.stopped or self.schedule.done):
            self.message = non_finite_message(self._at(trail[end].clone()))

    def _end_epoch(self, last: torch.Tensor) -> None:
        values = torch.cat(self._epoch)
        self._epoch, self._n_of_epoch = [], 0
        self._sweep.append(values)
        end = EpochEnd(self._total.clone(), last, self._sweep[:], self.steps)
        if self.validation is None:
            self._end = end
        else:
            counts = self.schedule.share == 1.0
            score, is_best = self.validation.judge(self._state_at(end.state), counts)
            self._end = replace(end, score=score) if is_best else self._end
        self.history.append(float(values.mean()))
        self.stopped = self.options.progress(
            self.history[-1], lambda: self._state_at(end.state)
        )
        is_last = len(self.history) == self.options.max_iter
        if self.stopped or not (is_last or len(self._sweep) == self.epochs_per_sweep):
            return
        self._end_sweep(end)
        self._sweep = []
        self._total.zero_()

    def _end_sweep(self, end: EpochEnd) -> None:
        """Adapt the step size; far above the best state, go back to it."""
        values = torch.cat(end.values)
        self._best = self._best or self._of_start(values)
        rest, left_out = self._rest(end.state), 1 - self.schedule.share
        if self._best.is_lost(values, rest, self.n_terms):
            self._go_back(self._best)
        else:
            if self._best.is_better(values, rest):
                self._best = Best(end, self.optimizer.state_dict(), rest)
            self.schedule.observe(values)
        if left_out:  # less of the divergence, from now on
            self._best.rest *= (1 - self.schedule.share) / left_out

    def _of_start(self, values: torch.Tensor) -> Best:
        """The start as a sweep, for which the first of these values stand."""
        first = values[:START]
        sums = self.start * len(first), self.start, [first], self.steps
        return Best(EpochEnd(*sums), self._fresh, self._rest(self.start))

    def _go_back(self, best: Best) -> None:
        """Continue from the best state with half the step size."""
        rate = self.optimizer.rate
        self.params.copy_(best.end.last)
        self.optimizer.load_state_dict(best.optimizer | {"rate": rate})
        self.schedule.go_back(best.values)

    def _rest(self, params: torch.Tensor) -> float:
        """The part of the divergence that gradients do not contain."""
        share = self.schedule.share
        return 0.0 if share == 1.0 else (1 - share) * divergence_at(self._at(params))

    # --- the end ----------------------------------------------------------------------

    @property
    def kept(self) -> torch.Tensor:
        """State of the end, or the start."""
        return self.start if self._end is None else self._end.state

    def settle(self, n_steps: int) -> None:
        """Let the best sweep be the end if its state is better on the same draws.

        Averages of sweeps are too noisy to tell where rare values are huge. With
        held-out rows the end is that of the epoch with the best score.
        """
        end = self._end
        if end is None or self.validation is not None:
            return
        best = self._best or self._of_start(torch.cat(end.values))
        is_missed = best.is_missed(end)
        # Estimates from weights are biased, and lowest where q is worst.
        if self.problem.objective.kind == "expectation" and best.may_be_missed(end):
            value, last = self._compared([best.end.state, end.state], n_steps)
            is_missed = value < last
        if is_missed:
            self._end = best.end

    def finish(self) -> None:
        """Set `solution`, the result of the training, and whether it has converged."""
        n_steps = int(JUDGED_SHARE * len(self.history) * self.steps)
        self.settle(min(max(n_steps, FEW_JUDGED), STEPS_PER_SWEEP))
        message = "" if self.stopped else self._complaint()
        ending = ending_of(self.schedule.converged and not message, self.stopped)
        if ending is Ending.UNFINISHED and not message:
            ending = Ending.PLANNED
        self.solution = self._solution(ending, message, self.kept, *self._value())

    def _complaint(self) -> str:
        """Describe problems at the end, the worst first; empty if there are none."""
        problem = self._at(self.kept)
        # First: at a limit other parameters may keep moving forever.
        message = self.message or self._runaway_message()
        if self.schedule.drifted and not message:
            message = (
                f"the noise of the gradients drove the objective up, by more than "
                f"{self.schedule.rise:.2g} nats beyond its lowest; the best state was "
                "kept. Lower the learning_rate of the solver, or increase its n_draws"
            )
        is_early = not (self.schedule.converged or self.options.has_fixed_length)
        if is_early and not message:
            message = (
                f"{self.schedule.unfinished} after max_iter="
                f"{self.options.max_iter} iterations of {self.steps} gradient steps; "
                "increase max_iter"
            )
            message += suspicion(problem.target, self.kept[self.split :])
        gain = problem.objective.remaining_gain(
            problem.target,
            problem.posterior,
            problem.divergence,
            problem.source_of_draws,
        )
        if not message and gain > problem.objective.allowed_gain:
            message = (
                f"the gradient predicts a gain of {gain:.2g} nats, which its noise "
                "kept from showing; increase n_draws of the solver, "
                f"{problem.objective.gain_remedy}"
            )
        efficiency = weight_efficiency(problem)
        if not message and efficiency < MIN_EFFICIENCY:
            message = (
                f"the weights that train {problem.objective!r} are degenerate "
                f"(fraction of effective draws {efficiency:.3f}), so that its "
                "gradients are biased; use objective='elbo', or more n_draws of the "
                "solver"
            )
        return message

    def cut_short(self) -> Solution:
        """Keep the better one of the start and the current state, after Ctrl-C."""
        self.settle(FEW_JUDGED)
        state = self.kept
        if self._end is None:  # the first window is not complete
            state = self.params.clone()
            state[self.split :].clamp_(self.floor, self.ceiling)
        elif self.validation is not None:
            return self._solution(
                Ending.INTERRUPTED, INTERRUPTED, state, *self._value()
            )
        first, value = self._compared([self.start, state], FEW_JUDGED)
        error = math.nan
        if value < first and self._end is not None:
            value, error = self._value()
        elif not value < first:
            state, value = self.start, first
        return self._solution(Ending.INTERRUPTED, INTERRUPTED, state, value, error)

    def _solution(
        self,
        ending: Ending,
        message: str,
        params: torch.Tensor,
        value: float,
        value_se: float,
    ) -> Solution:
        unit, watch = f"sweep of {self.steps} gradient steps", self.validation
        passes = len(self.history) * (1 if self.has_batches else self.steps)
        return Solution(
            solver=self.solver,
            state=self._state_at(params),
            value=value,
            value_se=value_se,
            history=self.history,
            n_iter=len(self.history),
            ending=ending,
            message=message,
            scores=[] if watch is None else watch.scores[: len(self.history)],
            score=None if self._end is None else self._end.score,
            diagnostics={"unit": "epoch" if self.has_batches else unit},
            n_draws=passes * self.n_draws,
        )

    def _runaway_message(self) -> str:
        """Name the learned scales of the result that are at a limit."""
        hyper = self.kept[self.split :]
        return runaway_message(
            self.problem.target,
            hyper <= self.floor + END_MARGIN,
            hyper >= self.ceiling - END_MARGIN,
        )

    def _state_at(self, params: torch.Tensor) -> State:
        """A copy of a state, in the precision of the posterior that was given."""
        return self._at(params.to(self._dtype, copy=True)).state

    def _at(self, params: torch.Tensor) -> Problem:
        """Problem at other variational parameters and hyperparameters."""
        return self.problem.with_params(params)

    @torch.no_grad()
    def _value(self) -> tuple[float, float]:
        """Mean of the last values, without a fall, and its standard error.

        Minibatches of one epoch share the rows: epochs are independent, and single
        steps without a second epoch, which overstates the error.
        """
        end = self._end
        if end is None:
            # Nothing was trained: two values at the start estimate the noise.
            start = self._at(self.start)
            parts = start.objective, start, None, self.n_draws
            pair = [estimate(*parts) for _ in range(2)]
            return mean_and_error(torch.stack(pair))
        values, length = level_part(torch.cat(end.values)), end.length
        if self.has_batches and len(values) >= 2 * length:
            values = values[-(len(values) // length) * length :]
            values = values.reshape(-1, length).mean(1)
        return mean_and_error(values)

    def _compared(self, states: Sequence[torch.Tensor], n_steps: int) -> list[float]:
        """The objective at states in some steps, on the same draws and rows."""
        n_batches = self.steps if self.has_batches else 1
        settings = n_batches, n_steps, self.n_draws
        return [fresh_value(self._at(state), *settings) for state in states]
