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
# Initial fraction of the divergence, and the maximum number of observations with it:
# wide layers of smooth units need as many before KL switches units off.
WARM_UP_SHARE, MAX_WARM_UP = 0.1, 30
# Number of values that represent the start of a fit.
START = 5
# Weights of the moments' last values, and the length of a gradient, in root mean
# squares of those before it, above which it is shortened.
BETA_1, BETA_2, LONGEST = 0.9, 0.999, 5.0


class Adam(Optimizer):
    """State of the algorithm of Kingma and Ba (2014) for one flat vector, (V,)."""

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
    """Steps of M vectors, (M, V), in place, in fused operations.

    Gradients longer than five root mean squares of those before them are shortened: a
    huge one would make the next thousand steps tiny.
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
        """Prepare steps, which the members count as done; each call performs one."""
        groups = defaultdict(list)
        for m, adam in enumerate(self.adams):
            groups[adam.rate, adam.count].append(m)
        shorten = self._shortening(n_steps)
        for adam in self.adams:
            adam.count += n_steps
        # Slices of longer rows are not contiguous for a fused operation.
        if len(groups) == 1 and self.matrices[0].is_contiguous():
            key = next(iter(groups))
            return [shorten, _update([[matrix] for matrix in self.matrices], *key)]
        rows = [matrix.unbind() for matrix in self.matrices]
        updates = [
            _update([[of_kind[m] for m in members] for of_kind in rows], *key)
            for key, members in groups.items()
        ]
        return [shorten, *updates]

    def _shortening(self, n_steps: int) -> Callable[[], None]:
        """Shorten the gradients of the next steps that are much longer than others."""
        _, gradients, _, second = self.matrices
        # What the mean of the squares has to be divided by, as it starts at 0.
        weights = [
            [1 - BETA_2 ** (adam.count + k) for adam in self.adams]
            for k in range(n_steps)
        ]
        limits = iter(LONGEST / gradients.new_tensor(weights).sqrt()[..., None])

        def shorten() -> None:
            longest = second.sum(1, True).sqrt_().mul_(next(limits))
            length = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
            # The first gradient, and one after zeros, have nothing to compare with.
            share = (longest / length).clamp_(max=1.0).masked_fill_(~(longest > 0), 1.0)
            gradients.mul_(share)

        return shorten


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
            beta1=BETA_1,
            beta2=BETA_2,
            weight_decay=0.0,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )

    return update


class Schedule:
    """Base of schedules: monitors whether noise drives the objective up.

    Must implement: `_adapt`, `done`. A tenth of the divergence enters in the warm-up.
    """

    lowest, lowest_error, first, rise = math.inf, 0.0, math.nan, 0.0
    #: Message if it is not finished.
    unfinished = "the objective was still decreasing"

    def __init__(self, optimizer: Optimizer, warm_up: int = 0) -> None:
        self.optimizer, self.warm_up, self.n_seen = optimizer, warm_up, 0

    @property
    def share(self) -> float:
        """Fraction of the divergence that gradients contain."""
        return WARM_UP_SHARE if self.n_seen < self.warm_up else 1.0

    @property
    def done(self) -> bool:
        """Whether there is nothing more to gain."""
        raise NotImplementedError

    @property
    def drifted(self) -> bool:
        """Whether the end exceeds the lowest average by more than noise."""
        return self.rise > 0

    def observe(self, values: torch.Tensor) -> None:
        """Take the objective in the steps since the last time; adapt the step size."""
        self._see(values, *self._watch(values))

    def go_back(self, values: torch.Tensor) -> None:
        """Continue with half the step size from where the objective had these values.

        They count as observed once more.
        """
        self.optimizer.rate /= 2
        self._see(values, *_mean_and_error(values))

    def _see(self, values: torch.Tensor, mean: float, error: float) -> None:
        self.n_seen += 1
        self._adapt(values, mean, error)

    def _adapt(self, values: torch.Tensor, mean: float, error: float) -> None:
        """Adapt the step size; only what is observed after the warm-up counts."""

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
        mean, error = _mean_and_error(values)
        if math.isnan(self.first):
            # A first window may end far above its start.
            self.first, self.lowest_error = _mean_and_error(values[:START])
            self.lowest = self.first
        noise = 4 * math.hypot(error, self.lowest_error)
        small = max(noise, SMALL_FALL * (self.first - self.lowest))
        self.rise = max(mean - self.lowest - small, 0.0)
        if mean < self.lowest:
            self.lowest, self.lowest_error = mean, error
        return mean, error


def _mean_and_error(values: torch.Tensor) -> tuple[float, float]:
    """Mean, and its standard error; 0 of a single value."""
    error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return float(values.mean()), error


class Plateau(Schedule):
    """Halves the step size if the objective does not decrease by more than noise."""

    def __init__(
        self, optimizer: Optimizer, patience: int, tol: float, warm_up: int = 0
    ) -> None:
        super().__init__(optimizer, warm_up)
        self.smallest = optimizer.rate * SMALLEST_SHARE
        self.patience, self.tol = max(patience, 1), tol
        self.best, self.best_error, self.waited = math.inf, 0.0, 0

    @property
    def done(self) -> bool:
        return self.optimizer.rate < self.smallest

    @property
    def converged(self) -> bool:
        """Whether even small steps made no progress."""
        return self.done and not self.drifted

    def go_back(self, values: torch.Tensor) -> None:
        self.smallest /= 2
        super().go_back(values)

    def _adapt(self, values: torch.Tensor, mean: float, error: float) -> None:
        if self.n_seen <= self.warm_up:
            return
        noise = 2 * math.hypot(error, self.best_error)
        fell = mean < self.best - max(noise, self.tol)
        self.waited = 0 if fell else self.waited + 1
        if mean < self.best:
            self.best, self.best_error = mean, error
        if self.waited >= self.patience:
            self.optimizer.rate /= 2
            self.waited, self.best = 0, mean
