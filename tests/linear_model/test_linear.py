"""Classes, priors and families of linear models."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import norm
from sklearn.base import is_classifier
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.preprocessing import scale

from skvi._predictive._mixtures import DrawnPredictive
from skvi._predictive._quantiles import Draws
from skvi.base._layout import Units
from skvi.divergences import RenyiDivergence
from skvi.exceptions import IncompatibleComponentsError
from skvi.likelihoods import GaussianLikelihood, NegativeBinomialLikelihood
from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
)
from skvi.neural_network import BayesianMLPClassifier
from skvi.posteriors import Ensemble
from skvi.predictors import LinearPredictor
from skvi.priors import Horseshoe, Normal, StudentT
from tests.families import LogisticFamily
from tests.reference import real_data, synthetic_data


@pytest.fixture
def data():
    X, y = real_data("virginica")
    return X.copy(), y.copy()


def fit(data, weight=None, **parts):
    return BayesianLogisticRegression(**{"prior": "normal", **parts}).fit(
        *data, sample_weight=weight
    )


@pytest.mark.parametrize(
    ("scale", "posterior"), [(1.0, "mean_field"), (30.0, "full_rank")]
)
def test_probabilities_are_posterior_averages(scale, posterior):
    """Against adaptive quadrature to 1e-6 and against 10^5 posterior draws.

    Wrong variants: the plug-in probability at the mean; the variance without the
    intercept's.
    """
    X, y = synthetic_data("nearly_separable")
    model = fit((X, y), prior=Normal(scale), posterior=posterior)
    X = X[:8]
    p = model.predict_proba(X)
    assert p.sum(1) == pytest.approx(1, abs=1e-12)
    draws = model.sample_posterior(100_000, random_state=0)
    f = draws["coef"][:, 0] @ X.T + draws["intercept"]
    error = expit(f).std(0) / 100_000**0.5
    assert np.all(np.abs(p[:, 1] - expit(f).mean(0)) < 5 * error + 1e-7)
    A = np.column_stack([X, np.ones(len(X))])
    normal = model.posterior_.as_normal()
    mean, cov = A @ normal.mean.numpy(), normal.covariance().numpy()
    for m, s, value in zip(mean, np.sqrt(np.diag(A @ cov @ A.T)), p[:, 1], strict=True):
        points = np.array([-6, 0, 6, m - 3 * s, m, m + 3 * s])
        points = np.sort(points[np.abs(points - m) < 12 * s])
        exact = quad(
            lambda f, m=m, s=s: expit(f) * norm.pdf(f, m, s),
            m - 12 * s, m + 12 * s, points=points, limit=500, epsabs=1e-10,
        )[0]  # fmt: skip
        assert value == pytest.approx(exact, abs=1e-6)
    sure = model.predict_log_proba(X).min(1) < -30
    odds = model.decision_function(X)
    assert expit(odds) == pytest.approx(p[:, 1], abs=1e-12)
    assert expit(-odds[~sure]) == pytest.approx(p[~sure, 0], rel=1e-9)
    assert np.array_equal(model.predict(X), model.classes_[(odds > 0).astype(int)])


@pytest.fixture(params=[2, 3], ids=["two classes", "three classes"])
def unbalanced(request):
    """Unbalanced, with labels that are strings."""
    X, y = load_iris(return_X_y=True)
    rows = np.r_[0:20, 50:95, 110:150] if request.param == 3 else np.r_[50:95, 110:130]
    return scale(X[rows]), np.array(["setosa", "versicolor", "virginica"])[y[rows]]


def fit_unbalanced(unbalanced, weight=None, **parts):
    model = BayesianLogisticRegression(tol=1e-9, **{"prior": "normal", **parts})
    return model.fit(*unbalanced, sample_weight=weight)


def assert_same(a, b):
    assert a.lower_bound_ == pytest.approx(b.lower_bound_, abs=1e-6)
    assert np.abs((a.coef_ - b.coef_) / b.coef_std_).max() < 1e-4


def test_balanced_counts_weights_as_repetitions(unbalanced):
    """Wrong variant: class frequencies by rows, whatever their weights."""
    X, y = unbalanced
    weight = 1 + np.arange(len(y)) % 3
    weighted = fit_unbalanced(unbalanced, weight, class_weight="balanced")
    repeated = fit_unbalanced(
        (np.repeat(X, weight, 0), np.repeat(y, weight)), class_weight="balanced"
    )
    assert_same(weighted, repeated)
    labels = weighted._model.response
    totals = [
        labels.weights(labels.encode(y), weight)[y == c].sum()
        for c in weighted.classes_
    ]
    assert totals == pytest.approx([weight.sum() / len(totals)] * len(totals))


N_DRAWS = 20_000


def scale_data(n=16, d=3):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    return X, X[:, 0] + rng.logistic(size=n)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_intervals_are_quantiles_of_draws(n_classes):
    """Wrong variant: all scales equally likely in quantiles."""
    X, f = scale_data()
    y = np.digitize(f, [0.0] if n_classes == 2 else [-0.7, 0.7])
    model = BayesianLogisticRegression().fit(X, y)
    draws = model.sample_posterior(N_DRAWS, random_state=0)
    values = draws["coef"].reshape(N_DRAWS, -1)
    table = model.summary(0.9)
    ends = (np.reshape(e, (-1, 4))[:, 1:].ravel() for e in (table.lower, table.upper))
    for level, end in zip((0.05, 0.95), ends, strict=True):
        np.testing.assert_allclose((values < end).mean(0), level, atol=0.01)
    f = np.einsum("skd,nd->snk", draws["coef"], X[:4]) + draws["intercept"][:, None]
    f = np.concatenate([0 * f, f], 2) if n_classes == 2 else f
    p = np.exp(f - f.max(2, keepdims=True))
    p = p / p.sum(2, keepdims=True)
    found = model.predict_proba_interval(X[:4])
    for i, level in enumerate((0.05, 0.95)):
        np.testing.assert_allclose((p < found[:, i]).mean(0), level, atol=0.015)


def test_counts_are_those_of_draws():
    """Wrong variant: all scales equally likely in a mixture by quadrature."""
    X, f = scale_data()
    y = np.random.default_rng(1).poisson(np.exp(np.clip(f, -3, 2)))
    likelihood = NegativeBinomialLikelihood(dispersion=0.3)
    model = BayesianPoissonRegressor(likelihood=likelihood).fit(X, y)
    draws = model.sample_y(X[:4], N_DRAWS, random_state=0)
    mass = np.exp(model.predict_log_density(X[:4], np.zeros(4)))
    np.testing.assert_allclose(mass, (draws == 0).mean(1), atol=0.012)


def test_another_divergence_is_that_under_the_scale():
    """Wrong variant: the scale is reported, and 1 is used."""
    X, f = scale_data()
    X = 0.1 * X
    model = BayesianLogisticRegression(divergence="renyi").fit(X, f > 0)
    plain = BayesianLogisticRegression(divergence="renyi", prior=model.prior_["coef"])
    np.testing.assert_allclose(model.coef_, plain.fit(X, f > 0).coef_, rtol=1e-3)


GIVEN = {"prior": Normal(), "noise_scale": 0.5, "normalize_y": False}
# With correlations a regression would predict from its exact posterior, not from draws.
GIVEN["posterior"] = "mean_field"
ESTIMATORS = [
    BayesianLinearRegression(**GIVEN),
    BayesianLinearRegression(posterior="mean_field"),
    BayesianLogisticRegression(prior="normal"),
    BayesianPoissonRegressor(prior="normal"),
]


def data_for(model):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2)) + 1
    f = X @ [1.0, -0.5]
    if is_classifier(model):
        return X, (f + rng.logistic(size=60) > 0).astype(int)
    if isinstance(model, BayesianPoissonRegressor):
        return X, rng.poisson(np.exp(0.5 * f))
    return X, f + 0.5 * rng.normal(size=60)


def test_deviations_of_draws_around_a_large_mean():
    """Wrong variant: a variance as a difference of mean squares, 0 or 2 here."""
    intercepts = 1e8 + np.array([-1.0, 1.0, 2.0, -2.0])
    theta = torch.tensor([[0.0, value] for value in intercepts], dtype=torch.float64)
    noise = torch.full((4, 1), 0.5, dtype=torch.float64)
    draws, noise = (
        Draws(LinearPredictor(1), theta),
        GaussianLikelihood()._at_scale(noise),
    )
    found = DrawnPredictive(noise, Units(0.0, 1.0), draws, np.zeros((2, 1)))
    (mean, std), *_ = found.moments()
    assert mean == 1e8
    assert std == pytest.approx((intercepts.var(ddof=1) + 0.25) ** 0.5, rel=1e-6)


FITS = {"max_iter": 25, "tol": 0.1, "random_state": 0}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_family_beside_an_unknown_noise():
    X, y = data_for(ESTIMATORS[1])
    options = FITS | {"max_iter": 5}
    model = BayesianLinearRegression(posterior=LogisticFamily(), **options).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert np.corrcoef(mean, y)[0, 1] > 0.8
    assert (std > 0.9 * model.noise_scale_).all()


@pytest.fixture(scope="module")
def prior_data():
    X, y = load_breast_cancer(return_X_y=True)
    return scale(X)[::3, :6], y[::3]


@pytest.mark.parametrize("prior", ["ard", "laplace", Horseshoe(0.1)], ids=str)
def test_divergences_without_a_closed_form(prior, prior_data):
    """By nodes: a converged fit, wider than KL's on average. Wrong variant: KL."""
    shared = {"prior": prior, "posterior": "mean_field", "random_state": 0}
    model = BayesianLogisticRegression(
        divergence=RenyiDivergence(0.5), **{"prior": "normal", **shared}
    ).fit(*prior_data)
    assert model.converged_
    plain = BayesianLogisticRegression(**{"prior": "normal", **shared}).fit(*prior_data)
    assert np.log(model.coef_std_ / plain.coef_std_).mean() > 0.1


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
    each = Normal(scale=1e-4, loc=[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])
    two = BayesianLinearRegression(prior=each, normalize_y=False)
    two.fit(X, np.c_[y, -y])
    np.testing.assert_allclose(two.coef_, each.loc, atol=1e-3)
    with pytest.raises(ValueError, match=r"\['z'\].*\['a', 'b', 'c'\]"):
        BayesianPoissonRegressor(prior=Normal(loc={"z": 1.0})).fit(X, y)
    with pytest.raises(ValueError, match="each of 3 features"):
        BayesianPoissonRegressor(prior=Normal(loc=[1.0, 2.0])).fit(X, y)
    with pytest.raises(IncompatibleComponentsError, match="a scale that is a number"):
        BayesianPoissonRegressor(prior=Normal("learn", loc=1.0)).fit(X, y)
    with pytest.raises(IncompatibleComponentsError, match="linear model"):
        BayesianMLPClassifier(prior=named).fit(X, y > 1)


RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 2))
F = X @ [1.0, -0.5] + 0.5


def test_intervals_of_draws_are_their_quantiles():
    """Of a posterior that is no normal. Wrong variant: a normal with its moments."""
    y = (F + RNG.logistic(size=80) > 0).astype(int)
    model = BayesianLogisticRegression(
        posterior=Ensemble(n_members=2),
        max_iter=3,
        tol=1.0,
        random_state=0,
        prior="normal",
    )
    with pytest.warns(UserWarning, match="max_iter"):
        model.fit(X, y)
    table = model.summary(coverage=0.5)
    draws = model._coefficients.theta
    coef = np.quantile(draws[:, :2], [0.25, 0.75], axis=0)
    np.testing.assert_allclose([table.lower[1:], table.upper[1:]], coef)


def test_classes_and_targets_are_groups():
    """Wrong variant: rows of one class after the other feature's."""
    data, labels = load_iris(return_X_y=True, as_frame=True)
    model = BayesianLogisticRegression(prior="normal").fit(data / data.std(), labels)
    table = model.summary()
    assert len(table) == 15
    assert table.groups[:6] == (0, 0, 0, 0, 0, 1)
    assert table.names[1] == "sepal length (cm)"
    np.testing.assert_allclose(table.mean[6:10], model.coef_[1])
    two = BayesianLogisticRegression().fit(X, np.where(X[:, 0] > 0, "a", "b"))
    assert two.coef_[0, 0] < 0
    assert "'b' against 'a'" in str(two.summary())
    both = BayesianLinearRegression().fit(X, np.column_stack([F, -F]) + X[:, :1] ** 2)
    table = both.summary()
    assert table.to_dict()["target"] == [0, 0, 0, 1, 1, 1]
    np.testing.assert_allclose(table.mean[4:], both.coef_[1])
