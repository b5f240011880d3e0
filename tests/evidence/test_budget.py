"""Draws are bought until the precision is met."""

import math

import numpy as np
import pytest
import torch
from scipy.special import stdtrit
from sklearn.exceptions import NotFittedError

from skvi._sampling._importance import StudentT, draw_weighted
from skvi.base import Layout, NormalForm
from skvi.evidence import _near_normal
from skvi.evidence._bounds import bound_evidence
from skvi.evidence._estimates import reverse_bound
from skvi.evidence._modes import OneMode
from skvi.evidence._near_normal import near_normal_sides
from skvi.model_selection import EvidenceSearch
from skvi.posteriors import MeanFieldNormal
from skvi.priors import Normal
from skvi.targets import Target
from tests.densities import NormalTarget
from tests.interrupts import (
    Linear,
    Timer,
    check_process,
    duration,
    moments,
    numbers,
    unix,
)


class Bell(Target):
    """A normal integral of known size, which pretends to be a linear model."""

    layout = Layout({"coef": (2,)})
    cost_per_draw = 5000
    is_log_concave = has_design = True

    def log_joint(self, theta, rows=None):
        return -0.5 * theta.square().sum(1) - np.log(2 * np.pi) + 3.0


def test_independence_chains_draw_from_the_posterior():
    """From a proposal that is shifted and too wide.

    Wrong variant: every draw is accepted; the acceptance without the last weight.
    """
    shifted = NormalForm(torch.full((2,), 0.3).double(), torch.full((2,), 1.2).double())
    generator = torch.Generator().manual_seed(0)
    starts = torch.full((64, 2), 3.0).double()
    chains = _near_normal.IndependenceChains(
        Bell(), StudentT(shifted, 20), starts, generator, lambda what, share: None
    ).run(400)
    theta = chains.last(350).theta.flatten(0, 1)
    assert theta.mean(0).abs().max() < 0.04
    assert (theta.std(0) - 1).abs().max() < 0.04
    assert chains.last(350).rhat < 1.05


def test_sides_of_a_known_integral():
    shifted = NormalForm(torch.full((2,), 0.1).double(), torch.full((2,), 1.1).double())
    generator = torch.Generator().manual_seed(1)
    sides = near_normal_sides(Bell(), OneMode(shifted), generator, None, 0.05)
    assert float(sides.forward.exp().mean().log()) == pytest.approx(3.0, abs=0.05)
    assert float(-(-sides.reverse).exp().mean().log()) == pytest.approx(3.0, abs=0.05)


def test_the_clock_stops_between_batches():
    generator = torch.Generator().manual_seed(0)
    unit = NormalForm(torch.zeros(2).double(), torch.ones(2).double())
    draws = draw_weighted(Bell(), StudentT(unit), 5000, generator, deadline=0.0)
    assert len(draws.log_weights) == 512


def test_errors_of_few_chains_are_larger():
    """So that quantiles for 64 of them hold. Wrong variant: those of a normal."""
    values = torch.randn(8, 10, generator=torch.Generator().manual_seed(0)).double()
    plain = float((-values).mean(1).std()) / 8**0.5
    error = reverse_bound(values, 1)[1]
    assert error * stdtrit(63, 0.99) == pytest.approx(plain * stdtrit(7, 0.99))


def test_a_path_from_a_factorized_q(make_normal):
    """Twelve correlated dimensions, without a linear predictor.

    Wrong variants: a path from the normal itself, where first chains should have found
    one; a normal that is narrower than the posterior.
    """
    target = NormalTarget(make_normal(12, "full", seed=1, width=0.5))
    posterior = MeanFieldNormal().build(target.layout)
    posterior = posterior.near(make_normal(12, "diag", seed=2, width=0.3))
    generator = torch.Generator().manual_seed(1)
    bounds = bound_evidence(target, posterior, generator, method="tempering")
    assert bounds.reliable, bounds.reason
    assert bounds.method == "tempering"
    low, high = bounds.interval()
    assert low <= target.log_evidence <= high
    assert high - low < 0.6


def is_fitted_search(search, X):
    if hasattr(search, "results_"):
        assert search.predict(X).shape == (len(X),)
        assert search.best_index_ in (0, 1)
        assert math.isfinite(search.best_score_)
        return True
    assert not [name for name in vars(search) if name.endswith("_")]
    with pytest.raises(NotFittedError):
        search.predict(X)
    return False


@unix
def test_searches_at_random_moments():
    """Each keeps a comparison. Wrong variants: those of the tests above."""
    X, y = numbers()
    model = Linear(prior=Normal(), noise_scale=50.0)
    search = EvidenceSearch(model, {"prior__scale": [0.5, 2.0]})
    with Timer() as timer:
        for moment in moments(duration(lambda: search.fit(X, y)), 10):
            came = timer.interrupts(lambda: search.fit(X, y), moment)
            assert is_fitted_search(search, X) or came
            check_process()
