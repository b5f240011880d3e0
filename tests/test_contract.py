"""What every estimator promises, whatever its parts: the contract with its users."""

import pickle
import random
import threading
from itertools import count, cycle

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
import torch
from sklearn.base import clone, is_classifier
from threadpoolctl import ThreadpoolController, threadpool_info, threadpool_limits

from skvi.linear_model import BayesianLogisticRegression
from skvi.priors import Normal
from tests.problems import (
    BINARY,
    CLASSES,
    COUNTS,
    DRAWN,
    EXACT,
    PROBLEMS,
    REGRESSIONS,
    answers,
    assert_same,
    assert_same_posterior,
    data,
    fit,
    fitted,
    predictions,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::skvi.exceptions.SkviWarning",
)
#: Names of classes whose order is not that of the codes.
NAMES = np.array(["c", "a", "b"], dtype=object)

every_problem = pytest.mark.parametrize("name", PROBLEMS)
every_classifier = pytest.mark.parametrize("name", BINARY | CLASSES)


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


@every_problem
def test_process_parameters_and_data_stay_as_they_are(name):
    """Global seeds, data, constructor parameters, in fits, predictions and draws.

    Wrong variant: a fitted part that is the given one, and not a copy of it.
    """
    X, y = (array.copy() for array in data(name))
    # Without a random state a seed is taken from numpy's, as scikit-learn does.
    model = clone(PROBLEMS[name]).set_params(random_state=0)
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


@every_problem
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
        assert_same(predictions(other, X), predictions(first, X), rtol=0)


@pytest.mark.parametrize("name", sorted(DRAWN))
def test_other_seeds_are_other_draws(name):
    """Wrong variant: `random_state` is ignored."""
    other = fit(name, random_state=1)
    assert not np.array_equal(other.posterior_.params, fitted(name).posterior_.params)


# --- what a fit is to say -------------------------------------------------------------


@every_problem
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


@every_problem
def test_predictions_agree_with_each_other(name, monkeypatch):
    """Probabilities and their logarithms, intervals and quantiles, mean and draws."""
    monkeypatch.setattr("skvi._predictive._quantiles.ROW_BLOCK", 64)  # shorter
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


@pytest.mark.parametrize("name", REGRESSIONS)
def test_quantiles_invert_the_density(name):
    """Its integral between two of them is the difference of their levels.

    Wrong variants: a mean of log densities; the density of one unit in another; the
    quantiles of the normal with the same moments.
    """
    model, x = fitted(name), data(name)[0][7:8]
    levels = np.array([1e-7, 1e-5, 1e-3, 0.05, 0.5, 0.9, 0.999, 1 - 1e-5, 1 - 1e-7])
    ends = model.predict_quantiles(x, levels)[0]
    nodes, weights = np.polynomial.legendre.leggauss(100)
    half = np.diff(ends)[:, None] / 2
    y = ends[:-1, None] + half * (1 + nodes)
    density = np.exp(model.predict_log_density(np.repeat(x, y.size, 0), y.ravel()))
    mass = half[:, 0] * (density.reshape(y.shape) @ weights)
    np.testing.assert_allclose(mass, np.diff(levels), rtol=1e-4)


@pytest.mark.parametrize("name", COUNTS)
def test_quantiles_of_counts_are_the_smallest(name):
    """Whose probability, with all below, is the level. Wrong variant: one less."""
    model, x = fitted(name), data(name)[0][7:8]
    levels = np.array([0.05, 0.5, 0.9, 1 - 1e-6])
    found = model.predict_quantiles(x, levels)[0].astype(int)
    counts = np.arange(found[-1] + 1)
    density = model.predict_log_density(np.repeat(x, len(counts), 0), counts)
    at_most = np.append(np.exp(density).cumsum(), 0.0)  # of -1: 0
    assert np.all(at_most[found] >= levels - 1e-9)
    assert np.all(at_most[found - 1] < levels)


@every_problem
def test_row_wise_is_batched_is_permuted(name):
    """Also far from the data. Networks to the last bit.

    Wrong variant: one quadrature for all rows, as fine as the widest one needs.
    """
    model, X = fitted(name), data(name)[0][::10]
    far = 1.0 if name in COUNTS else 100.0
    X = np.vstack([X, far * X, 0.01 * X])
    tolerance = {"rtol": 0 if "mlp" in name else 1e-11, "atol": 1e-12}
    if "mlp" in name:
        tolerance["atol"] = 0
    whole = predictions(model, X)
    rows = [predictions(model, row[None]) for row in X]
    together = {key: np.concatenate([row[key] for row in rows]) for key in whole}
    assert_same(together, whole, **tolerance)
    order = np.random.default_rng(0).permutation(len(X))
    expected = {key: values[order] for key, values in whole.items()}
    assert_same(predictions(model, X[order]), expected, **tolerance)
    assert_same(predictions(model, X), whole, rtol=0)


