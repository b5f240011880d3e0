"""Step sizes that decrease in rounds, until a round makes no progress.

The first round keeps the step size until the objective is level, then decreases it
linearly for as long (Hägele et al. 2024, *Scaling laws and compute-optimal training
beyond fixed training durations*). A level objective says little about the distance from
the optimum, because much of it is noise of the steps. Therefore each further round is
as long as all before, the warm-up aside, and starts at half the step size of the round
before (Loshchilov and Hutter 2017, *SGDR: stochastic gradient descent with warm
restarts*). The first one that gains nothing beyond noise is the last. If the objective
is not level after half of the observations, the step size decreases over the others.
"""

import math

import torch

from skvi.solvers._adam import SMALL_FALL, SMALLEST_SHARE, Schedule
from skvi.solvers._optimizer import Optimizer

__all__ = ["StableDecay"]

# Minimum number of observations without progress.
MIN_HOLD = 12
# With fewer observations the step size decreases from the start.
FEWEST = 44
# Step size at the start of a round, as a fraction of that of the round before.
ROUND_SHARE = 0.5
# Fraction of the observations so far that are made with the smallest steps of a round.
END_SHARE = 1 / 32


class StableDecay(Schedule):
    """Rounds of decreasing step sizes, until a round makes no progress.

    A decrease counts as none below `tol` nats, or 1 % of the total one (at most 0.01
    nats per row and parameter, `n_terms`). With tol = 0 there is no early end.
    """

    def __init__(
        self,
        optimizer: Optimizer,
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
        # The last round ended: its observations, and whether the last gained nothing.
        self.n_before, self.is_level = 0, False

    @property
    def done(self) -> bool:
        return len(self.seen) >= self.n_all

    @property
    def converged(self) -> bool:
        """Whether the last round gained nothing, or the objective was level."""
        if not self.done or self.drifted:
            return False
        return self.is_level or self._fell_little(len(self.seen) // 4)

    def go_back(self, values: torch.Tensor) -> None:
        self.start /= 2
        self.n_ignored = max(self.n_ignored, self.n_seen + 1)
        super().go_back(values)

    def _adapt(self, values: torch.Tensor, mean: float, error: float) -> None:
        self.seen.append(values)
        count = len(self.seen)
        if count < self.n_held:
            n_after = count - self.n_ignored
            is_due = self.tol > 0 and n_after >= MIN_HOLD
            is_level = is_due and self._fell_little(n_after // 3)
            if is_level or 2 * count >= self.n_observations:
                self._decrease(is_level)
        elif count == self.n_all:
            self._end_round()
        if count > self.n_held:
            left = (self.n_all - count) / (self.n_all - self.n_held)
            self.optimizer.rate = self.start * max(left, SMALLEST_SHARE)

    def _decrease(self, is_level: bool) -> None:
        """Begin to decrease the step size of the first round."""
        self.is_level, self.n_held = is_level, len(self.seen)
        self.n_all = self._end(self.n_held) if is_level else self.n_observations

    def _end(self, n_held: int) -> int:
        """End of a round as long as all that was before it, without the warm-up.

        It takes all observations that are left if they are too few for another one.
        """
        length = n_held - self.warm_up
        is_last = n_held + 2 * length > self.n_observations
        return self.n_observations if is_last else n_held + length

    def _end_round(self) -> None:
        """Begin another round, unless this one gained nothing, or it was the last."""
        count = len(self.seen)
        if self.n_before:
            pair = self._result(self.n_before), self._result()
            self.is_level = self._is_small(*pair) and self._is_small(*pair[::-1])
        is_last = count == self.n_observations
        if is_last or (self.n_before and self.is_level):
            return
        self.n_before = self.n_held = count
        self.n_all = self._end(count)
        self.start *= ROUND_SHARE
        self.optimizer.rate = self.start

    def _result(self, end: int | None = None) -> torch.Tensor:
        """Values at the end of a round, made with its smallest steps."""
        count = len(self.seen) if end is None else end
        return torch.cat(self.seen[count - max(2, int(END_SHARE * count)) : count])

    def _fell_little(self, window: int) -> bool:
        """Whether the last observations are hardly below as many before them."""
        if window == 0:
            return False
        before = torch.cat(self.seen[-2 * window : -window])
        return self._is_small(before, torch.cat(self.seen[-window:]))

    def _is_small(self, before: torch.Tensor, last: torch.Tensor) -> bool:
        """Whether values fell by no more than their noise, or what counts as none."""
        noise = float((last.var() / len(last) + before.var() / len(before)).sqrt())
        fall = float(before.mean() - last.mean())
        total = float(self.seen[0].mean() - last.mean())
        small = min(SMALL_FALL * total, self.largest_fall)
        return fall < max(2 * noise, self.tol, small)
