"""Student's t distribution, whose gamma functions come from a series."""

import mpmath
import pytest

from skvi.changepoint import BayesianChangepointDetector, Regression


def exact(shape, y, variance):
    with mpmath.workdps(40):
        a, width = mpmath.mpf(shape), 2 * mpmath.mpf(shape) * variance
        ways = mpmath.loggamma(a + 0.5) - mpmath.loggamma(a)
        kernel = (a + 0.5) * mpmath.log1p(mpmath.mpf(y) ** 2 / width)
        return float(ways - mpmath.log(mpmath.pi * width) / 2 - kernel)


@pytest.mark.parametrize(
    "shape", [0.1, 0.5, 3.0, 31.9, 32.0, 33.5, 300.0, 1e4, 1e6, 1e9]
)
def test_density_of_the_first_row(shape):
    """Wrong variants: one term of the series less; the series from shape 5 on."""
    model = Regression(mean_scale=2.0, noise_scale=1.0, noise_df=2 * shape)
    found = BayesianChangepointDetector(model, scaling=None).fit([[1.5]])
    assert found.log_evidence_ == pytest.approx(exact(shape, 1.5, 5.0), abs=5e-14)
