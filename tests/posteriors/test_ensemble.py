"""Ensembles: mixtures of posteriors that were trained side by side."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import logsumexp

from skvi.base import Layout, NormalForm
from skvi.evidence._summarize import lower_bound
from skvi.likelihoods import GaussianLikelihood
from skvi.losses import LogLoss
from skvi.posteriors import Ensemble, FullRankNormal, MeanFieldNormal
from skvi.predictors import LinearPredictor
from skvi.priors import Normal
from skvi.targets import SupervisedTarget
from tests.families import LogisticFamily

LAYOUT = Layout({"coef": (1, 2), "intercept": (1,)})
SIZE = LAYOUT.size


def apart(make_normal, base, n_members=3, distance=0.0):
    """Members at normals of their own, and these."""
    posterior = Ensemble(base, n_members).build(LAYOUT)
    normals = [make_normal(SIZE, "full", seed=m) for m in range(n_members)]
    normals = [
        NormalForm(n.mean + distance * m, n.scale) for m, n in enumerate(normals)
    ]
    pairs = zip(posterior.components, normals, strict=True)
    return posterior.with_components([c.near(n) for c, n in pairs]), normals


def test_density_is_that_of_the_mixture(make_normal, generator):
    """Beside scipy's. Wrong variants: the mean of the log densities; no log M."""
    posterior, normals = apart(make_normal, "full_rank")
    draw = posterior.draw(50, generator)
    logs = [
        stats.multivariate_normal(n.mean, n.covariance()).logpdf(draw.theta)
        for n in normals
    ]
    expected = logsumexp(logs, axis=0) - math.log(3)
    np.testing.assert_allclose(posterior.log_prob(draw.theta), expected, rtol=1e-10)
    np.testing.assert_allclose(draw.log_q, expected, rtol=1e-10)
    assert posterior.side == draw.side == "exact"
    assert posterior.as_normal() is None


def test_draws_are_those_of_their_components(make_normal, generator):
    """Wrong variant: draws stay in the order in which the members made them."""
    posterior, normals = apart(make_normal, "full_rank", distance=100.0)
    draw = posterior.draw(100, generator)
    nearest = torch.stack([(draw.theta - n.mean).square().sum(1) for n in normals])
    assert torch.equal(nearest.argmin(0), draw.component)
    # Of three each member occurs once, in random order.
    runs = [posterior.draw(3, generator).component.tolist() for _ in range(30)]
    assert all(sorted(run) == [0, 1, 2] for run in runs)
    assert len(set(map(tuple, runs))) == 6


@pytest.mark.parametrize("n_draws", [1, 2, 5, 7])
def test_stratified_means_are_unbiased(make_normal, generator, z_score, n_draws):
    """At every number of draws. Wrong variant: the first members get one more."""
    posterior, normals = apart(make_normal, "mean_field", distance=3.0)
    means = torch.stack(
        [posterior.draw(n_draws, generator).theta.mean(0) for _ in range(600)]
    )
    expected = torch.stack([n.mean for n in normals]).mean(0)
    assert z_score(means, expected) < 5
    assert z_score(means, expected + 1.0) > 5


def test_stratified_means_have_less_noise(make_normal, generator):
    """Between members there is none, where all get as many draws."""
    posterior, normals = apart(make_normal, "mean_field", distance=100.0)
    means = torch.stack(
        [posterior.draw(30, generator).theta.mean(0) for _ in range(50)]
    )
    within = torch.stack([n.variance for n in normals]).mean(0) / 30
    assert bool((means.var(0) < 2 * within).all())


def conjugate_target():
    rng = np.random.default_rng(0)
    X = torch.from_numpy(rng.normal(size=(30, 2)))
    X[:, 1] = X[:, 0] + 0.5 * X[:, 1]
    y = X.sum(1) + torch.from_numpy(rng.normal(size=30))
    model = LinearPredictor(2, fit_intercept=False)
    prior = Normal().build(model.layout)
    target = SupervisedTarget(model, GaussianLikelihood(1.0), LogLoss(), prior, X, y)
    covariance = (X @ X.T + torch.eye(30)).numpy()
    precision = X.T @ X + torch.eye(2)
    mean = torch.linalg.solve(precision, X.T @ y)
    evidence = stats.multivariate_normal(cov=covariance).logpdf(y.numpy())
    return target, mean, precision, evidence


@pytest.mark.parametrize("distance", [0.0, 0.3, 3.0])
def test_elbo_lies_between_its_bounds(distance, generator):
    """mean ELBO <= ELBO of the mixture <= mean ELBO + log M, and below log p(D).

    Members along the diagonal of a correlated posterior: equal ones give the mean,
    far ones all of log M. Wrong variants: the log density of the member that made the
    draw; no log M in the density.
    """
    target, mean, precision, evidence = conjugate_target()
    posterior = Ensemble(n_members=4).build(target.layout)
    std = precision.diagonal().rsqrt()
    along = torch.tensor([1.0, -1.0]).double() * distance
    steps = torch.linspace(-1, 1, 4).double()
    normals = [NormalForm(mean + step * along, std) for step in steps]
    pairs = zip(posterior.components, normals, strict=True)
    posterior = posterior.with_components([c.near(n) for c, n in pairs])
    members = [lower_bound(target, c, generator)[0] for c in posterior.components]
    value, error = lower_bound(target, posterior, generator, 20_000)
    low, high = np.mean(members), np.mean(members) + math.log(4)
    assert low - 4 * error < value < high + 4 * error
    assert value < evidence + 4 * error
    if distance == 0.0:
        assert abs(value - low) < 4 * error
    elif distance == 0.3:  # wider along the diagonal than any member
        assert low + 0.2 < value < high - 0.2
        assert value > max(members)
    else:
        assert abs(value - high) < 4 * error


def test_members_of_any_family(generator):
    """A user's, and one whose log density is a bound: then the ELBO is the mean."""
    posterior = Ensemble(LogisticFamily(), 2).build(LAYOUT)
    draw = posterior.draw(9, generator)
    member = posterior.components[0]
    torch.testing.assert_close(draw.log_q, member.log_prob(draw.theta))
    for component in posterior._members:
        component.side = "upper"
    draw = posterior.draw(9, generator)
    assert posterior.side == draw.side == "upper"


def test_size_is_that_of_the_members():
    """Wrong variant: no limit."""
    with pytest.raises(ValueError, match="low_rank"):
        Ensemble(FullRankNormal()).check_size(20_000)
    Ensemble(MeanFieldNormal()).check_size(20_000)


@pytest.mark.parametrize(
    ("family", "match"),
    [(Ensemble("flow"), "base"), (Ensemble(n_members=0), "n_members")],
)
def test_parameters_are_checked(family, match):
    with pytest.raises(ValueError, match=match):
        family.build(LAYOUT)
