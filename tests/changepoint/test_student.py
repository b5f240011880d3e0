"""Student's t distribution, whose gamma functions come from a series and a table."""

import mpmath
import numpy as np
import pytest

from skvi.changepoint import _student


def exact(shape):
    with mpmath.workdps(40):
        a = mpmath.mpf(shape)
        return float(mpmath.loggamma(a + 0.5) - mpmath.loggamma(a))


def test_ratio_of_gamma_functions():
    """Wrong variants: one term of the series less; the series from shape 5 on."""
    shapes = np.array([0.1, 0.5, 3.0, 31.9, 32.0, 33.5, 300.0, 1e4, 1e6, 1e9])
    expected = [exact(a) for a in shapes]
    found = _student.log_gamma_ratio(shapes)
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-14)


@pytest.mark.parametrize("step", [0.5, 0.125])
def test_table_of_constants(monkeypatch, step):
    """In the table, at its end, and beyond; of several models, grown on the way.

    Wrong variants: the first model's constants for all; the last entry beyond the end.
    """
    monkeypatch.setattr(_student, "LONGEST_TABLE", 300)
    first = np.array([1.5, 4.0, 0.5])
    table = _student.GammaRatios(first, step)
    model = np.array([0, 1, 2, 2])
    for count in (
        [0, 0, 5, 3],
        [100, 127, 128, 1],
        [299, 300, 301, 5000],
        [7, 0, 2, 9],
    ):
        found = table(model, np.array([count], float))[0]
        expected = [
            exact(first[m] + step * n) - 0.5 * np.log(2 * np.pi)
            for m, n in zip(model, count, strict=True)
        ]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)
    assert table.table.shape == (3, 300)
