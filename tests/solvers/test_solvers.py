"""What solvers find, and that it is the best that they passed."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import sparse
from scipy.optimize import minimize
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale

from skvi.divergences import KLDivergence
from skvi.exceptions import IncompatibleComponentsError
from skvi.likelihoods import BernoulliLikelihood, GaussianLikelihood, PoissonLikelihood
from skvi.linear_model import (
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
)
from skvi.losses import LogLoss
from skvi.neural_network import BayesianMLPRegressor
from skvi.objectives import ELBO, EUBO, IWELBO, RenyiBound
from skvi.posteriors import FullRankNormal, MeanFieldNormal
from skvi.predictors import LinearPredictor
from skvi.priors import HalfCauchy, Normal, StudentT
from skvi.priors._blocks import build_prior
from skvi.solvers import Problem, SolverOptions, Stochastic, _hyper
from skvi.solvers._choice import choose_solver
from skvi.solvers._empirical_bayes import EmpiricalBayes
from skvi.solvers._hyper import _Rows
from skvi.solvers._moment_matching import _standard_error
from skvi.solvers._natural_gradient import NaturalGradient
from skvi.solvers._solution import Ending, State
from skvi.solvers._stochastic._ends import divergence_at
from skvi.targets import SupervisedTarget
from skvi.targets._supervised import with_prior
from tests.reference import REAL, real_data
from tests.solvers.test_members import make_problem

RATE = 0.05


def make_training(**options):
    """A training whose steps are made by hand: an iteration is a sweep."""
    options = {"steps_per_iter": 100, **options}
    solver = Stochastic(learning_rate=RATE)
    return solver._train(make_problem(0), SolverOptions(**options))


def sweep(training, values, state):
    """A sweep with these values, or with these mean values, that ends at a state."""
    values = torch.as_tensor(values, dtype=torch.float64)
    noise = torch.linspace(-1, 1, 100, dtype=torch.float64)
    training.params.copy_(state)
    training.optimizer.first.fill_(float(values.mean()))
    training.record(values + noise, state.expand(101, -1).clone(), True)


def at(training, number):
    return torch.full_like(training.params, number)


def test_a_start_is_not_lost():
    """Wrong variant: the first sweep is the best, wherever it leads."""
    training = make_training()
    start = training.params.clone()
    values = torch.full((100,), 1e4)
    values[:5] = 20.0
    sweep(training, values, at(training, 9.0))
    torch.testing.assert_close(training.params, start)
    training.settle(20)
    torch.testing.assert_close(training.kept, start)


@pytest.mark.parametrize("is_better", [False, True])
def test_the_better_state_is_the_result_whatever_averages_say(is_better):
    """Sweeps are noisy: both states are judged on the same draws.

    Wrong variants: the last state; the one with the lower average.
    """
    training = make_training()
    states = at(training, 0.2), at(training, 0.4)
    values = training._compared(states, 20)
    assert values[0] < values[1] - 10
    if not is_better:
        states = states[::-1]
    sweep(training, 90.0, at(training, 0.3))
    sweep(training, 50.0, states[0])
    sweep(training, 58.0, states[1])
    training.settle(20)
    torch.testing.assert_close(training.kept, at(training, 0.2))


def test_a_first_sweep_that_goes_non_finite_is_not_the_result():
    """But the start, if that is better. Wrong variant: the last finite epoch."""
    training = make_training(steps_per_iter=10)
    start = training.params.clone()
    values = torch.full((20,), 1e6, dtype=torch.float64)
    values[:5], values[12] = 20.0, torch.inf
    training.record(values, at(training, 9.0).expand(21, -1).clone(), False)
    assert "non-finite" in training.message
    torch.testing.assert_close(training.kept, at(training, 9.0))
    training.settle(20)
    torch.testing.assert_close(training.kept, start)


def test_the_value_is_that_of_the_end_of_a_fall():
    """Where the last state is the result. Wrong variant: the mean of the sweep."""
    training = make_training()
    falling = torch.full((100,), 20.0, dtype=torch.float64)
    falling[:40] = torch.linspace(1e4, 20.0, 40, dtype=torch.float64)
    sweep(training, falling, at(training, 0.2))
    value, error = training._value()
    assert value == pytest.approx(20.0, abs=1.0)
    assert error < 0.5


def test_a_divergence_that_falls_within_a_sweep_is_no_reason_to_go_back():
    """Most of its steps have a larger rest than its end. Wrong variant: the rest of
    the end for all of them, so that long fits of wide networks start over for ever."""
    training = make_training(warm_up=0.5)
    near, far = at(training, 0.1), at(training, 2.0)
    low, high = (float(divergence_at(training._at(state))) for state in (near, far))
    sweep(training, 50.0 + high, far)
    rate = training.optimizer.rate
    falling = torch.linspace(high, low, 100, dtype=torch.float64)
    sweep(training, 50.0 + falling, near)
    torch.testing.assert_close(training.params, near)
    assert training.optimizer.rate == rate


def _data(n_rows=40, n_features=60):
    rng = np.random.RandomState(0)
    X = rng.standard_normal((n_rows, n_features)) * (rng.rand(n_rows, n_features) < 0.5)
    return X, X[:, :5].sum(1), rng


def _fit_both(make, monkeypatch, X, y, n_fewer=1, **more):
    """The fit in the space of the rows, where Newton steps are as small, and the other.

    `n_fewer`: small problems that are solved.
    """
    counts = [0]
    init = _Rows.__init__

    def counting(*args):
        counts[0] += 1
        init(*args)

    monkeypatch.setattr(_Rows, "__init__", counting)
    monkeypatch.setattr(_hyper, "MIN_SIZE", 0)
    rows = make().fit(X, y, **more)
    assert counts[0] >= n_fewer
    monkeypatch.setattr(_hyper, "MIN_SIZE", 10**9)
    parameters, n_before = make().fit(X, y, **more), counts[0]
    assert counts[0] == n_before
    return rows, parameters


def _check(rows, parameters, atol=1e-5):
    assert rows.converged_
    assert parameters.converged_
    gain = rows.objective_value_ - parameters.objective_value_
    assert abs(gain) < 1e-7
    np.testing.assert_allclose(rows.coef_, parameters.coef_, atol=atol)
    first, second = (m.posterior_.as_normal().covariance() for m in (rows, parameters))
    torch.testing.assert_close(first, second, rtol=10 * atol, atol=atol)


@pytest.mark.parametrize(("weight", "kind"), [(1.0, "sparse"), (0.5, "dense")])
def test_labels(weight, kind, monkeypatch):
    """Wrong variants: coordinates outside the rows without their prior; units that are
    not taken back."""
    X, f, rng = _data()
    y, sample_weight = f + rng.standard_normal(len(f)) > 0, rng.rand(len(f)) + 0.5
    X = sparse.csr_array(X) if kind == "sparse" else X

    def make():
        parts = {"prior": Normal(0.7), "intercept_prior": Normal(3.0), "tol": 1e-11}
        return BayesianLogisticRegression(
            divergence=KLDivergence(weight=weight), **parts
        )

    _check(*_fit_both(make, monkeypatch, X, y, sample_weight=sample_weight))


def test_counts_with_exposures(monkeypatch):
    X, f, rng = _data()
    exposure = rng.rand(len(f)) + 0.5
    y = rng.poisson(exposure * np.exp(0.3 * f))

    def make():
        return BayesianPoissonRegressor(prior=Normal(0.5), tol=1e-11)

    _check(*_fit_both(make, monkeypatch, X, y, exposure=exposure))


N_REPEATS = 200


def ratio(estimates, errors):
    """Spread of repeated estimates in units of their errors; 1, within 15 %."""
    return float(torch.stack(estimates).std() / torch.tensor(errors).double().mean())


def test_weighted_draws():
    """Wrong variant: as if weights were equal (a ratio of 1.6)."""
    generator = torch.Generator().manual_seed(0)
    estimates, errors = [], []
    for _ in range(N_REPEATS):
        noise = torch.randn(2, 500, generator=generator).double()
        weights, values = torch.softmax(noise[0], 0), noise[1]
        estimates.append(weights @ values)
        errors.append(_standard_error(weights, values, None))
    assert ratio(estimates, errors) == pytest.approx(1, abs=0.15)


def posed(likelihood, weight=1.0, n=30, d=3):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    f = X @ np.linspace(-1, 1, d)
    if isinstance(likelihood, PoissonLikelihood):
        y = rng.poisson(np.exp(f)).astype(float)
    else:
        y = (f > rng.logistic(size=n)).astype(float)
    model = LinearPredictor(d, fit_intercept=False)
    prior = Normal(HalfCauchy(0.5)).build(model.layout)
    data = torch.from_numpy(X), torch.from_numpy(y)
    target = SupervisedTarget(model, likelihood, LogLoss(), prior, *data)
    posterior = FullRankNormal().build(model.layout)
    return Problem(target, ELBO(), KLDivergence(weight), posterior, None)


@pytest.mark.parametrize("weight", [1.0, 0.4])
@pytest.mark.parametrize("likelihood", [BernoulliLikelihood(), PoissonLikelihood()])
def test_the_minimum_is_that_over_all_scales(likelihood, weight):
    """``-w log sum_k p(z_k) exp(-F_k / w) h``, on a fine grid of scales.

    Wrong variants: weights of exp(-F_k) under a weight of the divergence; no step.
    """
    problem = posed(likelihood, weight)
    found = NaturalGradient().solve(problem, SolverOptions())
    grid, step = np.linspace(-7, 6, 105, retstep=True)
    values = []
    for z in grid:
        prior = problem.target.prior.given_scale(math.exp(z))
        known = replace(problem, target=with_prior(problem.target, prior))
        loss = NaturalGradient().solve(known, SolverOptions()).value
        values.append(-loss / weight - math.log(math.pi * math.cosh(z)))
    exact = -weight * (np.logaddexp.reduce(values) + math.log(step))
    # Of the mass, what lies beyond five nats of the top is left out.
    assert exact - 1e-3 < found.value < exact + 0.02 * weight
    nodes = found.posterior
    weights = np.exp(values - np.logaddexp.reduce(values))
    mean = float(nodes.log_weights.exp() @ nodes.log_scales)
    assert mean == pytest.approx(weights @ grid, abs=0.03)
    slopes = np.interp(nodes.log_scales, grid, values) - np.max(values)
    assert slopes[0] < -4.5
    assert slopes[-1] < -4.5


N_ESTIMATES = 16


def make_data(n=20):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    return X, (X[:, 0] + rng.normal(size=n) > 0).astype(int)


def repeat(weight=None, **options):
    """Values and their errors, of fits that differ in nothing but their draws."""
    X, y = make_data()
    found = []
    for seed in range(N_ESTIMATES):
        model = BayesianLogisticRegression(
            random_state=seed, **{"prior": "normal", **options}
        )
        model.fit(X, y, sample_weight=weight)
        found.append((model.objective_value_, model.objective_value_se_))
    return np.array(found).T


# At a step size of almost nothing every fit stays where it starts.
STILL = {"solver": Stochastic(learning_rate=1e-12, n_draws=4), "max_iter": 1}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "options",
    [
        {"objective": IWELBO(n_importance=4), **STILL, "prior": "normal"},
        {"objective": "eubo", "prior": "normal"},
        {"objective": RenyiBound(0.5), "prior": "normal"},
    ],
    ids=["stochastic", "moments", "tilted"],
)
def test_repeated_values_vary_as_their_errors_say(options):
    """The variance of z-scores is 1: chi-square with 15 degrees of freedom.

    Its 1e-4 quantiles are 0.16 and 3.0. Wrong variants: the standard deviation of one
    value in place of the error of their mean (z 10 times too small), no error at all.
    """
    values, errors = repeat(**options)
    assert (errors > 0).all()
    z = (values - values.mean()) / errors
    assert 0.16 < z.var(ddof=1) < 3.0


# Of the references, whose features are standardized.
REFERENCE_PRIOR = {"prior": "normal", "intercept_prior": "normal"}


def fit(name, **parts):
    return BayesianLogisticRegression(**{**REFERENCE_PRIOR, **parts}).fit(
        *real_data(name)
    )


def compare(model, other):
    """Largest distance of means, and of log variances, in standard deviations."""
    a, b = model.posterior_.as_normal(), other.posterior_.as_normal()
    means = (a.mean - b.mean).abs() / b.variance.sqrt()
    return float(means.max()), float((a.variance / b.variance).log().abs().max())


@pytest.mark.parametrize(
    ("name", "posterior"),
    [
        ("setosa", "full_rank"),
        ("setosa", "mean_field"),
        ("breast_cancer", "full_rank"),
    ],
)
def test_order_near_1_is_the_elbo(name, posterior):
    """Solution and value. Wrong variants: tilted moments without the exact ones of
    the normal subtracted (noise over 1 - alpha), or not divided by 1 - alpha."""
    elbo = fit(name, posterior=posterior)
    renyi = fit(name, posterior=posterior, objective=RenyiBound(0.999), random_state=0)
    found = renyi.diagnostics_
    assert found["solver"] == "moment_matching"
    assert renyi.converged_
    error = found["moment_error"]
    assert error < 0.02
    means, variances = compare(renyi, elbo)
    assert means < 5 * error + 1e-3
    assert variances < 5 * math.sqrt(2) * error + 5e-3  # d log variance / d alpha
    assert renyi.lower_bound_ > elbo.lower_bound_ - 0.05
    gap = REAL[name][2] - elbo.lower_bound_
    distance = abs(renyi.objective_value_ - elbo.lower_bound_)
    assert distance < 5 * found["value_error"] + 0.002 * gap
    assert found["bound_exists"] is True


# --- what is reported ---------------------------------------------------------------


def test_jackknife_error_of_a_mean():
    """Of a linear statistic it is that of block means."""
    from skvi.evidence._estimates import jackknife

    log_weights = torch.randn(
        3200, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    value, error = jackknife(torch.mean, log_weights)
    assert value == pytest.approx(float(log_weights.mean()))
    blocks = log_weights.reshape(32, 100).mean(1)
    assert error == pytest.approx(float(blocks.std()) / math.sqrt(32), rel=1e-10)


quiet = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::skvi.exceptions.SkviWarning",
)
NETWORK = BayesianMLPRegressor(
    skip_connection=False,
    likelihood="gaussian",
    activation="softplus",
    divergence="kl",
    posterior="mean_field",
    hidden_layer_sizes=3,
    max_iter=3,
    random_state=0,
)


def waves(n=40):
    x = np.linspace(-2, 2, n)
    return x[:, None], np.sin(2 * x)


@quiet
def test_settings_of_networks_are_those_of_their_solver():
    """`batch_size` in either place, and not in both; "auto" is what suits the network.

    Wrong variants: settings of the object ignored; those of the network where both are
    given.
    """
    settings = {"n_draws": 3, "learning_rate": 0.1}
    X, y = waves()
    beside = clone(NETWORK).set_params(solver=Stochastic(**settings), batch_size=8)
    solver = Stochastic(batch_size=8, **settings)
    model = clone(NETWORK).set_params(solver=solver).fit(X, y)
    assert np.array_equal(model.loss_curve_, beside.fit(X, y).loss_curve_)
    named = clone(NETWORK).set_params(solver="stochastic", batch_size=8)
    named.set_params(**{f"solver__{name}": v for name, v in settings.items()})
    assert np.array_equal(model.loss_curve_, named.fit(X, y).loss_curve_)
    assert model.diagnostics_["n_draws"] == 3 * 3  # of all rows, in as many epochs
    plain = clone(NETWORK).set_params(solver="stochastic").fit(X, y)
    assert plain.loss_curve_[0] != model.loss_curve_[0]
    solver = Stochastic()
    model = clone(NETWORK).set_params(solver=solver).fit(X, y)
    assert np.array_equal(model.loss_curve_, plain.loss_curve_)
    assert solver.n_draws == solver.batch_size == "auto"
    twice = clone(NETWORK).set_params(solver=Stochastic(batch_size=3), batch_size=8)
    with pytest.raises(IncompatibleComponentsError, match="batch_size=8 needs"):
        twice.fit(X, y)


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


def learned_problem(target, family="full", objective=None, divergence=None):
    posterior = FAMILIES[family].build(target.layout)
    generator = torch.Generator().manual_seed(0)
    parts = objective or ELBO(), divergence or KLDivergence()
    return Problem(target, *parts, posterior, generator)


def learned_fit(target, family="full", tol=1e-8, **parts):
    problem = learned_problem(target, family, **parts)
    return EmpiricalBayes().solve(problem, SolverOptions(tol=tol))


def log_evidence(noise, prior_scale):
    covariance = noise**2 * np.eye(len(Y)) + prior_scale**2 * X @ X.T
    return multivariate_normal(np.zeros(len(Y)), covariance).logpdf(Y)


@pytest.fixture(scope="module")
def best():
    """Noise and prior scale with the largest evidence."""
    found = minimize(
        lambda x: -log_evidence(*np.exp(x)), np.zeros(2), options={"gtol": 1e-9}
    )
    return np.exp(found.x), -found.fun


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


def test_interrupt_and_callbacks_keep_a_state():
    """Wrong variant: the posterior at the best scales, with those of the start."""
    seen = []

    def interrupt(value, state):
        seen.append(state())
        raise KeyboardInterrupt

    problem = learned_problem(make_target())
    solution = EmpiricalBayes().solve(problem, SolverOptions(progress=interrupt))
    assert solution.interrupted
    assert len(solution.history) == solution.n_iter == 1
    for state in (solution.state, *seen):
        fixed = problem.at(State(state.posterior, state.target.frozen()))
        value = float(ELBO().surrogate(*fixed_parts(fixed))[1])
        assert value == pytest.approx(solution.value, abs=1e-9)
    problem = learned_problem(make_target())
    solution = EmpiricalBayes().solve(problem, SolverOptions(progress=lambda *_: True))
    assert solution.ending is Ending.STOPPED
    assert not solution.message
    problem = learned_problem(make_target())
    solution = EmpiricalBayes().solve(problem, SolverOptions(max_iter=1))
    assert "increase max_iter" in solution.message
    assert np.all(np.diff([math.inf, *solution.history]) < 0)


def fixed_parts(problem):
    return problem.target, problem.posterior, problem.divergence, None, 1, None


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


def test_solver_says_what_it_lacks():
    target = make_target(Normal(), noise=1.0)
    assert "no hyperparameters" in EmpiricalBayes.missing(learned_problem(target))
    target = make_target()
    assert not EmpiricalBayes.missing(learned_problem(target))
    missing = EmpiricalBayes.missing(learned_problem(target, objective=EUBO()))
    assert "minimizes expectations" in missing
    with pytest.raises(IncompatibleComponentsError, match="'empirical_bayes'"):
        choose_solver(learned_problem(target), "natural_gradient")
