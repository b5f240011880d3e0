"""The deterministic solver for normals of every shape."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.linalg import cholesky
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import scale

from skvi.base import NormalForm
from skvi.divergences import KL, Renyi
from skvi.exceptions import IncompatibleComponentsError
from skvi.likelihoods import GaussianLikelihood
from skvi.likelihoods.base import Likelihood
from skvi.linear_model import BayesianLogisticRegression
from skvi.losses import BetaLoss, LogLoss
from skvi.objectives import ELBO
from skvi.posteriors import FullRankNormal, LowRankNormal, MeanFieldNormal
from skvi.predictors import LinearPredictor
from skvi.priors import Laplace, Normal
from skvi.solvers import NaturalGradient, QuasiNewton, SolverOptions
from skvi.solvers import Problem as SolverProblem
from skvi.solvers._curvature import _Dense, _Products, curvature_of
from skvi.solvers._lbfgs import LBFGS
from skvi.solvers._quasi_newton_solver import _Run
from skvi.targets import SupervisedTarget
from skvi.utils._threads import limit_threads
from tests.reference import REAL, Problem, conjugate_evidence, real_data, synthetic_data

# Of the references, whose features are standardized.
REFERENCE_PRIOR = {"prior": "normal", "intercept_prior": "normal"}

SLOW = pytest.mark.slow


def fit(X, y, posterior, **parts):
    return BayesianLogisticRegression(
        posterior=posterior, **{**REFERENCE_PRIOR, **parts}
    ).fit(X, y)


def dense_of(model):
    """Mean and a Cholesky factor, for the reference."""
    normal = model.posterior_.as_normal()
    return normal.mean.numpy(), cholesky(normal.covariance().numpy(), lower=True)


def test_orderings_on_breast_cancer():
    """Between mean-field and full rank, higher with the rank, and there at P.

    Wrong variants: the factor's share of the variance of f left out; its log
    determinant left out; whitening by R' in the place of R.
    """
    X, y = real_data("breast_cancer")
    problem = Problem(X, y)
    diagonal, full, _ = REAL["breast_cancer"]
    ranks, bounds = (1, 10, 31), []
    for rank in ranks:
        model = fit(X, y, LowRankNormal(rank))
        assert model.diagnostics_["solver"] == "lbfgs"
        assert model.converged_
        assert model.lower_bound_se_ == 0
        value = -problem.value(*dense_of(model))
        assert model.lower_bound_ == pytest.approx(value, abs=1e-4)
        bounds.append(model.lower_bound_)
    assert diagonal + 0.5 < bounds[0]
    assert np.all(np.diff(bounds) > 0.5)
    assert bounds[-1] == pytest.approx(full, abs=0.001)


@pytest.mark.parametrize("posterior", ["mean_field", "full_rank"])
@pytest.mark.parametrize("name", ["breast_cancer", "wide", "separable"])
def test_other_shapes_agree_with_the_natural_gradient(name, posterior):
    """Wrong variant: the triangle's diagonal not differentiated on the log scale."""
    data = real_data(name) if name == "breast_cancer" else synthetic_data(name)
    natural = fit(*data, posterior)
    assert natural.diagnostics_["solver"] == "natural_gradient"
    model = fit(*data, posterior, solver="lbfgs")
    assert model.converged_
    assert model.lower_bound_ == pytest.approx(natural.lower_bound_, abs=2e-5)
    assert model.coef_ == pytest.approx(natural.coef_, abs=1e-2)


