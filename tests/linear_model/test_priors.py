"""Priors in estimators: intercepts, fits, posteriors as priors, nested parameters."""

import math
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import scale

from skvi._estimator._evidence import data_of_fit
from skvi.base import NormalForm
from skvi.divergences import KLDivergence, RenyiDivergence
from skvi.exceptions import IncompatibleComponentsError
from skvi.likelihoods import GaussianLikelihood
from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
)
from skvi.losses import LogLoss
from skvi.neural_network import BayesianMLPClassifier
from skvi.objectives import ELBO
from skvi.posteriors import FullRankNormal, MeanFieldNormal
from skvi.predictors import LinearPredictor
from skvi.priors import ARD, Horseshoe, Laplace, Normal, Prior, StudentT
from skvi.priors._blocks import build_prior
from skvi.priors._heavy_tailed import LogUniform
from skvi.solvers import Problem, SolverOptions
from skvi.solvers._mode import LBFGS
from skvi.solvers._natural_gradient import NaturalGradient
from skvi.targets import SupervisedTarget

SPARSE = ["student_t", "horseshoe", "ard", "log_uniform", Horseshoe(0.1)]


@pytest.fixture(scope="module")
def data():
    X, y = load_breast_cancer(return_X_y=True)
    return scale(X)[::3, :6], y[::3]


@pytest.mark.parametrize(
    ("prior", "posterior"),
    [
        (Horseshoe(0.1), "full_rank"),
        ("student_t", "mean_field"),
        ("ard", "full_rank"),
        ("log_uniform", "mean_field"),
    ],
    ids=str,
)
def test_fits_are_optimal(prior, posterior, data):
    """Another optimizer, started at the solution, finds no more than the gap.

    Wrong variant: the exact, negative curvature of the prior in Newton steps.
    """
    model = BayesianLogisticRegression(
        prior=prior, posterior=posterior, max_iter=400
    ).fit(*data)
    assert model.converged_
    assert np.isfinite(model.lower_bound_)
    target = model._model.target(data_of_fit(model, *data, None, None))

    def evaluate(params):
        leaf = params.clone().requires_grad_()
        with torch.enable_grad():
            normal = model.posterior_.normal(leaf)
            value = target.expected_loss(normal)
            value = value + KLDivergence().closed_form(normal, target.prior)
            (gradient,) = torch.autograd.grad(value, leaf)
        return float(value.detach()), gradient

    steps = LBFGS(evaluate, model.posterior_.params.detach())
    start = steps.value
    assert start == pytest.approx(-model.lower_bound_, abs=1e-8)
    for _ in range(100):
        steps.step()
    # The log-uniform prior is improper: there is an infimum, and no optimum.
    assert start - steps.value < (1e-3 if prior == "log_uniform" else 1e-4)


