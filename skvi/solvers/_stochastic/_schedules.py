"""Schedules of step sizes, relative ones, and when a training ends.

StableDecay keeps the step size until the objective is level, and then decreases it
linearly (Hägele et al. 2024, *Scaling laws and compute-optimal training beyond fixed
training durations*). A level objective says little about the distance from the optimum,
because much of it is noise of the steps: the decrease takes three times as long as what
was before it, the warm-up aside. If the objective is not level after half of the
observations, the step size decreases over the others.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch

from skvi.base import Layout
from skvi.base._layout import Block
from skvi.solvers._stochastic._ends import Validation, mean_and_error
from skvi.solvers._stochastic._optimizers import Adam
from skvi.solvers.base import Problem
from skvi.targets.base import Target
from skvi.utils._rows import SOME_ROWS
from skvi.utils._tensors import CPU

# Step sizes end at this fraction of their start.
SMALLEST_SHARE = 1 / 32
# Fraction of the total decrease that may fall into the last quarter of a fixed
# schedule.
SMALL_FALL = 0.01
# Fraction of the divergence at the start, and the maximum number of observations until
# it is complete. With a tenth throughout, one draw of small one-dimensional data in
# eight ends without a signal; a network that is trained to its end first does not.
WARM_UP_SHARE, MAX_WARM_UP = 0.01, 30
# The former with long steps: with a tenth five of six starts of a wave in 120 rows end
# without a signal; with a hundredth bounds are 2 nats lower.
LONG_STEPS_SHARE = 0.03
# Number of values that represent the start of a fit.
START = 5
# Minimum number of observations without progress.
MIN_HOLD = 12
# With fewer observations the step size decreases from the start.
FEWEST = 44
# Length of the decrease, in observations before it. With one bounds of networks are .2
# to 1.5 nats lower, with two up to 1.1, and longer ones take longer.
DECREASE = 3


class Schedule:
    """Base of schedules: monitors whether noise drives the objective up.

    Must implement: `done`. In the first half of the warm-up a hundredth of
    the divergence enters, which trains a single network; in the second it rises
    geometrically.
    """

    #: Fraction of the divergence at the start.
    first_share = WARM_UP_SHARE
    lowest, lowest_error, first, rise = math.inf, 0.0, math.nan, 0.0
    #: Message if it is not finished.
    unfinished = "the objective was still decreasing"

    def __init__(self, optimizer: Adam, warm_up: int = 0) -> None:
        self.optimizer, self.warm_up, self.n_seen = optimizer, warm_up, 0

    @property
    def share(self) -> float:
        """Fraction of the divergence that gradients contain."""
        if self.n_seen >= self.warm_up:
            return 1.0
        half = self.warm_up / 2
        return self.first_share ** (1 - max(self.n_seen - half, 0.0) / half)

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
        self._watch(values)
        self._see(values)

    def go_back(self, values: torch.Tensor) -> None:
        """Continue with half the step size from where the objective had these values.

        They count as observed once more.
        """
        self.optimizer.rate /= 2
        self._see(values)

    def _see(self, values: torch.Tensor) -> None:
        """Adapt the step size; only what is observed after the warm-up counts."""
        self.n_seen += 1

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

    def _watch(self, values: torch.Tensor) -> None:
        """Compare the mean with the lowest one."""
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


def _mean_and_error(values: torch.Tensor) -> tuple[float, float]:
    """Mean, and its standard error; 0 of a single value."""
    return mean_and_error(values) if len(values) > 1 else (float(values[0]), 0.0)


class StableDecay(Schedule):
    """A constant step size until the objective is level, and then a decrease.

    A decrease counts as none below `tol` nats, or 1 % of the total one (at most 0.01
    nats per row and parameter, `n_terms`). With tol = 0 there is no early end.
    """

    def __init__(
        self,
        optimizer: Adam,
        n_observations: int,
        tol: float,
        n_terms: float = math.inf,
        warm_up: int = 0,
    ) -> None:
        super().__init__(optimizer, warm_up)
        self.start, self.tol = optimizer.rate, tol
        # The first values can be huge (a reverse KL of a narrow q), and 1 % of them
        # too: never more than 0.01 nats for each row and parameter.
        self.largest_fall = SMALL_FALL * n_terms
        self.n_observations = n_observations
        self.seen: list[torch.Tensor] = []
        # Observations that tell nothing about the level of the objective.
        self.n_ignored = warm_up
        # Observations before the step size decreases, and until it is at its end. If
        # there are too few to detect a level objective, it decreases from the start.
        is_short = n_observations < FEWEST
        self.n_held, self.n_all = 0 if is_short else n_observations, n_observations
        self.is_level = False

    @property
    def done(self) -> bool:
        return len(self.seen) >= self.n_all

    @property
    def converged(self) -> bool:
        """Whether the objective was level, before the decrease or at its end."""
        if not self.done or self.drifted:
            return False
        return self.is_level or self._fell_little(len(self.seen) // 4)

    def go_back(self, values: torch.Tensor) -> None:
        self.start /= 2
        self.n_ignored = max(self.n_ignored, self.n_seen + 1)
        super().go_back(values)

    def _see(self, values: torch.Tensor) -> None:
        super()._see(values)
        self.seen.append(values)
        count = len(self.seen)
        if count < self.n_held:
            n_after = count - self.n_ignored
            is_due = self.tol > 0 and n_after >= MIN_HOLD
            is_level = is_due and self._fell_little(n_after // 3)
            if is_level:
                end = count + DECREASE * (count - self.warm_up)
                self.is_level, self.n_all = True, min(end, self.n_all)
            if is_level or 2 * count >= self.n_observations:
                self.n_held = count
        if count > self.n_held:
            left = (self.n_all - count) / (self.n_all - self.n_held)
            self.optimizer.rate = self.start * max(left, SMALLEST_SHARE)

    def _fell_little(self, window: int) -> bool:
        """Whether the last ones fell from those before by noise, or as good as none."""
        if window == 0:
            return False
        before = torch.cat(self.seen[-2 * window : -window])
        last = torch.cat(self.seen[-window:])
        noise = float((last.var() / len(last) + before.var() / len(before)).sqrt())
        fall = float(before.mean() - last.mean())
        total = float(self.seen[0].mean() - last.mean())
        small = min(SMALL_FALL * total, self.largest_fall)
        return fall < max(2 * noise, self.tol, small)


class Patience(Schedule):
    """Stops if the score of held-out rows no longer increases; step sizes are constant.

    `patience` is the number of scores without an increase.
    """

    unfinished = "the score of the held-out rows was still increasing"

    def __init__(
        self,
        optimizer: Adam,
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

    def _watch(self, values: torch.Tensor) -> None:
        """Nothing: only the score counts, and the objective may increase."""


# Step of a weight's mean, in steps of other parameters, times the number of inputs of a
# unit; and the largest one. Chosen on training rows, with steps of 0.05: a quarter ends
# at a constant with three layers of 100 units, twice as much too, and waves in 100 rows
# end 2 to 7 nats lower with smaller ones.
WIDTH_SHARE, LARGEST = 40.0, 2.0
# Roles of blocks that are parts of a network.
NETWORK = ("weight", "intercept", "affine")


def paces(problem: Problem) -> torch.Tensor | None:
    """Factors of the steps of every parameter of a network, (V,); None if all are 1.

    Adam moves all weights of a unit alike: it changes by the sum of the steps. Hence
    one over the number of inputs, the square of the natural scale (Yang et al. 2021,
    *Tuning large neural networks via zero-shot hyperparameter transfer*). What is not
    in units of weights, such as logs of standard deviations and learned scales, has no
    width. Features larger than 1 make all units as large, and their changes.
    """
    posterior, target = problem.posterior, problem.target
    if posterior.starts_at_normal or not _has_widths(target.layout):
        return None
    of_theta = _of_layout(target.layout) / _size_of_features(target)
    parts = [part.paces(of_theta) for part in posterior.components]
    return torch.cat([*parts, _of_layout(target.point_layout)])


def without_steps(
    problem: Problem, fixed: torch.Tensor, pace: torch.Tensor | None
) -> torch.Tensor:
    """Factors that are 0 for means and deviations of some parameters, (V,)."""
    n_components, params = len(problem.posterior.components), problem.params
    if pace is None:
        pace = torch.ones_like(params)
    still = fixed.to(params.device).repeat(2 * n_components)
    rest = still.new_zeros(len(params) - len(still))
    return pace.to(params).masked_fill(torch.cat([still, rest]), 0.0)


def _size_of_features(target: Target) -> float:
    """Root mean square of the largest feature in some rows; 1 if it is smaller."""
    rows = getattr(target, "rows", None)
    if rows is None or not len(rows.X):
        return 1.0
    X = rows.X[:SOME_ROWS].flatten(1).double()
    return max(1.0, float(X.square().mean(0).max().sqrt()))


def _has_widths(layout: Layout) -> bool:
    """Whether any block is narrower than one, as weights of several inputs are."""
    return any(block.scale < 1 for block in layout.values())


def _of_layout(layout: Layout) -> torch.Tensor:
    """Factors of the steps of parameters themselves."""
    parts = [
        torch.full((block.size,), _of_block(block), dtype=torch.float64, device=CPU)
        for block in layout.values()
    ]
    return torch.cat([torch.zeros(0, dtype=torch.float64, device=CPU), *parts])


def _of_block(block: Block) -> float:
    if block.role not in NETWORK:
        return 1.0
    return min(WIDTH_SHARE * block.scale**2, LARGEST)
