"""The bands of a training sandwich are two standard errors wide on each side."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest

from skvi.evidence import EvidenceBounds, NamedBound, TrainingRecord
from skvi.plotting import TrainingSandwichDisplay

mpl.use("Agg")


def test_bands_are_two_standard_errors():
    """Wrong variants: one standard error; a band around zero."""
    values, errors = np.array([-9.0, -7.0, -6.0]), np.array([0.5, 0.25, 0.125])
    rows = tuple(
        NamedBound(float(v), float(e), "lower", "a bound in expectation")
        for v, e in zip(values, errors, strict=True)
    )
    final = EvidenceBounds(
        lower=-6.0,
        upper=-5.0,
        lower_se=0.1,
        upper_se=0.1,
        estimate=-5.5,
        gap=1.0,
        ess=100.0,
        khat=0.1,
        reliable=True,
        reason="",
        method="importance",
    )
    record = TrainingRecord((1, 2, 3), {"ELBO": rows}, final)
    display = TrainingSandwichDisplay(record).plot()
    corners = display.bands_["ELBO"].get_paths()[0].vertices
    for x, value, error in zip((1, 2, 3), values, errors, strict=True):
        at = corners[corners[:, 0] == x, 1]
        assert at.min() == pytest.approx(value - 2 * error)
        assert at.max() == pytest.approx(value + 2 * error)
    plt.close(display.figure_)
