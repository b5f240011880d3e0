"""The recursion against all segmentations, one by one, and against the truth."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import binom

from skvi.changepoint import (
    BayesianChangepointDetector,
    BernoulliTrials,
    Hazard,
    PoissonCounts,
    Regression,
)
from skvi.changepoint.base import ConstantHazard
from tests.changepoint.reference import make_reference

EXACT = {"max_hypotheses": None, "min_probability": 0.0, "scaling": None}
ALL = {"threshold": 0.0}


def evidences(models, X, hazard, noise):
    """Log evidence of every segment, its models summed, and the hazard's terms."""
    reference = make_reference(models, X, hazard=hazard, noise=noise)
    segments = reference.segments + reference.log_prior
    return segments, reference.log_hazard, reference.log_survival


def enumerate_all(segments, log_hazard, log_survival):
    """Log weights of all 2^(n-1) segmentations, and of the best models in each."""
    n = len(segments)
    summed = np.logaddexp.reduce(segments, axis=2)
    best = segments.max(2)
    going = np.concatenate([[0.0, 0.0], np.cumsum(log_survival[1:])])

    def closed(s, t):  # a segment of rows s, ..., t - 1 that ends
        return going[t - s] + log_hazard[t - s]

    # All segmentations of the first rows, by the first row of their last segment.
    weights, paths, starts = np.zeros(1), np.zeros(1), np.zeros(1, int)
    for t in range(1, n):
        ends = closed(starts, t)
        weights = np.concatenate([weights, weights + summed[starts, t] + ends])
        paths = np.concatenate([paths, paths + best[starts, t] + ends])
        starts = np.concatenate([starts, np.full(len(starts), t)])
    last = going[n - starts]
    return weights + summed[starts, n] + last, paths + best[starts, n] + last


def changes_of(number, n):
    """First rows of segments of the segmentation of a number, as enumerated."""
    found = []
    for t in range(n - 1, 0, -1):
        half = 2 ** (t - 1)
        if number >= half:
            found.append(t)
            number -= half
    return found[::-1]


class AtLeast(Hazard):
    """No segment is shorter than five rows, except the last one."""

    def probability(self, length):
        return np.where(length < 5, 0.0, 0.15)


