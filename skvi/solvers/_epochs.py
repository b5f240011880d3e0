"""Averages at the end of an epoch, and their noise."""

from dataclasses import dataclass
from functools import cached_property

import torch

__all__ = ["EpochEnd", "mean_and_error"]


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
