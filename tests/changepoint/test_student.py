"""Student's t distribution, whose gamma functions come from a series."""

import mpmath
import numpy as np

from skvi.changepoint._conjugate import log_gamma_ratio


def exact(shape):
    with mpmath.workdps(40):
        a = mpmath.mpf(shape)
        return float(mpmath.loggamma(a + 0.5) - mpmath.loggamma(a))


def test_ratio_of_gamma_functions():
    """Wrong variants: one term of the series less; the series from shape 5 on."""
    shapes = np.array([0.1, 0.5, 3.0, 31.9, 32.0, 33.5, 300.0, 1e4, 1e6, 1e9])
    expected = [exact(a) for a in shapes]
    found = log_gamma_ratio(shapes)
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-14)
