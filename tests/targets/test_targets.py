"""Targets: values and gradients."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy import integrate

from skvi.base import Layout, NormalForm
from skvi.likelihoods import (
    BernoulliLikelihood,
    GaussianLikelihood,
    NegativeBinomialLikelihood,
)
from skvi.losses import BetaLoss, LogLoss
from skvi.posteriors import FullRankNormal, MeanFieldNormal
from skvi.predictors import LinearPredictor
from skvi.priors import GammaHyperprior, HalfCauchy, Laplace, Normal
from skvi.priors._blocks import build_prior
from skvi.targets import SupervisedTarget
from skvi.targets._hierarchical import HierarchicalTarget, beside_number
from skvi.targets._lifted import LiftedTarget, NodeGrid
from skvi.targets._precisions import BuiltHierarchy
from tests.densities import randn

N, D = 6, 2
LIKELIHOODS = [BernoulliLikelihood(), GaussianLikelihood(0.8)]
LOSSES = [LogLoss(), BetaLoss(1.5)]
PRIORS = [Normal(0.7), {"coef": Laplace(0.5), "intercept": Normal(3.0)}]
every_likelihood = pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=repr)
every_loss = pytest.mark.parametrize("loss", LOSSES, ids=repr)
families = pytest.mark.parametrize(
    "family", [MeanFieldNormal(), FullRankNormal()], ids=repr
)


WEIGHT = torch.tensor([1.0, 2.0, 0.0, 3.0, 1.0, 0.5], dtype=torch.float64)


def make_target(
    likelihood=LIKELIHOODS[0], loss=LOSSES[0], prior=PRIORS[0], weight=None, **kwargs
):
    X = kwargs.pop("X", randn(N, D))
    y = kwargs.pop("y", None)
    if y is None:
        y = randn(len(X), seed=1)
        if isinstance(likelihood, BernoulliLikelihood):
            y = (y > 0).to(torch.float64)
    predictor = kwargs.pop("predictor", None) or LinearPredictor(D)
    built = build_prior(prior, predictor.layout)
    return SupervisedTarget(predictor, likelihood, loss, built, X, y, weight)


def make_posterior(family, target, make_normal, width=0.7):
    posterior = family.build(target.layout)
    posterior = posterior.near(
        make_normal(target.layout.size, "full", seed=4, width=width)
    )
    posterior.params.requires_grad_()
    return posterior


def gradient_of(value, posterior):
    return torch.autograd.grad(value, posterior.params)[0]


@every_likelihood
@every_loss
@families
def test_expected_loss_is_differentiable(
    likelihood, loss, family, make_normal, numeric_gradient
):
    # Wrong variant: the derivative in std handed to the variance.
    target = make_target(likelihood, loss, weight=WEIGHT)
    posterior = make_posterior(family, target, make_normal)
    gradient = gradient_of(target.expected_loss(posterior), posterior)
    start = posterior.params.detach()

    def value(params):
        posterior.params = params
        return target.expected_loss(posterior)

    numeric = numeric_gradient(value, start, step=1e-4)
    torch.testing.assert_close(gradient, numeric, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_minibatches_are_unbiased(weight, size):
    """Wrong variants: no factor n/|B|; the prior scaled too; weights not selected."""
    target, theta = make_target(weight=weight), randn(3, D + 1, seed=2)
    batches = [torch.tensor(rows) for rows in combinations(range(N), size)]
    estimates = torch.stack([target.log_joint(theta, rows) for rows in batches])
    torch.testing.assert_close(estimates.mean(0), target.log_joint(theta))
    assert float(estimates.std(0).min()) > 0.01


@pytest.mark.parametrize(
    "spec", [Normal(GammaHyperprior(1.5, 0.4)), Normal(HalfCauchy(0.7))]
)
def test_given_its_scale_a_prior_integrates_to_its_density(spec):
    """Also the moments of the precision. Wrong variants: the density of the precision
    for that of the log scale; a factor 2 of the rate; a shape without the half."""
    prior = spec.build(Layout({"coef": (1, 3)}))
    theta = torch.tensor([[0.3, -1.2, 0.8]]).double()

    def joint(z, power=0):
        at = torch.tensor(z).double()
        known = prior.given_scale(math.exp(z)).log_prob(theta)
        return float((known + prior.log_density_of_scale(at) - 2 * power * at).exp())

    total, mean, square = (
        integrate.quad(joint, -12, 12, args=(k,), limit=200)[0] for k in range(3)
    )
    assert math.log(total) == pytest.approx(float(prior.log_prob(theta)), abs=1e-7)
    squares = prior.scale_weights() @ theta[0].square()
    expected, variance = prior.expected_precision(squares)
    assert expected == pytest.approx(mean / total, rel=1e-5)
    second = square / total - (mean / total) ** 2
    assert variance == pytest.approx(second, rel=1e-5)


def lifted(d=3, fit_intercept=True):
    rng = np.random.default_rng(0)
    model = LinearPredictor(d, fit_intercept=fit_intercept)
    prior = {"coef": Normal(HalfCauchy(0.7)), "intercept": Normal(10.0)}
    built = build_prior(prior if fit_intercept else prior["coef"], model.layout)
    X = torch.from_numpy(rng.normal(size=(12, d)))
    y = (X[:, 0] > 0).double()
    target = SupervisedTarget(model, BernoulliLikelihood(), LogLoss(), built, X, y)
    size, log_scales = model.layout.size, [-7.0, 0.3, 8.0]
    normals = []
    for log_scale in log_scales:  # of classes that are separated
        width = math.exp(log_scale)
        mean, root = rng.normal(size=size), rng.uniform(0.5, 1, size=(size, size))
        root = torch.from_numpy(width * np.tril(root))
        normals.append(NormalForm(width * torch.from_numpy(mean), root))
    nodes = torch.tensor(log_scales, dtype=torch.float64)
    values, slopes = -nodes.square() / 20, -nodes / 10
    grid = NodeGrid(normals, values[:, None], nodes, slopes[:, None])
    return target, LiftedTarget(target, grid)


def beside_a_number():
    """A density over a log scale, a dispersion and a coefficient."""
    X, model = (
        torch.tensor([[0.5], [-1.0], [1.5]]).double(),
        LinearPredictor(1, 1, False),
    )
    prior = Normal(HalfCauchy()).build(model.layout)
    y, gamma = torch.tensor([3.0, 0.0, 9.0]).double(), GammaHyperprior(0.6, 2.0)
    likelihood, loss = NegativeBinomialLikelihood("hyperprior"), LogLoss()
    target = HierarchicalTarget(
        model, likelihood, loss, prior, X, y, noise_hyperprior=gamma
    )
    plain, number = beside_number(target)
    z, t = (torch.tensor(x).double() for x in ([-1.5, 0.5, 2.0], [-3.0, 0.5]))
    centers, widths = [0.3, 0.5, 1.2, 1.0, 2.0, 2.2], [0.2, 0.3, 0.6, 0.9, 0.8, 1.3]
    pairs = torch.tensor([centers, widths]).double().T
    normals = [NormalForm(m.reshape(1), s.reshape(1, 1)) for m, s in pairs]
    values = -0.3 * (z[:, None] - 0.2 * t).square() - 0.1 * t.square()
    by_scale, by_number = -0.6 * (z[:, None] - 0.2 * t), -0.2 * t.expand(3, 2)
    grid = NodeGrid(normals, values, z, by_scale, t, by_number)
    return target, LiftedTarget(plain, grid, number)


@pytest.mark.parametrize("make", [lifted, beside_a_number])
def test_the_gradient_is_that_of_the_density(make):
    """By differences of it.

    Wrong variants: the slope of the parameters or of the number left out; the map of a
    score without the derivative of its log slope.
    """
    _, target = make()
    generator = torch.Generator().manual_seed(0)
    size = target.layout.size
    theta = torch.randn(20, size, generator=generator, dtype=torch.float64)
    value, gradient = target.log_joint_and_gradient(theta)
    torch.testing.assert_close(value, target.log_joint(theta))
    steps = 1e-6 * torch.eye(size, dtype=torch.float64)
    up, down = (
        target.log_joint((theta + s * steps[:, None]).flatten(0, 1)) for s in (1, -1)
    )
    expected = (up - down).reshape(size, 20).T / 2e-6
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)
    assert bool((expected[:, -1] != 0).all())


@pytest.mark.parametrize("make", [lifted, beside_a_number])
def test_the_determinant_is_that_of_the_map(make):
    """Inside and beyond the nodes. Wrong variants: any of its four terms left out."""
    _, target = make()

    def map_of(lifted):
        place = target._place(lifted[None])
        parts = (place.theta[0], place.log_scale, place.number)
        return torch.cat([part for part in parts if part is not None])

    generator = torch.Generator().manual_seed(1)
    for scale in 0.5, 3.0:
        at = scale * torch.randn(
            5, target.layout.size, generator=generator, dtype=torch.float64
        )
        found = target._place(at).log_det
        for one, log_det in zip(at, found, strict=True):
            jacobian = torch.autograd.functional.jacobian(map_of, one)
            expected = torch.linalg.slogdet(jacobian).logabsdet
            torch.testing.assert_close(log_det, expected)


def test_coefficients_have_the_drawn_precision(generator, z_score):
    """Means of squares under a Gamma(6, 2) precision. Wrong variants: exp(-t) for
    exp(-t / 2), a width that is the variance; a scale for a rate; the number first.
    """
    own = Normal(GammaHyperprior(6.0, 2.0)).build(Layout({"coef": (1, 2)}))
    layout = Layout({"coef": (1, 2), "noise_precision": (1,)})
    prior = BuiltHierarchy(layout, own, GammaHyperprior(5.0, 3.0))
    draws = layout.unpack(prior.sample(20_000, generator))
    assert z_score(draws["coef"][:, 0].square(), 2.0 / (6.0 - 1)) < 5
    assert z_score(draws["noise_precision"].exp(), 5.0 / 3.0) < 5
