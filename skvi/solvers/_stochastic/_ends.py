"""Ends of epochs and sweeps, the best of them, and what may be wrong with a state."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from skvi.base._rows import deal
from skvi.objectives._network_steps import estimate, make_steps, stack_structure
from skvi.solvers._solution import State
from skvi.solvers._stochastic._optimizers import Numbers
from skvi.solvers.base import Problem


@dataclass(frozen=True, eq=False)
class EpochEnd:
    """Sum of the states of a sweep so far, the last state, and the epochs' values.

    With held-out rows also the score of `state` on them.
    """

    total: torch.Tensor
    last: torch.Tensor
    values: list[torch.Tensor]
    length: int
    score: float | None = None

    @cached_property
    def state(self) -> torch.Tensor:
        """The average, or the last state if the objective still decreases fast."""
        # In this case an average lags behind the last state.
        values = torch.cat(self.values)
        return self.last if _is_falling(values) else self.total / len(values)


def mean_and_error(values: torch.Tensor) -> tuple[float, float]:
    """Mean of independent values, and its standard error; NaN of a single one."""
    largest = values.abs().max().clamp(min=1e-150)  # squares may overflow
    error = float(largest * (values / largest).std()) / len(values) ** 0.5
    return float(values.mean()), error


def _is_falling(values: torch.Tensor) -> bool:
    """Whether the second half is lower than the first by more than the noise."""
    if len(values) < 4:
        return True
    first, second = values.tensor_split(2)
    noise = (first.var() / len(first) + second.var() / len(second)).sqrt()
    return bool(first.mean() - second.mean() > 2 * noise)


def level_part(values: torch.Tensor) -> torch.Tensor:
    """The last values, as many as do not fall: all, or a half, a quarter, and so on."""
    while len(values) >= 4 and _is_falling(values):
        values = values[len(values) // 2 :]
    return values


# Rises that are more than noise: in standard errors, and in nats. A training is lost if
# they also exceed a fraction of a nat for each row and parameter: smaller ones are
# often made up for by shorter steps.
MANY_ERRORS, SMALL_RISE, FAR = 5.0, 5.0, 0.1


@dataclass
class Best:
    """The sweep with the lowest average of what is minimized, and what follows it.

    A start counts as a sweep. `rest`: what the warm-up leaves out of the divergence.
    """

    end: EpochEnd
    optimizer: Numbers  # its state at the end
    rest: float = 0.0  # subtracted from the values

    @property
    def values(self) -> torch.Tensor:
        """The objective in the steps of the sweep."""
        return torch.cat(self.end.values)

    def is_better(self, values: torch.Tensor, rest: float = 0.0) -> bool:
        """Whether the average of other values, minus their rest, is lower."""
        return float(values.mean()) - rest < float(self.values.mean()) - self.rest

    def is_missed(self, end: EpochEnd) -> bool:
        """Whether the average of an end is higher by more than a few nats and errors.

        Only the errors of the best sweep count: rare huge values do not excuse an end.
        """
        return float(torch.cat(end.values).mean() - self.values.mean()) > self._allowed

    def may_be_missed(self, end: EpochEnd) -> bool:
        """Whether an end may be worse by more than a few nats, given the noise."""
        if end is self.end:
            return False
        values = self.values, torch.cat(end.values)
        (mean, error), (last, noise) = map(mean_and_error, values)
        # The error of a single value is not known: NaN.
        return not last - mean <= SMALL_RISE - 2 * math.hypot(error, noise)

    def is_lost(self, values: torch.Tensor, rest: float, n_terms: float) -> bool:
        """Whether most values are so far above that training should go back.

        `n_terms` is the number of rows and parameters. The rest is that of the end of
        the sweep: where it falls fast, that of most of its steps is larger.
        """
        rise = float(values.median() - self.values.median())
        rise -= max(rest - self.rest, 0.0)
        return rise > max(self._allowed, FAR * n_terms)

    @property
    def _allowed(self) -> float:
        _, error = mean_and_error(self.values)
        return max(SMALL_RISE, MANY_ERRORS * error)


@torch.no_grad()
def divergence_at(problem: Problem) -> float:
    """The divergence at the state of a problem, where gradients weigh it."""
    parts = [
        problem.divergence.closed_form(component.normal(), problem.target.reference)
        for component in problem.posterior.components
    ]
    return float(torch.stack(parts).mean())


@torch.no_grad()
def fresh_value(problem: Problem, n_batches: int, n_steps: int, n_draws: int) -> float:
    """Mean objective in some steps, with the same draws and rows in every call.

    All rows for a single batch; infinite if it has no value.
    """
    generator = torch.Generator(problem.posterior.params.device).manual_seed(0)
    problem, target = replace(problem, generator=generator), problem.target
    rows: list[torch.Tensor | None] = []
    while len(rows) < n_steps:
        is_whole = n_batches == 1
        rows += [None] if is_whole else deal(target.n_rows, n_batches, generator)
    if stack_structure(problem.objective, problem) is None:
        found = [estimate(problem.objective, problem, r, n_draws) for r in rows]
        value = float(torch.stack(found).mean())
    else:
        value = _mean_of_steps(problem, rows, n_draws)
    return math.inf if math.isnan(value) else value


def _mean_of_steps(problem: Problem, rows: list, n_draws: int) -> float:
    """Mean objective in steps that stay where they are: those of a stack are fast."""
    params, n_own = problem.params[None], len(problem.posterior.params)
    sizes = [len(part) for part in rows if part is not None]
    steps = make_steps(
        problem.objective, [problem], params, n_draws, max(sizes, default=None)
    )
    values = []
    for start in range(0, len(rows), steps.max_steps):
        block = rows[start : start + steps.max_steps]
        steps.prepare([block])
        for k in range(len(block)):
            steps.differentiate(k)
        trail = params.expand(len(block), *params.shape)
        values.append(steps.values(*trail.tensor_split([n_own], -1)))
    return float(torch.cat(values).mean())


@torch.no_grad()
def weight_efficiency(problem: Problem) -> float:
    """Fraction of effective draws of a minimized bound; 1 if there is no bias."""
    objective = problem.objective
    if objective.kind != "weights" or objective.direction != "upper":
        return 1.0
    draw = problem.posterior.draw(1000, problem.source_of_draws)
    theta, log_q = draw.theta, draw.log_q
    log_weights = problem.target.log_joint_batched(theta) - log_q
    weights = objective.training_weights(log_weights)
    return float(1 / weights.square().sum()) / len(theta)


def non_finite_message(problem: Problem) -> str:
    """Name the parts that are not finite, and a remedy."""
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
        "state was kept. Lower the learning_rate of the solver, as learning_rate=0.005 "
        "does, or standardize the features"
    )


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
