"""The objective of the robust posterior, in closed form."""

import numpy as np
from scipy.special import gammaln


def expected_gain(c, error, leverage, a, b):
    """G - 1/c + 1 of a row: the expected log density at c = 0.

    Of the powers of a normal density whose mean has the variance `leverage` times that
    of the noise, which is inverse gamma (a, b); c is the order of the loss minus 1.
    """
    damped = 1 + c * leverage
    k = c * error**2 / (2 * damped)
    common = gammaln(a + c / 2) - gammaln(a) - c / 2 * np.log(2 * np.pi * b)
    log_power = common - 0.5 * np.log(damped) - (a + c / 2) * np.log1p(k / b)
    return np.expm1(log_power) / c - np.expm1(common - 1.5 * np.log1p(c))
