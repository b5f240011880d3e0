"""Series of few values: a warning that names what suits them; and what X may be."""

import warnings
from datetime import date

import numpy as np
import pandas as pd
import pytest

from skvi.changepoint import BayesianChangepointDetector, Regression
from skvi.exceptions import SkviWarning
from tests.changepoint.series import jump

RNG = np.random.default_rng(0)
N = 900
SALES = np.where(RNG.random(N) < 0.7, 0, RNG.poisson(10, N)) * 1.0
#: Stable series -> models, message, and remedy: a series and models.
KINDS = {
    "trials": (RNG.random(N) < 0.05, "constant_mean", 'models="bernoulli"', None),
    "two values": (
        np.where(RNG.random(N) < 0.2, 5.5, -1),
        "known_noise",
        'models="bernoulli" for X == 5.5',
        (lambda X: X == 5.5, "bernoulli"),
    ),
    "rare counts": (RNG.poisson(0.2, N), "constant_mean", 'models="poisson"', None),
    "rounded": (
        2.5 * np.round(RNG.normal(0, 1, N) / 2.5) + 0.1,
        "constant_mean",
        r"steps of 2.5, use Regression\(noise_scale=1.0, noise_df=20.0\)",
        (lambda X: X, Regression(noise_scale=1.0, noise_df=20.0)),
    ),
    "demand": (
        SALES,
        "constant_mean",
        'models="bernoulli" for X != 0, and the values themselves with NaN for 0',
        (lambda X: np.where(X == 0, np.nan, X), "constant_mean"),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_series_of_few_values(kind):
    """Changes where there are none come with a warning, whose remedy reports none.

    Wrong variants: one threshold for all numbers of values; the remedy warns, too.
    """
    values, models, message, remedy = KINDS[kind]
    X = np.asarray(values, dtype=float)[:, None]
    with pytest.warns(SkviWarning, match=message) as found:
        wrong = BayesianChangepointDetector(models).fit(X)
    assert len(found) == 1
    change, better = remedy or (lambda X: X, message.split('"')[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        right = BayesianChangepointDetector(better).fit(change(X))
    assert len(right.changepoints_) <= 1 < len(wrong.changepoints_)
    with pytest.warns(SkviWarning, match=message):  # once, when units are settled
        stream = BayesianChangepointDetector(models, burn_in=300).partial_fit(X[:700])
    stream.partial_fit(X[700:])


@pytest.mark.parametrize(
    ("values", "models"),
    [
        (np.round(RNG.normal(size=N)), "constant_mean"),
        (RNG.poisson(1.0, N), "constant_mean"),
        (RNG.poisson(np.repeat([2.0, 20.0, 5.0], N // 3)), "poisson"),
        (RNG.poisson(0.1, N), "poisson"),
        (RNG.poisson(RNG.gamma(2.0, 5.0, N)), "poisson"),
        (RNG.random(N) < 0.3, "bernoulli"),
        (np.full(N, 7.0), "constant_mean"),
        (np.arange(12) % 2, "constant_mean"),
    ],
)
def test_other_series_give_no_warning(values, models):
    """Rounded to a standard deviation, counts whose mean changes, constants, few rows.

    Wrong variant: changes of the mean count as overdispersion.
    """
    BayesianChangepointDetector(models).fit(np.asarray(values, float)[:, None])


def test_columns_are_named():
    """The first one; a column without values only once the series is complete."""
    X = pd.DataFrame({"a": jump(80)[:, 0], "b": 1.0 * (np.arange(80) % 9 == 0)})
    X["c"], X["d"] = X["b"], np.nan
    with pytest.warns(SkviWarning, match="Column b holds only.* 2 more such columns"):
        BayesianChangepointDetector().fit(X)
    with pytest.warns(SkviWarning, match="Column d has no observed value"):
        BayesianChangepointDetector().fit(X[["a", "d"]])
    with pytest.warns(SkviWarning, match="Column 1 has no observed value"):
        BayesianChangepointDetector().fit(X[["a", "d"]].to_numpy())
    BayesianChangepointDetector(burn_in=30).partial_fit(X[["a", "d"]])


@pytest.mark.parametrize(
    "dates",
    [
        pd.date_range("2024-01-01", periods=80),
        pd.to_timedelta(np.arange(80), "D"),
        [date(2024, 1, 1 + i % 28) for i in range(80)],
    ],
    ids=["dates", "durations", "objects"],
)
def test_dates_are_refused(dates):
    """Alone, beside numbers, as an array and as a series, as by linear models."""
    X = pd.DataFrame({"when": dates})
    message = "dates or durations.*days since a first day"
    both = X.assign(x=jump(80))
    for bad in (X, both, X.to_numpy(), X["when"], np.asarray(X["when"])):
        with pytest.raises(ValueError, match=message):
            BayesianChangepointDetector().fit(bad)
    with pytest.raises(ValueError, match=message):
        BayesianChangepointDetector().partial_fit(X)


def test_one_dimension_is_one_series():
    """Wrong variant: the first row of a stream of two series becomes one series."""
    x = jump(120)[:, 0]
    index = pd.date_range("2024-01-01", periods=120)
    expected = BayesianChangepointDetector().fit(x[:, None])
    for X in (x, x.tolist(), tuple(x), pd.Series(x, index=index, name="x")):
        detector = BayesianChangepointDetector().fit(X)
        assert detector.log_evidence_ == expected.log_evidence_
        assert np.array_equal(detector.predict(X), expected.labels_)
    assert detector.changepoint_labels_[0] == index[60]
    detector.partial_fit([4.0, 4.1])
    assert detector.n_rows_seen_ == 122
    missing = pd.Series([1.0, None, 3.0], dtype="Float64")
    assert BayesianChangepointDetector().fit(missing).n_rows_seen_ == 3
    for bad in ([1.0, 2.0], pd.Series([1.0, 2.0])):
        with pytest.raises(ValueError, match=r"2D|2-dimensional|1D"):
            BayesianChangepointDetector().partial_fit(bad)
