"""What every estimator promises, whatever its parts: the contract with its users.

Each property holds for each entry of `CASES`: a list of estimators with their parts
such that every part and every path through the solvers appears at least once.
"""

import pickle
import random
from functools import cache
from itertools import cycle

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
import torch
from sklearn.base import clone, is_classifier
from sklearn.datasets import load_iris
from sklearn.preprocessing import scale

from skvi.divergences import KL, Renyi
from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
)
from skvi.losses import BetaLoss
from skvi.neural_network import BayesianMLPClassifier, BayesianMLPRegressor
from skvi.priors import ARD, Laplace, Normal

pytestmark = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::skvi.exceptions.SkviWarning",
)
NETWORK = {
    "hidden_layer_sizes": 3,
    "max_iter": 3,
    "n_draws": 2,
    "n_predict_draws": 50,
    "random_state": 0,
}


def linear(**parts):
    return BayesianLinearRegression(**{"tol": 1e-11, "max_iter": 3000} | parts)


def logistic(**parts):
    return BayesianLogisticRegression(tol=1e-10, **{"prior": "normal", **parts})


def poisson(**parts):
    return BayesianPoissonRegressor(tol=1e-10, **{"prior": "normal", **parts})


REGRESSIONS = {
    "linear": linear(),
    "linear, ard": linear(prior=ARD(1.0, 1.0), posterior="mean_field"),
    "linear, fixed": linear(noise_scale=0.8, prior=Normal(1.5), normalize_y=False),
    "linear, laplace": linear(noise_scale="learn", prior="laplace", tol=1e-9),
    "linear, beta": linear(loss="beta", noise_scale=1.0, prior="normal", tol=1e-9),
    "mlp": BayesianMLPRegressor(**NETWORK),
    "mlp, minibatches": BayesianMLPRegressor(
        noise_scale=2.0, prior=Laplace(), batch_size=9, **NETWORK
    ),
}
BINARY = {
    "logistic": logistic(),
    "logistic, beta": logistic(
        loss=BetaLoss(1.3), prior=Laplace(), fit_intercept=False
    ),
    "logistic, renyi": logistic(divergence=Renyi(0.7), posterior="mean_field"),
    "logistic, kl": logistic(divergence=KL(weight=2.0), intercept_prior=Normal(10.0)),
    "logistic, eubo": BayesianLogisticRegression(
        objective="eubo", random_state=0, prior="normal"
    ),
    "mlp, binary": BayesianMLPClassifier(**NETWORK),
}
CLASSES = {
    "multinomial": logistic(),
    "multinomial, mean field": logistic(posterior="mean_field", n_jobs=1),
    "multinomial, renyi": logistic(divergence=Renyi(0.8), fit_intercept=False),
    "mlp, classes": BayesianMLPClassifier(objective="iwelbo", **NETWORK),
}
COUNTS = {
    "poisson": poisson(),
    "poisson, laplace": poisson(posterior="mean_field", prior="laplace"),
}
CASES = REGRESSIONS | BINARY | CLASSES | COUNTS
DRAWN = {name for name in CASES if "mlp" in name or "eubo" in name}
#: Where weights equal repetitions: fits that neither draw nor take minibatches.
EXACT = sorted(set(CASES) - DRAWN)
#: Names of classes whose order is not that of the codes.
NAMES = np.array(["c", "a", "b"], dtype=object)

every_case = pytest.mark.parametrize("name", CASES)
every_classifier = pytest.mark.parametrize("name", BINARY | CLASSES)


@cache
def data(name):
    """Features that are not centered, and targets of the kind that a case needs."""
    X, y = load_iris(return_X_y=True)
    rows = {2: np.r_[60:90, 110:140], 3: np.r_[10:30, 70:90, 120:140]}
    if name in BINARY or name in CLASSES:
        rows = rows[2 if name in BINARY else 3]
        X, y = scale(X[rows]) + 0.5, y[rows] - y[rows].min()
    else:
        rng = np.random.default_rng(0)
        X = rng.standard_normal((30, 4)) + 3
        f = X @ np.array([0.4, -0.3, 0.2, 0.0])
        y = 10 * f + 7 + 0.8 * rng.standard_normal(30)
        if name in COUNTS:
            y = rng.poisson(np.exp(f)).astype(float)
    X.flags.writeable = y.flags.writeable = False
    return X, y


