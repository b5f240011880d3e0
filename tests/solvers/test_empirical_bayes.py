"""Learned prior and noise scales: type-II maximum likelihood."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize, minimize_scalar
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm
from sklearn.datasets import load_breast_cancer
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import scale

from skvi.base import NormalForm
from skvi.divergences import KLDivergence, RenyiDivergence
from skvi.exceptions import IncompatibleComponentsError
from skvi.likelihoods import GaussianLikelihood
from skvi.linear_model import BayesianLogisticRegression
from skvi.losses import BetaLoss, LogLoss
from skvi.neural_network import BayesianMLPRegressor
from skvi.objectives import ELBO, EUBO, IWELBO, ChiBound, RenyiBound
from skvi.posteriors import FullRankNormal, MeanFieldNormal
from skvi.predictors import LinearPredictor, MLPPredictor
from skvi.priors import HalfCauchy, Horseshoe, Laplace, Normal, StudentT
from skvi.priors._blocks import build_prior
from skvi.solvers import Problem, SolverOptions
from skvi.solvers._choice import choose_solver
from skvi.solvers._empirical_bayes import EmpiricalBayes
from skvi.solvers._solution import Ending, State
from skvi.targets import SupervisedTarget

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 4)) @ RNG.normal(size=(4, 4))
Y = X @ [0.8, -0.5, 0.0, 0.3] + 0.7 * RNG.normal(size=40)
FAMILIES = {"full": FullRankNormal(), "diag": MeanFieldNormal()}


def make_target(prior=None, noise="learn", loss=None):
    model = LinearPredictor(4, fit_intercept=False)
    prior = build_prior(Normal("learn") if prior is None else prior, model.layout)
    tensors = torch.from_numpy(X), torch.from_numpy(Y)
    likelihood = GaussianLikelihood(noise)
    return SupervisedTarget(model, likelihood, loss or LogLoss(), prior, *tensors)


def make_problem(target, family="full", objective=None, divergence=None):
    posterior = FAMILIES[family].build(target.layout)
    generator = torch.Generator().manual_seed(0)
    parts = objective or ELBO(), divergence or KLDivergence()
    return Problem(target, *parts, posterior, generator)


def fit(target, family="full", tol=1e-8, **parts):
    problem = make_problem(target, family, **parts)
    return EmpiricalBayes().solve(problem, SolverOptions(tol=tol))


def log_evidence(noise, prior_scale):
    covariance = noise**2 * np.eye(len(Y)) + prior_scale**2 * X @ X.T
    return multivariate_normal(np.zeros(len(Y)), covariance).logpdf(Y)


def exact_posterior(noise, prior_scale):
    precision = X.T @ X / noise**2 + np.eye(4) / prior_scale**2
    covariance = np.linalg.inv(precision)
    mean = covariance @ X.T @ Y / noise**2
    root = np.linalg.cholesky(covariance)
    return NormalForm(torch.from_numpy(mean), torch.from_numpy(root))


@pytest.fixture(scope="module")
def best():
    """Noise and prior scale with the largest evidence."""
    found = minimize(
        lambda x: -log_evidence(*np.exp(x)), np.zeros(2), options={"gtol": 1e-9}
    )
    return np.exp(found.x), -found.fun


def test_conjugate_fit_is_the_type_two_maximum(best):
    # Wrong variants: ELBO minimized in eta; the prior left out of the gradient.
    solution = fit(make_target())
    assert solution.converged
    assert solution.target.learned == ("noise_scale", "prior_scale")
    np.testing.assert_allclose(solution.target.hyper.exp(), best[0], rtol=1e-5)
    assert -solution.value == pytest.approx(best[1], abs=1e-9)
    exact = exact_posterior(*best[0])
    normal = solution.posterior.as_normal()
    torch.testing.assert_close(normal.mean, exact.mean, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(
        normal.covariance(), exact.covariance(), rtol=1e-3, atol=1e-6
    )


@pytest.mark.parametrize(
    ("prior", "loss", "divergence"),
    [
        (None, None, None),
        (Laplace("learn"), None, None),
        (StudentT(3.0, "learn"), None, None),
        (Horseshoe("learn"), None, None),
        (None, BetaLoss(1.3), None),
        (None, None, KLDivergence(weight=0.3)),
        (None, None, RenyiDivergence(0.8)),
    ],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_profile_is_level_at_the_solution(family, prior, loss, divergence):
    """No scale near the solution has a lower objective, and it is quadratic there.

    Wrong variant: the gradient of D in the scale of the prior, without that of the
    expected loss in the scale of the noise.
    """
    target = make_target(prior, loss=loss)
    solution = fit(target, family, divergence=divergence)
    assert solution.converged
    for step in 0.02 * torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, -1.0]]):
        values = []
        for sign in (1, -1):
            moved = target.at(solution.target.hyper + sign * step)
            fixed = make_problem(moved.frozen(), family, divergence=divergence)
            found = choose_solver(fixed).solve(fixed, SolverOptions(tol=1e-9))
            values.append(found.value - solution.value)
        assert min(values) > 0
        assert values[0] == pytest.approx(values[1], rel=0.2)


@pytest.mark.parametrize("family", FAMILIES)
def test_breast_cancer_against_a_search(family):
    X, y = load_breast_cancer(return_X_y=True)
    X = scale(X)
    shared = {"posterior": {"full": "full_rank", "diag": "mean_field"}[family]}
    model = BayesianLogisticRegression(prior=Normal("learn"), **shared).fit(X, y)
    assert model.diagnostics_["solver"] == "empirical_bayes"
    assert model.converged_
    assert model.lower_bound_se_ == 0
    found = model.diagnostics_["learned"]["prior_scale"]  # in the units of the fit
    assert found == pytest.approx(model.prior_scale_)
    steps = [-1e-3, 0.0, 1e-3]
    bounds = []
    for step in steps:
        prior = Normal(model.prior_scale_ * math.exp(step))
        fixed = BayesianLogisticRegression(
            prior=prior, intercept_prior=Normal(10.0), tol=1e-9, **shared
        )
        bounds.append(fixed.fit(X, y).lower_bound_)
    assert model.lower_bound_ == pytest.approx(bounds[1], abs=1e-4)
    slope, bend = bounds[2] - bounds[0], bounds[2] - 2 * bounds[1] + bounds[0]
    assert bend < 0
    # Distance to the top of the parabola through the three, in the log of the scale.
    assert abs(0.5 * slope / bend) * 1e-3 < 1e-3


OBJECTIVES = [
    EUBO(gradient="score"),
    EUBO(),
    ChiBound(),
    RenyiBound(alpha=-0.5),
    RenyiBound(alpha=0.5),
    IWELBO(n_importance=5),
    ELBO(gradient="reparam"),
]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=repr)
def test_gradient_in_the_scales_is_that_of_the_evidence(
    objective, z_score, generator, numeric_gradient
):
    """Where q is the exact posterior, every objective ascends the log evidence.

    The weights are then constant, so that the mean over draws of the gradient of the
    log joint is that of the log evidence (Fisher's identity), for minimized bounds as
    well. Wrong variants: the sign for minimized bounds; the prior detached.
    """
    scales = np.array([0.9, 0.4])
    target = make_target()
    problem = make_problem(target, objective=objective)
    posterior = problem.posterior.near(exact_posterior(*scales))
    gradients = []
    for _ in range(150):
        hyper = torch.from_numpy(np.log(scales)).requires_grad_()
        surrogate, _ = objective.surrogate(
            target.at(hyper), posterior, KLDivergence(), None, 20, generator
        )
        (gradient,) = torch.autograd.grad(surrogate, hyper)
        gradients.append(-gradient)

    def evidence(x):
        return torch.tensor(log_evidence(*x.exp().tolist()), dtype=torch.float64)

    expected = numeric_gradient(evidence, torch.from_numpy(np.log(scales)))
    assert z_score(torch.stack(gradients), expected) < 5
    assert z_score(torch.stack(gradients), 0.75 * expected) > 5


@pytest.mark.slow
@pytest.mark.parametrize("objective", [EUBO(), IWELBO(10), RenyiBound(-0.5)], ids=repr)
def test_stochastic_fits_find_the_type_two_maximum(objective, best):
    problem = make_problem(make_target(), objective=objective)
    start = replace(problem, objective=ELBO())
    near = EmpiricalBayes().solve(start, SolverOptions(tol=1e-3))
    away = near.target.at(near.target.hyper + 0.3)
    solver = choose_solver(problem)
    assert solver.name == "stochastic"
    problem = problem.at(State(near.posterior, away))
    solution = solver.solve(problem, SolverOptions())
    # The gradient's noise vanishes with the exact posterior, and so does the bias.
    np.testing.assert_allclose(solution.target.hyper.exp(), best[0], rtol=0.01)


def test_split_of_the_log_joint():
    """Both have the value; gradients flow into theta, or into the scales.

    Wrong variant: a prior or a likelihood whose scales are not held fixed for theta.
    """
    target = make_target(StudentT(3.0, "learn"))
    target.hyper = torch.tensor([0.2, -0.7], dtype=torch.float64).requires_grad_()
    theta = torch.ones(2, 4, dtype=torch.float64, requires_grad=True)
    for_theta, for_hyper = target.log_joint_split(theta)
    whole = target.log_joint(theta)
    torch.testing.assert_close(for_theta, whole)
    torch.testing.assert_close(for_hyper, whole)
    inputs = theta, target.hyper
    expected = torch.autograd.grad(whole.sum(), inputs)
    by_theta, none = torch.autograd.grad(for_theta.sum(), inputs, allow_unused=True)
    assert none is None
    none, by_hyper = torch.autograd.grad(for_hyper.sum(), inputs, allow_unused=True)
    assert none is None
    torch.testing.assert_close((by_theta, by_hyper), expected)


def test_blocks_share_what_their_entry_learns():
    """ "coef" learns one number for all layers; named blocks learn their own."""
    layout = MLPPredictor(3, 1, (5,)).layout
    shared = build_prior({"coef": Normal("learn"), "intercept": Normal(2.0)}, layout)
    assert shared.learned == ("prior_scale",)
    bound = shared.bind(torch.tensor([0.1], dtype=torch.float64).log())
    theta = torch.ones(1, layout.size, dtype=torch.float64)
    expected = build_prior({"coef": Normal(0.1), "intercept": Normal(2.0)}, layout)
    torch.testing.assert_close(bound.log_prob(theta), expected.log_prob(theta))
    spec = {
        "coef_1": Normal("learn"),
        "coef_0": Laplace("learn"),
        "intercept": Normal(),
    }
    own = build_prior(spec, layout)
    assert own.learned == ("prior_scale[coef_0]", "prior_scale[coef_1]")
    bound = own.bind(torch.tensor([0.1, 2.0], dtype=torch.float64).log())
    spec = {"coef_1": Normal(2.0), "coef_0": Laplace(0.1), "intercept": Normal()}
    expected = build_prior(spec, layout)
    torch.testing.assert_close(bound.log_prob(theta), expected.log_prob(theta))
    assert bound.as_normal() is None
    with pytest.raises(ValueError, match="give a number"):
        own.log_prob(theta)


def test_scales_without_an_optimum_are_reported():
    """Labels without signal: the scale degenerates to 0. A tiny unit is no matter."""
    signs = np.resize([-1.0, 1.0], 40)
    y = np.repeat([0, 1], 20)
    X = signs[:, None]  # orthogonal to the labels
    model = BayesianLogisticRegression(prior=Normal("learn"))
    with pytest.warns(
        ConvergenceWarning, match=r"prior_scale degenerates to 0.*a number"
    ):
        model.fit(X, y)
    assert not model.converged_
    assert model.prior_scale_ < 0.05
    tiny = 1e-8 * (2.0 * y[:, None] - 1)
    assert model.fit(tiny, y).converged_
    assert model.prior_scale_ > 1e8


def test_learned_noise_at_its_floor_is_reported():
    target = make_target()
    y = target.X @ torch.ones(4, dtype=torch.float64)  # no noise at all
    target.rows = replace(target.rows, y=y)
    solution = fit(target, tol=1e-5)
    assert "noise_scale degenerates to 0" in solution.message
    assert not solution.converged


def test_interrupt_and_callbacks_keep_a_state():
    """Wrong variant: the posterior at the best scales, with those of the start."""
    seen = []

    def interrupt(value, state):
        seen.append(state())
        raise KeyboardInterrupt

    problem = make_problem(make_target())
    solution = EmpiricalBayes().solve(problem, SolverOptions(progress=interrupt))
    assert solution.interrupted
    assert len(solution.history) == solution.n_iter == 1
    for state in (solution.state, *seen):
        fixed = problem.at(State(state.posterior, state.target.frozen()))
        value = float(ELBO().surrogate(*fixed_parts(fixed))[1])
        assert value == pytest.approx(solution.value, abs=1e-9)
    problem = make_problem(make_target())
    solution = EmpiricalBayes().solve(problem, SolverOptions(progress=lambda *_: True))
    assert solution.ending is Ending.STOPPED
    assert not solution.message
    problem = make_problem(make_target())
    solution = EmpiricalBayes().solve(problem, SolverOptions(max_iter=1))
    assert "increase max_iter" in solution.message
    assert np.all(np.diff([math.inf, *solution.history]) < 0)


def fixed_parts(problem):
    return problem.target, problem.posterior, problem.divergence, None, 1, None


def test_warm_start_needs_one_step():
    X, y = load_breast_cancer(return_X_y=True)
    X = scale(X)[:, :5]
    model = BayesianLogisticRegression(prior=Normal("learn"), warm_start=True)
    first = model.fit(X, y).n_iter_
    scale_before = model.prior_scale_
    model.fit(X, y)
    assert model.n_iter_ == 1 < first
    assert model.prior_scale_ == pytest.approx(scale_before, rel=1e-4)


def test_evidence_says_what_it_is_conditioned_on():
    X, y = load_breast_cancer(return_X_y=True)
    X = scale(X)[:, :3]
    model = BayesianLogisticRegression(prior=Normal("learn")).fit(X, y)
    shared = {"n_draws": 2000, "random_state": 0}
    bounds = model.evidence_bounds(X, y, **shared)
    assert bounds.plug_in == ("prior_scale",)
    assert "at the learned prior_scale" in str(bounds)
    fixed = BayesianLogisticRegression(
        prior=Normal(model.prior_scale_), intercept_prior=Normal(10.0)
    )
    expected = fixed.fit(X, y).evidence_bounds(X, y, **shared)
    assert expected.plug_in == ()
    assert bounds.estimate == pytest.approx(expected.estimate, abs=0.02)


def test_several_learned_scales_are_a_mapping():
    X, y = load_breast_cancer(return_X_y=True)
    some = (y == 1) | (np.cumsum(y == 0) <= 30)  # so that the intercept is not 0
    X, y = scale(X[some])[:, :5], y[some]
    learned = Normal("learn")
    model = BayesianLogisticRegression(prior=learned, intercept_prior=learned)
    model.fit(X, y)
    assert set(model.prior_scale_) == {"coef", "intercept"}
    # One number and its scale: the best scale is about the size of the number.
    ratio = model.prior_scale_["intercept"] / abs(model.intercept_[0])
    assert 0.9 < ratio < 1.3


def test_network_learns_a_prior_scale():
    X = RNG.normal(size=(60, 2))
    y = X[:, 0] + 0.1 * RNG.normal(size=60)
    model = BayesianMLPRegressor(
        skip_connection=False,
        likelihood="gaussian",
        activation="softplus",
        divergence="kl",
        posterior="mean_field",
        hidden_layer_sizes=(),
        prior=Normal("learn"),
        random_state=0,
        max_iter=30,
    )
    model.fit(X, y)
    assert 0.2 < model.prior_scale_ < 5
    assert model.diagnostics_["learned"].keys() == {"noise_scale", "prior_scale"}


def test_solver_says_what_it_lacks():
    target = make_target(Normal(), noise=1.0)
    assert "no hyperparameters" in EmpiricalBayes.missing(make_problem(target))
    target = make_target()
    assert not EmpiricalBayes.missing(make_problem(target))
    missing = EmpiricalBayes.missing(make_problem(target, objective=EUBO()))
    assert "minimizes expectations" in missing
    with pytest.raises(IncompatibleComponentsError, match="'empirical_bayes'"):
        choose_solver(make_problem(target), "natural_gradient")


def test_a_scale_is_averaged_beside_learned_noise():
    """The evidence of the noise is an integral over the scale of the prior.

    Wrong variants: slopes at the likeliest node alone; at the prior of scale 1.
    """
    solution = fit(make_target(Normal(HalfCauchy())))
    assert solution.converged
    z = np.linspace(-8, 5, 300)
    lengths, axes = np.linalg.eigh(X @ X.T)

    def loss(log_noise):
        variance = np.exp(2 * z)[:, None] * lengths + math.exp(2 * log_noise)
        values = norm.logpdf(axes.T @ Y, scale=np.sqrt(variance)).sum(1)
        return -logsumexp(values - np.log(math.pi * np.cosh(z))) - math.log(z[1] - z[0])

    found = minimize_scalar(loss, bounds=(-3, 3), method="bounded")
    # Of the integral .004 lies beyond the last nodes.
    assert solution.value == pytest.approx(found.fun, abs=0.005)
    noise = float(solution.target.hyper[0])
    assert noise == pytest.approx(found.x, abs=2e-3)
    assert loss(noise) == pytest.approx(found.fun, abs=1e-4)
