"""Step sizes that are constant until they make no progress, and then decrease."""

import math

import torch

from skvi.solvers._adam import SMALL_FALL, SMALLEST_SHARE, WARM_UP_SHARE, Schedule
from skvi.solvers._optimizer import Optimizer

__all__ = ["StableDecay"]

# Maximum number of observations of the warm-up, and minimum without progress.
MAX_WARM_UP, MIN_HOLD = 10, 12


class StableDecay(Schedule):
    """Keep the step size until the objective is level, then decrease it linearly.

    The decrease takes as long as the constant phase, so that steps average over details
    that they were too long for. It begins after half of the observations at the latest,
    and with the first one if there are fewer than 44.

    Parameters
    ----------
    optimizer : Optimizer
    n_observations : int
        Maximum number of observations.
    tol : float
        Nats: a smaller decrease counts as none. With 0 the objective is never level, so
        that all observations are made.
    n_terms : float, default=inf
        Number of rows and parameters: a hundredth of a nat for each counts as no
        decrease.
    warm_up : float, default=0.0
        Maximum fraction of the observations in which gradients contain a tenth of the
        divergence.

    References
    ----------
    Hägele et al. (2024), *Scaling laws and compute-optimal training beyond fixed
    training durations*.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        n_observations: int,
        tol: float,
        n_terms: float = math.inf,
        warm_up: float = 0.0,
    ) -> None:
        self.optimizer, self.start, self.tol = optimizer, optimizer.rate, tol
        # The first values can be huge (a reverse KL of a narrow q), and 1 % of them
        # too: never more than 0.01 nats for each row and parameter.
        self.largest_fall = SMALL_FALL * n_terms
        self.n_observations = n_observations
        self.warm_up = min(int(warm_up * n_observations), MAX_WARM_UP)
        self.seen: list[torch.Tensor] = []
        # Observations before the step size decreases, and until it is at its end. If
        # there are too few to detect a level objective, it decreases from the start.
        is_short = n_observations < 2 * (MAX_WARM_UP + MIN_HOLD)
        self.n_held, self.n_all = 0 if is_short else n_observations, n_observations
        self.is_level = False

    @property
    def share(self) -> float:  # type: ignore[override]
        """A tenth in the observations of the warm-up, then 1."""
        return WARM_UP_SHARE if len(self.seen) < self.warm_up else 1.0

    @property
    def done(self) -> bool:
        return len(self.seen) >= self.n_all

    @property
    def converged(self) -> bool:
        """Whether the objective was level, before steps decreased or at the end."""
        if not self.done or self.drifted:
            return False
        return self.is_level or self._fell_little(len(self.seen) // 4)

    def observe(self, values: torch.Tensor) -> None:
        self._watch(values)
        self.seen.append(values)
        count = len(self.seen)
        if count < self.n_held:
            n_after = count - self.warm_up
            is_due = self.tol > 0 and n_after >= MIN_HOLD
            self.is_level = is_due and self._fell_little(n_after // 3)
            if self.is_level or 2 * count >= self.n_observations:
                self.n_held = count
                self.n_all = min(2 * count, self.n_observations)
        if count > self.n_held:
            left = (self.n_all - count) / (self.n_all - self.n_held)
            self.optimizer.rate = self.start * max(left, SMALLEST_SHARE)

    def _fell_little(self, window: int) -> bool:
        """Whether the last observations are hardly below as many before them."""
        if window == 0:
            return False
        last = torch.cat(self.seen[-window:])
        before = torch.cat(self.seen[-2 * window : -window])
        noise = float((last.var() / len(last) + before.var() / len(before)).sqrt())
        fall = float(before.mean() - last.mean())
        total = float(self.seen[0].mean() - last.mean())
        small = min(SMALL_FALL * total, self.largest_fall)
        return fall < max(2 * noise, self.tol, small)
