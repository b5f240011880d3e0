"""A target beside the unknown scale of its prior."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from skvi.base import NormalForm
from skvi.likelihoods import BernoulliLikelihood, NegativeBinomialLikelihood
from skvi.losses import LogLoss
from skvi.predictors import LinearPredictor
from skvi.priors import GammaHyperprior, HalfCauchy, Normal
from skvi.priors._blocks import build_prior
from skvi.targets import SupervisedTarget
from skvi.targets._hierarchical import HierarchicalTarget, beside_number
from skvi.targets._lifted import LiftedTarget, NodeGrid
from skvi.targets._numbers import ScaleScore


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


def test_scores_have_the_distribution_of_the_log_scale():
    """The density of z is that of the nodes, and exp(-|z|) beyond them.

    Wrong variants: the score of a tail from its other side; slopes of the cubic halved;
    Mills's ratio as a difference of logs, which is noise far out.
    """
    nodes = torch.arange(-3.0, 4.0, dtype=torch.float64)
    score = ScaleScore(nodes, -0.5 * nodes.square(), -nodes)
    u = torch.linspace(-6, 6, 2401, dtype=torch.float64).requires_grad_()
    z, log_slope, change = score.at(u)
    (slope,) = torch.autograd.grad(z.sum(), u)
    np.testing.assert_allclose(log_slope.detach().exp(), slope, rtol=1e-10)
    numeric = log_slope.detach().diff() / u.detach().diff()
    middle = 0.5 * (change[1:] + change[:-1]).detach()
    # The map has a continuous derivative, and jumps in the second at its knots.
    assert float((numeric - middle).abs().median()) < 1e-3
    x, density = z.detach().numpy(), stats.norm.pdf(u.detach()) / slope.numpy()
    inside = np.abs(x) < 3
    ends = stats.norm.pdf(3) * np.exp(-np.abs(x) + 3)
    wanted = np.where(inside, stats.norm.pdf(x), ends)
    total = stats.norm.cdf(3) - stats.norm.cdf(-3) + 2 * stats.norm.pdf(3)
    np.testing.assert_allclose(density, wanted / total, rtol=2e-3)
    far = torch.tensor([-1e9, 1e9], dtype=torch.float64)
    np.testing.assert_allclose(score.at(far)[1], math.log(1e9))


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


def test_the_evidence_beside_a_number_is_the_same():
    """By a sum over coefficient, scale and dispersion, against one without the scale.

    Wrong variants: the slope of the number for one scale; no prior of the number.
    """
    target, beside = beside_a_number()
    line = torch.linspace(-7.0, 7.0, 29, dtype=torch.float64)
    step = float(line[1] - line[0])
    grid = torch.cartesian_prod(line, line, line)
    found = torch.logsumexp(beside.log_joint(grid), 0) + 3 * math.log(step)
    coef = torch.linspace(-6, 12, 361, dtype=torch.float64)
    number = torch.linspace(-24, 4, 57, dtype=torch.float64)
    cell = 0.05 * 0.5
    pairs = torch.cartesian_prod(coef, number)
    expected = torch.logsumexp(target.log_joint(pairs), 0) + math.log(cell)
    assert float(found) == pytest.approx(float(expected), abs=0.01)


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


def test_the_evidence_is_the_same():
    """One coefficient: a grid of both against one of the coefficient alone.

    Wrong variants: the map of the score without its slope; the widths left out.
    """
    target, beside = lifted(1, fit_intercept=False)
    line = torch.linspace(-12, 12, 601, dtype=torch.float64)
    step = float(line[1] - line[0])
    grid = torch.cartesian_prod(line, line)
    found = torch.logsumexp(beside.log_joint(grid), 0) + 2 * math.log(step)
    fine = torch.linspace(-25, 25, 6000, dtype=torch.float64)
    axis = 1e-6 * torch.sinh(fine)
    weights = (1e-6 * torch.cosh(fine) * float(fine[1] - fine[0])).log()
    expected = torch.logsumexp(target.log_joint(axis[:, None]) + weights, 0)
    assert float(found) == pytest.approx(float(expected), abs=0.003)
