"""`BayesianLogisticRegression`: data in, predictions out, nothing else touched."""

import pickle
import random

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.integrate import quad
from scipy.special import expit, log_expit, logsumexp
from scipy.stats import norm
from sklearn.datasets import load_breast_cancer
from sklearn.utils import get_tags

from skvi.base import NormalForm
from skvi.divergences import KL, Renyi
from skvi.linear_model import BayesianLogisticRegression
from skvi.losses import BetaLoss
from skvi.priors import Laplace, Normal
from tests.reference import Problem, real_data, synthetic_data

PARTS = [
    {},
    {"posterior": "mean_field"},
    {"prior": Laplace(), "loss": BetaLoss(1.3), "fit_intercept": False},
    {"divergence": Renyi(0.7)},
    {"divergence": KL(weight=2.0), "intercept_prior": Normal(10.0)},
]


@pytest.fixture
def data():
    X, y = real_data("virginica")
    return X.copy(), y.copy()


def fit(data, weight=None, **parts):
    return BayesianLogisticRegression(**parts).fit(*data, sample_weight=weight)


def assert_same(a, b, tol):
    """Equal coefficients in units of their deviations, equal deviations and bounds."""
    assert np.abs((a.coef_ - b.coef_) / b.coef_std_).max() < tol
    assert a.coef_std_ == pytest.approx(b.coef_std_, rel=tol)
    assert a.lower_bound_ == pytest.approx(b.lower_bound_, abs=tol)
    if a.fit_intercept:
        shift = (a.intercept_ - b.intercept_) / b.intercept_std_
        assert np.abs(shift).max() < tol


@pytest.mark.parametrize("parts", PARTS)
def test_weight_is_repetition(data, parts):
    """Integers, with zeros that leave rows out, whatever those rows hold.

    Wrong variants: the weights' square; weights normalised to mean 1.
    """
    X, y = data
    weight = np.arange(len(y)) % 3
    repeated = fit((np.repeat(X, weight, 0), np.repeat(y, weight)), tol=1e-10, **parts)
    X[weight == 0] *= 1e6
    for kind in (int, float, np.float32, list):
        w = list(map(int, weight)) if kind is list else weight.astype(kind)
        weighted = fit((X, y), w, tol=1e-10, **parts)
        assert_same(weighted, repeated, 1e-6)


def test_fractional_weights_are_powers(data):
    """A weight of w is the likelihood to the power w; against the reference."""
    weight = np.linspace(0.1, 1.9, len(data[1]))
    model = fit(data, weight, tol=1e-10)
    value, mean, _ = Problem(*data, w=weight).optimum(full_rank=True)
    assert model.lower_bound_ == pytest.approx(-value, abs=1e-4)
    shift = np.append(model.coef_[0], model.intercept_) - mean
    assert np.abs(shift).max() < 1e-3
    assert_same(fit(data, np.full(100, 0.5)), fit(data, 0.5), 1e-12)


@pytest.mark.parametrize("parts", PARTS)
def test_labels_are_symmetric(data, parts):
    """Swapped labels mirror everything. Wrong variant: y coded as 0, 1 in a loss
    for -1, 1."""
    X, y = data
    names = np.array(["no", "yes"], dtype=object)
    a = fit((X, names[y]), tol=1e-10, **parts)
    b = fit((X, 1 - y), tol=1e-10, **parts)
    assert np.abs((a.coef_ + b.coef_) / b.coef_std_).max() < 1e-6
    assert np.abs(a.intercept_ + b.intercept_).max() < 1e-6
    assert a.coef_std_ == pytest.approx(b.coef_std_, rel=1e-6)
    assert list(a.classes_) == ["no", "yes"]
    assert a.predict_proba(X) == pytest.approx(b.predict_proba(X)[:, ::-1], abs=1e-7)
    assert set(a.predict(X)) == {"no", "yes"}
    assert a.score(X, names[y]) == b.score(X, 1 - y) > 0.9
    assert list(fit((X, y == 1), **parts).classes_) == [False, True]


def test_rows_and_columns_may_be_permuted(data):
    """The order of rows and features is no information."""
    X, y = data
    rng = np.random.default_rng(0)
    rows, columns = rng.permutation(len(y)), rng.permutation(4)
    a, b = fit(data, tol=1e-10), fit((X[rows][:, columns], y[rows]), tol=1e-10)
    assert b.coef_ == pytest.approx(a.coef_[:, columns], abs=1e-6)
    assert b.lower_bound_ == pytest.approx(a.lower_bound_, abs=1e-8)