def fit(name, X=None, y=None, weight=None, **params):
    """A fit of one case, to its own data unless others are given."""
    own = data(name)
    X, y = own[0] if X is None else X, own[1] if y is None else y
    model = clone(CASES[name]).set_params(**params)
    return model.fit(X, y, sample_weight=weight)


@cache
def fitted(name):
    return fit(name)


def predictions(model, X):
    """Everything that a fitted model says of rows: method -> array, rows first."""
    methods = ["predict", "predict_proba", "predict_log_proba", "decision_function"]
    methods += ["predict_interval"]
    found = {m: getattr(model, m)(X) for m in methods if hasattr(model, m)}
    if not is_classifier(model):
        found["std"] = model.predict(X, return_std=True)[1]
        found["quantiles"] = model.predict_quantiles(X, [0.01, 0.5, 0.8])
    return found


def assert_same_predictions(found, expected, **tolerance):
    assert found.keys() == expected.keys()
    for method in expected:
        if found[method].dtype.kind in "OU":
            assert np.array_equal(found[method], expected[method]), method
        else:
            np.testing.assert_allclose(
                found[method], expected[method], err_msg=method, **tolerance
            )


def assert_same_posterior(a, b, tol):
    """Coefficients in units of their deviations, deviations, and the bound."""
    if not hasattr(b, "coef_"):
        a, b = (model.posterior_.params.numpy() for model in (a, b))
        np.testing.assert_allclose(a, b, atol=tol)
        return
    assert np.abs((a.coef_ - b.coef_) / b.coef_std_).max() < tol
    assert a.coef_std_ == pytest.approx(b.coef_std_, rel=tol)
    assert a.lower_bound_ == pytest.approx(b.lower_bound_, abs=tol)
    if b.fit_intercept:
        shift = (np.array(a.intercept_) - b.intercept_) / b.intercept_std_
        assert np.abs(shift).max() < tol


# --- what a fit leaves alone ----------------------------------------------------------


def process_state():
    return (
        torch.get_default_dtype(),
        torch.get_rng_state().tolist(),
        torch.get_num_threads(),
        torch.is_grad_enabled(),
        repr(np.random.get_state()),  # noqa: NPY002
        np.geterr(),
        random.getstate(),
    )


@every_case
def test_process_parameters_and_data_stay_as_they_are(name):
    """Global seeds, data, constructor parameters, in fits, predictions and draws.

    Wrong variant: a fitted part that is the given one, and not a copy of it.
    """
    X, y = (array.copy() for array in data(name))
    # Without a random state a seed is taken from numpy's, as scikit-learn does.
    model = clone(CASES[name]).set_params(random_state=0)
    given = model.get_params(deep=False)
    before = process_state(), repr(model)
    model.fit(X, y)
    predictions(model, X)
    model.sample_posterior(3, random_state=0)
    assert (process_state(), repr(model)) == before
    assert np.array_equal(X, data(name)[0])
    assert np.array_equal(y, data(name)[1])
    after = model.get_params(deep=False)
    assert all(after[key] is value for key, value in given.items())
    for part in ("objective", "divergence", "prior"):
        assert getattr(model, f"{part}_") is not given[part]


@every_case
def test_refits_and_clones_repeat_a_fit(name):
    """To the last bit, also after a fit to other data and from a `RandomState`.

    Wrong variants: the first fit's posterior, classes or centering survive; draws from
    a generator that is not seeded again.
    """
    first, (X, y) = fitted(name), data(name)
    model = fit(name, X[:-4, :2] * 7, y[:-4])
    others = [model.fit(X, y)]
    if first.random_state is not None:
        others.append(fit(name, random_state=np.random.RandomState(0)))
    for other in others:
        assert other.n_features_in_ == 4
        assert np.array_equal(other.posterior_.params, first.posterior_.params)
        assert other.lower_bound_ == first.lower_bound_
        assert_same_predictions(predictions(other, X), predictions(first, X), rtol=0)


