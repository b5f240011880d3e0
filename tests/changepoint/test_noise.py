"""Noise that is not independent and normal: no changes where there are none."""

from copy import deepcopy

import numpy as np
import pandas as pd
import pytest
from scipy.integrate import quad
from sklearn.exceptions import NotFittedError

from skvi.changepoint import BayesianChangepointDetector, PoissonCounts


def autoregression(coef):
    def draw(rng, n):
        e = rng.standard_normal(n)
        for t in range(1, n):
            e[t] += coef * e[t - 1]
        return e

    return draw


NOISE = {
    "autoregression": autoregression(0.7),
    "lognormal": lambda rng, n: rng.lognormal(0, 1, n),
    "exponential": lambda rng, n: -rng.exponential(1, n),
    "t": lambda rng, n: rng.standard_t(3, n),
}


@pytest.mark.parametrize("kind", NOISE)
def test_noise_without_changes_has_few_reports(kind):
    """In 2 to 7 % of series; of 12 at most 3 with a probability of 0.99.

    Wrong variants: a constant mean alone (in 80 % at least); no normal scores.
    """
    series = [NOISE[kind](np.random.default_rng([s, 7]), 200) for s in range(12)]
    found = [BayesianChangepointDetector().fit(x).changepoints_ for x in series]
    assert sum(len(changes) > 0 for changes in found) <= 3
    alone = BayesianChangepointDetector("constant_mean")
    assert sum(len(alone.fit(x).changepoints_) > 0 for x in series) > 5


def test_a_step_of_skewed_noise_is_found():
    """Results are in the units of the series.

    Wrong variant: predictions are scores.
    """
    x = np.random.default_rng(1).exponential(1.0, 300)
    x[150:] += 2.0
    detector = BayesianChangepointDetector().fit(x)
    assert detector._stream.scaling.n_knots > 0
    assert np.abs(detector.changepoints_ - 150).min() <= 5
    assert detector.predict_next()[0] == pytest.approx(x[150:].mean(), abs=0.3)
    assert detector.log_densities_.sum() == pytest.approx(
        detector.log_evidence_, abs=0.2
    )


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


def test_a_detector_whose_fit_failed_is_not_fitted():
    """Also after one that did not. Wrong variant: attributes of the checks count."""
    detector = BayesianChangepointDetector().fit([1.0, 2.0, 4.0])
    with pytest.raises(ValueError, match="not one of"):
        detector.set_params(models="median").fit([1.0, 2.0])
    with pytest.raises(NotFittedError):
        detector.predict([1.0])