@pytest.mark.parametrize("divergence", [KL(), Renyi(0.5), Renyi(2.0)], ids=repr)
@pytest.mark.parametrize(
    "family", [MeanFieldNormal(), LowRankNormal(2), FullRankNormal()], ids=repr
)
def test_gradients_in_the_free_coordinates(family, divergence, numeric_gradient):
    """Against finite differences, away from the start.

    Wrong variants: exp(t) left out for the diagonal of T; the factor moved by half
    of R Z; R in the place of R'.
    """
    X, y = features(20, 3)[0], torch.ones(20).double()
    problem = problem_of(GaussianLikelihood(), y, family, X, divergence)
    with torch.no_grad():
        run = _Run(problem, SolverOptions())
        n_free = len(run.lbfgs.x)
        x = 0.2 * torch.sin(torch.arange(n_free, dtype=torch.float64))
        _, gradient = run.lbfgs.evaluate(x)
        numeric = numeric_gradient(lambda x: x.new_tensor(run.lbfgs.evaluate(x)[0]), x)
    torch.testing.assert_close(gradient, numeric, rtol=1e-4, atol=1e-6)


def low_rank_value(problem, x, size, rank):
    """The reference's objective at (mean, own deviations, factor)."""
    m, d, u = x[:size], x[size : 2 * size], x[2 * size :].reshape(size, rank)
    return problem.value(m, cholesky(np.diag(d**2) + u @ u.T, lower=True))


@pytest.mark.parametrize(
    ("rank", "scale_"), [(1, 1.0), pytest.param(2, 10.0, marks=SLOW)]
)
def test_no_other_normal_of_the_rank_is_better(rank, scale_):
    """An independent optimizer with numerical gradients, from several starts."""
    X, y = real_data("virginica")
    problem = Problem(X, y, scale=scale_)
    model = fit(
        X, y, LowRankNormal(rank), prior=Normal(scale_), intercept_prior=Normal(scale_)
    )
    normal, size, rng = model.posterior_.as_normal(), 5, np.random.default_rng(0)
    value = low_rank_value(
        problem,
        np.concatenate(
            [normal.mean.numpy(), normal.scale.numpy(), normal.factor.numpy().ravel()]
        ),
        size,
        rank,
    )
    assert -model.lower_bound_ == pytest.approx(value, abs=1e-5)
    std, best = normal.variance.sqrt().numpy(), np.inf
    for _ in range(3):
        loadings = rng.standard_normal((size, rank)) * std[:, None]
        start = np.concatenate([normal.mean.numpy(), std, loadings.ravel()])
        found = minimize(lambda x: low_rank_value(problem, x, size, rank), start)
        best = min(best, found.fun)
    assert value < best + 1e-3


@pytest.mark.parametrize("name", ["wide", pytest.param("correlated", marks=SLOW)])
def test_the_gap_is_honest(name):
    """A fit with a much smaller tolerance gains no more than three times `tol`.

    Wrong variant: the decrement of the quadratic model alone.
    """
    data = synthetic_data(name)
    for rank in (1, 5):
        model = fit(*data, LowRankNormal(rank))
        best = fit(*data, LowRankNormal(rank), tol=1e-9, max_iter=1000)
        assert best.lower_bound_ - model.lower_bound_ < 3e-5
        assert model.diagnostics_["gap"] < 1e-5


