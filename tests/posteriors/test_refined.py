"""Refined samples: closed forms, the bound, and what a fit does with them."""

import numpy as np
import pytest
import torch

from skvi.base import Layout, NormalForm
from skvi.divergences import KLDivergence
from skvi.evidence._summarize import lower_bound
from skvi.likelihoods import GaussianLikelihood
from skvi.linear_model import BayesianLinearRegression
from skvi.losses import LogLoss
from skvi.posteriors import (
    FullRankNormal,
    LowRankNormal,
    MeanFieldNormal,
    RefinedNormal,
)
from skvi.posteriors import _refinement as refinement
from skvi.posteriors._multiplicative import auxiliaries
from skvi.posteriors._refinement import Frame, Refinement, _Center, _Density
from skvi.predictors import MLPPredictor
from skvi.priors import Laplace, Normal
from skvi.targets import SupervisedTarget, Target

MODES = torch.tensor([-1.5, -0.5, 0.5, 1.5], dtype=torch.float64)
# By quadrature: log Z, and the ELBO of the best normal, of this standard deviation.
LOG_Z, BEST_ELBO, BEST_STD = -0.7323, -1.0915, 0.74886


class FourModes(Target):
    layout = Layout({"w": (1,)})

    def __init__(self, has_prior=True):
        self.prior = Normal().build(self.layout) if has_prior else None

    def log_joint(self, theta, rows=None):
        near = -((theta - MODES) ** 2) / (2 * 0.2**2)
        normal = torch.distributions.Normal(0.0, 1.0)
        return torch.logsumexp(near, 1) + normal.log_prob(theta).sum(1)


class Flat(Target):
    def log_joint(self, theta, rows=None):
        return 0 * theta.sum(1)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def best_normal():
    one = torch.ones(1, dtype=torch.float64)
    return NormalForm(0 * one, BEST_STD * one)


@pytest.mark.parametrize("k", [0, 1, 2])
def test_closed_forms_by_quadrature(k):
    """A3 and A5 of the paper, by the joint density of theta and the variable.

    Wrong variants: the variance of q left out of A3; the sum so far out of A5.
    """
    auxiliary, b = auxiliaries(3, 0.6)[k], 0.4
    q = NormalForm(torch.tensor([0.7]), torch.tensor([0.3]))
    line = torch.linspace(-6, 6, 4001, dtype=torch.float64)
    w, a = line[:, None], line[None]

    def log_normal(x, variance):
        return -0.5 * x.square() / variance

    if auxiliary.after:
        log_p = log_normal(a, auxiliary.variance)
        log_p = log_p + log_normal(w - b - a, auxiliary.after)
        given = torch.softmax(log_p, 1)  # p(a | w)
        joint = given * torch.softmax(log_normal(line - 0.7, 0.09), 0)[:, None]
        own, at = joint.sum(0), 2100
        rest = joint[:, at] / joint[:, at].sum()
        found = auxiliary.condition(q, torch.tensor([b]), line[at : at + 1])
        mean = rest @ line
        assert float(found.mean) == pytest.approx(float(mean), abs=1e-6)
        variance = float(rest @ (line - mean).square())
        assert float(found.variance) == pytest.approx(variance, rel=1e-5)
    else:  # it is what is left of theta
        own = torch.softmax(log_normal(line + b - 0.7, 0.09), 0)
    found, mean = auxiliary.marginal(q, torch.tensor([b])), own @ line
    assert float(found.mean) == pytest.approx(float(mean), abs=1e-6)
    variance = float(own @ (line - mean).square())
    assert float(found.variance) == pytest.approx(variance, rel=1e-5)


def test_variances_add_up_to_that_of_the_prior():
    """Wrong variant: a geometric series that ends, and leaves theta undetermined."""
    found = [part.variance for part in auxiliaries(4, 0.7)]
    np.testing.assert_allclose(found, [0.7, 0.21, 0.063, 0.027])
    assert auxiliaries(4, 0.7)[-1].after == 0


FAMILIES = [MeanFieldNormal(), FullRankNormal(), LowRankNormal(2)]


