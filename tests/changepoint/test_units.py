"""Units of series that begin with a constant, and streams whose units are measured."""

import pickle

import numpy as np
import pytest

from skvi.changepoint import BayesianChangepointDetector, PoissonCounts, Regression
from tests.changepoint.series import state


def constant_start(n, offset=0.0, seed=0):
    """A constant for n rows, then noise, and a hundred rows later a jump."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(0, 0.5, 160)
    noise[100:] += 3.0
    return offset + 0.05 * np.concatenate([np.zeros(n), noise])[:, None]


@pytest.mark.parametrize("n", [1, 2, 30, 99, 100, 101, 150, 500])
def test_streams_that_begin_with_a_constant(n):
    """Both changes, at 0 and at 1,000, and one at a time as together.

    Wrong variants: the scale of a constant is not measured again; the first `burn_in`
    rows, constant ones included, are measured.
    """
    X = constant_start(n)
    at_zero = BayesianChangepointDetector().partial_fit(X)
    moved = BayesianChangepointDetector().partial_fit(X + 1000.0)
    fitted = BayesianChangepointDetector().fit(X + 1000.0)
    for detector in (at_zero, moved, fitted):
        found = detector.changepoints_
        assert np.abs(found - (n + 100)).min() <= 1
        assert n < 10 or np.abs(found - n).min() <= 3
        assert len(found) == (1 if n < 10 else 2)
        assert 0.015 < detector.scale_[0] < 0.1
    assert moved.log_evidence_ == pytest.approx(at_zero.log_evidence_, abs=1e-6)
    total = at_zero.log_densities_.sum()
    assert at_zero.log_evidence_ == pytest.approx(total, abs=0.2)


@pytest.mark.parametrize("loss", ["log", "beta"])
def test_row_by_row_is_the_whole(loss):
    """With series that begin to vary at rows 1, 40 and 70, the last missing before.

    Wrong variant: rows that wait are measured in units of the rows so far.
    """
    X = np.hstack([constant_start(n)[:160] for n in (1, 40, 70)])
    X[:70, 2] = np.nan
    detector = BayesianChangepointDetector(loss=loss, burn_in=12, max_hypotheses=10)
    whole = pickle.loads(pickle.dumps(detector)).partial_fit(X)
    for i, row in enumerate(X):
        detector.partial_fit(row[None])
        if i in (5, 45, 75):
            assert detector.n_rows_seen_ == len(detector.log_densities_) == i + 1
            detector = pickle.loads(pickle.dumps(detector))
    expected = state(whole)
    for name, values in state(detector).items():
        np.testing.assert_array_equal(values, expected[name], err_msg=name)
    assert whole.location_[1] == 0.0


def test_a_fit_to_a_constant_goes_on():
    """Wrong variant: `fit` settles the units of a constant."""
    detector = BayesianChangepointDetector().fit(np.full((200, 1), 20.0))
    detector.partial_fit(20.0 + constant_start(0))
    assert np.abs(detector.changepoints_ - [200, 300]).max() <= 3
    assert 0.015 < detector.scale_[0] < 0.1


@pytest.mark.parametrize("size", [1e-6, 1e3])
def test_the_shortest_burn_in_has_units(size):
    """Of two rows, the least that have a scale. Wrong variant: no row, so 1."""
    x = np.random.default_rng(3).normal(size=(300, 1))
    x[150:] += 8.0
    detector = BayesianChangepointDetector(burn_in=1).partial_fit(5.0 + size * x)
    assert detector.changepoints_.tolist() == [150]
    assert detector.scale_[0] < 5 * size


def test_rows_that_wait_cost_nothing():
    """Until results are requested. Wrong variant: they are processed in every call."""
    read = []

    class Counted(Regression):
        def regressors(self, row):
            read.append(row.index)
            return super().regressors(row)

    detector = BayesianChangepointDetector(Counted(), loss="beta", max_hypotheses=5)
    for row in constant_start(1)[:40]:
        detector.partial_fit(row[None])
    assert not read
    assert len(detector.labels_) == len(detector.predictions_) == 40
    assert read == list(range(40))


def test_units_far_from_zero_and_of_counts():
    """Wrong variants: a scale below 1e-12 of the location is rounding; the scale of a
    constant is its size."""
    noise = np.random.default_rng(0).normal(size=500)
    X = np.column_stack([1e9 + 1e-4 * noise, np.full(500, 7.0)])
    scale = BayesianChangepointDetector("constant_mean").fit(X).scale_
    assert scale[0] == pytest.approx(1e-4, rel=0.2)
    assert scale[1] == 1.0
    counts = np.r_[np.zeros(120), np.full(60, 7.0)][:, None]
    detector = BayesianChangepointDetector(PoissonCounts()).partial_fit(counts)
    assert detector.changepoints_.tolist() == [120]
    assert detector.scale_.tolist() == [1.0]
