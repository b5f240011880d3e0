"""What a fit fixed is fixed: no later parameter, and no query, changes it."""

import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone, is_classifier
from sklearn.exceptions import ConvergenceWarning

from skvi.evidence import EvidenceBounds
from skvi.exceptions import SkviWarning
from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
)
from skvi.neural_network import BayesianMLPClassifier, BayesianMLPRegressor
from skvi.priors import Normal

QUICK = {"hidden_layer_sizes": (3,), "max_iter": 3, "n_predict_draws": 5}
ESTIMATORS = [
    BayesianLinearRegression(prior="normal", noise_scale=0.7, normalize_y=True),
    BayesianLinearRegression(),
    BayesianLinearRegression(noise_scale="learn", prior=Normal(), fit_intercept=False),
    BayesianLogisticRegression(class_weight="balanced", prior="normal"),
    BayesianLogisticRegression(prior=Normal(2.0)),
    BayesianPoissonRegressor(prior="normal"),
    BayesianPoissonRegressor(likelihood="negative_binomial", prior="normal"),
    BayesianMLPRegressor(**QUICK),
    BayesianMLPRegressor(noise_scale=0.7, **QUICK),
    BayesianMLPClassifier(class_weight={0: 2.0, 1: 1.0}, **QUICK),
]
#: Another valid value of every parameter; the second where the first is the old one.
OTHERS = {
    "objective": ["eubo"],
    "divergence": ["renyi"],
    "loss": ["beta"],
    "posterior": ["low_rank"],
    "prior": ["laplace"],
    "intercept_prior": [Normal(7.0)],
    "fit_intercept": [False, True],
    "hidden_layer_sizes": [(2, 2)],
    "activation": ["tanh"],
    "likelihood": ["student_t", "gaussian"],
    "likelihood of counts": ["negative_binomial", "poisson"],
    "noise": ["heteroscedastic"],
    "noise_scale": [0.1],
    "normalize_y": [False],
    "class_weight": [None, "balanced"],
    "solver": ["stochastic"],
    "n_draws": [4],
    "batch_size": [8],
    "learning_rate": [0.3],
    "max_iter": [1],
    "tol": [10.0],
    "early_stopping": [True],
    "validation_fraction": [0.2],
    "n_iter_no_change": [1],
    "warm_start": [True],
    "n_predict_draws": [2],
    "checkpoint_path": ["fit.npz"],
    "checkpoint_interval": [1.0],
    "n_jobs": [1],
    "device": ["cpu"],
    "verbose": [False],
    "random_state": [3],
}


@pytest.fixture(scope="module", params=ESTIMATORS, ids=repr)
def fitted(request):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    f = X[:, 0] + 0.5 * rng.normal(size=30)
    model = clone(request.param).set_params(random_state=0)
    if is_classifier(model):
        y = (f > 0).astype(int)
    elif isinstance(model, BayesianPoissonRegressor):
        y = rng.poisson(np.exp(f))
    else:
        y = 50 + 10 * f
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", SkviWarning)
        return model.fit(X, y), X, y


def queries(model, X, y):
    """What every method that a user may call returns."""
    found = {"predict": model.predict(X[:3]), "score": model.score(X, y)}
    found["density"] = model.predict_log_density(X, y)
    found["posterior"] = model.sample_posterior(2, random_state=0)
    for name in ("predict_proba", "predict_log_proba", "decision_function"):
        if hasattr(model, name):
            found[name] = getattr(model, name)(X[:3])
    if hasattr(model, "sample_function"):
        found["function"] = model.sample_function(random_state=0)(X[:3])
    if not is_classifier(model):
        found["std"] = model.predict(X[:3], return_std=True)
        found["interval"] = model.predict_interval(X[:3])
        found["quantiles"] = model.predict_quantiles(X[:3], [0.2, 0.9])
        found["sample"] = model.sample_y(X[:3], n_samples=2, random_state=0)
    return found


def state(model):
    """Bytes of all that is no parameter."""
    params = model.get_params(deep=False)
    rest = {name: v for name, v in vars(model).items() if name not in params}
    return {name: pickle.dumps(v) for name, v in rest.items()}


def others(model):
    """Every parameter with another value than the one it has."""
    counts = isinstance(model, BayesianPoissonRegressor)
    names = {"likelihood": "likelihood of counts"} if counts else {}
    return {
        name: next(v for v in OTHERS[names.get(name, name)] if v != value)
        for name, value in model.get_params(deep=False).items()
        if name != "verbose"
    }


def test_a_parameter_changes_no_prediction(fitted):
    """Wrong variant: a prediction reads a parameter of the estimator."""
    model, X, y = fitted
    kept, before, expected = (
        model.get_params(deep=False),
        state(model),
        pickle.dumps(queries(model, X, y)),
    )
    for name, value in others(model).items():
        model.set_params(**{name: value})
        assert pickle.dumps(queries(model, X, y)) == expected, name
        model.set_params(**{name: kept[name]})
    assert state(model) == before


@pytest.fixture
def quick_bounds(fitted, monkeypatch):
    """Bounds from draws take long: values of their target at some points are enough."""
    if not isinstance(fitted[0], BayesianLinearRegression):
        monkeypatch.setattr("skvi._evidence.bound_evidence", bound_quickly)


def bound_quickly(target, posterior, generator, *arguments, **options):
    theta = posterior.draw(64, generator).theta
    value = float(target.log_joint(theta).mean())
    numbers = [value, value, 0.0, 0.0, value, 0.0, 64.0, 0.1]
    return EvidenceBounds(*numbers, reliable=True, reason="", method="quick")


@pytest.mark.filterwarnings("ignore:.*vague Gamma")
def test_parameters_change_no_evidence_and_it_changes_no_fit(fitted, quick_bounds):
    """All parameters at once. Wrong variant: `_standardize` writes to the estimator."""
    model, X, y = fitted
    kept, before = model.get_params(deep=False), state(model)
    expected = pickle.dumps(queries(model, X, y))
    bounds = model.evidence_bounds(X, y, n_draws=64, random_state=0)
    assert state(model) == before
    try:
        changed = others(model)
        model.set_params(**changed)
        again = model.evidence_bounds(X, y, n_draws=64, random_state=0)
        assert kept | changed == model.get_params(deep=False)
    finally:
        model.set_params(**kept)
    assert state(model) == before
    assert pickle.dumps(queries(model, X, y)) == expected
    assert again == bounds


def test_parts_that_are_changed_in_place():
    """Nested names change the parameter, not what the fit made of it.

    Wrong variant: the class weights of the fit are kept, but not a copy of them.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    y = (X[:, 0] > 0).astype(int)
    weights = {0: 2.0, 1: 1.0}
    model = BayesianLogisticRegression(prior=Normal(1.0), class_weight=weights)
    model.fit(X, y)
    bounds = model.evidence_bounds(X, y, n_draws=64, random_state=0)
    model.set_params(prior__scale=5.0)
    weights[0] = 9.0
    assert model.evidence_bounds(X, y, n_draws=64, random_state=0) == bounds


def test_every_parameter_has_another_value():
    for model in ESTIMATORS:
        assert set(model.get_params(deep=False)) <= set(OTHERS)
