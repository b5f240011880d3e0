"""One-sided confidence limits of the evidence."""

import pytest
from scipy.stats import t

from skvi.evidence import EvidenceBounds


@pytest.mark.parametrize("level", [0.5, 0.9, 0.999])
def test_limits_are_quantiles_of_a_student_t(level):
    """Errors come from 64 blocks. Wrong variant: normal quantiles."""
    numbers = -7.2, -7.1, 0.01, 0.02, -7.15, 0.1, 900.0, 0.1
    low, high = EvidenceBounds(*numbers, True, "", "importance").limits(level)
    quantile = t(63).ppf(level)
    assert low == pytest.approx(-7.2 - 0.01 * quantile, abs=1e-9)
    assert high == pytest.approx(-7.1 + 0.02 * quantile, abs=1e-9)
