"""Hazards: the probability that a segment ends, given its length."""

from numbers import Real

import numpy as np

from skvi.changepoint.base import Hazard
from skvi.utils._validation import Interval

__all__ = ["ConstantHazard"]


class ConstantHazard(Hazard):
    """Every row is equally likely to begin a new segment.

    Parameters
    ----------
    mean_length : float, default=100.0
        Mean number of rows of a segment, more than 1.

    Examples
    --------
    >>> import numpy as np
    >>> from skvi.changepoint import ConstantHazard
    >>> ConstantHazard(mean_length=50.0).probability(np.array([1, 1000]))
    array([0.02, 0.02])
    """

    _parameter_constraints: dict = {
        "mean_length": [Interval(Real, 1, None, closed="neither")]
    }

    def __init__(self, mean_length: float = 100.0) -> None:
        self.mean_length = mean_length

    def probability(self, length: np.ndarray) -> np.ndarray:
        """1 / mean_length, whatever the length; see `Hazard.probability`."""
        return np.full(length.shape, 1 / self.mean_length)