@every_problem
def test_pickles_are_small_and_hold_no_tensors(name):
    """The copy predicts, draws, bounds and fits the same."""
    model, (X, y) = fitted(name), data(name)
    stored = pickle.dumps(model)
    # Behind predictions.
    kept = getattr(model, "_coefficients", None)
    draws = getattr(model, "_theta", getattr(kept, "theta", None))
    nodes = getattr(model.posterior_, "members", ())
    held = sum(getattr(node, "params", X[:0]).nbytes for node in nodes)
    assert len(stored) < 20_000 + 2 * held + (0 if draws is None else draws.nbytes)
    # Networks name their activation, a function of torch.
    assert (b"_rebuild_tensor" if "mlp" in name else b"torch") not in stored
    copy = pickle.loads(stored)
    assert_same(predictions(copy, X), predictions(model, X), rtol=0)
    found = [m.sample_posterior(2, random_state=1) for m in (copy, model)]
    assert found[0].keys() == found[1].keys()
    assert all(np.array_equal(found[0][key], found[1][key]) for key in found[0])
    assert np.array_equal(copy.fit(X, y).posterior_.params, model.posterior_.params)


@pytest.mark.parametrize("name", ["linear, fixed", "logistic, eubo"])
def test_pickles_keep_the_evidence(name):
    model, (X, y) = fitted(name), data(name)
    copy, options = pickle.loads(pickle.dumps(model)), {"n_draws": 64}
    before = process_state()
    found = [m.evidence_bounds(X, y, random_state=0, **options) for m in (copy, model)]
    assert process_state() == before
    assert found[0] == found[1]


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


@pytest.mark.parametrize("name", [name for name in PROBLEMS if "mlp" in name])
def test_networks_leave_rows_without_weight_out(name):
    X, y = data(name)
    keep = np.arange(len(y)) % 3 > 0
    full = fit(name, weight=keep.astype(float))
    part = fit(name, X[keep], y[keep], np.ones(keep.sum()))
    assert np.array_equal(full.predict(X), part.predict(X))
    with pytest.raises(ValueError, match=r"[Ww]eight"):
        fit(name, weight=np.zeros(len(y)))


@pytest.mark.parametrize("name", ["mlp, binary", "mlp, classes"])
def test_weights_of_networks_of_classes_are_repetitions(name):
    """To rounding, which steps amplify; wrong variant: the weights' square."""
    X, y = data(name)
    weight = np.arange(len(y)) % 3
    repeated = fit(name, np.repeat(X, weight, 0), np.repeat(y, weight))
    weighted = fit(name, X, y, weight)
    expected, found = repeated.predict_proba(X), weighted.predict_proba(X)
    np.testing.assert_allclose(found, expected, rtol=5e-3)


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
    # What is minimized is flat at its end; the ELBO of another optimum is not.
    assert b.objective_value_ == pytest.approx(a.objective_value_, abs=1e-8)
    assert b.lower_bound_ == pytest.approx(a.lower_bound_, abs=1e-5)


# --- containers -----------------------------------------------------------------------


@every_problem
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


#: One problem for each way that numbers go through an estimator.
TAKEN = ["linear", "linear, student", "logistic", "multinomial", "poisson", "mlp"]
COLUMNS = ["length", "width", "long", "wide"]
CONTAINERS = {
    "pandas": lambda a: (
        pd.DataFrame(a, columns=COLUMNS) if a.ndim > 1 else pd.Series(a)
    ),
    "polars": lambda a: pl.DataFrame(a, COLUMNS) if a.ndim > 1 else pl.Series(a),
    "columns first": np.asfortranarray,
    "negative strides": lambda a: a[::-1].copy()[::-1],
    "bytes swapped": lambda a: a.astype(a.dtype.newbyteorder()),
    "lists": lambda a: a.tolist(),
    "memory map": None,
}


def contained(array, kind, folder):
    """The array in a container; a memory map is read-only."""
    if kind != "memory map":
        return CONTAINERS[kind](array)
    path = folder / f"{len(list(folder.iterdir()))}.npy"
    np.save(path, array)
    return np.load(path, mmap_mode="r")


@pytest.mark.parametrize("kind", CONTAINERS)
@pytest.mark.parametrize("name", TAKEN)
def test_containers_do_not_matter(name, kind, tmp_path):
    """Of X, y and weights; names of columns are kept, and asked for again.

    Wrong variants: `torch.from_numpy` of an array that is read-only; X is validated
    twice, the second time without its names.
    """
    X, y = data(name)
    weight = np.ones(len(y))
    table, target, weights = (contained(a, kind, tmp_path) for a in (X, y, weight))
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # else it warns once in a process
    try:
        model = fit(name, table, target, weights)
        found = answers(model, table, target)
    finally:
        torch.set_warn_always(before)
    assert_same_posterior(model, fitted(name), 1e-7)
    expected = answers(fitted(name), X, y)
    assert_same(found, expected, rtol=1e-6, atol=1e-9)
    if name == "linear":
        bounds = fitted(name).evidence_bounds(X, y)
        found = model.evidence_bounds(table, target, sample_weight=weights)
        ends = [(b.lower, b.upper) for b in (found, bounds)]
        np.testing.assert_allclose(*ends, rtol=1e-12)
    if kind in ("pandas", "polars"):
        assert list(model.feature_names_in_) == COLUMNS
        with pytest.raises(ValueError, match="feature names"):
            model.predict(table[COLUMNS[::-1]])
        assert not hasattr(model.fit(X, y), "feature_names_in_")


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
        assert_same(found, expected, rtol=1e-5, atol=1e-7)
    assert (sparse != before).nnz == 0


