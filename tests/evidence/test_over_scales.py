"""The integral over one unknown scale, between exact values at known ones."""

import math
import time
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from skvi.evidence import EvidenceBounds, _bounds, _forecast, _over_scales
from skvi.linear_model import BayesianLogisticRegression
from skvi.priors import build_prior


@pytest.mark.parametrize("size", [1, 20, 700, 3000])
def test_the_sum_holds_the_integral(size, monkeypatch):
    """P coefficients that the data determine: the log scale is known to 1 / sqrt(2 P).

    Wrong variant: steps of at least 0.08: with 700 coefficients 0.2 nats off.
    """
    squares = size * 0.5 * np.random.default_rng(size).normal(1, 0.1) ** 2

    def value(log_scale):
        variance = np.exp(2 * log_scale) + 0.01
        return -0.5 * (size * np.log(2 * math.pi * variance) + squares / variance)

    def prior(log_scale):
        return -np.log(math.pi * np.cosh(log_scale))

    def bound(log_scale):
        v = float(value(log_scale))
        return EvidenceBounds(v, v, 0.0, 0.0, v, 0.0, 1e3, 0.1, True, "", "importance")

    target = SimpleNamespace(
        prior=SimpleNamespace(given_scale=math.log, log_density_of_scale=prior),
        with_prior=lambda log_scale: log_scale,
    )
    posterior = SimpleNamespace(components=[SimpleNamespace(as_normal=lambda: None)])
    monkeypatch.setattr(_over_scales, "lower_bound", lambda *_: (0.0, 0.0))
    found = _over_scales.bound_over_scales(target, posterior, None, bound)
    grid = np.linspace(-12, 12, 200_001)
    exact = logsumexp(value(grid) + prior(grid)) + math.log(grid[1] - grid[0])
    assert found.lower < exact < found.upper
    assert found.gap < 0.1


CASES = {  # rows, effects
    "one": (60, [0.5]),
    "none": (40, [0.0, 0.0]),
    "two": (60, [1.0, -0.5]),
}


def grid_of(model, X, y, n_nodes, reach=12.5):
    """Log evidence without an intercept, by the trapezoidal rule over coefficients.

    An even number of nodes leaves out 0, where the density may be infinite.
    """
    size = X.shape[1]
    # Equal steps of asinh are dense near 0, where the density has a peak.
    reach = 20 if size == 1 else reach
    line = torch.linspace(-reach, reach, n_nodes, dtype=torch.float64)
    axis, log_width = 1e-4 * torch.sinh(line), (1e-4 * torch.cosh(line)).log()
    theta = torch.cartesian_prod(*[axis] * size).reshape(-1, size)
    widths = torch.cartesian_prod(*[log_width] * size).reshape(-1, size).sum(1)
    prior = build_prior(model.prior_, model.posterior_.layout)
    unit = model.posterior_.units.x_scale
    signed = torch.from_numpy(X / unit * np.where(y, 1, -1)[:, None])
    parts = [
        torch.nn.functional.logsigmoid(t @ signed.T).sum(1) + prior.log_prob(t)
        for t in theta.split(10_000)
    ]
    step = size * math.log(float(line[1] - line[0]))
    return float(torch.logsumexp(torch.cat(parts) + widths, 0)) + step


@pytest.mark.parametrize("case", CASES)
def test_a_mixture_over_scales_holds_the_integral(case, monkeypatch):
    """Wrong variants: densities of the mixture without their determinants."""
    n, effects = CASES[case]
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n, len(effects)))
    y = X @ np.array(effects) > rng.logistic(size=n)
    monkeypatch.setattr(_bounds, "bound_over_scales", None)
    model = BayesianLogisticRegression(prior="auto", fit_intercept=False).fit(X, y)
    found = model.evidence_bounds(X, y, random_state=0, precision=0.1)
    exact = grid_of(model, X, y, 6000 if len(effects) == 1 else 200)
    low, high = found.interval()
    assert found.reliable
    assert low < exact < high
    assert high - low < 0.15


@pytest.mark.parametrize("case", ["one", "separated"])
def test_chains_over_scales_hold_the_integral(case, monkeypatch):
    """Classes that two coefficients separate leave their scale a tail to infinity.

    Wrong variant: a scale that does not end at the last one, where chains then stay.
    """
    monkeypatch.setattr(_bounds.ScaleModes, "of", lambda *_: None)
    n, effects = (14, [1.0, -0.5]) if case == "separated" else CASES[case]
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n, len(effects)))
    noise = 0.0 if case == "separated" else rng.logistic(size=n)
    y = X @ np.array(effects) > noise
    model = BayesianLogisticRegression(fit_intercept=False).fit(X, y)
    found = model.evidence_bounds(X, y, random_state=0, n_draws=4000)
    exact = grid_of(model, X, y, 6000 if len(effects) == 1 else 500, reach=22)
    low, high = found.interval()
    assert found.method == "tempering"
    # With so few draws one seed in six of separated classes is refused for its tails.
    assert found.reliable or (case == "separated" and "Pareto k" in found.reason)
    assert low < exact < high
    assert abs(found.estimate - exact) < 0.05
    assert high - low < 0.3


def test_seconds_end_the_sum_over_scales(monkeypatch):
    """Nothing is said then but why. Wrong variant: the clock not read between terms."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    model = BayesianLogisticRegression(prior="auto").fit(X, X[:, 0] > 0)
    terms, known = [], _bounds.bound_evidence

    def count(*args):
        terms.append(args)
        return known(*args)

    monkeypatch.setattr(_bounds, "bound_evidence", count)
    monkeypatch.setattr(_bounds.ScaleFits, "around", lambda *_: None)
    found = model.evidence_bounds(X, X[:, 0] > 0, random_state=0, max_seconds=0.01)
    assert not found.reliable
    assert "the scale of the prior is open; what helps: max_seconds" in found.reason
    assert len(terms) == 1


@pytest.mark.parametrize(
    ("tick", "is_near", "is_begun"),
    [(3.0, True, False), (0.05, True, True), (0.05, False, False), (1e-6, False, True)],
)
def test_a_large_sum_is_not_begun_in_vain(tick, is_near, is_begun, monkeypatch):
    """On a clock that says a tick more at every look.

    Wrong variants: any sum is begun; none is; moves of chains take no time.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 600))
    y = X[:, 0] > 0
    model = BayesianLogisticRegression(posterior="mean_field").fit(X, y)
    ticks, begun = count(), []
    monkeypatch.setattr(time, "monotonic", lambda: tick * next(ticks))
    monkeypatch.setattr(_forecast, "_is_near", lambda *_: is_near)
    monkeypatch.setattr(_bounds, "bound_over_scales", lambda *_: begun.append(1))
    found = model.evidence_bounds(X, y, random_state=0, max_seconds=30)
    assert found.method == "none"
    assert "prior=Normal(scale=1.0)" in found.reason
    assert len(begun) == is_begun
    assert ("601 coefficients and 200 rows" in found.reason) != is_begun
