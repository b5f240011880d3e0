"""Targets: values by hand, gradients, weights, minibatches, expected losses."""

import math
from itertools import combinations

import pytest
import torch

from skvi import targets
from skvi.base import Layout, NormalForm
from skvi.divergences import KLDivergence, RenyiDivergence
from skvi.likelihoods import BernoulliLikelihood, GaussianLikelihood
from skvi.losses import BetaLoss, LogLoss
from skvi.objectives import ELBO
from skvi.posteriors import FullRankNormal, MeanFieldNormal
from skvi.predictors import LinearPredictor, MLPPredictor
from skvi.priors import Laplace, Normal
from skvi.priors._blocks import build_prior
from skvi.solvers import Problem, SolverOptions
from skvi.solvers._mode import add, alternate, find_mode
from skvi.solvers._natural_gradient import NaturalGradient
from skvi.solvers._newton import Descent
from skvi.targets import SupervisedTarget, Target
from skvi.targets._rows import terms_at
from skvi.targets._supervised import with_design
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


def test_log_joint_by_hand():
    """Two rows, written out. Wrong variants: the mean over rows; a prior per row."""
    X = torch.tensor([[1.0, 2.0], [0.5, -1.0]], dtype=torch.float64)
    y = torch.tensor([1.0, 0.0], dtype=torch.float64)
    target = make_target(X=X, y=y, weight=torch.tensor([1.0, 3.0]).double())
    theta = torch.tensor([[0.3, -0.2, 0.1]], dtype=torch.float64)
    log_p = [-math.log1p(math.exp(-(0.3 - 0.4 + 0.1)))]
    log_p.append(-math.log1p(math.exp(0.15 + 0.2 + 0.1)))
    log_prior = sum(
        -0.5 * (t / 0.7) ** 2 - math.log(0.7 * math.sqrt(2 * math.pi))
        for t in (0.3, -0.2, 0.1)
    )
    expected = log_p[0] + 3 * log_p[1] + log_prior
    assert float(target.log_joint(theta)) == pytest.approx(expected, rel=1e-12)
    pointwise = target.pointwise(theta)[0].tolist()
    assert pointwise == pytest.approx([-log_p[0], -log_p[1]], rel=1e-12)


@every_likelihood
@every_loss
@pytest.mark.parametrize("prior", PRIORS, ids=["normal", "blocks"])
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
def test_log_joint_gradient(likelihood, loss, prior, weight, numeric_gradient):
    # Wrong variants: weights or the prior left out; the sign of the slope.
    target, theta = (
        make_target(likelihood, loss, prior, weight),
        randn(3, D + 1, seed=2),
    )
    gradient = target.log_joint_gradient(theta)
    exact = Target.log_joint_gradient(target, theta)
    torch.testing.assert_close(gradient, exact, rtol=1e-10, atol=1e-12)
    numeric = numeric_gradient(lambda t: target.log_joint(t[None])[0], theta[0])
    torch.testing.assert_close(gradient[0], numeric, rtol=5e-6, atol=1e-8)


@every_likelihood
@every_loss
@families
def test_expected_loss_terms_are_derivatives(likelihood, loss, family, make_normal):
    """The analytic path and the autograd path: values, and derivatives in q.

    dE/dmean = A' slope, dE/dcov = A' diag(curvature) A / 2. Wrong variants: the half
    left out; the second derivative of the value in std; weights left out.
    """
    target = make_target(likelihood, loss, weight=WEIGHT)
    posterior = make_posterior(family, target, make_normal)
    value = target.expected_loss(posterior)
    normal = posterior.as_normal()
    analytic, slope, curvature = target.expected_loss_terms(normal, refine=2)
    torch.testing.assert_close(value.detach(), analytic, rtol=1e-7, atol=1e-7)
    by_mean = target.predictor.pull_back(target.X, slope)
    gram = target.predictor.gram(target.X, curvature)
    by_scale = (
        gram.diagonal() * normal.scale if normal.is_diagonal else gram @ normal.scale
    )
    # The chain rule through the family's own parameters.
    q = posterior.normal()
    linearized = (q.mean * by_mean).sum() + (q.scale * by_scale).sum()
    torch.testing.assert_close(
        gradient_of(value, posterior),
        gradient_of(linearized, posterior),
        rtol=1e-6,
        atol=1e-6,
    )


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


@every_likelihood
@every_loss
def test_expected_loss_is_an_expectation(
    likelihood, loss, make_normal, generator, z_score
):
    """Quadrature against draws. Wrong variant: the loss at the mean."""
    target = make_target(likelihood, loss, weight=WEIGHT)
    posterior = make_posterior(FullRankNormal(), target, make_normal)
    with torch.no_grad():
        theta = posterior.draw(200_000, generator).theta
        draws = target.pointwise(theta) @ WEIGHT
        value = target.expected_loss(posterior)
    assert z_score(draws, value) < 5
    assert z_score(draws, terms_at(target, posterior.as_normal().mean)[0]) > 5


