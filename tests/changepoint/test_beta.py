"""The beta loss of a regression, against quadrature."""

import numpy as np
import pytest
from scipy.stats import invgamma, norm

from tests.changepoint.gains import expected_gain

CASES = [
    (0.3, 0.4, 0.2, 2.0, 1.5),
    (0.1, 3.0, 1.5, 1.2, 0.4),
    (1.0, -2.0, 0.05, 4.0, 6.0),
]


@pytest.mark.parametrize("case", CASES)
def test_expected_gain_is_the_expectation(case):
    """By quadrature over the fit and the variance, and over the values of the row.

    Wrong variants: the spread not damped by c; the integral without 1 / (1 + c).
    """
    c, y, s, a, b = case

    z, of_z = np.polynomial.hermite_e.hermegauss(80)
    v, of_v = np.polynomial.legendre.leggauss(400)
    # Quantiles of sigma^2, closer to the ends where it has heavy tails.
    level = 0.5 + 0.5 * np.sin(np.pi / 2 * v)
    of_level = of_v * np.pi / 4 * np.cos(np.pi / 2 * v)
    sigma = np.sqrt(invgamma.ppf(level, a, scale=b))[:, None]
    power = norm.pdf(y, z * np.sqrt(s) * sigma, sigma) ** c / c
    x, of_x = np.polynomial.legendre.leggauss(120)
    integral = (norm.pdf(12 * x) ** (1 + c) * 12) @ of_x * sigma**-c / (1 + c)
    found = of_level @ (power - integral) @ of_z / of_z.sum()
    expected = expected_gain(c, *map(np.array, (y, s, a, b)))
    assert found == pytest.approx(expected + 1 / c - 1, abs=1e-6)
