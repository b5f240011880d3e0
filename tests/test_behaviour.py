"""What users of scikit-learn rely on, and inputs that break things."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale

import skvi
from skvi.divergences import KL, Renyi
from skvi.exceptions import IncompatibleComponentsError
from skvi.linear_model import BayesianLogisticRegression
from skvi.priors import Normal

MODEL = BayesianLogisticRegression


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    X, y = scale(X[50:]), y[50:]
    X.flags.writeable = False
    return X, y


@pytest.mark.parametrize("n_jobs", [None, 2])
def test_search_over_divergence_and_objective(n_jobs):
    X, y = load_breast_cancer(return_X_y=True)
    pipeline = make_pipeline(StandardScaler(), MODEL(posterior="mean_field"))
    name = "bayesianlogisticregression__"
    grid = [
        {f"{name}divergence": ["kl"]},
        {f"{name}divergence": ["renyi"], f"{name}divergence__alpha": [0.5, 2.0]},
        {f"{name}objective": ["elbo", "eubo"], f"{name}random_state": [0]},
    ]
    search = GridSearchCV(pipeline, grid, cv=2, n_jobs=n_jobs, scoring="neg_log_loss")
    search.fit(X, y)
    scores = search.cv_results_["mean_test_score"]
    # "kl" and "elbo" are the same model; the orders are not.
    assert scores[0] == scores[3]
    assert len(np.unique(scores[:3])) == 3
    bounds = skvi.evidence_bounds(search, X, y, random_state=0)
    assert abs(bounds.estimate + 55.224) < 0.05


def test_nested_names_with_strings():
    model = MODEL(divergence="renyi").set_params(divergence__alpha=0.3)
    assert model.divergence.alpha == 0.3
    model = MODEL().set_params(divergence="renyi", divergence__alpha=0.7)
    assert clone(model).get_params()["divergence__alpha"] == 0.7
    with pytest.raises(ValueError, match=r"must be one of \['alpha', .*'renyi'\]"):
        MODEL(divergence="xyz").set_params(divergence__alpha=1.0)
    with pytest.raises(ValueError, match="Invalid parameter 'alpha'"):
        MODEL(divergence="kl").set_params(divergence__alpha=1.0)


def test_components_are_cloned(iris):
    divergence = Renyi(alpha=0.8)
    model = MODEL(divergence=divergence).fit(*iris)
    divergence.alpha = 5.0
    assert model.divergence_.alpha == 0.8


def test_eubo_with_renyi_is_refused_before_training(iris, monkeypatch):
    monkeypatch.setattr(
        "skvi._variational.choose_solver", lambda *_: pytest.fail("trained")
    )
    with pytest.raises(IncompatibleComponentsError) as error:
        MODEL(objective="eubo", divergence="renyi").fit(*iris)
    for part in ("EUBO", "Renyi", "objective='elbo'", "divergence='kl'"):
        assert part in str(error.value)


def test_weights_are_repetitions(iris):
    X, y = iris
    weight = np.arange(len(y)) % 3
    weighted = MODEL().fit(X, y, sample_weight=weight)
    repeated = MODEL().fit(np.repeat(X, weight, 0), np.repeat(y, weight))
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-6)
    np.testing.assert_allclose(weighted.coef_std_, repeated.coef_std_, rtol=1e-6)
    assert abs(weighted.lower_bound_ - repeated.lower_bound_) < 1e-6


def test_labels_are_symmetric(iris):
    X, y = iris
    model, mirrored = MODEL().fit(X, y), MODEL().fit(X, np.where(y == 1, "b", "a"))
    np.testing.assert_allclose(model.coef_, -mirrored.coef_, rtol=1e-6)
    np.testing.assert_allclose(
        model.predict_proba(X), mirrored.predict_proba(X)[:, ::-1], atol=1e-9
    )
    assert set(mirrored.predict(X)) == {"a", "b"}


def test_predictions_are_the_posterior_average(iris):
    """Wrong variant: the plug-in probability at the posterior mean."""
    X, y = iris
    model = MODEL().fit(X, y)
    draws = model.sample_posterior(200_000, random_state=0)
    f = draws["coef"][:, 0] @ X[:5].T + draws["intercept"]
    p = 1 / (1 + np.exp(-f))
    error = p.std(0) / np.sqrt(len(p))
    averaged = model.predict_proba(X[:5])[:, 1]
    assert np.all(np.abs(averaged - p.mean(0)) < 5 * error)
    plug_in = 1 / (1 + np.exp(-(X[:5] @ model.coef_[0] + model.intercept_)))
    assert np.any(np.abs(plug_in - p.mean(0)) > 5 * error)
    log_density = model.predict_log_density(X, y)
    p = model.predict_proba(X)[np.arange(len(y)), y - 1]
    np.testing.assert_allclose(log_density, np.log(p), rtol=1e-10)


def test_row_wise_equals_batched(iris):
    X, y = iris
    model = MODEL().fit(X, y)
    batched = model.predict_proba(X)
    rows = np.concatenate([model.predict_proba(X[i : i + 1]) for i in range(len(X))])
    np.testing.assert_allclose(rows, batched, rtol=0, atol=1e-13)


def test_pickle_is_small_and_holds_no_tensors(iris):
    X, y = iris
    model = MODEL().fit(X, y)
    data = pickle.dumps(model)
    assert len(data) < 10_000
    assert b"torch" not in data
    np.testing.assert_array_equal(
        pickle.loads(data).predict_proba(X), model.predict_proba(X)
    )


def test_float32_and_pandas(iris):
    X, y = iris
    frame = pd.DataFrame(X, columns=list("abcd"))
    model, double = MODEL().fit(X.astype(np.float32), y), MODEL().fit(frame, y)
    assert list(double.feature_names_in_) == list("abcd")
    assert model.coef_.dtype == model.predict_proba(X[:1].astype("f4")).dtype == "f4"
    np.testing.assert_allclose(model.coef_, double.coef_, rtol=1e-3)


def test_global_state_is_untouched(iris):
    torch_state = torch.get_rng_state()
    np_state = np.random.get_state()[1].copy()  # noqa: NPY002
    threads = torch.get_num_threads()
    fits = [MODEL(objective="eubo", random_state=3).fit(*iris) for _ in range(2)]
    np.testing.assert_array_equal(fits[0].coef_, fits[1].coef_)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], np_state)  # noqa: NPY002
    assert torch.get_num_threads() == threads
    assert torch.get_default_dtype() == torch.float32


def test_interrupt_keeps_a_posterior(iris, monkeypatch):
    from skvi.solvers._natural_gradient import _Iteration

    original, calls = _Iteration._iterate, []

    def iterate(self):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(self)

    monkeypatch.setattr(_Iteration, "_iterate", iterate)
    model = MODEL()
    with pytest.raises(KeyboardInterrupt):
        model.fit(*iris)
    assert model.n_iter_ == 2
    assert abs(model.lower_bound_ + 20.5636) < 1.0


@pytest.mark.parametrize("scales", [1e-8, 1e8])
@pytest.mark.parametrize("posterior", ["mean_field", "full_rank"])
def test_huge_scales_give_finite_answers(iris, scales, posterior):
    X, y = iris
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = MODEL(posterior=posterior).fit(X * scales, y)
    assert np.all(np.isfinite(model.coef_))
    assert np.all(model.coef_std_ > 0)
    assert np.isfinite(model.lower_bound_)
    assert np.all(np.isfinite(model.predict_proba(X * scales)))


@pytest.mark.parametrize("prior_scale", [1e-6, 1e4])
def test_extreme_priors(iris, prior_scale):
    X, y = iris
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = MODEL().set_params(prior__scale=prior_scale).fit(X, y)
    assert np.isfinite(model.lower_bound_)
    if prior_scale < 1:
        assert abs(model.lower_bound_ + len(y) * np.log(2)) < 1e-3


def test_constant_and_duplicated_columns(iris):
    X, y = iris
    wide = np.hstack([X, X[:, :1], np.zeros((len(X), 2)), np.ones((len(X), 1))])
    model = MODEL().fit(wide, y)
    np.testing.assert_allclose(model.coef_[0, 5:7], 0, atol=1e-6)
    np.testing.assert_allclose(model.coef_std_[0, 5:7], 1, rtol=1e-6)
    np.testing.assert_allclose(model.coef_[0, 0], model.coef_[0, 4], rtol=1e-5)


def _with(value):
    X = np.random.default_rng(0).normal(size=(6, 2))
    X[2, 1] = value
    return X


Y6 = [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize(
    ("X", "y", "options", "message"),
    [
        (_with(np.nan), Y6, {}, "NaN"),
        (_with(np.inf), Y6, {}, "infinity"),
        (_with(0), [0] * 6, {}, "one class"),
        (_with(0), Y6[:4], {}, "inconsistent numbers of samples"),
        (_with(0)[:, 0], Y6, {}, "Expected 2D array"),
        (_with(0), Y6, {"sample_weight": [-1] * 6}, "[Nn]egative"),
        (_with(0), Y6, {"sample_weight": [0] * 6}, "zero"),
    ],
)
def test_bad_data(X, y, options, message):
    with pytest.raises(ValueError, match=message):
        MODEL().fit(X, y, **options)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"objective": "xyz"}, "'objective' parameter"),
        ({"divergence": "KL"}, "'divergence' parameter"),
        ({"divergence": KL(weight=-1)}, "'weight' parameter of KL"),
        ({"divergence": Renyi(alpha=-0.5)}, "alpha > 0"),
        ({"max_iter": 0}, "'max_iter' parameter"),
        ({"tol": -1.0}, "'tol' parameter"),
        ({"prior": {"coef": Normal()}}, "'coef', 'intercept'"),
        ({"solver": "moment_matching"}, "Use solver='auto'"),
        ({"objective": "eubo", "solver": "natural_gradient"}, "Use solver='auto'"),
    ],
)
def test_bad_parameters(iris, params, message):
    with pytest.raises(ValueError, match=message):
        MODEL(**params).fit(*iris)


def test_size_limits():
    with pytest.raises(ValueError, match="posterior='mean_field'"):
        MODEL().fit(np.zeros((4, 10_001)), [0, 1, 0, 1])


def test_evidence_needs_the_training_data(iris):
    X, y = iris
    with pytest.raises(NotFittedError):
        MODEL().evidence_bounds(X, y)
    model = MODEL().fit(X, y)
    with pytest.raises(ValueError, match="needs the 100 rows of the fit"):
        model.evidence_bounds(X[:50], y[:50])
    with pytest.raises(ValueError, match="not both"):
        model.evidence_bounds(X, y, n_draws=100, precision=0.1)
    with pytest.raises(ValueError, match="labels that were not in the fit"):
        model.evidence_bounds(X, y + 5)
    model.fit(X, y, sample_weight=np.ones(100))
    with pytest.raises(ValueError, match="pass the same sample_weight"):
        model.evidence_bounds(X, y)
    bounds = model.evidence_bounds(X, y, sample_weight=np.ones(100), random_state=0)
    assert bounds.quantity == "log evidence"
    with pytest.raises(ValueError, match="these are others"):
        model.evidence_bounds(X, y, sample_weight=np.full(100, 2.0))
    with pytest.raises(ValueError, match="these are others"):
        model.evidence_bounds(X[::-1], y, sample_weight=np.ones(100))
    weight = np.linspace(0.5, 1.5, 100)
    model.fit(X, y, sample_weight=weight)
    bounds = model.evidence_bounds(X, y, sample_weight=weight, random_state=0)
    assert bounds.quantity == "generalised log evidence"
    with pytest.raises(TypeError, match="no method evidence_bounds"):
        skvi.evidence_bounds(StandardScaler(), X, y)