def test_sparse_priors_shrink_noise_and_leave_signal():
    """Beside 12 features of noise: less shrinkage of the signal than a normal."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 13))
    y = rng.random(200) < 1 / (1 + np.exp(-3 * X[:, 0]))
    learned = BayesianLogisticRegression(prior=Normal("learn")).fit(X, y)
    normal = np.abs(learned.coef_[0])
    for prior in (Horseshoe("learn"), "log_uniform", "ard"):
        ard = BayesianLogisticRegression(prior=prior, max_iter=400).fit(X, y)
        coef = np.abs(ard.coef_[0])
        assert np.median(coef[1:]) < 0.5 * np.median(normal[1:])
        assert coef[0] > normal[0]
    precision = ARD().expected_precision(ard.coef_, ard.coef_std_)[0]
    assert precision[0] < 1 < precision[1:].min()


class Mine(Prior):
    def build(self, layout):
        return Normal().build(layout)


@pytest.mark.parametrize("estimator", ["classes", "counts", "numbers"])
@pytest.mark.parametrize(
    "prior",
    ["normal", Laplace(0.5), Horseshoe(0.1), "ard", Normal("learn"), Mine()]
    + [{"coef": StudentT(scale=2.0)}, {"weight": Normal(0.3)}],
    ids=str,
)
def test_the_intercept_has_a_prior_of_its_own(prior, estimator):
    """Whatever that of the coefficients is: else both would be compared at once.

    For numbers it is the root mean square of the target. Wrong variants: the scale of
    the coefficients; a sparse one.
    """
    X = np.random.default_rng(0).normal(size=(40, 2))
    y = np.abs(X[:, 0]).round() + (X[:, 1] > 0) + 1.0
    scale, model = 10.0, BayesianPoissonRegressor(prior=prior)
    if estimator == "classes":
        model, y = BayesianLogisticRegression(prior=prior), y > 2
    elif estimator == "numbers":
        model, scale = BayesianLinearRegression(prior=prior, normalize_y=False), 2.0
        y *= 2 / np.sqrt(np.mean(y**2))
    model.max_iter = 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y)
    assert model.prior_["intercept"].scale == pytest.approx(scale)


def test_improper_priors_have_no_evidence(data):
    model = BayesianLogisticRegression(prior=LogUniform()).fit(*data)
    assert model.diagnostics_["khat"] is None
    with pytest.raises(IncompatibleComponentsError, match=r"improper.*horseshoe"):
        model.evidence_bounds(*data)
    for objective in ("eubo", "iwelbo", "renyi", "chi"):
        with pytest.raises(IncompatibleComponentsError, match=r"improper.*horseshoe"):
            BayesianLogisticRegression(prior=LogUniform(), objective=objective).fit(
                *data
            )


@pytest.mark.parametrize("prior", ["ard", "laplace", Horseshoe(0.1)], ids=str)
def test_divergences_without_a_closed_form(prior, data):
    """By nodes: a converged fit, wider than KL's on average. Wrong variant: KL."""
    shared = {"prior": prior, "posterior": "mean_field", "random_state": 0}
    model = BayesianLogisticRegression(
        divergence=RenyiDivergence(0.5), **{"prior": "normal", **shared}
    ).fit(*data)
    assert model.converged_
    plain = BayesianLogisticRegression(**{"prior": "normal", **shared}).fit(*data)
    assert np.log(model.coef_std_ / plain.coef_std_).mean() > 0.1


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "prior",
    ["student_t", pytest.param(Horseshoe(0.1), marks=pytest.mark.slow)],
    ids=str,
)
def test_correlated_divergences_without_a_closed_form(prior, data):
    """Near an integral by draws of q^a. Wrong variant: independent coordinates.

    Beside the horseshoe this order hardly penalizes width, and the fit says so.
    """
    model = BayesianLogisticRegression(
        prior=prior, posterior="full_rank", divergence=RenyiDivergence(0.5), max_iter=40
    ).fit(*data)
    assert model.converged_ == (prior == "student_t")
    q, built = model.posterior_.as_normal(), model._model.prior
    wider = NormalForm(q.mean, q.scale * 2**0.5)
    theta = wider.sample(100_000, torch.Generator().manual_seed(0))
    log_w = 0.5 * (q.log_prob(theta) + built.log_prob(theta)) - wider.log_prob(theta)
    by_draws = -4 * float(torch.logsumexp(log_w, 0) - math.log(len(theta)))
    found = float(RenyiDivergence(0.5).closed_form(q, built))
    weights = torch.softmax(log_w, 0)  # of heavy tails at the pole of the horseshoe
    error = 4 * float(weights.square().sum().sqrt())
    assert error < 0.3
    assert found == pytest.approx(by_draws, abs=4 * error)


@pytest.mark.parametrize("family", [FullRankNormal(), MeanFieldNormal()])
def test_posterior_of_the_first_half_is_the_prior_of_the_second(family):
    """Conjugate: with full rank the result is the posterior of all the data.

    A factorized posterior forgets correlations, so that it is another one.
    """
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 3)), rng.normal(size=30)
    X[:, 1] += X[:, 0]
    model = LinearPredictor(3, fit_intercept=False)

    def fit(prior, rows):
        tensors = torch.from_numpy(X[rows]), torch.from_numpy(y[rows])
        target = SupervisedTarget(
            model, GaussianLikelihood(0.5), LogLoss(), prior, *tensors
        )
        problem = Problem(
            target, ELBO(), KLDivergence(), family.build(model.layout), None
        )
        solution = NaturalGradient().solve(problem, SolverOptions(tol=1e-12))
        return solution.posterior, solution.value

    prior = Normal().build(model.layout)
    half, first = fit(prior, slice(0, 15))
    both, second = fit(build_prior(half, model.layout), slice(15, 30))
    whole, value = fit(prior, slice(0, 30))
    same = torch.allclose(both.as_normal().mean, whole.as_normal().mean, atol=1e-7)
    assert same == isinstance(family, FullRankNormal)
    if same:
        # Exact posteriors: the evidences of the halves multiply.
        assert first + second == pytest.approx(value, abs=1e-8)