@pytest.mark.parametrize("name", sorted(DRAWN))
def test_other_seeds_are_other_draws(name):
    """Wrong variant: `random_state` is ignored."""
    other = fit(name, random_state=1)
    assert not np.array_equal(other.posterior_.params, fitted(name).posterior_.params)


# --- what a fit is to say -------------------------------------------------------------


@every_case
def test_fitted_attributes(name):
    model = fitted(name)
    assert len(model.loss_curve_) == model.n_iter_ > 0
    assert np.isfinite(model.loss_curve_).all()
    assert np.isfinite([model.lower_bound_, model.objective_value_]).all()
    assert model.lower_bound_se_ >= 0
    assert isinstance(model.converged_, bool)
    assert not [key for key in vars(clone(model)) if key.endswith("_")]
    if hasattr(model, "coef_"):
        shape = (3, 4) if name in CLASSES else (1, 4) if name in BINARY else (4,)
        assert model.coef_.shape == model.coef_std_.shape == shape
        assert (model.coef_std_ > 0).all()
        if not model.fit_intercept:
            assert not np.any(model.intercept_)


@every_case
def test_predictions_agree_with_each_other(name):
    """Probabilities and their logarithms, intervals and quantiles, mean and draws."""
    X, y = data(name)
    model = fit(name, n_predict_draws=2000) if "mlp" in name else fitted(name)
    found = predictions(model, X)
    if is_classifier(model):
        p = found["predict_proba"]
        np.testing.assert_allclose(p.sum(1), 1, atol=1e-12)
        np.testing.assert_allclose(np.exp(found["predict_log_proba"]), p, rtol=1e-9)
        expected = model.classes_[p.argmax(1)]
        assert np.array_equal(found["predict"], expected)
        own = found["predict_log_proba"][np.arange(len(y)), y]
        np.testing.assert_allclose(model.predict_log_density(X, y), own, rtol=1e-9)
        return
    assert np.all(np.diff(found["quantiles"], axis=1) >= 0)
    ends = model.predict_quantiles(X, [0.05, 0.95])
    np.testing.assert_allclose(found["predict_interval"], ends, rtol=1e-9)
    inside = (ends[:, 0] < found["predict"]) & (found["predict"] < ends[:, 1])
    assert inside.all()
    draws = model.sample_y(X, 2000, random_state=0)
    # Networks' predictions average over as many draws of the weights again. The draws
    # of a row move all rows alike, so that the share below counts as one of 2000.
    error = (2 if "mlp" in name else 1) ** 0.5 / 2000**0.5
    assert np.all(np.abs(draws.mean(1) - found["predict"]) < 5 * error * found["std"])
    below = (draws <= found["quantiles"][:, [2]]).mean()
    margin = 4 * 0.4 * error
    assert below > 0.8 - margin
    assert below < 0.8 + margin or name in COUNTS


@every_case
def test_row_wise_is_batched_is_permuted(name):
    """Also far from the data. Networks to the last bit.

    Wrong variant: one quadrature for all rows, as fine as the widest one needs.
    """
    model, X = fitted(name), data(name)[0][::6]
    far = 1.0 if name in COUNTS else 100.0
    X = np.vstack([X, far * X, 0.01 * X])
    tolerance = {"rtol": 0 if "mlp" in name else 1e-11, "atol": 1e-12}
    if "mlp" in name:
        tolerance["atol"] = 0
    whole = predictions(model, X)
    rows = [predictions(model, row[None]) for row in X]
    together = {key: np.concatenate([row[key] for row in rows]) for key in whole}
    assert_same_predictions(together, whole, **tolerance)
    order = np.random.default_rng(0).permutation(len(X))
    expected = {key: values[order] for key, values in whole.items()}
    assert_same_predictions(predictions(model, X[order]), expected, **tolerance)
    assert_same_predictions(predictions(model, X), whole, rtol=0)


