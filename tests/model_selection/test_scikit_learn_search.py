"""Every choice of inference is a hyperparameter: searches, pipelines, nested names."""

import numpy as np
import pytest
from sklearn.exceptions import FitFailedWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

import skvi
from skvi.divergences import KLDivergence, RenyiDivergence
from skvi.exceptions import IncompatibleComponentsError
from skvi.linear_model import BayesianLogisticRegression
from skvi.losses import BetaLoss, LogLoss
from skvi.objectives import ELBO, EUBO
from skvi.priors import Laplace, Normal
from tests.reference import real_data

PRIORS = {"prior": "normal", "intercept_prior": "normal"}


@pytest.fixture(scope="module")
def data():
    X, y = real_data("virginica")
    return 3 * X + 5, np.array(["versicolor", "virginica"])[y]


def in_pipeline(**parts):
    return Pipeline(
        [
            ("scale", StandardScaler()),
            ("model", BayesianLogisticRegression(**{**PRIORS, **parts})),
        ]
    )


# Weak divergences leave posteriors wider than the prior, which is reported.
wide = pytest.mark.filterwarnings("ignore:.*the posterior is wider than its prior")


@wide
@pytest.mark.parametrize("n_jobs", [None, pytest.param(2, marks=pytest.mark.slow)])
def test_grid_over_divergences_in_a_pipeline(data, n_jobs):
    """Strings with nested names; every candidate scores as if fitted by hand.

    Wrong variant: `set_params` makes the object with defaults and drops alpha.
    """
    grid = [
        {"model__divergence": ["kl"]},
        {"model__divergence": ["renyi"], "model__divergence__alpha": [0.3, 0.8]},
        {"model__prior__scale": [0.5, 3.0]},
    ]
    search = GridSearchCV(
        in_pipeline(), grid, scoring="neg_log_loss", cv=2, n_jobs=n_jobs
    ).fit(*data)
    by_hand = [
        {},
        {"divergence": RenyiDivergence(0.3)},
        {"divergence": RenyiDivergence(0.8)},
        {"prior": Normal(0.5)},
        {"prior": Normal(3.0)},
    ]
    scores = search.cv_results_["mean_test_score"]
    for parts, found in zip(by_hand, scores, strict=True):
        model = in_pipeline(**parts)
        score = cross_val_score(model, *data, scoring="neg_log_loss", cv=2).mean()
        assert found == pytest.approx(score, rel=1e-9)
    assert len(set(scores)) == 5
    assert search.best_score_ == max(scores)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_grid_over_objectives_and_objects(data):
    """Objectives, families, losses and solvers, as strings and objects."""
    grid = [
        {"objective": ["elbo", "eubo", EUBO()], "posterior": ["mean_field"]},
        {"objective": [ELBO("stl")], "solver": ["stochastic"], "max_iter": [2]},
        {"loss": ["beta"], "loss__beta": [1.1, 2.0], "prior": ["normal", Laplace(0.5)]},
    ]
    model = BayesianLogisticRegression(random_state=0, prior="normal")
    search = GridSearchCV(model, grid, scoring="neg_log_loss", cv=2).fit(
        StandardScaler().fit_transform(data[0]), data[1]
    )
    scores = search.cv_results_["mean_test_score"]
    assert len(scores) == 8
    assert np.isfinite(scores).all()
    assert scores[1] == scores[2] != scores[0]


@wide
def test_impossible_candidates_are_scored_as_failures(data):
    """A search goes on with error_score; alone the same pair is refused."""
    grid = {"model__objective": ["elbo", "eubo"], "model__divergence": ["renyi"]}
    search = GridSearchCV(in_pipeline(), grid, cv=2, error_score=np.nan)
    with (
        pytest.warns(FitFailedWarning, match=r"(?s)2 fits failed.*IncompatibleComp"),
        pytest.warns(UserWarning, match="non-finite"),
    ):
        search.fit(*data)
    assert np.isnan(search.cv_results_["mean_test_score"]).tolist() == [False, True]
    assert search.best_params_["model__objective"] == "elbo"
    with pytest.raises(IncompatibleComponentsError, match=r"(?s)EUBO.*Renyi.*elbo"):
        in_pipeline(objective="eubo", divergence="renyi").fit(*data)