@pytest.mark.parametrize("has_prior", [True, False])
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_without_steps_samples_are_those_of_the_start(family, has_prior, monkeypatch):
    """Equation 13 is then log q of the start, at every sample; and so are moments.

    Wrong variants: the prior of the variables as if theta were not given; coordinates
    without their determinant.
    """
    monkeypatch.setattr(refinement, "N_STEPS", 1)
    monkeypatch.setattr(refinement, "STEP_SIZE", 0.0)
    layout = Layout({"coef": (1, 4)})
    target = Flat()
    target.layout = layout
    target.prior = Normal(2.0).build(layout) if has_prior else None
    root = torch.randn(4, 4, generator=generator(), dtype=torch.float64)
    covariance = root @ root.T + torch.eye(4)
    mean = torch.arange(4.0).double()
    start = family.build(layout).near(
        NormalForm(mean, torch.linalg.cholesky(covariance))
    )
    found = Refinement(20_000, 3, 0.7).samples(target, start.normal(), generator(1))
    torch.testing.assert_close(found.log_q, start.log_prob(found.theta))
    normal = start.as_normal()
    # Noise is opposed. Wrong variant: independent noise.
    torch.testing.assert_close(found.theta.mean(0), normal.mean)
    z = normal.whiten(found.theta - normal.mean)
    scatter = z.T @ z / len(z) - torch.eye(4)
    assert scatter.abs().max() < 4 * (2 / len(z)) ** 0.5


def test_steps_maximize_the_conditional_bound():
    """The optimum of equation 4 with a normal likelihood, in closed form.

    Wrong variant: the prior before the variable was drawn.
    """

    class Bell(FourModes):
        def log_joint(self, theta, rows=None):
            bell = -0.5 * ((theta - 1.0) / 0.5).square().sum(1)
            return bell + self.prior.log_prob(theta)

    target, source = Bell(), generator()
    place = torch.full((50, 1), -0.5, dtype=torch.float64)
    start = NormalForm(place, 0 * place + 0.4)
    density = _Density(target, Frame.of(best_normal(), target), source, 50)
    b, rest = torch.full((50, 1), -0.3, dtype=torch.float64), 0.3
    found, values = density.fit(start, b, rest)
    precision = 1 / rest + 4
    mean = (b[0, 0] / rest + 4) / precision
    np.testing.assert_allclose(found.mean.mean(), mean, atol=0.01)
    np.testing.assert_allclose(found.scale.mean(), precision**-0.5, rtol=0.02)
    assert values[-50:].mean() > values[:10].mean() + 0.1


class Line(Target):
    """A linear regression in 500 rows."""

    def __init__(self):
        self.layout = Layout({"coef": (1, 2)})
        self.prior = Normal().build(self.layout)
        self.X = torch.randn(500, 2, generator=generator(3), dtype=torch.float64)
        noise = torch.randn(500, generator=generator(4), dtype=torch.float64)
        self.y = self.X @ torch.tensor([0.5, -0.3]).double() + noise

    n_rows = 500

    def log_joint(self, theta, rows=None):
        rows = slice(None) if rows is None else rows
        X, y = self.X[rows], self.y[rows]
        squares = (y - theta @ X.T).square().sum(1) * (500 / len(y))
        return self.prior.log_prob(theta) - 0.5 * squares


def test_minibatches_are_relative_to_all_rows(monkeypatch):
    """Value and gradients at one q, against those of all rows, and with less noise.

    Wrong variants: gradients in means without what the minibatch lacks at the center;
    its value without the slope toward the mean of q, whose noise is larger; the center
    of one minibatch.
    """
    target, source = Line(), generator(1)
    mean = torch.tensor([[0.5, -0.3], [0.4, -0.2]]).double()
    frame = Frame.of(NormalForm(mean[0], torch.full_like(mean[0], 0.1)), target)
    q, b = NormalForm(mean + 0.3, torch.full_like(mean, 0.1)), 0 * mean

    def bounds(step_numbers, has_center):
        monkeypatch.setattr(refinement, "STEP_NUMBERS", step_numbers)
        monkeypatch.setattr(refinement, "BLOCK_NUMBERS", 400)
        density = _Density(target, frame, source, 2)
        center = _Center.of(density, mean) if has_center else None
        found = [
            torch.cat([part.flatten() for part in density._bound(q, b, 0.3, center)])
            for _ in range(1000)
        ]
        values = torch.stack(found)
        return values.mean(0), values.std(0), values.std(0) / len(values) ** 0.5

    truth, _, true_error = bounds(10**4, has_center=False)
    found, std, error = bounds(1, has_center=True)
    assert ((found - truth).abs() < 4 * (error**2 + true_error**2).sqrt()).all()
    plain = bounds(1, has_center=False)[1]
    assert (std[:2] < 0.35 * plain[:2]).all()  # values
    assert (std[2:6] < 0.65 * plain[2:6]).all()  # gradients in means