@pytest.mark.parametrize("std", [300.0, 1e4])
def test_both_paths_agree_for_wide_rows(std):
    """A rule whose number of nodes is capped cannot follow f this far."""
    target = make_target(X=10 * randn(N, D))
    posterior = MeanFieldNormal().build(target.layout)
    normal = posterior.as_normal()
    posterior = posterior.near(
        type(normal)(normal.mean, torch.full((D + 1,), std).double())
    )
    analytic = target.expected_loss_terms(posterior.as_normal())[0]
    torch.testing.assert_close(
        target.expected_loss(posterior), analytic, rtol=1e-6, atol=0
    )


@every_likelihood
@every_loss
def test_loss_terms_at_a_point(likelihood, loss, numeric_gradient):
    target, theta = make_target(likelihood, loss, weight=WEIGHT), randn(D + 1, seed=2)
    value, slope, curvature = terms_at(target, theta)

    def total(t):
        return target.pointwise(t[None])[0] @ WEIGHT

    torch.testing.assert_close(value, total(theta))
    leaf = theta.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(total(leaf), leaf)
    hessian = torch.autograd.functional.hessian(total, theta)
    torch.testing.assert_close(target.predictor.pull_back(target.X, slope), gradient)
    torch.testing.assert_close(target.predictor.gram(target.X, curvature), hessian)


@every_loss
@families
def test_weights_are_repetition(loss, family, make_normal):
    """And a zero weight is a row that is not there, however absurd."""
    counts = torch.tensor([1, 2, 0, 3, 1, 0])
    X, y = randn(N, D), (randn(N, seed=1) > 0).to(torch.float64)
    X[2] = 1e3
    repeated = make_target(
        loss=loss, X=X.repeat_interleave(counts, 0), y=y.repeat_interleave(counts)
    )
    weighted = make_target(loss=loss, X=X, y=y, weight=counts.double())
    posterior, theta = (
        make_posterior(family, repeated, make_normal),
        randn(4, 3, seed=2),
    )
    for a, b in [
        (weighted.log_joint(theta), repeated.log_joint(theta)),
        (weighted.log_joint_gradient(theta), repeated.log_joint_gradient(theta)),
        (weighted.expected_loss(posterior), repeated.expected_loss(posterior)),
        (
            weighted.expected_loss_terms(posterior.as_normal())[0],
            repeated.expected_loss_terms(posterior.as_normal())[0],
        ),
    ]:
        torch.testing.assert_close(
            a, b, rtol=1e-7, atol=1e-7
        )  # other nodes: absurd row


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_minibatches_are_unbiased(weight, size):
    """Wrong variants: no factor n/|B|; the prior scaled too; weights not selected."""
    target, theta = make_target(weight=weight), randn(3, D + 1, seed=2)
    batches = [torch.tensor(rows) for rows in combinations(range(N), size)]
    estimates = torch.stack([target.log_joint(theta, rows) for rows in batches])
    torch.testing.assert_close(estimates.mean(0), target.log_joint(theta))
    assert float(estimates.std(0).min()) > 0.01


@pytest.mark.parametrize("mlp", [False, True], ids=["quadrature", "draws"])
def test_minibatches_of_expected_losses_are_unbiased(mlp, make_normal):
    """With the same draws, values and gradients average to those of all rows."""
    predictor = MLPPredictor(D, 1, (2,), "tanh") if mlp else None
    target = make_target(weight=WEIGHT, predictor=predictor)
    posterior = make_posterior(FullRankNormal(), target, make_normal, width=0.4)

    def evaluate(rows):
        generator = torch.Generator().manual_seed(5)
        value = target.expected_loss(posterior, rows, 7, generator)
        return torch.cat([value.detach()[None], gradient_of(value, posterior)])

    batches = [torch.tensor(rows) for rows in combinations(range(N), 2)]
    mean = torch.stack([evaluate(rows) for rows in batches]).mean(0)
    tolerance = 1e-12 if mlp else 1e-7  # the nodes follow the widest row of a batch
    torch.testing.assert_close(mean, evaluate(None), rtol=tolerance, atol=tolerance)


@families
def test_expected_loss_of_a_network(family, make_normal, generator, z_score):
    """Local activations (mean field) or weights (full rank): the same expectation."""
    predictor = MLPPredictor(D, 1, (3,), "tanh")
    target = make_target(weight=WEIGHT, predictor=predictor)
    posterior = make_posterior(family, target, make_normal, width=0.6)
    with torch.no_grad():
        theta = posterior.draw(100_000, generator).theta
        draws = target.pointwise(theta) @ WEIGHT
        values = torch.stack(
            [target.expected_loss(posterior, None, 1000, generator) for _ in range(100)]
        )
    assert z_score(values - draws.reshape(100, -1).mean(1), 0.0) < 5


