"""The log probability of labels or counts is at most 0, and so are its bounds."""

import math
from dataclasses import replace

import numpy as np
import pytest

from skvi.evidence import EvidenceBounds
from skvi.evidence._table import NamedBound
from skvi.likelihoods import (
    BernoulliLikelihood,
    GaussianLikelihood,
    NegativeBinomialLikelihood,
    PoissonLikelihood,
    StudentTLikelihood,
)
from skvi.likelihoods._categorical import CategoricalLikelihood
from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
)
from skvi.losses import BetaLoss
from skvi.priors import Normal

X = np.array([[-3.0], [3.0], [4.0]])
Y = np.array([0, 1, 1])
FEW = {"n_draws": 64, "random_state": 0}


@pytest.fixture(scope="module")
def sure():
    """Posterior of separable rows, under which three others are nearly certain."""
    x = np.random.default_rng(0).normal(size=(60, 1))
    model = BayesianLogisticRegression(prior=Normal(30.0), fit_intercept=False)
    return model.fit(x, (x[:, 0] > 0).astype(int)).posterior_


def check(bounds):
    assert bounds.lower <= 0
    assert bounds.estimate <= 0
    assert bounds.upper < 0 or (bounds.upper, bounds.upper_se) == (0.0, 0.0)
    assert bounds.gap == bounds.upper - bounds.lower
    row = bounds.table["probability 1"]
    assert (row.value, row.direction, row.holds) == (0.0, "upper", "always")
    assert bounds.interval()[0] <= bounds.interval()[1] <= 0.0
    assert bounds.limits(0.999)[1] <= 0.0
    assert bounds.interval(50)[1] == 0.0


@pytest.mark.parametrize("weight", [None, [2.0, 1.0, 3.0], [0.5, 0.2, 0.9]])
def test_separable_labels(sure, weight):
    """A power of a probability is at most 1, too.

    Wrong variants: bounds as they are (0.0016 +- 0.0015 for the upper one); `upper` is
    cut, and its error is not; only unit weights are cut.
    """
    model = BayesianLogisticRegression(prior=sure, fit_intercept=False)
    model.fit(X, Y, sample_weight=weight)
    check(model.evidence_bounds(X, Y, sample_weight=weight, **FEW))


def test_counts_with_little_exposure():
    """No event in a short time. The upper bound itself is below 0 here."""
    x, y, exposure = np.ones((5, 1)), np.zeros(5), np.full(5, 1e-3)
    model = BayesianPoissonRegressor(fit_intercept=False, prior="normal")
    model.fit(x, y, exposure=exposure)
    bounds = model.evidence_bounds(x, y, exposure=exposure, **FEW)
    assert bounds.interval(1e6)[1] == 0.0
    assert bounds.upper + 1e6 * bounds.upper_se > 0


def test_densities_and_other_losses_are_not_cut(sure):
    """The density of numbers may exceed 1; a robust loss is no probability.

    Wrong variant: every bound of a classifier, whatever its loss.
    """
    model = BayesianLinearRegression(
        prior="normal", noise_scale=1e-3, normalize_y=False, fit_intercept=False
    )
    x, y = np.array([[1.0], [2.0]]), np.array([1.0, 2.0])
    assert model.fit(x, y).evidence_bounds(x, y).lower > 1
    robust = BayesianLogisticRegression(
        loss=BetaLoss(1.5), prior=sure, fit_intercept=False
    )
    bounds = robust.fit(X, Y).evidence_bounds(X, Y, **FEW)
    assert bounds.quantity == "generalized log evidence"
    assert bounds.lower > 0  # 1.3 nats for each certain row
    assert "probability 1" not in bounds.table


def test_which_likelihoods_are_probabilities():
    discrete = [BernoulliLikelihood(), CategoricalLikelihood(3), PoissonLikelihood()]
    discrete.append(NegativeBinomialLikelihood())
    assert all(likelihood.is_discrete for likelihood in discrete)
    assert not GaussianLikelihood().is_discrete
    assert not StudentTLikelihood().is_discrete


def test_the_cut_leaves_what_is_below():
    """An interval fails exactly where it failed before.

    Wrong variant: `upper` is set to 0 whatever it is.
    """
    numbers = (-1.0, -0.5, 0.1, 0.3, -0.7, 0.5, 9.0, 0.1, True, "", "importance")
    before = EvidenceBounds(*numbers)
    after = before.of_probability()
    assert (after.upper, after.upper_se, after.estimate) == (-0.5, 0.3, -0.7)
    assert before.interval() == pytest.approx((-1.2, 0.1))
    assert after.interval() == pytest.approx((-1.2, 0.0))
    elbo = NamedBound(-0.2, 0.0, "lower", "", holds="always")
    refuted = replace(before, upper=-0.5, upper_se=0.01, table={"ELBO of q": elbo})
    assert refuted.interval() == (-0.2, math.inf)
    assert refuted.of_probability().interval() == (-0.2, 0.0)


def result(lower, upper, table=(), lower_se=0.01):
    return EvidenceBounds(
        *(lower, upper, lower_se, 0.01, lower, upper - lower),
        *(900.0, 0.1, True, "", "importance", (), "log evidence", dict(table)),
    )


def test_lower_bounds_above_zero_refute_themselves():
    """Wrong variants: the cut at 0 makes what is impossible nearly certain; a lower
    bound above that of any probability; the gap before the cut.
    """
    impossible = result(3.0, 3.1).of_probability()
    assert not impossible.reliable
    assert "above 0" in impossible.reason
    sure = NamedBound(0.5, 0.0, "lower", "a bound", holds="always")
    assert not result(-0.1, 0.1, {"ELBO": sure}).of_probability().reliable
    chance = result(0.02, 0.05).of_probability()  # it reaches so far
    assert chance.reliable
    assert (chance.lower, chance.upper, chance.estimate, chance.gap) == (0, 0, 0, 0)


def test_bounds_that_are_no_numbers():
    """Wrong variants: an upper bound NaN with error 0; an interval from NaN."""
    found = result(-math.inf, math.nan, lower_se=math.nan).of_probability()
    assert (found.upper, found.upper_se) == (0.0, 0.0)
    assert found.interval() == (-math.inf, 0.0)
