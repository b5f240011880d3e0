"""Decisions about models from intervals of log evidences.

All statements follow from one: every interval contains its log evidence. The intervals
are wide enough for this to hold with the confidence level, for any number of models and
of runs (Bonferroni's inequality).
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logsumexp, softmax
from scipy.stats import t as student_t

# The standard errors come from at least 64 blocks of draws, and 64 chains.
DEGREES_OF_FREEDOM = 60


@dataclass(frozen=True, eq=False)
class Comparison:
    """Intervals of log evidence plus log prior probability, in nats, of K models.

    The interval of a model whose bounds are not reliable is the whole line. `learned`
    are the hyperparameters on which each evidence is conditioned.
    """

    estimate: np.ndarray
    low: np.ndarray
    high: np.ndarray
    learned: list[frozenset[str]]
    min_difference: float

    def beats(self, k: int, j: int) -> bool:
        """Whether model k is better than j by more than `min_difference` nats.

        A maximum over hyperparameters that j does not learn is no evidence against j.
        """
        return self.is_above(k, j) and self.learned[k] <= self.learned[j]

    def is_above(self, k: int, j: int) -> bool:
        """Whether k's interval lies above j's by more than `min_difference`."""
        return bool(self.low[k] - self.high[j] > self.min_difference)

    def contenders(self) -> list[int]:
        """Models that no other one beats; the highest estimate first."""
        models = range(len(self.estimate))
        left = [j for j in models if not any(self.beats(k, j) for k in models)]
        return sorted(left, key=lambda j: -self.estimate[j])

    def open_models(self) -> list[int]:
        """Models for which tighter bounds may change the decision."""
        best, *others = self.contenders()
        found: set[int] = set()
        for j in others:
            if self._is_open(best, j):
                endless = {k for k in (best, j) if np.isinf(self.low[k])}
                # If other bounds are unreliable, tighter ones do not help.
                found |= endless or {best, j}
        return sorted(found)

    def _is_open(self, k: int, j: int) -> bool:
        return not (self.is_above(k, j) or self.is_above(j, k) or self.is_tie(k, j))

    def is_tie(self, k: int, j: int) -> bool:
        """Whether two models are certainly within `min_difference`."""
        farthest = max(self.high[k] - self.low[j], self.high[j] - self.low[k])
        return bool(farthest <= self.min_difference)

    def probabilities(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Probability of every model, and the ends of its interval.

        It increases in the model's evidence and decreases in all others: its ends are
        at corners of the intervals. NaN if some interval is infinite: unreliable bounds
        support no number.
        """
        known = len(self.low) == 1 or np.isfinite([self.low, self.high]).all()
        low = [_share(low, self.high, k) for k, low in enumerate(self.low)]
        high = [_share(high, self.low, k) for k, high in enumerate(self.high)]
        shares = softmax(self.estimate) if known else np.full(len(self.low), np.nan)
        return shares, np.array(low), np.array(high)


def _share(value: float, others: np.ndarray, k: int) -> float:
    """Z_k / (Z_k + sum of the others) from logarithms, which may be infinite."""
    rest = np.delete(others, k)
    if not len(rest):
        return 1.0
    total = logsumexp(rest)
    return 0.0 if total == np.inf or value == -np.inf else float(expit(value - total))


def n_standard_errors(confidence_level: float, n_models: int, n_runs: int) -> float:
    """Standard errors on each side such that all intervals of all runs hold jointly."""
    tail = (1 - confidence_level) / (2 * n_models * n_runs)
    return float(student_t.isf(tail, DEGREES_OF_FREEDOM))
