"""Series of counts, few values and any unit."""

import warnings
from copy import deepcopy
from datetime import date

import numpy as np
import pandas as pd
import pytest
from scipy.integrate import quad

from skvi.changepoint import BayesianChangepointDetector, PoissonCounts, Regression
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


@pytest.mark.parametrize("shape", [0.5, 4.0])
def test_normal_scores(shape):
    """The density of the next row integrates to 1, and has about the moments that are
    predicted: those of a score with the same mean and spread that is exactly normal.

    Wrong variants: the slope at the end of the knots for all beyond; no log.
    """
    x = np.random.default_rng(2).gamma(shape, 1.0, 400)
    detector = BayesianChangepointDetector(max_hypotheses=3).fit(x)
    u = np.linspace(-7.0, 12.0, 150)
    y = np.median(x) + 0.2 * np.sinh(u)
    log_density = [
        deepcopy(detector).partial_fit([[value]]).log_densities_[-1] for value in y
    ]
    mass = np.exp(log_density) * 0.2 * np.cosh(u) * (u[1] - u[0])
    assert mass.sum() == pytest.approx(1, abs=5e-3)
    below = np.cumsum(mass) - 0.5 * mass
    middles = np.interp((np.arange(100) + 0.5) / 100, below, y)
    mean, std = detector.predict_next(return_std=True)
    assert mean[0] == pytest.approx(middles.mean(), rel=0.2)
    assert std[0] == pytest.approx(middles.std(), rel=0.25)


def test_overdispersed_counts():
    """The predictive of a negative binomial, by quadrature over its beta prior.

    Wrong variants: c without its 1; the size in place of the dispersion.
    """
    model, x = PoissonCounts(0.7, dispersion=0.4), np.array([3.0, 0.0, 7.0])
    found = BayesianChangepointDetector(model, hazard=1e9, scaling=None, burn_in=2)
    size, rate = 1 / 0.4, 0.7 / x[:2].mean()

    def joint(p):  # p = 1 / (1 + dispersion * mean)
        terms = [np.prod((size + np.arange(k)) / (1 + np.arange(k))) for k in x]
        likelihood = np.prod(terms) * p ** (3 * size) * (1 - p) ** x.sum()
        return likelihood * p ** (size * rate) * (1 - p) ** -0.3

    def prior(p):
        return p ** (size * rate) * (1 - p) ** -0.3

    expected = quad(joint, 0, 1)[0] / quad(prior, 0, 1)[0]
    assert found.fit(x).log_evidence_ == pytest.approx(np.log(expected), abs=1e-6)
    poisson = PoissonCounts(2.0, dispersion=0.0)
    limit = PoissonCounts(2.0, dispersion=1e-6)
    a, b = (
        BayesianChangepointDetector(m, scaling=None).fit(x) for m in (poisson, limit)
    )
    assert a.log_evidence_ == pytest.approx(b.log_evidence_, abs=1e-4)
    np.testing.assert_allclose(a.prediction_stds_, b.prediction_stds_, rtol=1e-4)
    rng = np.random.default_rng(3)
    counts = rng.negative_binomial(2, 0.25, 300) * 1.0
    assert not len(BayesianChangepointDetector("poisson").fit(counts).changepoints_)


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_the_index_is_the_time_of_trends(zone):
    """A line on irregular dates has no change; a kink has one; streams agree.

    Wrong variant: rows are counted.
    """
    rng = np.random.default_rng(0)
    days = np.cumsum(rng.choice([1, 1, 1, 2, 7, 30], 300))
    index = pd.Timestamp("2024-01-01", tz=zone) + pd.to_timedelta(days, "D")
    x = pd.Series(0.01 * days + 0.2 * rng.standard_normal(300), index)
    detector = BayesianChangepointDetector("linear_trend")
    assert not len(detector.fit(x).changepoints_)
    kink = x - 0.03 * np.maximum(days - days[150], 0)
    changes = detector.fit(kink).changepoints_
    assert len(changes) == 1
    assert abs(changes[0] - 150) <= 5
    for backwards in (x[::-1], pd.Series(np.arange(9.0))[::-1]):
        with pytest.raises(ValueError, match="sort_index"):
            BayesianChangepointDetector().fit(backwards)
    stream = BayesianChangepointDetector().partial_fit(x[100:].to_frame())
    with pytest.raises(ValueError, match="sort_index"):
        stream.partial_fit(x[:100].to_frame())


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