def test_estimator_takes_a_posterior_as_prior(data):
    X, y = data
    first = BayesianLogisticRegression(prior="normal").fit(X[:100], y[:100])
    second = BayesianLogisticRegression(prior=first.posterior_)
    copy = clone(second).fit(X[100:], y[100:])
    whole = BayesianLogisticRegression(prior="normal").fit(X, y)
    gap = np.abs(copy.coef_ - whole.coef_) / whole.coef_std_
    assert gap.max() < 0.5
    assert copy.evidence_bounds(X[100:], y[100:], random_state=0).reliable
    with pytest.raises(IncompatibleComponentsError, match="intercept in it"):
        second.set_params(intercept_prior="normal").fit(X, y)
    with pytest.raises(IncompatibleComponentsError, match="is over Layout"):
        BayesianLogisticRegression(prior=first.posterior_).fit(X[:, :3], y)


def test_nested_names_of_priors():
    model = BayesianLogisticRegression(intercept_prior=None, prior="normal")
    model.set_params(intercept_prior__scale=5.0)
    assert repr(model.intercept_prior) == "Normal(scale=5.0)"
    given = {"coef": "laplace", "intercept": Normal()}
    model = BayesianMLPClassifier(posterior="mean_field", prior=given)
    model.set_params(prior__coef__scale=0.2, prior__intercept=StudentT())
    assert repr(model.prior) == "{'coef': Laplace(scale=0.2), 'intercept': StudentT()}"
    assert given == {"coef": "laplace", "intercept": given["intercept"]}
    with pytest.raises(ValueError, match=r"has the blocks \['coef', 'intercept'\]"):
        model.set_params(prior__weights__scale=1.0)
    with pytest.raises(ValueError, match="Invalid parameter 'width'"):
        model.set_params(prior__coef__width=1.0)


def test_grid_over_the_prior_of_a_block(data):
    grid = {"prior__coef__scale": [0.01, 1.0]}
    model = BayesianLogisticRegression(prior={"coef": Laplace()})
    search = GridSearchCV(model, grid, cv=2)
    search.fit(*data)
    assert search.best_params_ == {"prior__coef__scale": 1.0}
    assert repr(search.best_estimator_.prior_["coef"]) == "Laplace()"


def test_normal_priors_of_each_coefficient():
    """By arrays or names: where they are narrow they are the posterior.

    A shift of the prior's mean is an offset. Wrong variants: columns in the order of
    the mapping; the means left out; names that are no columns ignored.
    """
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(40, 3)), columns=["a", "b", "c"])
    y = rng.poisson(np.exp(X["a"]))
    named = Normal(scale={"c": 2.0, "b": 0.01}, loc={"c": -1.0, "b": 0.5})
    arrays = Normal(scale=[1.0, 0.01, 2.0], loc=[0.0, 0.5, -1.0])
    one = BayesianPoissonRegressor(prior=named).fit(X, y)
    other = BayesianPoissonRegressor(prior=arrays).fit(X, y)
    np.testing.assert_allclose(one.coef_, other.coef_)
    assert one.coef_[1] == pytest.approx(0.5, abs=0.01)
    shift = np.exp((X - X.mean()) @ [0.0, 0.5, -1.0])
    moved = BayesianPoissonRegressor(prior=Normal(scale=[1.0, 0.01, 2.0]))
    moved.fit(X, y, exposure=shift)
    np.testing.assert_allclose(moved.coef_ + [0, 0.5, -1], one.coef_, atol=1e-4)
    assert moved.lower_bound_ == pytest.approx(one.lower_bound_, abs=1e-3)
    with pytest.raises(ValueError, match=r"\['z'\].*\['a', 'b', 'c'\]"):
        BayesianPoissonRegressor(prior=Normal(loc={"z": 1.0})).fit(X, y)
    with pytest.raises(ValueError, match="each of 3 features"):
        BayesianPoissonRegressor(prior=Normal(loc=[1.0, 2.0])).fit(X, y)
    with pytest.raises(IncompatibleComponentsError, match="scale that is not given"):
        BayesianPoissonRegressor(prior=Normal("learn", loc=1.0)).fit(X, y)
    with pytest.raises(IncompatibleComponentsError, match="linear model"):
        BayesianMLPClassifier(prior=named).fit(X, y > 1)
