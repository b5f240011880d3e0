"""Changes, outliers and robust losses."""

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from scipy.special import gammaln, psi

from skvi.changepoint import (
    BayesianChangepointDetector,
    Regression,
)
from skvi.changepoint.base import ConstantHazard
from skvi.divergences import KLDivergence
from skvi.losses import BetaLoss
from tests.changepoint.gains import expected_gain
from tests.changepoint.series import five_autoregressions, jump
from tests.changepoint.test_recursion import CASES, Aging, fit, reference_of


@pytest.mark.parametrize("name", ["constant mean", "counts", "regression"])
@pytest.mark.parametrize("hazard", [ConstantHazard(7.0), Aging()], ids=["flat", "age"])
def test_probability_of_a_change_in_an_interval(name, hazard):
    """One minus the evidence of all segmentations without one, over the evidence.

    Wrong variants: segments that begin in the first row of an interval count as
    earlier ones; the look back has not come to the last row.
    """
    models, X, features = CASES[name]
    detector = fit(models, X, features, hazard)
    intervals = [(3, 3), (4, 9), (8, 19), (20, 25), (25, 25), (3, 25)]
    found = detector._stream.records._probability_of(intervals)
    whole = reference_of(detector, models, X, features, hazard)
    for (low, high), p in zip(intervals, found, strict=True):
        without = reference_of(detector, models, X, features, hazard)
        without.segments[low : high + 1] = -np.inf
        without.__post_init__()
        expected = -np.expm1(without.log_evidence - whole.log_evidence)
        assert p == pytest.approx(expected, abs=1e-12)


def test_table_of_changepoints():
    """Means of the segments, in the units of the series; a text and a frame.

    Wrong variant: means in units of the models.
    """
    X = 10.0 * jump(200, 2) + 500.0
    X[120, 0] = np.nan
    frame = pd.DataFrame(X, columns=["a", "b"])
    table = BayesianChangepointDetector().fit(frame).summary()
    assert table.row.tolist() == [100]
    np.testing.assert_allclose(table.mean_before[0], X[:100].mean(0))
    np.testing.assert_allclose(table.mean_after[0], np.nanmean(X[100:], 0))
    columns = table.to_frame()
    assert list(columns)[:4] == ["row", "low", "high", "probability"]
    assert columns["mean_after b"][0] == pytest.approx(X[100:, 1].mean())
    assert str(table).splitlines()[1].split()[:3] == ["100", "100", "100"]
    assert len(BayesianChangepointDetector().fit(X[:90]).summary().to_frame()) == 0


EXACT = {"max_hypotheses": None, "min_probability": 0.0, "scaling": None}


def never(X, model, beta, **params):
    """One segment: the posterior of the first hypothesis, univariate."""
    detector = BayesianChangepointDetector(
        model, hazard=1e12, loss=BetaLoss(beta), **EXACT | params
    ).fit(X)
    found = detector._stream.filter.states[0]
    first = int(np.flatnonzero(found["start"] == 0)[0])
    state = {name: array[first] for name, array in found.items()}
    return state | {"noise": detector._stream.scaling.burn_in.noise[0]}