def test_set_params_promotes_shorthands():
    model = BayesianLogisticRegression(divergence="renyi", prior="normal")
    model.set_params(divergence__alpha=0.3, prior__scale=2.0)
    assert repr(model.divergence) == "RenyiDivergence(alpha=0.3)"
    assert repr(model.prior) == "Normal(scale=2.0)"
    model.set_params(divergence="kl", divergence__weight=2.0, loss="beta")
    assert repr(model.divergence) == "KLDivergence(weight=2.0)"
    assert model.loss == "beta"
    assert model.get_params()["divergence__weight"] == 2.0
    model.set_params(divergence="renyi")
    assert model.divergence == "renyi"


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"divergence__alpha": 0.3}, "Invalid parameter 'alpha' for estimator KL"),
        ({"divergence": "reni", "divergence__alpha": 0.3}, "must be one of.*'reni'"),
        ({"nothing": 1}, "Invalid parameter 'nothing'"),
        ({"prior": "laplace", "prior__width": 1}, "Invalid parameter 'width'"),
    ],
)
def test_set_params_errors(params, message):
    with pytest.raises(ValueError, match=message):
        BayesianLogisticRegression(prior="normal").set_params(**params)


def test_object_and_shorthand_agree(data):
    for strings, objects in [
        (("elbo", "renyi", "beta"), (ELBO(), RenyiDivergence(), BetaLoss())),
        (("eubo", "kl", "log"), (EUBO(), KLDivergence(), LogLoss())),
    ]:
        a, b = (
            BayesianLogisticRegression(*parts, prior="normal", random_state=0).fit(
                *data
            )
            for parts in (strings, objects)
        )
        assert np.array_equal(a.coef_, b.coef_)
        assert a.objective_value_ == b.objective_value_
    c = BayesianLogisticRegression(divergence=RenyiDivergence(1.0), prior="normal").fit(
        *data
    )
    d = BayesianLogisticRegression(divergence=KLDivergence(), prior="normal").fit(*data)
    assert c.coef_ == pytest.approx(d.coef_, abs=1e-3)


def test_evidence_of_pipelines_and_searches(data):
    """The same numbers as from the estimator on the transformed features.

    Wrong variant: X is not transformed on the way.
    """
    X, y = data
    Z = StandardScaler().fit_transform(X)
    options = {"random_state": 0}
    exact = (
        BayesianLogisticRegression(**PRIORS).fit(Z, y).evidence_bounds(Z, y, **options)
    )
    search = GridSearchCV(in_pipeline(), {"model__posterior": ["full_rank"]}, cv=2)
    nested = make_pipeline(StandardScaler(), in_pipeline())
    inner = GridSearchCV(BayesianLogisticRegression(**PRIORS), {"max_iter": [50]}, cv=2)
    for model in (search, nested, make_pipeline(StandardScaler(), inner)):
        bounds = skvi.evidence_bounds(model.fit(X, y), X, y, **options)
        assert bounds.lower == pytest.approx(exact.lower, abs=1e-6)
        assert bounds.upper == pytest.approx(exact.upper, abs=1e-6)
    low, high = exact.interval()
    assert low < -20.5306 < high < low + 0.2


def test_evidence_of_other_things_is_refused(data):
    X, y = data
    with pytest.raises(TypeError, match="LogisticRegression has no method"):
        skvi.evidence_bounds(LogisticRegression().fit(X, y), X, y)
    with pytest.raises(NotFittedError, match="not fitted yet"):
        skvi.evidence_bounds(BayesianLogisticRegression(prior="normal"), X, y)
    search = GridSearchCV(in_pipeline(), {"model__max_iter": [50]}, cv=2, refit=False)
    with pytest.raises(NotFittedError, match="refit=True"):
        skvi.evidence_bounds(search.fit(X, y), X, y)
    with pytest.raises(NotFittedError):
        skvi.evidence_bounds(in_pipeline(), X, y)