@every_case
def test_pickles_are_small_and_hold_no_tensors(name):
    """The copy predicts, draws, bounds and fits the same."""
    model, (X, y) = fitted(name), data(name)
    stored = pickle.dumps(model)
    assert len(stored) < 20_000
    # Networks name their activation, a function of torch.
    assert (b"_rebuild_tensor" if "mlp" in name else b"torch") not in stored
    copy = pickle.loads(stored)
    assert_same_predictions(predictions(copy, X), predictions(model, X), rtol=0)
    found = [m.sample_posterior(2, random_state=1) for m in (copy, model)]
    assert found[0].keys() == found[1].keys()
    assert all(np.array_equal(found[0][key], found[1][key]) for key in found[0])
    assert np.array_equal(copy.fit(X, y).posterior_.params, model.posterior_.params)


@pytest.mark.parametrize("name", ["linear, fixed", "logistic, eubo"])
def test_pickles_keep_the_evidence(name):
    model, (X, y) = fitted(name), data(name)
    copy, options = pickle.loads(pickle.dumps(model)), {"n_draws": 64}
    found = [m.evidence_bounds(X, y, random_state=0, **options) for m in (copy, model)]
    assert found[0] == found[1]
    before = process_state()
    model.evidence_bounds(X, y, random_state=0, **options)
    assert process_state() == before


# --- weights, labels, order -----------------------------------------------------------


@pytest.mark.parametrize("name", EXACT)
def test_weights_are_repetitions(name):
    """Zeros leave rows out, whatever they hold, in any type of number.

    Wrong variants: the weights' square; weights normalized to mean 1; features
    centered without weights.
    """
    X, y = data(name)
    weight = np.arange(len(y)) % 3
    repeated = fit(name, np.repeat(X, weight, 0), np.repeat(y, weight))
    X, y = X.copy(), y.copy()
    X[weight == 0] *= 1e3
    if name in REGRESSIONS:
        y[weight == 0] = 1e6
    for w in (weight.astype(np.float32), list(map(int, weight))):
        assert_same_posterior(fit(name, X, y, w), repeated, 1e-5)


@pytest.mark.parametrize("name", [name for name in CASES if "mlp" in name])
def test_networks_leave_rows_without_weight_out(name):
    X, y = data(name)
    keep = np.arange(len(y)) % 3 > 0
    full = fit(name, weight=keep.astype(float))
    part = fit(name, X[keep], y[keep], np.ones(keep.sum()))
    assert np.array_equal(full.predict(X), part.predict(X))
    with pytest.raises(ValueError, match=r"[Ww]eight"):
        fit(name, weight=np.zeros(len(y)))


@every_classifier
def test_labels_may_be_renamed(name):
    """Names of classes permute columns; two classes mirror the coefficients.

    Wrong variant: y coded as 0, 1 in a loss for -1, 1.
    """
    X, y = data(name)
    names = NAMES[: y.max() + 1]
    a, b = fitted(name), fit(name, y=names[y])
    assert list(b.classes_) == sorted(names)
    assert set(b.predict(X)) <= set(names)
    if name in DRAWN:  # other columns get other draws
        return
    order = np.argsort(names)
    sign = -1 if name in BINARY else 1
    rows = slice(None) if name in BINARY else order
    assert b.coef_ == pytest.approx(sign * a.coef_[rows], abs=1e-5)
    assert b.coef_std_ == pytest.approx(a.coef_std_[rows], rel=1e-5)
    assert b.lower_bound_ == pytest.approx(a.lower_bound_, abs=1e-5)
    p = a.predict_proba(X)[:, order]
    assert b.predict_proba(X) == pytest.approx(p, abs=1e-5)
    assert np.array_equal(b.predict(X), names[a.predict(X)])
    if name in BINARY:
        assert list(fit(name, y=y == 1).classes_) == [False, True]


@pytest.mark.parametrize("name", EXACT)
def test_rows_and_columns_may_be_permuted(name):
    X, y = data(name)
    rng = np.random.default_rng(0)
    rows, columns = rng.permutation(len(y)), rng.permutation(4)
    a, b = fitted(name), fit(name, X[rows][:, columns], y[rows])
    shift = (b.coef_ - a.coef_[..., columns]) / b.coef_std_
    assert np.abs(shift).max() < 1e-5
    assert b.lower_bound_ == pytest.approx(a.lower_bound_, abs=1e-7)


