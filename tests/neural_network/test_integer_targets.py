"""Targets on a coarse grid: what "auto" makes of them."""

import numpy as np
import pytest
import torch
from sklearn.base import clone

from skvi.likelihoods import (
    GaussianLikelihood,
    HeteroscedasticLikelihood,
    RoundedLikelihood,
    StudentTLikelihood,
)
from skvi.likelihoods._independent import IndependentLikelihood
from skvi.neural_network import BayesianMLPRegressor
from skvi.neural_network._likelihood import coarse_grid

pytestmark = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::skvi.exceptions.SkviWarning",
)
RNG = np.random.default_rng(3)
X = RNG.normal(size=(120, 2))
GRADES = np.round(5 + X[:, 0] + 0.5 * RNG.normal(size=120))
SHORT = {"hidden_layer_sizes": 5, "divergence": "kl", "max_iter": 3, "random_state": 0}


def grid(y, weight=None):
    return coarse_grid(np.asarray(y, dtype=float), weight)


def test_which_targets_have_a_coarse_grid():
    """Integers in any units and precision, and binary ones.

    Not numbers that do not repeat, one value, decimals, or many steps; one row far away
    changes nothing. Wrong variants: numbers up to digits of the largest; any number of
    steps.
    """
    ages = np.round(40 + 15 * RNG.normal(size=2000))
    assert grid(GRADES) == (1.0, GRADES.min())
    assert grid(GRADES % 2) == (1.0, 0.0)
    step, origin = grid(0.4536 * GRADES + 1e4)
    assert (step, origin) == pytest.approx((0.4536, 0.4536 * GRADES.min() + 1e4))
    assert grid(np.float32(0.1) * GRADES.astype(np.float32))[0] == pytest.approx(0.1)
    for far in (900, 1023, 9999, 1234567, -1e9):
        step, origin = grid(np.r_[GRADES, far])
        assert (step, origin) == (1.0, min(GRADES.min(), far))
        assert grid(np.r_[X[:, 0], far]) is None
    for other in (X[:, 0], np.repeat(X[:, 0], 2), np.ones(50), [1.0, 2.0], [1.0]):
        assert grid(other) is None
    for other in (ages, 1000 * ages, RNG.integers(0, 100_000, 10_000)):
        assert grid(other) is None
    assert grid(np.round(GRADES + RNG.normal(size=120), 2)) is None


def test_weights_are_repetitions():
    """Rows without weight show no step. Wrong variant: the number of rows."""
    y, weight = np.arange(6.0), np.array([2.0, 2, 2, 2, 2, 3])
    assert grid(y) is None
    assert grid(y, weight) == grid(np.repeat(y, weight.astype(int))) == (1.0, 0.0)
    assert grid(np.r_[y, 0.5], np.r_[weight, 0]) == (1.0, 0.0)


def test_wide_noise_has_a_density():
    """To (step / scale)^2 / 24, whatever the units. Wrong variant: probabilities."""
    f, y = torch.zeros(1, 9, 1).double(), 0.5 * torch.arange(-4, 5).double()
    smooth = GaussianLikelihood(5.0)
    found = RoundedLikelihood(smooth, 0.5).log_prob(f, y)
    torch.testing.assert_close(found, smooth.log_prob(f, y), rtol=0, atol=5e-4)


def test_the_default_takes_intervals():
    """Other units of y change nothing; words are taken literally."""
    model = BayesianMLPRegressor(**SHORT).fit(X, GRADES)
    noise = HeteroscedasticLikelihood(GaussianLikelihood("learn"))
    expected = RoundedLikelihood(noise, 1.0, float(GRADES.min()))
    assert repr(model.likelihood_) == repr(expected)
    other = clone(model).fit(X, 0.3 * GRADES + 7)
    assert other.likelihood_.step == pytest.approx(0.3)
    found = other.predict_log_density(X, 0.3 * GRADES + 7) + np.log(0.3)
    np.testing.assert_allclose(found, model.predict_log_density(X, GRADES), rtol=1e-4)
    ends = 0.3 * model.predict_interval(X) + 7
    np.testing.assert_allclose(other.predict_interval(X), ends, rtol=1e-4)
    assert model.lower_bound_ == pytest.approx(
        other.lower_bound_ + 120 * np.log(0.3), rel=1e-4
    )
    smooth = clone(model).set_params(likelihood=StudentTLikelihood(noise_scale=0.7))
    smooth.fit(X, GRADES)
    assert repr(smooth.likelihood_) == "StudentTLikelihood(noise_scale=0.7)"
    one = clone(model).set_params(posterior="mean_field").fit(X, GRADES)
    assert repr(one.likelihood_) == repr(expected)


def test_each_target_has_its_own_grid():
    """Wrong variant: that of the first one."""
    y = np.c_[X[:, 0] + X[:, 1], GRADES]
    model = BayesianMLPRegressor(**SHORT).fit(X, y)
    assert isinstance(model.likelihood_, IndependentLikelihood)
    first, second = model.likelihood_.likelihoods
    assert isinstance(first, HeteroscedasticLikelihood)
    assert (second.step, second.origin) == (1.0, GRADES.min())
    draws = model.sample_y(X, 2, random_state=0)
    assert np.array_equal(draws[:, 1], np.round(draws[:, 1]))
    assert not np.array_equal(draws[:, 0], np.round(draws[:, 0]))
    assert np.isfinite(model.predict_log_density(X, y)).all()


def test_batches_keep_the_grid_of_a_fit():
    """A batch alone has none. Wrong variant: that of the batch."""
    model = BayesianMLPRegressor(**SHORT | {"divergence": "auto"}).fit(
        X[:100], GRADES[:100]
    )
    before = model.likelihood_
    after = model.partial_fit(X[100:], GRADES[100:] // 2 * 2).likelihood_
    assert (after.step, after.origin) == (before.step, before.origin)
    assert type(after.noise.noise) is type(before.noise.noise)
    model = BayesianMLPRegressor(**SHORT).partial_fit(X, GRADES)
    assert not isinstance(model.likelihood_, RoundedLikelihood)