def test_pandas_and_names(data):
    X, y = data
    frame = pd.DataFrame(X, columns=list("abcd"))
    model = fit((frame, pd.Series(y).map({0: "u", 1: "v"}).astype("category")))
    assert list(model.feature_names_in_) == list("abcd")
    assert np.array_equal(model.coef_, fit(data).coef_)
    assert np.array_equal(model.predict_proba(frame), fit(data).predict_proba(X))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[list("dcba")])
    assert not hasattr(model.fit(X, y), "feature_names_in_")


@pytest.mark.parametrize("posterior", ["mean_field", "full_rank"])
@pytest.mark.parametrize("name", ["virginica", "breast_cancer"])
def test_float32(name, posterior):
    """float32 out for float32 in, and the same answer to 0.0001 deviations."""
    X, y = real_data(name)
    double = fit((X, y), posterior=posterior)
    X = X.astype(np.float32)
    single = fit((X, y), posterior=posterior)
    assert_same(single, double, 1e-4)
    for array in (single.coef_, single.coef_std_, single.intercept_):
        assert array.dtype == np.float32
    for method in ("predict_proba", "predict_log_proba", "decision_function"):
        values = getattr(single, method)(X)
        assert values.dtype == np.float32
        assert getattr(double, method)(X.astype(float)).dtype == np.float64
        assert values == pytest.approx(getattr(double, method)(X), rel=1e-4, abs=1e-6)


