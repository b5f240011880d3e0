"""Both ends belong to a prediction interval, as those of counts need it."""

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin

from skvi.metrics import IntervalCoverage


class GivenIntervals(RegressorMixin, BaseEstimator):
    """A regressor whose features are its intervals."""

    def predict_interval(self, X, coverage):
        return X


def test_counts_at_the_ends_are_covered():
    """Wrong variants: an open interval (1 of 5); half open (2 of 5)."""
    ends = np.array([[0.0, 0.0], [0.0, 1.0], [2.0, 4.0], [1.0, 3.0], [0.0, 4.0]])
    y = np.array([0, 1, 2, 2, 5])
    assert IntervalCoverage(0.8)(GivenIntervals(), ends, y) == 0.8
