"""Weighted medians, and the deviation of a normal that they estimate."""

import numpy as np
import pytest
from scipy.stats import norm

from skvi.utils._validation import median_distance, weighted_median


@pytest.mark.parametrize("scale", [0.01, 1.0, 300.0])
def test_median_distance_of_normals_is_their_deviation(scale):
    """On quantiles of a normal. Wrong variants: no factor 1.4826; its inverse."""
    values = 7.0 + scale * norm.ppf((np.arange(4001) + 0.5) / 4001)
    w = np.ones(len(values))
    assert weighted_median(values, w) == pytest.approx(7.0)
    assert median_distance(values, w, 7.0) == pytest.approx(scale, rel=1e-3)


def test_weights_equal_repetitions():
    """Wrong variants: weights in the order of the values; their square."""
    values, w = np.array([5.0, 1.0, 9.0, 2.0, 4.0]), np.array([1, 3, 1, 6, 4])
    repeated = np.repeat(values, w)
    assert weighted_median(values, w) == np.median(repeated)
    found = median_distance(values, w, 2.0)
    assert found == pytest.approx(1.4826 * np.median(np.abs(repeated - 2.0)))
