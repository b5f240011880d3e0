"""Stochastic gradients on fresh draws: the fallback for every combination."""

import math
from dataclasses import replace
from functools import partial

import torch

from skvi.solvers._adam import Adam, Decay, Plateau
from skvi.solvers._hyper import hyper_range, runaway_message, suspicion
from skvi.solvers.base import (
    INTERRUPTED,
    Ending,
    Problem,
    Solution,
    Solver,
    SolverOptions,
    State,
    ending_of,
)

__all__ = ["Stochastic"]

STEPS_PER_SWEEP = 100
# Draws and rows that tell after Ctrl-C whether the start was better.
JUDGE_DRAWS, JUDGE_ROWS = 32, 1024
# Sweeps without progress before the step size is halved.
PATIENCE = 3
# Below this share of effective draws self-normalised gradients are mostly bias.
MIN_EFFICIENCY = 0.1
# Nats that may be left where gradients are too noisy to find them.
MAX_GAIN = 1.0
# An average over steps at the end of a learnt scale's range lies so close to it.
END_MARGIN = math.log(3.0)


class Stochastic(Solver):
    """Adam with fresh draws in every step, decaying steps and averaging.

    An iteration is an epoch, one visit of every row in minibatches; where all rows
    are used at once it is a sweep of ``options.steps_per_iter`` gradient steps. The
    objective is judged after every 100 steps or more. With ``early_stopping``, when
    its average over three such stretches (`n_iter_no_change` iterations, where that
    is given) is not lower than before by more than its noise, the step size is
    halved; at 1/32 of its start the fit has converged. Without, the step size falls
    linearly over `max_iter` iterations, and the fit has converged if the last
    quarter of them was level. The result is the average of the parameters over the
    last stretch, which removes most of the noise that is left, or the last state
    while the objective still falls. Ctrl-C keeps the last average, before the first
    one the current state, and the start where that is better on the same draws.

    Hyperparameters that the target learns are trained beside the posterior.

    Examples
    --------
    >>> from skvi.solvers import Stochastic
    >>> Stochastic.name
    'stochastic'
    """

    name = "stochastic"

    @staticmethod
    def needs_start(problem: Problem) -> bool:
        """Always: draws of a fresh posterior miss the data; see `Solver`."""
        return True

    def solve(self, problem: Problem, options: SolverOptions) -> Solution:
        """Fit the posterior and what the target learns beside it.

        Parameters
        ----------
        problem : Problem
        options : SolverOptions

        Returns
        -------
        Solution
            `value` is the average of the last sweep's estimates (100 or more), each
            from ``options.n_draws`` draws, in nats.
        """
        return _Training(problem, options).run()


