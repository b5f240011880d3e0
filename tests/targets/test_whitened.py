"""Targets in whitened coordinates: the fast form of linear models is the plain one."""

import pytest
import torch

from skvi.likelihoods import BernoulliLikelihood, GaussianLikelihood, PoissonLikelihood
from skvi.losses import LogLoss
from skvi.posteriors import FullRankNormal
from skvi.predictors import LinearPredictor
from skvi.priors import Laplace, Normal
from skvi.priors._blocks import build_prior
from skvi.targets import (
    SupervisedTarget,
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
