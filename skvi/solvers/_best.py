"""The best state that a training has passed through, and whether it is lost."""

import math
from dataclasses import dataclass, replace

import torch

from skvi.objectives._ensemble_steps import estimate
from skvi.solvers._epochs import EpochEnd, mean_and_error
from skvi.solvers._optimizer import Numbers
from skvi.solvers.base import Problem

__all__ = ["Best", "divergence_at", "fresh_value"]

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

        `n_terms` is the number of rows and parameters.
        """
        rise = float(values.median() - self.values.median()) - (rest - self.rest)
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
    values: list[torch.Tensor] = []
    while len(values) < n_steps:
        parts = [None] if n_batches == 1 else target.batches(n_batches, generator)
        values += [estimate(problem.objective, problem, p, n_draws) for p in parts]
    value = float(torch.stack(values).mean())
    return math.inf if math.isnan(value) else value