@every_loss
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
def test_chunks_of_draws_and_rows_change_nothing(loss, weight, monkeypatch):
    # Wrong variants: the last chunk left out; weights of the first chunk for all.
    target, theta = make_target(loss=loss, weight=weight), randn(11, D + 1, seed=2)
    point, q = theta[0].clone(), NormalForm(theta[0].clone(), theta[1].exp())

    def terms(target):
        once = target.expected_loss(q)
        return [*target.expected_loss_terms(q), *terms_at(target, point), once]

    whole = target.log_joint(theta), target.log_joint_gradient(theta), terms(target)
    monkeypatch.setattr(targets.base, "BATCH_DRAWS", 3)
    monkeypatch.setattr("skvi.base._rows.CACHE_ELEMENTS", 4 * 11)  # four rows at once
    monkeypatch.setattr("skvi.targets._least_squares.TERM_ELEMENTS", 4)
    monkeypatch.setattr("skvi.targets._least_squares.TERM_ROWS", 4)
    torch.testing.assert_close(target.log_joint(theta), whole[0])
    torch.testing.assert_close(target.log_joint_gradient(theta), whole[1])
    batched = target.log_joint_batched(theta.requires_grad_())
    torch.testing.assert_close(batched, whole[0])
    assert not batched.requires_grad
    assert target.cost_per_draw == N
    for found, expected in zip(terms(target), whole[2], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)


def test_float32_features():
    theta, double = randn(3, D + 1, seed=2), make_target()
    single = make_target(X=double.X.float(), y=double.y.float())
    for method in ("log_joint", "log_joint_gradient"):
        value = getattr(single, method)(theta)
        assert value.dtype == torch.float64
        torch.testing.assert_close(
            value, getattr(double, method)(theta), rtol=1e-5, atol=1e-5
        )


class Banana(Target):
    """A density that a user wrote."""

    layout = Layout({"x": (2,)})

    def log_joint(self, theta, rows=None):
        return -0.5 * theta[:, 0] ** 2 - (theta[:, 1] - theta[:, 0] ** 2) ** 2


def test_a_users_density_is_a_target(numeric_gradient):
    target, theta = Banana(), randn(3, 2)
    gradient = target.log_joint_gradient(theta)
    numeric = numeric_gradient(lambda t: target.log_joint(t[None])[0], theta[0])
    torch.testing.assert_close(gradient[0], numeric, rtol=5e-6, atol=1e-8)
    assert torch.equal(target.log_joint_batched(theta), target.log_joint(theta))
    assert not target.has_moments
    assert not target.has_design


def test_expected_loss_of_a_users_density(generator, z_score):
    """Fails where the prior is not taken out of the log joint.

    Loss theta^2, prior N(0, 4), q = N(1, 0.25): E_q[loss] = 1.25, and with any
    divergence that has a closed form the ELBO's surrogate adds just that.
    """

    class Parabola(Target):
        layout = Layout({"x": (1,)})
        prior = Normal(scale=2.0).build(layout)

        def log_joint(self, theta, rows=None):
            return self.prior.log_prob(theta) - theta.square().sum(1)

    target, posterior = Parabola(), MeanFieldNormal().build(Parabola.layout)
    half = torch.full((1,), 0.5, dtype=torch.float64)
    posterior = posterior.near(NormalForm(2 * half, half))
    values = [target.expected_loss(posterior, None, 50, generator) for _ in range(200)]
    assert z_score(torch.stack(values), 1.25) < 5
    divergence, task = RenyiDivergence(alpha=0.5), (target, posterior)
    values = [
        ELBO().surrogate(*task, divergence, None, 50, generator)[1] for _ in range(200)
    ]
    expected = 1.25 + divergence.closed_form(posterior.normal(), target.prior)
    assert z_score(torch.stack(values), expected.detach()) < 5


def test_alternating_steps_give_a_better_start_than_the_mode():
    # With the curvature of the mode nothing is gained.
    for seed in range(4):
        X = randn(60, 8, seed=seed)
        y = (X[:, 0] + randn(60, seed=seed + 10) > 0).to(torch.float64)
        target = with_design(make_target(X=X, y=y, predictor=LinearPredictor(8)))
        posterior = FullRankNormal().build(target.layout)
        problem = Problem(target, ELBO(), KLDivergence(), posterior, None)
        prior = target.prior.matching_normal()
        mode, curvature = find_mode(target, prior)
        laplace = add(target.predictor.gram(target.X, curvature), 1 / prior.variance)
        starts = (mode, laplace), alternate(target, prior, mode, laplace)
        begin = map(torch.stack, zip(*starts, strict=True))
        found = Descent([target] * 2, KLDivergence(), *begin)
        first, better = (found.place(k).value for k in (0, 1))
        best = NaturalGradient().solve(problem, SolverOptions()).value
        assert better - best < 0.2 * (first - best)