@pytest.mark.parametrize("case", ["factorized", "full", "laplace"])
def test_steps_of_networks_by_their_passes(case, monkeypatch):
    """Values and slopes from weighted rows, against automatic differentiation.

    Wrong variants: rows that are not scaled up to all of them; slopes in theta; no
    determinant; the prior left out where it is not normal.
    """
    source, predictor = generator(5), MLPPredictor(2, 1, (3,), "tanh")
    X, y = torch.randn(3, 90, generator=source, dtype=torch.float64).split([2, 1])
    weight = torch.rand(90, generator=source, dtype=torch.float64)
    spec = Laplace(1.3) if case == "laplace" else Normal(1.3)
    prior, loss = spec.build(predictor.layout), LogLoss()
    likelihood = GaussianLikelihood(0.4)
    target = SupervisedTarget(
        predictor, likelihood, loss, prior, X.T.contiguous(), y[0], weight
    ).frozen()
    size = predictor.layout.size
    root = 0.1 * torch.eye(size, dtype=torch.float64) + 0.01
    scale = torch.linalg.cholesky(root) if case == "full" else root.diagonal()
    mean = torch.linspace(-0.3, 0.3, size, dtype=torch.float64)
    frame = Frame.of(NormalForm(mean, scale), target)
    density = _Density(target, frame, source, 3)
    assert density.step_rows == 90
    density.step_rows, rows = 70, torch.arange(70)
    density._passes = target.passes(6, 70)
    monkeypatch.setattr(density, "_rows", lambda: rows)
    u = torch.randn(2, 3, size, generator=source)
    for found, expected in zip(
        density.step_values(u), density.values(u, rows), strict=True
    ):
        torch.testing.assert_close(found.double(), expected.double(), rtol=1e-4, atol=0)


def test_four_stored_samples():
    """The error of the bound is that of two pairs, however many draws are taken.

    Wrong variants: a thousand draws, of which each sample has a part; four independent
    samples, although the noise of two is opposed to that of the others.
    """
    target, split = FourModes(), RefinedNormal(n_draws=4, n_auxiliary=2)
    start = split.build(target.layout).near(best_normal())
    found = start.refine(target, generator())
    draw = found.draw(4, generator())
    values = target.log_joint(draw.theta) - draw.log_q
    bound = lower_bound(target, found, generator(), 1000)
    assert bound.value == pytest.approx(float(values.mean()))
    assert bound.se == pytest.approx(float(values.std()) / 2**0.5)


def test_a_weight_of_the_divergence():
    """It is that of a power of the likelihood, whose exact posterior is known.

    Wrong variant: samples refined towards the posterior of weight 1, twice as wide.
    """
    source = np.random.default_rng(0)
    X = source.normal(size=(60, 2))
    y = X @ [1.0, -0.5] + 0.5 * source.normal(size=60)
    regression = BayesianLinearRegression(
        noise_scale=0.5,
        prior=Normal(),
        fit_intercept=False,
        divergence=KLDivergence(0.25),
        posterior=RefinedNormal(n_draws=200),
        random_state=0,
    ).fit(X, y)
    found = regression.posterior_.params.reshape(200, 2).numpy().std(0, ddof=1)
    covariance = np.linalg.inv(np.eye(2) + 4 * X.T @ X / 0.25)
    # Opposed pairs: 100 independent samples.
    np.testing.assert_allclose(found, np.sqrt(covariance.diagonal()), rtol=4 / 200**0.5)
