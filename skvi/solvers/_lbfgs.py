"""Limited-memory BFGS with a line search that handles infinite values."""

import math
from collections import deque
from collections.abc import Callable

import torch

__all__ = ["LBFGS"]

# Number of stored pairs, fewer if they would need too much memory.
MEMORY, MIN_MEMORY, MEMORY_ELEMENTS = 50, 5, 2**24
# Maximum number of evaluations of one line search.
MAX_EVALUATIONS = 40
# Weak Wolfe conditions: sufficient decrease, and curvature.
DECREASE, FLATTENING = 1e-4, 0.9
# Relative increase of the value that is due to rounding.
ROUNDING = 1e-14

Evaluate = Callable[[torch.Tensor], tuple[float, torch.Tensor]]


class LBFGS:
    """State of a minimization from a finite value; `step` moves it.

    No step goes to a value of ``inf``. The Hessian should be close to the identity.
    """

    def __init__(self, evaluate: Evaluate, x: torch.Tensor) -> None:
        self.evaluate, self.x = evaluate, x
        self.value, self.gradient = evaluate(x)
        affordable = MEMORY_ELEMENTS // max(len(x), 1)
        self.pairs: deque = deque(maxlen=max(MIN_MEMORY, min(MEMORY, affordable)))

    def direction(self) -> torch.Tensor:
        """Two-loop recursion (Nocedal and Wright 2006, algorithm 7.4)."""
        q, alphas = self.gradient.clone(), []
        for s, y, rho in reversed(self.pairs):
            alphas.append(rho * (s @ q))
            q -= alphas[-1] * y
        if self.pairs:
            s, y, rho = self.pairs[-1]
            q /= rho * (y @ y)
        for s, y, rho in self.pairs:
            q += (alphas.pop() - rho * (y @ q)) * s
        return -q

    @property
    def decrement(self) -> float:
        """Decrease predicted by the quadratic model, in units of the value."""
        return -0.5 * float(self.gradient @ self.direction())

    def step(self) -> bool:
        """Move to a lower point; False if rounding prevents it."""
        direction = self.direction()
        slope = float(self.gradient @ direction)
        found = self._search(direction, slope) if slope < 0 else None
        if found is None:
            if not self.pairs:
                return False
            self.pairs.clear()  # the history may be the cause
            return self.step()
        x, value, gradient = found
        s, y = x - self.x, gradient - self.gradient
        if float(s @ y) > 1e-12 * float(y @ y):
            self.pairs.append((s, y, 1 / (s @ y)))
        self.x, self.value, self.gradient = x, value, gradient
        return True

    def _search(
        self, direction: torch.Tensor, slope: float
    ) -> tuple[torch.Tensor, float, torch.Tensor] | None:
        """Bisection for the weak Wolfe conditions (Lewis and Overton 2013, 2.6)."""
        low, high, best = 0.0, math.inf, None
        # The very first step has the length of the scale of the coordinates.
        t = 1.0 if self.pairs else min(1.0, 1 / math.sqrt(-slope))
        slack = ROUNDING * abs(self.value)
        for _ in range(MAX_EVALUATIONS):
            x = self.x + t * direction
            value, gradient = self.evaluate(x)
            if not value <= self.value + DECREASE * t * slope + slack:
                high = t
            elif float(gradient @ direction) < FLATTENING * slope:
                low, best = t, (x, value, gradient)
            else:
                return x, value, gradient
            t = (low + high) / 2 if math.isfinite(high) else 2 * low
        return best if best is not None and best[1] < self.value else None
