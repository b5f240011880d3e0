"""Adam, and schedules of its step size."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from skvi.solvers._optimizer import Optimizer

__all__ = ["Adam", "AdamStack", "Plateau", "Schedule"]

# Step sizes end at this fraction of their start.
SMALLEST_SHARE = 1 / 32
# Fraction of the total decrease that may fall into the last quarter of a fixed
# schedule.
SMALL_FALL = 0.01
# Initial fraction of the divergence.
WARM_UP_SHARE = 0.1
# Number of values that represent the start of a fit.
START = 5


class Adam(Optimizer):
    """State of the algorithm of Kingma and Ba (2014) for one flat vector.

    Parameters
    ----------
    params : Tensor of shape (V,)
        Tensor with the shape and dtype that will be trained.
    rate : float
        Step size, which schedules change.
    """

    moments = ("first", "second")
    longest_step = 3.2  # 0.1 / sqrt(0.001)

    def __init__(self, params: torch.Tensor, rate: float) -> None:
        super().__init__(rate)
        self.first, self.second = params.new_zeros(2, *params.shape)

    @classmethod
    def stack(
        cls, members: Sequence["Adam"], params: torch.Tensor, gradients: torch.Tensor
    ) -> "AdamStack":
        """Steps of several vectors; see `Optimizer.stack`."""
        return AdamStack(members, params, gradients)


class AdamStack:
    """Steps of several vectors, in place, in fused operations.

    Parameters
    ----------
    adams : sequence of Adam
        States of M vectors, which move into the stack.
    params, gradients : Tensor of shape (M, V)
    """

    def __init__(
        self, adams: Sequence[Adam], params: torch.Tensor, gradients: torch.Tensor
    ) -> None:
        self.adams = adams
        first = torch.stack([adam.first for adam in adams])
        second = torch.stack([adam.second for adam in adams])
        for adam, *moments in zip(adams, first, second, strict=True):
            adam.first, adam.second = moments
        self.matrices = params, gradients, first, second

    def updates(self, n_steps: int) -> list[Callable[[], None]]:
        """Prepare steps, which the members count as done.

        Parameters
        ----------
        n_steps : int

        Returns
        -------
        list of callable
            Each performs the next step of the members with one step size.
        """
        groups = defaultdict(list)
        for m, adam in enumerate(self.adams):
            groups[adam.rate, adam.count].append(m)
            adam.count += n_steps
        # Slices of longer rows are not contiguous for a fused operation.
        if len(groups) == 1 and self.matrices[0].is_contiguous():
            return [
                _update([[matrix] for matrix in self.matrices], *next(iter(groups)))
            ]
        rows = [matrix.unbind() for matrix in self.matrices]
        return [
            _update([[of_kind[m] for m in members] for of_kind in rows], *key)
            for key, members in groups.items()
        ]


def _update(
    tensors: Sequence[list[torch.Tensor]], rate: float, count: int
) -> Callable[[], None]:
    """Next step, given tensors, their gradients, and first and second moments."""
    params, gradients, first, second = tensors
    made = params[0].new_tensor(float(count), dtype=torch.float32)
    # Adding a Python number to a tensor takes longer than adding a tensor.
    one, counts = torch.ones_like(made), [made] * len(params)

    def update() -> None:
        made.add_(one)
        torch._fused_adam_(
            params,
            gradients,
            first,
            second,
            [],
            counts,
            lr=rate,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.0,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )

    return update


class Schedule:
    """Base of schedules: monitors whether noise drives the objective up."""

    lowest, lowest_error, first, rise = math.inf, 0.0, math.nan, 0.0
    #: Message if it is not finished.
    unfinished = "the objective was still decreasing"
    #: Fraction of the divergence that gradients contain.
    share = 1.0

    @property
    def drifted(self) -> bool:
        """Whether the end exceeds the lowest average by more than noise."""
        return self.rise > 0

    def state_dict(self) -> dict[str, Any]:
        """The complete state; the step size belongs to the optimizer."""
        return {
            name: value
            for name, value in vars(self).items()
            if name not in ("optimizer", "validation")
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of another one."""
        vars(self).update(state)

    def _watch(self, values: torch.Tensor) -> tuple[float, float]:
        """Mean of the values and its standard error."""
        mean = float(values.mean())
        error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else 0.0
        if math.isnan(self.first):
            # A first window may end far above its start.
            start = values[:START]
            self.first = self.lowest = float(start.mean())
            if len(start) > 1:
                self.lowest_error = float(start.std()) / math.sqrt(len(start))
        noise = 4 * math.hypot(error, self.lowest_error)
        small = max(noise, SMALL_FALL * (self.first - self.lowest))
        self.rise = max(mean - self.lowest - small, 0.0)
        if mean < self.lowest:
            self.lowest, self.lowest_error = mean, error
        return mean, error


class Plateau(Schedule):
    """Halves the step size if the objective does not decrease by more than noise."""

    def __init__(self, optimizer: Optimizer, patience: int, tol: float) -> None:
        self.optimizer, self.smallest = optimizer, optimizer.rate * SMALLEST_SHARE
        self.patience, self.tol = max(patience, 1), tol
        self.best, self.best_error, self.waited = math.inf, 0.0, 0

    @property
    def done(self) -> bool:
        return self.optimizer.rate < self.smallest

    @property
    def converged(self) -> bool:
        """Whether even small steps made no progress."""
        return self.done and not self.drifted

    def observe(self, values: torch.Tensor) -> None:
        mean, error = self._watch(values)
        noise = 2 * math.hypot(error, self.best_error)
        fell = mean < self.best - max(noise, self.tol)
        self.waited = 0 if fell else self.waited + 1
        if mean < self.best:
            self.best, self.best_error = mean, error
        if self.waited >= self.patience:
            self.optimizer.rate /= 2
            self.waited, self.best = 0, mean