def kl_of_gaussian_inverse_gamma(mean, root, a, b, mean0, root0, a0, b0):
    """KL(q || prior), from E[log q - log prior]."""
    p = len(mean)
    V, V0 = root @ root.T, root0 @ root0.T
    ratio = np.linalg.solve(V0, V)
    gap = mean - mean0
    tau = a / b
    normal = (
        0.5 * (np.trace(ratio) + tau * gap @ np.linalg.solve(V0, gap) - p)
        - 0.5 * np.linalg.slogdet(ratio)[1]
    )
    gamma = (a - a0) * psi(a) - gammaln(a) + gammaln(a0) + a0 * np.log(b / b0)
    return normal + gamma + a * (b0 - b) / b


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("beta", [1.1, 1.5])
@pytest.mark.parametrize("weight", [1.0, 2.0])
def test_short_segments_have_the_optimal_posterior(order, beta, weight):
    """Against a numerical optimum of the closed form, with an outlier in the segment.

    Wrong variants: one pass of the fixed point only; the sites of the prediction; the
    weight of the divergence on the sites instead of its inverse.
    """
    rng = np.random.default_rng(0)
    X = 1.0 + 0.7 * rng.standard_normal((12 + order, 1))
    X[7] += 9.0
    model = Regression(order, noise_scale=0.8)
    found = never(X, model, beta, divergence=KLDivergence(weight))
    A = np.ones((12, 1 + order))
    if order:
        A[:, 1] = X[:-1, 0]
    y, p, c = X[order:, 0], 1 + order, beta - 1
    a0, b0 = 1.5, 1.5 * 0.8**2
    root0 = np.diag(np.array([2.0, 1.0])[:p] / 0.8)
    index = np.tril_indices(p)

    def objective(x):
        mean, root = x[:p], np.zeros((p, p))
        root[index] = x[p:-2]
        a, b = np.exp(x[-2:])
        error, spread = y - A @ mean, ((A @ root) ** 2).sum(1)
        gain = expected_gain(c, error, spread, a, b).sum() * found["noise"] ** c
        prior = (np.zeros(p), root0, a0, b0)
        return weight * kl_of_gaussian_inverse_gamma(mean, root, a, b, *prior) - gain

    start = np.concatenate([found["mean"][0], np.zeros(len(index[0])), [1.0, 1.0]])
    start[p:-2] = np.linalg.cholesky(found["cov"][0])[index]
    here = start.copy()
    here[-2:] = np.log([found["a"][0], found["b"][0]])
    best = minimize(objective, start, method="BFGS", options={"gtol": 1e-7})
    assert objective(here) == pytest.approx(best.fun, abs=1e-8)
    np.testing.assert_allclose(here[:p], best.x[:p], atol=1e-4)
    np.testing.assert_allclose(here[-2:], best.x[-2:], atol=1e-4)


@pytest.mark.parametrize(
    "models",
    [
        [Regression(mean_scale=1.5, noise_scale=0.7)],
        [Regression(1), Regression(2)],
        [Regression(1, across=True), Regression()],
        [Regression(trend=True, mean_scale=2.0, slope_scale=8.0), Regression()],
    ],
    ids=["constant", "autoregressions", "vector", "trend"],
)
def test_limit_is_the_standard_detector(models):
    """As beta falls to 1.

    Wrong variants: predictions judged without the constants of the loss; the window
    forgets its oldest row instead of keeping its site.
    """
    rng = np.random.default_rng(1)
    X = rng.standard_normal((40, 2))
    X[20:] += 2.5
    X[12, 1] = np.nan
    robust = BayesianChangepointDetector(
        models, hazard=20.0, loss=BetaLoss(1 + 1e-8), **EXACT
    ).fit(X)
    standard = BayesianChangepointDetector(models, hazard=20.0, **EXACT).fit(X)
    for name in ("run_length_posterior_", "model_posterior_", "change_probability_"):
        np.testing.assert_allclose(
            getattr(robust, name), getattr(standard, name), atol=1e-6, err_msg=name
        )
    assert robust.log_evidence_ == pytest.approx(standard.log_evidence_, abs=1e-5)
    np.testing.assert_allclose(
        robust.log_densities_, standard.log_densities_, atol=1e-6
    )
    np.testing.assert_allclose(robust.predictions_, standard.predictions_, atol=1e-6)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 10))]
)
def test_five_autoregressions(seed):
    """Both changes, none else, however far the outliers are.

    Wrong variants: outliers judged by the log loss; parameters that follow outliers.
    """
    X = five_autoregressions(seed=seed)
    X[[100, 300, 301, 500], [0, 1, 1, 0]] += [20.0, -30.0, 25.0, 40.0]
    found = BayesianChangepointDetector(
        Regression(1), loss="beta", max_hypotheses=12
    ).fit(X)
    assert len(found.changepoints_) == 2
    assert np.abs(found.changepoints_ - [200, 400]).max() <= 3
