"""Targets in whitened coordinates: the fast form of linear models is the plain one."""

import pytest
import torch

from skvi.likelihoods import BernoulliLikelihood, GaussianLikelihood, PoissonLikelihood
from skvi.losses import BetaLoss, LogLoss
from skvi.posteriors import FullRankNormal
from skvi.predictors import LinearPredictor
from skvi.priors import Laplace, Normal
from skvi.priors._blocks import build_prior
from skvi.targets import (
    SupervisedTarget,
    Target,
    _whitened,
)
from skvi.targets._whitened import WhitenedLinear, WhitenedTarget
from tests.densities import randn

N, D = 9, 3
PRIORS = [Normal(0.7), {"coef": Laplace(0.5), "intercept": Normal(3.0)}, "posterior"]
kinds = pytest.mark.parametrize("kind", ["diag", "full"])


def make_prior(prior, layout, make_normal):
    if prior == "posterior":  # a correlated normal with a mean
        prior = FullRankNormal().build(layout)
        prior = prior.near(make_normal(layout.size, "full", seed=4))
    return build_prior(prior, layout)


def make_target(make_normal, prior, likelihood, **options):
    predictor = options.pop("predictor", LinearPredictor(D))
    y = (randn(N, seed=1) > 0).double()
    built = make_prior(prior, predictor.layout, make_normal)
    X = options.pop("X", randn(N, D))
    loss = options.pop("loss", LogLoss())
    return SupervisedTarget(predictor, likelihood, loss, built, X, y, **options)


def assert_same(target, normal, position):
    """The plain form, which goes through theta."""
    found, plain = target.whitened(normal), WhitenedTarget(target, normal)
    expected = plain.value_and_slope(position)
    for a, b in zip(found.value_and_slope(position), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(found.slope(position), expected[1])
    return found


@kinds
@pytest.mark.parametrize("prior", PRIORS, ids=["normal", "blocks", "posterior"])
@pytest.mark.parametrize(
    "likelihood",
    [BernoulliLikelihood(), GaussianLikelihood(0.8), PoissonLikelihood()],
    ids=repr,
)
@pytest.mark.parametrize("is_weighted", [False, True])
def test_linear_models(kind, prior, likelihood, is_weighted, make_normal, monkeypatch):
    """Wrong variants: weights or the offset left out; the scale for its transpose;
    the gradient of the prior at the mean; rows of the first chunk for all.
    """
    monkeypatch.setattr(_whitened, "CACHE_ELEMENTS", 4 * 5)  # four rows at once
    options = {"sample_weight": torch.arange(N).double()} if is_weighted else {}
    offset = 0.3 * randn(N, seed=5)
    target = make_target(
        make_normal, prior, likelihood, offset=offset, constant=2.5, **options
    )
    normal = make_normal(D + 1, kind, seed=2)
    found = assert_same(target, normal, randn(5, D + 1, seed=3))
    assert isinstance(found, WhitenedLinear)


@kinds
def test_other_designs(kind, make_normal):
    """Without an intercept, in single precision."""
    bernoulli, normal = BernoulliLikelihood(), make_normal(D, kind, seed=2)
    bare = LinearPredictor(D, fit_intercept=False)
    target = make_target(make_normal, PRIORS[0], bernoulli, predictor=bare)
    assert_same(target, normal, randn(5, D, seed=3))
    normal, position = make_normal(D + 1, kind, seed=2), randn(5, D + 1, seed=3)
    target = make_target(make_normal, PRIORS[0], bernoulli, X=randn(N, D).float())
    assert target.whitened(normal).slope(position).dtype == torch.float64
    assert_same(target, normal, position)


def test_where_there_is_no_fast_form(make_normal):
    """Other losses and users' densities go through theta."""
    normal, position = make_normal(D + 1, "full", seed=2), randn(5, D + 1, seed=3)
    target = make_target(
        make_normal, PRIORS[0], BernoulliLikelihood(), loss=BetaLoss(1.5)
    )
    assert not isinstance(assert_same(target, normal, position), WhitenedLinear)

    class Banana(Target):
        def log_joint(self, theta, rows=None):
            return -0.5 * theta[:, 0] ** 2 - (theta[:, 1] - theta[:, 0] ** 2) ** 2

    normal, position = make_normal(2, "full", seed=2), randn(5, 2, seed=3)
    value, slope = Banana().whitened(normal).value_and_slope(position)
    theta = normal.transform(position)
    torch.testing.assert_close(value, Banana().log_joint(theta))
    torch.testing.assert_close(
        slope, Banana().log_joint_gradient(theta) @ normal.scale, rtol=1e-12, atol=1e-12
    )
