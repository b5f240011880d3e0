"""The objective of the robust posterior, whose gradients are sites."""

import numpy as np

from skvi.changepoint._robust import _terms


def expected_gain(c, error, leverage, a, b):
    """G - 1/c + 1: the expected log density at c = 0."""
    log_gain, integral, _, _ = _terms(c, error, leverage, a, b)
    return np.expm1(log_gain) / c - (integral - 1)