VARIANTS = {
    "power": ({"weight": 0.2}, {"divergence": KL(weight=0.2)}),
    "tempered": ({"weight": 50.0}, {"divergence": KL(weight=50.0)}),
    "beta": ({"beta": 1.5}, {"loss": BetaLoss(1.5)}),
    "laplace": ({"laplace": True}, {"prior": Laplace()}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_generalized_posteriors(variant):
    """The value is that of q, and of the rank of P that of the full covariance."""
    reference, parts = VARIANTS[variant]
    X, y = synthetic_data("nearly_separable")
    problem = Problem(X, y, **reference)
    bounds = []
    for rank in (2, 7):
        model = fit(X, y, LowRankNormal(rank), **parts)
        assert model.converged_
        loss = problem.value(*dense_of(model))
        assert -model.objective_value_ == pytest.approx(loss, abs=1e-4)
        bounds.append(model.objective_value_)
    full = fit(X, y, "full_rank", **parts).objective_value_
    assert bounds[0] <= bounds[1] == pytest.approx(full, abs=1e-4)


@pytest.mark.parametrize("alpha", [0.97, 3.0])
def test_barriers_of_divergences(alpha):
    """Above order 1 the divergence is infinite where q is too wide.

    Wrong variant: a NaN, or a step across the barrier.
    """
    X, y = synthetic_data("nearly_separable")
    for posterior in ("mean_field", "full_rank"):
        natural = fit(X, y, posterior, divergence=Renyi(alpha))
        model = fit(X, y, posterior, divergence=Renyi(alpha), solver="lbfgs")
        assert model.converged_
        expected = pytest.approx(natural.objective_value_, abs=1e-4)
        assert model.objective_value_ == expected


class Poisson(Likelihood):
    """Counts with rate exp(f): the expected log density is closed."""

    def expected_log_loss(self, mean, std, y, refine=1):
        rate = torch.exp(mean + std.square() / 2)
        return rate - y * mean + torch.lgamma(y + 1), rate - y, rate


def problem_of(likelihood, y, family, X, divergence):
    predictor = LinearPredictor(X.shape[1])
    prior = Normal(1.0).build(predictor.layout)
    target = SupervisedTarget(predictor, likelihood, LogLoss(), prior, X, y)
    posterior = family.build(predictor.layout)
    return SolverProblem(target, ELBO(), divergence, posterior, None)


def solve(likelihood, y, family, solver=QuasiNewton, X=None):
    problem = problem_of(likelihood, y, family, X, KL())
    with limit_threads(1):
        solution = solver().solve(problem, SolverOptions())
    return solution, solution.posterior.as_normal()


def features(n=60, d=5):
    rng = np.random.default_rng(1)
    return torch.from_numpy(rng.standard_normal((n, d))), rng


def test_counts():
    """Wrong variant: the derivative in the variance is the curvature, not half."""
    X, rng = features()
    y = torch.from_numpy(rng.poisson(np.exp(X.numpy()[:, 0])).astype(float))
    values = [
        solve(Poisson(), y, family, X=X)[0]
        for family in (MeanFieldNormal(), LowRankNormal(2), LowRankNormal(6))
    ]
    assert all(solution.converged for solution in values)
    found = [solution.value for solution in values]
    full, _ = solve(Poisson(), y, FullRankNormal(), NaturalGradient, X=X)
    assert found[0] > found[1] > found[2] == pytest.approx(full.value, abs=1e-5)


def test_conjugate_regression_is_exact():
    """With the rank of P the value is minus the log evidence."""
    X, rng = features()
    y = X[:, 0] + 0.5 * torch.from_numpy(rng.standard_normal(60))
    solution, normal = solve(GaussianLikelihood(0.5), y, LowRankNormal(6), X=X)
    A = np.column_stack([X, np.ones(60)])
    evidence = conjugate_evidence(A, y.numpy(), 1.0, 0.5)
    assert -solution.value == pytest.approx(evidence, abs=1e-5)
    precision = A.T @ A / 0.25 + np.eye(6)
    expected = torch.from_numpy(np.linalg.inv(precision))
    torch.testing.assert_close(normal.covariance(), expected, rtol=1e-3, atol=1e-6)


def test_several_columns():
    """A softmax over three classes, between mean-field and full rank."""
    from sklearn.datasets import load_iris

    X, y = load_iris(return_X_y=True)
    X = scale(X)
    ordered = ("mean_field", LowRankNormal(2), LowRankNormal(15), "full_rank")
    bounds = [fit(X, y, posterior).lower_bound_ for posterior in ordered]
    assert bounds[0] + 0.1 < bounds[1] < bounds[2] - 0.1
    assert bounds[2] == pytest.approx(bounds[3], abs=2e-3)


def rosenbrock(x):
    value = 100 * (x[1:] - x[:-1] ** 2).square().sum() + (1 - x[:-1]).square().sum()
    return value


@pytest.mark.parametrize("wall", [np.inf, 1.05])
def test_lbfgs_minimizes_beside_a_wall(wall):
    """Wrong variant: a value behind the wall is accepted as a decrease."""
    seen = []

    def evaluate(x):
        if float(x.max()) > wall:
            return np.inf, torch.zeros_like(x)
        with torch.enable_grad():
            leaf = x.clone().requires_grad_()
            value = rosenbrock(leaf)
            (gradient,) = torch.autograd.grad(value, leaf)
        return float(value.detach()), gradient

    state = LBFGS(evaluate, torch.full((6,), -1.0, dtype=torch.float64))
    for _ in range(200):
        seen.append(state.value)
        if not state.step():
            break
    assert np.all(np.diff(seen) <= 0)
    torch.testing.assert_close(state.x, torch.ones(6).double(), rtol=1e-5, atol=1e-5)
    assert state.decrement < 1e-10


def test_forms_of_the_curvature():
    """Both are the matrix and a root of its inverse; products for rank P.

    Wrong variant: the root of products stretched by the eigenvalues, without roots.
    """
    X, rng = features(12, 20)
    predictor = LinearPredictor(20)
    prior = Normal(2.0).build(predictor.layout)
    y = torch.zeros(12)
    target = SupervisedTarget(
        predictor, GaussianLikelihood(), LogLoss(), prior, X, y.double()
    )
    h = torch.from_numpy(rng.random(12))
    precision = torch.from_numpy(rng.random(21) + 0.1)
    A = torch.cat([X, torch.ones(12, 1).double()], 1)
    matrix = A.T @ (h[:, None] * A) + torch.diag(precision)
    identity = torch.eye(21).double()
    forms = [_Dense(target, h, precision), _Products(target, h, precision, 21)]
    for form in forms:
        torch.testing.assert_close(form.times(identity), matrix)
        torch.testing.assert_close(form.diagonal, matrix.diagonal())
        root = form.root(identity)
        torch.testing.assert_close(form.root_transposed(identity), root.T)
        torch.testing.assert_close(root @ root.T, torch.linalg.inv(matrix))
    d = matrix.diagonal().rsqrt()
    expected = torch.linalg.eigvalsh(d[:, None] * matrix * d)
    for form in forms:
        values, vectors = form.soft_directions(21)
        torch.testing.assert_close(values, expected, rtol=1e-2, atol=1e-6)
        quotients = (vectors * (d[:, None] * matrix * d @ vectors)).sum(0)
        torch.testing.assert_close(quotients, values)


def test_products_alone_find_the_same(monkeypatch):
    """More features than rows, too many for a matrix; wrong variant: no products."""
    X, y = synthetic_data("wide")
    expected = fit(X, y, LowRankNormal(5))
    kinds = []
    monkeypatch.setattr("skvi.solvers._curvature.DENSE_LIMIT", 1)
    monkeypatch.setattr(
        "skvi.solvers._curvature._Products.__init__",
        lambda self, *args, made=_Products.__init__: kinds.append(made(self, *args)),
    )
    model = fit(X, y, LowRankNormal(5))
    assert kinds
    assert model.converged_
    assert model.lower_bound_ == pytest.approx(expected.lower_bound_, abs=0.05)


@pytest.mark.parametrize("n_rows", [100, 5])
def test_a_matrix_for_more_rows_than_columns(n_rows, monkeypatch):
    """Wrong variant: a matrix wherever there is room for it."""
    X, _ = features(n_rows, 20)
    predictor = LinearPredictor(20)
    prior = Normal().build(predictor.layout)
    parts = GaussianLikelihood(), LogLoss(), prior
    target = SupervisedTarget(predictor, *parts, X, torch.zeros(n_rows).double())
    monkeypatch.setattr("skvi.solvers._curvature.DENSE_LIMIT", 10)
    h, precision = (torch.ones(size).double() for size in (n_rows, 21))
    assert type(curvature_of(target, h, precision, 21)) is _Dense
    expected = _Dense if n_rows == 100 else _Products
    assert type(curvature_of(target, h, precision, 5)) is expected


def test_warm_start_and_too_few_iterations():
    X, y = real_data("breast_cancer")
    model = BayesianLogisticRegression(
        posterior=LowRankNormal(3), warm_start=True, **REFERENCE_PRIOR
    )
    cold = model.fit(X, y).n_iter_
    bound = model.lower_bound_
    assert model.fit(X, y).n_iter_ < cold
    assert model.lower_bound_ == pytest.approx(bound, abs=1e-5)
    assert model.lower_bound_ >= bound - 1e-9
    short = BayesianLogisticRegression(
        posterior=LowRankNormal(3), max_iter=1, **REFERENCE_PRIOR
    )
    with pytest.warns(ConvergenceWarning, match="increase max_iter"):
        short.fit(X, y)
    assert short.n_iter_ == len(short.loss_curve_) == 1
    assert not short.converged_
    assert short.lower_bound_ < bound
    value = -Problem(X, y).value(*dense_of(short))
    assert short.lower_bound_ == pytest.approx(value, abs=1e-4)


def test_impossible_solvers_are_refused():
    X, y = real_data("virginica")
    for solver, objective in [
        ("natural_gradient", "elbo"),
        ("moment_matching", "renyi"),
    ]:
        model = BayesianLogisticRegression(
            solver=solver, objective=objective, posterior="low_rank", **REFERENCE_PRIOR
        )
        with pytest.raises(IncompatibleComponentsError, match="of low rank") as error:
            model.fit(X, y)
        assert "Use solver='auto' or one of" in str(error.value)


def test_eubo_is_factor_analysis():
    """The moments of the posterior, as well as the rank can hold them.

    Wrong variants: the own deviations of the proposal; marginal variances beside a
    factor, which counts the shared part twice.
    """
    X, y = real_data("breast_cancer")
    models = [
        BayesianLogisticRegression(
            objective="eubo", posterior=q, random_state=0, **REFERENCE_PRIOR
        )
        for q in ("mean_field", LowRankNormal(5), "full_rank")
    ]
    diagonal, low, full = (m.fit(X, y) for m in models)
    assert low.diagnostics_["solver"] == "moment_matching"
    assert low.coef_std_ == pytest.approx(full.coef_std_, rel=0.02)
    values = [m.objective_value_ for m in (diagonal, low, full)]
    assert values[0] > values[1] + 0.5
    assert values[1] > values[2] + 0.5


def test_evidence_table():
    """Its own rows are those of the low-rank posterior; the bounds do not need it."""
    X, y = real_data("virginica")
    model = BayesianLogisticRegression(
        posterior=LowRankNormal(2), **REFERENCE_PRIOR
    ).fit(X, y)
    bounds = model.evidence_bounds(X, y, random_state=0)
    assert bounds.reliable
    evidence = REAL["virginica"][2]
    assert bounds.lower - 4 * bounds.lower_se < evidence
    assert bounds.upper + 4 * bounds.upper_se > evidence
    assert bounds.table["ELBO of q"].value == pytest.approx(model.lower_bound_)
    eubo = bounds.table["EUBO of q"]
    assert evidence + 0.02 < eubo.value + 5 * eubo.standard_error
    says = bounds.table["chi (order=2) of q"].certifies
    assert "no valid bound" in says


@pytest.mark.slow
def test_five_thousand_features_need_little_memory():
    """The peak of a whole process, libraries and data included, below 2 GB."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "benchmarks/speed.py"]
    command += ["fits", "low_rank_few_rows"]
    env = os.environ | {"PYTHONPATH": str(root)}
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True)
    assert "converged True" in done.stdout
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
    assert peak < 2


def test_start_is_never_a_saddle():
    """From a diagonal normal, a warm fit finds correlations."""
    X, y = synthetic_data("correlated")
    model = BayesianLogisticRegression(
        posterior="mean_field", warm_start=True, **REFERENCE_PRIOR
    )
    diagonal = model.fit(X, y).lower_bound_
    model.set_params(posterior=LowRankNormal(2)).fit(X, y)
    normal: NormalForm = model.posterior_.as_normal()
    assert float(normal.factor.square().sum()) > 0.1
    assert model.lower_bound_ > diagonal + 0.1
