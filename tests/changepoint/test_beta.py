"""The beta loss of a regression, against quadrature and finite differences."""

import numpy as np
import pytest
from scipy.special import psi
from scipy.stats import invgamma, norm

from skvi.changepoint._robust import sites
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


def moments(u, s, a, b):
    tau = a / b
    return np.array([u**2 * tau + s, u * tau, tau, np.log(b) - psi(a)])


@pytest.mark.parametrize("case", CASES)
def test_sites_are_gradients_in_the_moments(case):
    """By finite differences: dG = sites . dm along any change of the posterior.

    Wrong variants: the term of m2 without the spread; the integral's part of a.
    """
    c, y, s, a, b = case
    u = 0.3
    start = np.array([u, s, a, b])
    found = sites(c, *map(np.array, (u, y - u, s, a, b)))
    site = np.array([-found.precision / 2, found.shift, -found.const, -found.shape])

    def value(x):
        return expected_gain(c, y - x[0], *x[1:])

    for i in range(4):
        step = np.zeros(4)
        step[i] = 1e-5 * start[i]
        ends = start + step, start - step
        change = value(ends[0]) - value(ends[1])
        expected = site @ (moments(*ends[0]) - moments(*ends[1]))
        assert change == pytest.approx(expected, rel=2e-6, abs=1e-13)


def test_limit_is_the_log_loss():
    """Wrong variant: the shape grows by 1 / 2 - c."""
    found = sites(1e-7, *map(np.array, (0.3, 0.9, 0.2, 2.0, 1.5)))
    assert found.precision == pytest.approx(1, abs=1e-6)
    assert found.shift == pytest.approx(1.2, abs=1e-6)
    assert found.const == pytest.approx(0.72, abs=1e-6)
    assert found.shape == pytest.approx(0.5, abs=1e-6)