# --- containers -----------------------------------------------------------------------


@every_case
def test_single_precision_stays_single(name):
    """float32 out for float32 in, and the same answer to 0.001 deviations.

    Numbers in units of y are double: the rounding of a large one exceeds the noise.
    """
    X, _ = data(name)
    single = fit(name, X.astype(np.float32))
    if "mlp" in name:
        assert single.posterior_.params.dtype == torch.float32
    else:
        tol = 0.1 if name in DRAWN else 1e-3
        assert_same_posterior(single, fitted(name), tol)
        assert single.coef_.dtype == single.coef_std_.dtype == np.float32
        assert np.asarray(single.intercept_std_).dtype.kind == "f"
    found = predictions(single, X.astype(np.float32))
    for key, values in found.items():
        if not (is_classifier(single) and key == "predict") and name not in COUNTS:
            expected = np.float32 if is_classifier(single) else np.float64
            assert values.dtype == expected, key
    for key, values in predictions(fitted(name), X).items():
        assert values.dtype == np.float64 or values.dtype.kind == "i", key


FRAMED = ["linear", "logistic", "multinomial", "poisson", "mlp"]


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame])
@pytest.mark.parametrize("name", FRAMED)
def test_frames_keep_their_names(name, make):
    """Of features and of classes; other names in another order are refused."""
    X, y = data(name)
    names = ["length", "width", "long", "wide"]
    table = make({key: X[:, i] for i, key in enumerate(names)})
    labels = np.array(["u", "v", "w"])[y] if y.dtype.kind == "i" else y
    column = {pd.DataFrame: pd.Series, pl.DataFrame: pl.Series}[make]
    plain, model = fitted(name), fit(name, table, column(labels))
    assert list(model.feature_names_in_) == names
    found = predictions(model, table)
    if is_classifier(model):
        assert list(model.classes_) == sorted(set(labels))
        expected = model.classes_[plain.predict(X)]
        assert np.array_equal(found.pop("predict"), expected)
    expected = {key: predictions(plain, X)[key] for key in found}
    assert_same_predictions(found, expected, rtol=1e-9)
    density = model.predict_log_density(table, labels.copy())
    np.testing.assert_allclose(
        density, plain.predict_log_density(X, y.copy()), rtol=1e-9
    )
    with pytest.raises(ValueError, match="feature names"):
        model.predict(table[names[::-1]])
    assert not hasattr(model.fit(X, y), "feature_names_in_")


@pytest.mark.parametrize("name", ["linear", "logistic", "mlp"])
def test_memory_layouts_do_not_matter(name):
    X, _ = data(name)
    reverse = X[::-1, ::-1].copy()[::-1, ::-1]
    for array in (np.asfortranarray(X), reverse, X.astype(">f8"), X.tolist()):
        model = fit(name, array)
        assert_same_posterior(model, fitted(name), 1e-7)
        found = predictions(model, array)
        assert_same_predictions(found, predictions(fitted(name), X), rtol=1e-6)


FORMATS = [sp.csr_matrix, sp.csc_array, sp.coo_array, sp.csr_array]


@pytest.mark.parametrize(
    ("name", "make"), list(zip(EXACT, cycle(FORMATS), strict=False))
)
def test_sparse_features_are_dense_ones(name, make):
    """With weights; the matrix stays as it is.

    Wrong variant: no offset of the centered features in predictions.
    """
    X, y = data(name)
    X = np.where(X < np.median(X), 0, X)
    weight = np.linspace(0, 2, len(y))
    sparse, before = make(X), make(X)
    a, b = fit(name, X, weight=weight), fit(name, sparse, weight=weight)
    assert_same_posterior(b, a, 1e-5)
    for features in (X, sparse):
        found, expected = predictions(b, features), predictions(a, X)
        assert_same_predictions(found, expected, rtol=1e-5, atol=1e-7)
    assert (sparse != before).nnz == 0
