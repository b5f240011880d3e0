"""Step sizes that stay until nothing is gained by them, and then fall."""

import math

import torch

from skvi.solvers._adam import SMALL_FALL, SMALLEST_SHARE, WARM_UP_SHARE, Schedule
from skvi.solvers._optimizer import Optimizer

__all__ = ["StableDecay"]

# Observations of the warm-up at most, and without progress at least.
MAX_WARM_UP, MIN_HOLD = 10, 12


class StableDecay(Schedule):
    """Holds the step size until the objective is level, then lets it fall linearly.

    The fall takes as long as all before, so that steps average over what they were
    too long for. It also begins where half of the observations are over, and with the
    first one where fewer than 44 may be made.

    Parameters
    ----------
    optimizer : Optimizer
    n_observations : int
        At most.
    tol : float
        Nats: a smaller fall is none.
    n_terms : float, default=inf
        Numbers of rows and parameters: a hundredth of a nat for each is no fall.
    warm_up : float, default=0.0
        Share of the observations at most in which gradients hold a tenth of the
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
        # Observations before the step size falls, and until it is at its end. Where
        # too few may be made to tell what is level, it falls from the start.
        is_short = n_observations < 2 * (MAX_WARM_UP + MIN_HOLD)
        self.n_held, self.n_all = 0 if is_short else n_observations, n_observations
        self.is_level = False

    @property
    def share(self) -> float:  # type: ignore[override]
        """A tenth in the observations of the warm-up, then all of it."""
        return WARM_UP_SHARE if len(self.seen) < self.warm_up else 1.0

    @property
    def done(self) -> bool:
        return len(self.seen) >= self.n_all

    @property
    def converged(self) -> bool:
        """Whether the objective was level, before the step size fell or at the end."""
        if not self.done or self.drifted:
            return False
        return self.is_level or self._fell_little(len(self.seen) // 4)

    def observe(self, values: torch.Tensor) -> None:
        self._watch(values)
        self.seen.append(values)
        count = len(self.seen)
        if count < self.n_held:
            n_after = count - self.warm_up
            self.is_level = n_after >= MIN_HOLD and self._fell_little(n_after // 3)
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