class _Training:
    def __init__(self, problem: Problem, options: SolverOptions) -> None:
        self.problem, self.options = problem, options
        self.split = len(problem.posterior.params)
        dtype = problem.posterior.params.dtype
        hyper = problem.target.hyper.to(dtype)
        self.params = torch.cat([problem.posterior.params.clone(), hyper])
        low, high = hyper_range(problem.target, has_small_steps=True)
        self.floor = torch.minimum(low.to(dtype), hyper)
        self.ceiling = torch.maximum(high.to(dtype), hyper)
        self.start = self.params.clone()
        self.kept = self.start
        self.adam = Adam(self.params, options.learning_rate)
        self.batches = 1
        if options.batch_size is not None:
            self.batches = math.ceil(problem.target.n_rows / options.batch_size)
        self.steps = self.batches if self.batches > 1 else options.steps_per_iter
        self.epochs_per_sweep = math.ceil(STEPS_PER_SWEEP / self.steps)
        self.schedule = self._schedule()
        self.history: list[float] = []
        self.sweep_values: list[torch.Tensor] = []
        self.stopped = False
        self.epoch_length = 1

    def _schedule(self) -> Plateau | Decay:
        options = self.options
        if not options.early_stopping:
            n_sweeps = math.ceil(options.max_iter / self.epochs_per_sweep)
            n_terms = self.problem.target.n_rows + self.problem.target.layout.size
            return Decay(self.adam, n_sweeps, options.tol, n_terms)
        patience = PATIENCE
        if options.n_iter_no_change is not None:
            patience = math.ceil(options.n_iter_no_change / self.epochs_per_sweep)
        return Plateau(self.adam, patience, options.tol)

    def run(self) -> Solution:
        message = ""
        try:
            while not message and not self._is_done():
                message = self._sweep()
            return self._finish(message)
        except KeyboardInterrupt:
            return self._cut_short()

    def _cut_short(self) -> Solution:
        """Keep the better one of the start and of what there is."""
        state = self.kept
        if not self.sweep_values:  # the first stretch is not over
            state = self.params
            state[self.split :].clamp_(self.floor, self.ceiling)
        first, value = self._value_at(self.start), self._value_at(state)
        error = math.nan
        if value < first and self.sweep_values:
            value, error = self._value()
        elif not value < first:
            state, value = self.start, first
        self.kept = state
        return self._solution(Ending.INTERRUPTED, INTERRUPTED, value, error)

    def _is_done(self) -> bool:
        ends = self.stopped or self.schedule.done
        return ends or len(self.history) >= self.options.max_iter

    def _sweep(self) -> str:
        """Visit the rows until 100 steps are made; return why to stop, or nothing."""
        total, values = torch.zeros_like(self.params), []
        for _ in range(self.epochs_per_sweep):
            epoch = []
            for rows in self._row_batches():
                value, gradient = self._gradient(rows)
                epoch.append(value)
                if not bool(torch.isfinite(gradient).all() & torch.isfinite(value)):
                    return _non_finite(self._at(self.params))
                self.adam.step(self.params, gradient)
                self.params[self.split :].clamp_(self.floor, self.ceiling)
                total += self.params
            values += epoch
            # While the objective falls fast, an average lags behind the last state.
            state = total / len(values)
            if _is_falling(values):
                state = self.params.clone()
            self.kept, self.sweep_values = state, values
            self.epoch_length = len(epoch)
            self.history.append(float(torch.stack(epoch).mean()))
            self.stopped = self.options.progress(
                self.history[-1], partial(self._state, state)
            )
            if self.stopped:
                return ""
            if len(self.history) == self.options.max_iter:
                break
        self.schedule.observe(torch.stack(values))
        return ""

    def _row_batches(self) -> list:
        if self.batches == 1:
            return [None] * self.steps
        generator = self.problem.source_of_draws
        return self.problem.target.batches(self.batches, generator)

    def _gradient(self, rows: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        problem = self._at(self.params)
        return problem.objective.value_and_gradient(
            problem.target,
            problem.posterior,
            problem.divergence,
            rows,
            self.options.n_draws,
            problem.source_of_draws,
        )

    def _at(self, params: torch.Tensor) -> Problem:
        """Problem at these variational parameters and hyperparameters."""
        posterior, target = self.problem.state
        params, hyper = params[: self.split], params[self.split :]
        return self.problem.at(State(posterior.at(params), target.at(hyper)))

    def _state(self, params: torch.Tensor) -> State:
        return self._at(params.clone()).state

    def _finish(self, message: str) -> Solution:
        options = self.options
        problem = self._at(self.kept)
        if self.stopped:
            return self._solution(Ending.STOPPED, "", *self._value())
        # First: at an end other parameters may go on moving without limit.
        message = message or self._runaway_message()
        if self.schedule.drifted and not message:
            message = (
                f"the noise of the gradients drove the objective up, by more than "
                f"{self.schedule.rise:.2g} nats beyond its lowest; lower learning_rate "
                "or increase n_draws"
            )
        if not self.schedule.converged and not message:
            message = (
                f"the objective was still falling after max_iter={options.max_iter} "
                f"iterations of {self.steps} gradient steps; increase max_iter"
            )
            message += suspicion(problem.target, self.kept[self.split :])
        gain = problem.objective.remaining_gain(
            problem.target,
            problem.posterior,
            problem.divergence,
            problem.source_of_draws,
        )
        if not message and gain > MAX_GAIN:
            message = (
                f"the gradient promises {gain:.2g} more nats, which its noise kept "
                "from showing; increase n_draws, or use gradient='reparam'"
            )
        efficiency = _weight_efficiency(problem)
        if not message and efficiency < MIN_EFFICIENCY:
            message = (
                f"the weights that train {self.problem.objective!r} are degenerate "
                f"(share of effective draws {efficiency:.3f}), so that its gradients "
                "are biased; use objective='elbo' or more n_draws"
            )
        ending = ending_of(self.schedule.converged and not message)
        return self._solution(ending, message, *self._value())

    def _solution(
        self, ending: Ending, message: str, value: float, value_se: float
    ) -> Solution:
        return Solution(
            solver=Stochastic.name,
            state=self._state(self.kept),
            value=value,
            value_se=value_se,
            history=self.history,
            n_iter=len(self.history),
            ending=ending,
            message=message,
            diagnostics={"unit": self._unit()},
        )

    def _runaway_message(self) -> str:
        """Say which learnt scales of what is returned lie at an end."""
        hyper = self.kept[self.split :]
        return runaway_message(
            self.problem.target,
            hyper <= self.floor + END_MARGIN,
            hyper >= self.ceiling - END_MARGIN,
        )

    def _unit(self) -> str:
        if self.batches > 1:
            return "epoch"
        return f"sweep of {self.steps} gradient steps"

    @torch.no_grad()
    def _value(self) -> tuple[float, float]:
        """Mean of the last values, and its standard error.

        Minibatches of one epoch share the rows: epochs are independent, and single
        steps where there is no second epoch, which overstates the error.
        """
        if not self.sweep_values:
            # Nothing was trained: two values of the start tell of the noise.
            start = self._at(self.kept)
            pair = [_surrogate(start, self.options, None)[1] for _ in range(2)]
            return _mean_and_error(torch.stack(pair))
        values = torch.stack(self.sweep_values)
        if self.batches > 1 and len(values) >= 2 * self.epoch_length:
            values = values[-(len(values) // self.epoch_length) * self.epoch_length :]
            values = values.reshape(-1, self.epoch_length).mean(1)
        return _mean_and_error(values)

    @torch.no_grad()
    def _value_at(self, params: torch.Tensor) -> float:
        """The objective on draws and rows that are the same in every call."""
        generator, rows = torch.Generator().manual_seed(0), None
        n_rows = self.problem.target.n_rows
        if self.options.batch_size is not None and n_rows > JUDGE_ROWS:
            rows = torch.randperm(n_rows, generator=generator)[:JUDGE_ROWS]
        problem = replace(self._at(params), generator=generator)
        n_draws = max(self.options.n_draws, JUDGE_DRAWS)
        options = replace(self.options, n_draws=n_draws)
        return float(_surrogate(problem, options, rows)[1])


def _mean_and_error(values: torch.Tensor) -> tuple[float, float]:
    """Mean of independent values, and its standard error; NaN of a single one."""
    largest = values.abs().max().clamp(min=1e-150)  # squares may be no floats
    error = float(largest * (values / largest).std()) / len(values) ** 0.5
    return float(values.mean()), error


def _is_falling(values: list[torch.Tensor]) -> bool:
    """Whether the second half is lower than the first by more than the noise."""
    if len(values) < 4:
        return True
    first, second = torch.stack(values).tensor_split(2)
    noise = (first.var() / len(first) + second.var() / len(second)).sqrt()
    return bool(first.mean() - second.mean() > 2 * noise)


@torch.no_grad()
def _weight_efficiency(problem: Problem) -> float:
    """Share of effective draws of a minimised bound; 1 where they bias nothing."""
    objective = problem.objective
    if objective.kind != "weights" or objective.direction != "upper":
        return 1.0
    draw = problem.posterior.draw(1000, problem.source_of_draws)
    theta, log_q = draw.theta, draw.log_q
    log_weights = problem.target.log_joint_batched(theta) - log_q
    weights = objective.training_weights(log_weights)
    return float(1 / weights.square().sum()) / len(theta)


def _surrogate(
    problem: Problem, options: SolverOptions, rows: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    return problem.objective.surrogate(
        problem.target,
        problem.posterior,
        problem.divergence,
        rows,
        options.n_draws,
        problem.source_of_draws,
    )


def _non_finite(problem: Problem) -> str:
    posterior = problem.posterior
    with torch.no_grad():
        draw = posterior.draw(1, problem.source_of_draws)
        theta, log_q = draw.theta, draw.log_q
        parts = {
            "log q": log_q,
            "log prior": problem.target.reference.log_prob(theta),
            "log joint": problem.target.log_joint(theta),
        }
    bad = [name for name, value in parts.items() if not torch.isfinite(value).all()]
    return (
        f"{' and '.join(bad) or 'the gradient'} went non-finite; the last finite "
        "state was kept. Lower learning_rate or standardise the features"
    )