def test_memory_layouts(data):
    X, y = data
    expected = fit(data)
    readonly = X.copy()
    readonly.flags.writeable = False
    reverse = X[::-1, ::-1].copy()[::-1, ::-1]
    for array in (readonly, np.asfortranarray(X), reverse, X.astype(">f8")):
        model = fit((array, y))
        assert model.coef_ == pytest.approx(expected.coef_, abs=1e-8)
        assert model.predict_proba(array) == pytest.approx(expected.predict_proba(X))
        assert np.array_equal(array, X)


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_predictions_do_not_depend_on_the_batch(scale):
    """Row by row, all at once, permuted, twice: the same to rounding.

    Wrong variant: one quadrature for all rows, as fine as the widest needs.
    """
    X, y = synthetic_data("nearly_separable")
    model = fit((X, y), prior=Normal(scale))
    X = np.vstack([X, 100 * X, 0.01 * X])
    order = np.random.default_rng(0).permutation(len(X))
    for method in ("predict_proba", "predict_log_proba", "decision_function"):
        call = getattr(model, method)
        batched = call(X)
        rows = np.concatenate([call(row[None]) for row in X])
        np.testing.assert_allclose(rows, batched, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(call(X[order]), batched[order], rtol=1e-12)
        assert np.array_equal(call(X), batched)


@pytest.mark.parametrize("posterior", ["mean_field", "full_rank"])
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_probabilities_are_posterior_averages(scale, posterior):
    """Against adaptive quadrature to 1e-6 and against 10^6 posterior draws.

    Wrong variants: the plug-in probability at the mean; the variance without the
    intercept's.
    """
    X, y = synthetic_data("nearly_separable")
    model = fit((X, y), prior=Normal(scale), posterior=posterior)
    X = X[:8]
    p = model.predict_proba(X)
    assert p.sum(1) == pytest.approx(1, abs=1e-12)
    draws = model.sample_posterior(1_000_000, random_state=0)
    f = draws["coef"][:, 0] @ X.T + draws["intercept"]
    error = expit(f).std(0) / 1000
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


@pytest.mark.parametrize("spread", [0.3, 1.0, 5.0, 30.0, 200.0])
def test_log_probabilities_of_labels_that_are_far_off(spread):
    """Down to exp(-700), where a probability itself still has digits to lose.

    The integrand has its mode far from the mean of f. Wrong variants: the logarithm
    of a probability that has underflown; nodes around the mean only.
    """
    X, y = synthetic_data("tiny")
    parts = {"posterior": "mean_field", "fit_intercept": False}
    posterior = (model := fit((X[:, :1], y), **parts)).posterior_
    for shift in (0, 2, 5, 9, 15, 30):
        m = -shift * spread
        posterior.set_normal(NormalForm(*torch.tensor([[m], [spread]]).double()))
        no, yes = model.predict_log_proba([[1.0]])[0]
        f = np.linspace(m - 40 * spread, max(m + 40 * spread, 60), 200_001)
        log_q = norm.logpdf(f, m, spread) + np.log(f[1] - f[0])
        assert yes == pytest.approx(logsumexp(log_q + log_expit(f)), abs=1e-3)
        assert no == pytest.approx(logsumexp(log_q + log_expit(-f)), abs=1e-6)


def test_log_density_is_that_of_the_labels(data):
    """Wrong variant: the other class's column."""
    X, y = data
    names = np.array(["b", "a"])[y]
    model = fit((X, names))
    p = model.predict_proba(X)
    expected = np.log(np.where(names == "a", p[:, 0], p[:, 1]))
    assert model.predict_log_density(X, names) == pytest.approx(expected)
    assert model.predict_log_proba(X) == pytest.approx(np.log(p))
    far = model.predict_log_proba(1e6 * X)
    assert np.isfinite(far).all()
    with pytest.raises(ValueError, match="not in the fit"):
        model.predict_log_density(X, y)
    with pytest.raises(ValueError, match="100 rows, but y has 99"):
        model.predict_log_density(X, names[1:])


@pytest.mark.parametrize("posterior", ["mean_field", "full_rank"])
def test_posterior_draws_have_its_moments(data, z_score, posterior):
    model = fit(data, posterior=posterior)
    draws = model.sample_posterior(50_000, random_state=1)
    assert draws["coef"].shape == (50_000, 1, 4)
    assert draws["intercept"].shape == (50_000, 1)
    theta = np.hstack([draws["coef"][:, 0], draws["intercept"]])
    mean = np.append(model.coef_[0], model.intercept_)
    std = np.append(model.coef_std_[0], model.intercept_std_)
    assert z_score(theta, mean) < 5
    centred = theta - mean
    cov = model.posterior_.as_normal().covariance()
    assert np.diag(cov) == pytest.approx(std**2)
    assert z_score(centred[:, :, None] * centred[:, None], cov) < 5
    again = model.sample_posterior(50_000, random_state=1)
    assert np.array_equal(again["coef"], draws["coef"])
    assert "intercept" not in fit(data, fit_intercept=False).sample_posterior()


@pytest.mark.parametrize(
    "parts", [{}, {"posterior": "mean_field"}, {"objective": "eubo", "random_state": 0}]
)
def test_pickle(data, parts):
    """Small, without torch, and the copy predicts and bounds the same."""
    X, y = data
    model = fit(data, **parts)
    stored = pickle.dumps(model)
    assert len(stored) < 20_000
    assert b"torch" not in stored
    copy = pickle.loads(stored)
    assert np.array_equal(copy.predict_proba(X), model.predict_proba(X))
    options = {"n_draws": 128, "random_state": 0}
    assert (
        copy.evidence_bounds(X, y, **options).lower
        == model.evidence_bounds(X, y, **options).lower
    )
    assert np.array_equal(copy.fit(X, y).coef_, model.coef_)


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


def test_no_global_state(data):
    """Fits, predictions and bounds leave the process as it was."""
    before = process_state()
    for parts in ({}, {"objective": "eubo"}, {"solver": "stochastic"}):
        model = fit(data, random_state=0, **parts)
        model.predict_proba(data[0])
        model.sample_posterior(3, random_state=0)
        assert process_state() == before
    model.evidence_bounds(*data, n_draws=64, random_state=0)
    assert process_state() == before


@pytest.mark.parametrize("objective", ["elbo", "eubo"])
def test_random_state(data, objective):
    """Equal seeds, equal results; refits too; other seeds differ where draws enter."""
    seeds = [0, 0, np.random.RandomState(0), 1]
    models = [fit(data, objective=objective, random_state=s) for s in seeds]
    assert np.array_equal(models[0].coef_, models[1].coef_)
    assert np.array_equal(models[0].coef_, models[2].coef_)
    assert np.array_equal(models[0].coef_, models[0].fit(*data).coef_)
    differ = not np.array_equal(models[0].coef_, models[3].coef_)
    assert differ == (objective == "eubo")
    if differ:
        assert_same(models[0], models[3], 0.1)


def test_refit_forgets_the_first_fit(data):
    X, y = load_breast_cancer(return_X_y=True)
    model = fit(data)
    fresh = fit(((X - X.mean(0)) / X.std(0), y))
    assert_same(model.fit((X - X.mean(0)) / X.std(0), y), fresh, 1e-12)
    assert model.n_features_in_ == 30
    assert get_tags(model).classifier_tags.multi_class
    assert get_tags(model).input_tags.sparse