def small_series(n):
    rng = np.random.default_rng(4)
    X = rng.standard_normal((n, 1))
    X[n // 3 : n // 2] += 3.0
    return X


@pytest.mark.parametrize("hazard", [ConstantHazard(6.0), AtLeast()])
def test_all_segmentations_of_eighteen_rows(hazard):
    """Evidence, most probable segmentation, and the probability of every change.

    Wrong variants: the best segmentation by the filtered probabilities, as the slides
    print it; the first segment pays the hazard; the hazard of another length.
    """
    n = 18
    models = [Regression(noise_scale=1.0), Regression(noise_scale=1.0, noise_df=np.inf)]
    X = small_series(n)
    weights, paths = enumerate_all(*evidences(models, X, hazard, np.ones(1)))
    assert len(weights) == 2 ** (n - 1)
    detector = BayesianChangepointDetector(models, hazard=hazard, **EXACT, **ALL).fit(X)
    evidence = np.logaddexp.reduce(weights)
    assert detector.log_evidence_ == pytest.approx(evidence, abs=1e-10)
    best = changes_of(int(paths.argmax()), n)
    assert detector.changepoints_.tolist() == best
    probability = np.zeros(n)
    numbers, total = np.arange(len(weights)), np.exp(weights - evidence)
    for t in range(1, n):
        has = numbers % 2**t >= 2 ** (t - 1)
        probability[t] = total[has].sum()
    np.testing.assert_allclose(detector.change_probability_, probability, atol=1e-12)


def simulate(model, n, hazard, rng):
    """A series and its changes, from the prior of the model."""
    changes = rng.random(n) < hazard
    changes[0] = True
    values = np.empty(n)
    for t in range(n):
        if changes[t]:
            if model == "counts":
                rate = rng.gamma(2.0, 2.0)
            else:
                precision = rng.gamma(1.5, 1 / (1.5 * 0.5**2))
                level = rng.normal(0, 2.0 / 0.5 / precision**0.5)
        if model == "counts":
            values[t] = rng.poisson(rate)
        else:
            values[t] = rng.normal(level, precision**-0.5)
    changes[0] = False
    return values[:, None], changes


@pytest.mark.parametrize("kind", ["constant", "counts"])
def test_probabilities_are_calibrated(kind):
    """Of rows with P(change) near p, a share p begins a segment: ten bins.

    Wrong variants: filtered instead of smoothed probabilities; a hazard of 1/10.
    """
    rng = np.random.default_rng(0)
    model = (
        PoissonCounts(2.0)
        if kind == "counts"
        else Regression(mean_scale=2.0, noise_scale=0.5)
    )
    found, truth = [], []
    for _ in range(20):
        X, changes = simulate(kind, 150, 1 / 20, rng)
        detector = BayesianChangepointDetector(model, hazard=20.0, scaling=None)
        found.append(detector.fit(X).change_probability_)
        truth.append(changes)
    found, truth = np.concatenate(found), np.concatenate(truth)
    assert np.abs(truth.sum() - found.sum()) < 4 * np.sqrt((found * (1 - found)).sum())
    edges = np.array([0, 0.002, 0.01, 0.03, 0.08, 0.2, 0.4, 0.6, 0.8, 0.95, 1 + 1e-9])
    for low, high in pairwise(edges):
        inside = (found >= low) & (found < high)
        count, p = inside.sum(), found[inside].mean() if inside.any() else 0.0
        tails = binom(count, p).cdf([truth[inside].sum() - 1, truth[inside].sum()])
        assert tails[0] < 1 - 1e-4, (low, high, truth[inside].sum(), count * p)
        assert tails[1] > 1e-4, (low, high, truth[inside].sum(), count * p)


def test_dropped_mass_bounds_what_pruning_does():
    """Few hypotheses: a lower bound of the evidence, and small changes elsewhere.

    Wrong variant: the evidence as if nothing had been dropped.
    """
    rng = np.random.default_rng(5)
    X = np.concatenate([rng.normal(m, 1.0, (60, 1)) for m in (0, 3, 1, 4)])
    common = {"hazard": 50.0, "scaling": None}
    whole = BayesianChangepointDetector(
        max_hypotheses=None, min_probability=0.0, **common
    ).fit(X)
    for k in (5, 20):
        few = BayesianChangepointDetector(max_hypotheses=k, **common).fit(X)
        assert len(few.run_lengths_) <= k
        lost = whole.log_evidence_ - few.log_evidence_
        assert 0 < lost < 3 * few.dropped_mass_
    assert np.array_equal(few.changepoints_, whole.changepoints_)


@pytest.mark.parametrize("model", [PoissonCounts(2.0), BernoulliTrials(0.5, 1.5)])
def test_moments_of_counts(model):
    """Mean and variance of the prediction, from its probabilities."""
    rng = np.random.default_rng(6)
    X = (rng.random((30, 1)) < 0.4) * 1.0
    detector = BayesianChangepointDetector(model, **EXACT).fit(X)
    mean, std = detector.predict_next(return_std=True)
    before = detector.log_evidence_
    values = np.arange(0 if model.support == "binary" else 400)
    values = np.array([0.0, 1.0]) if model.support == "binary" else values * 1.0
    p = []
    for y in values[:40]:
        longer = BayesianChangepointDetector(model, burn_in=30, **EXACT).fit(
            np.vstack([X, [[y]]])
        )
        p.append(np.exp(longer.log_evidence_ - before))
    p, values = np.array(p), values[:40]
    assert p.sum() == pytest.approx(1, abs=1e-9)
    assert mean[0] == pytest.approx(p @ values, abs=1e-8)
    assert std[0] ** 2 == pytest.approx(p @ (values - mean[0]) ** 2, abs=1e-7)


@pytest.mark.parametrize(
    "model",
    [
        Regression(noise_scale=0.5, noise_df=60.0),
        Regression(noise_scale=0.5, noise_df=np.inf),
    ],
)
def test_moments_of_real_numbers(model):
    """Mean and variance of the prediction, by quadrature over its density."""
    rng = np.random.default_rng(7)
    X = 0.5 * rng.standard_normal((12, 1))
    detector = BayesianChangepointDetector(model, **EXACT).fit(X)
    mean, std = detector.predict_next(return_std=True)
    x, w = np.polynomial.legendre.leggauss(90)
    x, w = 14 * x, 14 * w
    p = [
        np.exp(
            BayesianChangepointDetector(model, **EXACT)
            .fit(np.vstack([X, [[y]]]))
            .log_evidence_
            - detector.log_evidence_
        )
        for y in x
    ]
    p = w * np.array(p)
    assert p.sum() == pytest.approx(1, abs=1e-7)
    assert mean[0] == pytest.approx(p @ x, abs=1e-6)
    assert std[0] ** 2 == pytest.approx(p @ (x - mean[0]) ** 2, abs=1e-5)
