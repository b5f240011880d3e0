"""The integral over one unknown scale, between exact values at known ones."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import logsumexp

from skvi.evidence import EvidenceBounds, _over_scales


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
