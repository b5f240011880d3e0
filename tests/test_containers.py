"""Every method takes what scikit-learn takes, in silence and with one answer."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning

from skvi.exceptions import SkviWarning
from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
)
from skvi.neural_network import BayesianMLPClassifier, BayesianMLPRegressor

CONTAINERS = [
    "pandas",
    "polars",
    "memory map",
    "float32",
    "negative strides",
]


def make_data(kind):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(20, 3)).astype(np.float32).astype(np.float64)
    f = X[:, 0] + 0.3 * rng.normal(size=20).astype(np.float32)
    if kind == "counts":
        return X, np.abs(np.round(f))
    return X, (f > 0).astype(float) if kind == "classes" else f.astype(np.float32)


def convert(X, y, container, folder):
    """X and y in a container; y is float64, or as the container has it."""
    y = np.asarray(y, dtype=np.float64)
    if container == "pandas":
        columns = ["a", "b", "c"]
        return pd.DataFrame(X, columns=columns), pd.Series(y, name="y")
    if container == "polars":
        polars = pytest.importorskip("polars")
        return polars.DataFrame(X, schema=["a", "b", "c"]), polars.Series(y)
    if container == "memory map":
        np.save(folder / "X.npy", X)
        np.save(folder / "y.npy", y)
        return tuple(np.load(folder / f"{n}.npy", mmap_mode="r") for n in "Xy")
    if container == "float32":
        return X.astype(np.float32), y.astype(np.float32)
    return X[::-1].copy()[::-1], y[::-1].repeat(2)[::-2]


def every_answer(model, X, y, has_interval):
    """Results of all methods that take rows."""
    found = {"predict": model.predict(X), "score": model.score(X, y)}
    found["predict_log_density"] = model.predict_log_density(X, y)
    if has_interval:
        found["predict_interval"] = model.predict_interval(X)
        found["predict_quantiles"] = model.predict_quantiles(X, [0.2, 0.7])
        found["sample_y"] = model.sample_y(X, 2, random_state=0)
        found["std"] = model.predict(X, return_std=True)[1]
    else:
        found["predict_proba"] = model.predict_proba(X)
        found["predict_log_proba"] = model.predict_log_proba(X)
    return found


MODELS = {
    "linear": (BayesianLinearRegression(), "normal"),
    "fixed noise": (BayesianLinearRegression(prior="normal", noise_scale=1), "normal"),
    "logistic": (BayesianLogisticRegression(prior="normal"), "classes"),
    "poisson": (BayesianPoissonRegressor(prior="normal"), "counts"),
    "negative binomial": (
        BayesianPoissonRegressor(likelihood="negative_binomial"),
        "counts",
    ),
    "drawn counts": (
        BayesianPoissonRegressor(prior="normal", objective="eubo", random_state=0),
        "counts",
    ),
    "student": (
        BayesianLinearRegression(likelihood="student_t", noise_scale=1, tol=1e-12),
        "normal",
    ),
    "network": (BayesianMLPRegressor(max_iter=2, random_state=0), "normal"),
    "classifier": (BayesianMLPClassifier(max_iter=2, random_state=0), "classes"),
}


@pytest.fixture(autouse=True)
def warn_always():
    """Torch warns once in a process otherwise."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


@pytest.fixture(scope="module")
def expected():
    """Answers for plain arrays."""
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", SkviWarning)
        for name, (model, kind) in MODELS.items():
            X, y = make_data(kind)
            weight = np.ones(len(y))
            fitted = model.fit(X, np.asarray(y, dtype=float), sample_weight=weight)
            found[name] = every_answer(fitted, X, y, kind != "classes")
    return found


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("name", MODELS)
def test_every_container_gives_the_same_answers(name, container, expected, tmp_path):
    """Wrong variants: `torch.from_numpy` of an array that is read-only; X is validated
    twice, the second time without its names."""
    model, kind = MODELS[name]
    X, y = convert(*make_data(kind), container, tmp_path)
    weight = convert(*make_data(kind), container, tmp_path)[1] * 0 + 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", SkviWarning)
        model.fit(X, y, sample_weight=weight)
        found = every_answer(model, X, y, kind != "classes")
    for method, values in expected[name].items():
        if container == "float32":
            # Rounding sends Adam and draws elsewhere; shapes and range remain.
            assert np.shape(found[method]) == np.shape(values)
            assert np.isfinite(found[method]).all(), method
        else:
            np.testing.assert_allclose(
                found[method], values, 1e-9, 1e-9, err_msg=method
            )


@pytest.mark.parametrize("container", CONTAINERS)
def test_evidence_bounds_take_every_container(container, tmp_path):
    """Exact evidence, and the check that the data are those of the fit."""
    X, y = make_data("normal")
    model = BayesianLinearRegression(prior="normal", noise_scale=1)
    expected = model.fit(X, y).evidence_bounds(X, y).lower
    X, y = convert(X, y, container, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = model.fit(X, y).evidence_bounds(X, y).lower
    tolerance = 1e-5 if container == "float32" else 1e-12
    assert found == pytest.approx(expected, rel=tolerance)