# --- what was fitted is fixed ---------------------------------------------------------

#: Another valid value of every parameter; the second where the first is the old one.
OTHERS = {
    "column_groups": [{"a": [0]}],
    "objective": ["eubo", "elbo"],
    "divergence": ["renyi"],
    "loss": ["beta", "log"],
    "posterior": ["mean_field", "full_rank"],
    "prior": ["laplace", "normal"],
    "intercept_prior": [Normal(7.0)],
    "fit_intercept": [False, True],
    "hidden_layer_sizes": [(2, 2)],
    "activation": ["tanh"],
    "skip_connection": [False, True],
    "likelihood": ["student_t", "gaussian"],
    "likelihood of counts": ["negative_binomial", "poisson"],
    "noise_scale": [0.1],
    "normalize_y": [False, True],
    "class_weight": ["balanced", None],
    "solver": ["stochastic"],
    "batch_size": [8],
    "max_iter": [1, 2],
    "tol": [10.0],
    "early_stopping": [True],
    "validation_fraction": [0.2],
    "warm_start": [True],
    "n_predict_draws": [2],
    "n_jobs": [2],
    "device": ["cpu"],
    "verbose": [True],
    "random_state": [3],
}


def others(name):
    """Every parameter with another value than the one it has."""
    names = {"likelihood": "likelihood of counts"} if name in COUNTS else {}
    return {
        key: next(v for v in OTHERS[names.get(key, key)] if v != value)
        for key, value in PROBLEMS[name].get_params(deep=False).items()
    }


def state(model):
    """Bytes of all that is no parameter."""
    params = model.get_params(deep=False)
    rest = {key: v for key, v in vars(model).items() if key not in params}
    return {key: pickle.dumps(v) for key, v in rest.items()}


@every_problem
def test_parameters_change_no_fit(name):
    """Wrong variants: a prediction reads a parameter; a query writes to the fit."""
    X, y = data(name)
    model = fit(name, random_state=0)
    before, expected = state(model), answers(model, X, y)
    model.set_params(**others(name))
    assert_same(answers(model, X, y), expected, rtol=0)
    assert state(model) == before


@pytest.mark.parametrize("name", ["linear", "linear, fixed", "logistic", "poisson"])
@pytest.mark.filterwarnings("ignore:.*vague Gamma")
def test_parameters_change_no_evidence(name):
    """And the evidence changes no parameter.

    Wrong variant: `_standardize` writes to the estimator.
    """
    X, y = data(name)
    model = fit(name, random_state=0)
    before, bounds = state(model), []
    for parameters in ({}, others(name)):
        params = model.set_params(**parameters).get_params(deep=False)
        bounds.append(model.evidence_bounds(X, y, n_draws=64, random_state=0))
        assert model.get_params(deep=False) == params
    assert bounds[0] == bounds[1]
    assert state(model) == before


def test_parts_that_are_changed_in_place():
    """Nested names change the parameter, not what the fit made of it.

    Wrong variant: the class weights of the fit are kept, but not a copy of them.
    """
    X, y = data("logistic")
    weights = {0: 2.0, 1: 1.0}
    model = fit("logistic", prior=Normal(1.0), class_weight=weights)
    bounds = model.evidence_bounds(X, y, n_draws=64, random_state=0)
    model.set_params(prior__scale=5.0)
    weights[0] = 9.0
    assert model.evidence_bounds(X, y, n_draws=64, random_state=0) == bounds


def test_overlapping_fits_restore_the_threads_of_linear_algebra():
    # Wrong variant: each fit restores what it found, and the second found one thread.
    inside = threading.Event(), threading.Event()
    first_is_over = threading.Event()
    X = np.arange(8.0)[:, None]

    def fit(k, other):
        calls = count()

        def loss(f, y):
            if next(calls) == 20:  # the first ones are checks before the fit
                inside[k].set()
                assert other.wait(20)
            return (f - y).square()

        BayesianLogisticRegression(loss=loss, prior="normal").fit(X, X[:, 0] > 3)

    def threads():
        return {p["num_threads"] for p in threadpool_info() if p["user_api"] == "blas"}

    if not threads():
        pytest.skip("this threadpoolctl does not know the linear algebra of SciPy")
    first = threading.Thread(target=fit, args=(0, inside[1]))
    second = threading.Thread(target=fit, args=(1, first_is_over))
    with threadpool_limits(2, "blas"):
        for lib in ThreadpoolController().lib_controllers:  # any thread may set them
            getattr(lib, "clear_controlling_thread", lambda force: None)(force=True)
        first.start()
        assert inside[0].wait(20)
        second.start()
        first.join()
        first_is_over.set()
        second.join()
        assert threads() == {2}
