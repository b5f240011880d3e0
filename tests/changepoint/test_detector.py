"""The detector as an estimator: streams, scales, missing rows, bad input."""

import pickle
import signal
import time

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import estimator_checks_generator

from skvi.changepoint import (
    Autoregression,
    BayesianChangepointDetector,
    BernoulliTrials,
    ConstantMean,
    Hazard,
    KnownNoise,
    LinearRegression,
    ObservationModel,
    PoissonCounts,
    VectorAutoregression,
)
from skvi.divergences import KL
from skvi.exceptions import IncompatibleComponentsError
from skvi.losses import BetaLoss, LogLoss
from skvi.priors import Normal

ORDERED = {
    "check_methods_sample_order_invariance": "rows of a series have an order",
    "check_methods_subset_invariance": "a row is judged by those before and after it",
}
CHECKED = [
    BayesianChangepointDetector(),
    BayesianChangepointDetector(
        [Autoregression(1), ConstantMean()], loss=BetaLoss(1.2), max_hypotheses=10
    ),
]
#: Checks of what the robust detector does differently.
OF_PARTS = {
    "check_dict_unchanged",
    "check_estimators_dtypes",
    "check_estimators_overwrite_params",
    "check_estimators_pickle",
    "check_fit2d_1feature",
    "check_fit2d_1sample",
    "check_fit_idempotent",
    "check_n_features_in",
    "check_transformer_general",
}


@pytest.mark.parametrize(
    ("estimator", "check"),
    [
        pytest.param(
            estimator,
            check,
            id=f"{i}-{check.func.__name__}",
            marks=pytest.mark.xfail(reason=ORDERED[check.func.__name__], strict=True)
            if check.func.__name__ in ORDERED
            else (),
        )
        for i, detector in enumerate(CHECKED)
        for estimator, check in estimator_checks_generator(detector)
        if i == 0 or check.func.__name__ in OF_PARTS
    ],
)
def test_checks_of_scikit_learn(estimator, check):
    check(estimator)


def series(n=200, d=1, seed=0):
    X = np.random.default_rng(seed).standard_normal((n, d))
    X[n // 2 :] += 4.0
    return X


KINDS = {
    "default": BayesianChangepointDetector(burn_in=50),
    "models": BayesianChangepointDetector(
        [Autoregression(2), VectorAutoregression(), ConstantMean()], burn_in=50
    ),
    "robust": BayesianChangepointDetector(
        Autoregression(), loss="beta", adapt_beta=True, burn_in=20, max_hypotheses=8
    ),
}


def state(detector):
    names = (
        "run_lengths_ run_length_posterior_ model_posterior_ log_evidence_ "
        "change_probability_ predictions_ prediction_stds_ log_densities_ "
        "changepoints_ labels_ dropped_mass_ run_length_beta_"
    )
    return {name: getattr(detector, name) for name in names.split()}


def assert_same(a, b):
    a, b = state(a), state(b)
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_streams_in_parts_are_the_whole(kind):
    """Row by row, in parts, through pickles, with a burn-in that comes in pieces.

    Wrong variants: the first part alone scales the priors; a pickle without the past.
    """
    X = series(110, 2)
    X[30, 0] = np.nan
    whole = clone(KINDS[kind]).partial_fit(X)
    parts = clone(KINDS[kind])
    for rows in (X[:7], X[7:20], X[20:71], *X[71:80, None], X[80:]):
        parts = pickle.loads(pickle.dumps(parts.partial_fit(rows)))
    assert_same(whole, parts)
    assert_same(clone(KINDS[kind]).fit(X), whole)


def test_results_have_the_rows_of_the_fit():
    X = series()
    detector = BayesianChangepointDetector(history=20).fit(X)
    assert detector.changepoints_.tolist() == [100]
    assert detector.labels_.tolist() == [0] * 100 + [1] * 100
    assert detector.change_probability_.shape == (200,)
    assert np.array_equal(detector.predict(X), detector.labels_)
    assert np.array_equal(detector.fit_predict(X), detector.labels_)
    transformed = detector.transform(X)
    np.testing.assert_array_equal(transformed[:, 0], detector.change_probability_)
    part = BayesianChangepointDetector(
        ConstantMean(noise_scale=detector._scaling.burn_in.noise[0]),
        scaling=(detector.location_, detector.scale_),
    ).fit(X[:103])
    expected = (part.run_lengths_ - 1) @ part.run_length_posterior_
    assert transformed[102, 1] == pytest.approx(expected, abs=1e-6)
    assert detector.score(X) == pytest.approx(detector.log_evidence_ / 200, abs=1e-4)


def test_looking_back_in_blocks_is_looking_back_at_once():
    """Where the lag is long: the probabilities of a look back over everything.

    Wrong variant: the block that is frozen is the last one, not the first one.
    """
    X = series(300)
    whole = BayesianChangepointDetector().fit(X).change_probability_
    blocks = BayesianChangepointDetector(history=60).fit(X).change_probability_
    np.testing.assert_allclose(blocks, whole, atol=0.02)
    assert blocks[150] > 0.9


def test_only_sure_changepoints_are_reported():
    """Also of rows no longer kept. Wrong variant: P(change) of the row itself."""
    rng = np.random.default_rng(3)
    X = np.cumsum(0.25 * rng.standard_normal((400, 1)), axis=0)  # drifts, and
    X = X + rng.standard_normal((400, 1))
    X[200:] += 15.0  # jumps once
    common = {"burn_in": 400, "scaling": (0.0, 1.0)}
    every = BayesianChangepointDetector(threshold=0.0, **common).fit(X)
    sure = BayesianChangepointDetector(threshold=0.9, **common).fit(X)
    assert len(every.changepoints_) > len(sure.changepoints_) > 0
    assert set(sure.changepoints_) < set(every.changepoints_)
    assert np.abs(sure.changepoints_ - 200).min() <= 1
    p = sure.change_probability_
    expected = [c for c in every.changepoints_ if p[c - 5 : c + 6].sum() >= 0.9]
    assert sure.changepoints_.tolist() == expected
    assert len(sure.segment_models_) == len(sure.changepoints_) + 1
    blocks = BayesianChangepointDetector(threshold=0.9, **common | {"burn_in": 100})
    blocks.set_params(models=ConstantMean(noise_scale=1.0), history=60)
    for rows in np.split(X, 8):
        blocks.partial_fit(rows)
    assert blocks.first_row_ > 200
    few = blocks.changepoints_.tolist()
    assert 200 in few
    assert len(few) < len(blocks.set_params(threshold=0.0).changepoints_)


def test_streams_keep_their_last_rows_only():
    detector = BayesianChangepointDetector(history=40, burn_in=50)
    for rows in np.split(series(400), 8):
        detector.partial_fit(rows)
    assert detector.n_rows_seen_ == 400
    assert detector.first_row_ == 360
    assert detector.change_probability_.shape == (40,)
    assert detector.changepoints_.tolist() == [200]
    assert len(detector._stream.records.posteriors()) <= 80


def test_dates_are_kept():
    index = pd.date_range("2024-01-01", periods=200, freq="h", name="time")
    X = pd.DataFrame(series(200, 2), index=index, columns=["a", "b"])
    X["given"] = 1.0
    detector = BayesianChangepointDetector(
        "linear_regression", feature_columns=["given"]
    ).set_output(transform="pandas")
    out = detector.fit_transform(X)
    assert out.index.equals(index)
    assert list(out.columns) == ["change_probability", "run_length"]
    assert pd.DatetimeIndex(detector.changepoint_labels_).equals(index[[100]])
    assert detector.predict_next([1.0])[0] == pytest.approx(4, abs=0.5)
    with pytest.raises(ValueError, match="1 feature"):
        detector.predict_next()


def test_units_do_not_matter():
    """Units of a column change the evidence by the logarithm of the scale, only.

    Wrong variants: priors in absolute units; the evidence of the standardized series.
    """
    X = series(120, 2)
    factors = np.array([1e-6, 3e5])
    a = BayesianChangepointDetector(Autoregression()).fit(X)
    b = BayesianChangepointDetector(Autoregression()).fit(X * factors + [0, 1e7])
    assert np.array_equal(a.changepoints_, b.changepoints_)
    np.testing.assert_allclose(a.change_probability_, b.change_probability_, atol=1e-6)
    expected = a.log_evidence_ - 119 * np.log(factors).sum()
    assert b.log_evidence_ == pytest.approx(expected, abs=1e-4)
    np.testing.assert_allclose(
        b.predictions_[1:], a.predictions_[1:] * factors + [0, 1e7], rtol=1e-6
    )


def test_interrupts_keep_the_rows_so_far():
    """And raise; `partial_fit` goes on as if nothing had happened."""
    X = series(400)
    detector = BayesianChangepointDetector(burn_in=50)

    class Slow(ConstantMean):
        def regressors(self, row):
            if row.index == 130 and not detector.__dict__.get("interrupted"):
                detector.interrupted = True
                signal.raise_signal(signal.SIGINT)
            return super().regressors(row)

    detector.set_params(models=Slow())
    with pytest.raises(KeyboardInterrupt):
        detector.fit(X)
    n = detector.n_rows_seen_  # with those that were computed together with it
    assert 131 <= n <= 162
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    detector.partial_fit(X[n:])
    expected = BayesianChangepointDetector(Slow(), burn_in=50).fit(X)
    assert detector.log_evidence_ == expected.log_evidence_
    assert np.array_equal(detector.changepoints_, expected.changepoints_)


def test_long_fits_report(capsys, monkeypatch):
    clock = iter(np.arange(0.0, 1e4, 0.6))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    BayesianChangepointDetector(verbose=1).fit(series(100))
    assert "row 64 of 100" in capsys.readouterr().out


# --- hard series ----------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["log", "beta"])
@pytest.mark.parametrize("size", [10.0, 100.0, 1e6])
def test_outliers(loss, size):
    """Of any size: finite results; the robust detector sees no change in them."""
    X = series(160)
    X[[30, 120], 0] = [size, -size]
    detector = BayesianChangepointDetector(loss=loss).fit(X)
    for name, values in state(detector).items():
        assert np.isfinite(values).all(), name
    assert np.abs(detector.changepoints_ - 80).min() <= 1
    if loss == "beta":
        assert len(detector.changepoints_) == 1
        # The outlier teaches next to nothing.
        assert detector.predictions_[31] == pytest.approx(0, abs=0.8)


@pytest.mark.parametrize("loss", ["log", "beta"])
def test_constant_stretches(loss):
    """Rows that are all equal, and a change to other ones that are."""
    X = np.zeros((120, 1))
    detector = BayesianChangepointDetector(loss=loss)
    assert detector.fit(X).changepoints_.size == 0
    X[60:] = 1.0
    assert detector.fit(X).changepoints_.tolist() == [60]
    X = series(120)
    X[30:50] = 0.3
    assert 60 in detector.fit(X).changepoints_
    assert np.isfinite(detector.log_densities_).all()


@pytest.mark.parametrize("loss", ["log", "beta"])
def test_one_row(loss):
    detector = BayesianChangepointDetector(loss=loss).fit([[3.0]])
    assert detector.changepoints_.size == 0
    assert detector.predict_next() == pytest.approx([3.0], abs=1e-6)
    assert BayesianChangepointDetector("autoregression").fit([[3.0]]).labels_ == [0]


def test_series_of_different_scale():
    X = np.column_stack([1e6 * series(seed=1), 1e-6 * series(seed=2)])
    X[:, 0] -= 4e6 * (np.arange(200) >= 100)  # only the small one changes
    detector = BayesianChangepointDetector().fit(X)
    assert detector.changepoints_.tolist() == [100]


def test_missing_rows():
    """Whole rows, the first and the last one, and everything."""
    X = series()
    X[[0, 40, 41, 42, 199]] = np.nan
    detector = BayesianChangepointDetector().fit(X)
    assert detector.changepoints_.tolist() == [100]
    assert np.isfinite(detector.predictions_).all()
    nothing = BayesianChangepointDetector().fit(np.full((9, 1), np.nan))
    assert nothing.log_evidence_ == 0
    assert nothing.changepoints_.size == 0


def test_a_beta_that_is_too_large_finds_nothing_but_is_right():
    """Every row is an outlier to it; posteriors stay valid."""
    X = series()
    X[::2] *= 30
    found = BayesianChangepointDetector(
        ConstantMean(noise_scale=0.05), loss=BetaLoss(4.0)
    ).fit(X)
    for name, values in state(found).items():
        assert np.isfinite(values).all(), name


def test_wrong_shapes_in_mid_stream():
    detector = BayesianChangepointDetector().fit(series(20, 2))
    before = state(detector)
    for bad, message in [
        (np.zeros((3, 1)), "2 features"),
        (np.zeros(4), "2D"),
        (np.full((2, 2), np.inf), "infinity"),
    ]:
        with pytest.raises(ValueError, match=message):
            detector.partial_fit(bad)
    assert detector.n_rows_seen_ == 20
    for name, values in state(detector).items():
        np.testing.assert_array_equal(values, before[name])


@pytest.mark.parametrize(
    ("params", "X", "message"),
    [
        ({"models": "poisson"}, [[1.5]], "counts"),
        ({"models": "poisson"}, [[-1.0]], "counts"),
        ({"models": "bernoulli"}, [[2.0]], "zeros and ones"),
        ({"models": "median"}, [[0.0]], "none of"),
        ({"models": []}, [[0.0]], "empty"),
        ({"models": [PoissonCounts(), ConstantMean()]}, [[0.0]], "common unit"),
        ({"models": [PoissonCounts(), BernoulliTrials()]}, [[0.0]], "common unit"),
        ({"models": KnownNoise(), "loss": "beta"}, [[0.0]], "KnownNoise"),
        ({"models": KnownNoise(), "divergence": KL(2.0)}, [[0.0]], "KnownNoise"),
        ({"run_length_loss": "beta"}, [[0.0]], "robust loss"),
        ({"adapt_beta": True}, [[0.0]], "adapt_beta"),
        ({"feature_columns": [0]}, [[0.0]], "every column"),
        ({"feature_columns": [1]}, [[0.0]], "numbered from 0"),
        ({"feature_columns": ["a"]}, [[0.0]], "no column"),
        ({"model_prior": [0.5, 0.5]}, [[0.0]], "1 model"),
        ({"scaling": (0.0, 0.0)}, [[0.0]], "positive"),
        ({"scaling": (0.0,)}, [[0.0]], "pair"),
        ({"hazard": 0.5}, [[0.0]], "hazard"),
        ({"models": ConstantMean(noise_scale=-1.0)}, [[0.0]], "noise_scale"),
        ({}, [[1e200]], "1e100"),
    ],
)
def test_what_is_refused(params, X, message):
    with pytest.raises(ValueError, match=message):
        BayesianChangepointDetector(**params).fit(np.array(X))


def test_other_types_are_refused():
    with pytest.raises(TypeError, match="ObservationModel"):
        BayesianChangepointDetector([Normal()]).fit([[0.0]])
    with pytest.raises(IncompatibleComponentsError):
        BayesianChangepointDetector(run_length_loss=BetaLoss()).fit([[0.0]])
    with pytest.raises(NotFittedError):
        BayesianChangepointDetector().predict([[0.0]])
    with pytest.raises(AttributeError, match="not fitted"):
        _ = BayesianChangepointDetector().changepoints_


def test_impossible_rows_and_hazards_are_named():
    class Positive(ObservationModel):
        def prior(self, burn_in):
            return {"n": np.ones(burn_in.n_series)}

        def log_predictive(self, state, row):
            return np.where(row.values > 0, -row.values, -np.inf) * state["n"]

        def update(self, state, row):
            return state

        def moments(self, state, row):
            return state["n"], state["n"]

    class Loud(Hazard):
        def probability(self, length):
            return 2.0 * np.ones(len(length))

    with pytest.raises(ValueError, match="Row 1 is impossible"):
        BayesianChangepointDetector(Positive(), scaling=None).fit([[1.0], [-1.0]])
    with pytest.raises(ValueError, match="Loud"):
        BayesianChangepointDetector(hazard=Loud()).fit([[1.0], [-1.0]])


def test_losses_by_name_and_object():
    X = series(60)
    a = BayesianChangepointDetector(loss=LogLoss(), run_length_loss="log").fit(X)
    assert a.log_evidence_ == BayesianChangepointDetector().fit(X).log_evidence_
    robust = BayesianChangepointDetector(loss="beta").fit(X)
    assert robust.loss_function_.beta == pytest.approx(1 + 2.0**-2)
    half = BayesianChangepointDetector(loss="beta", run_length_loss="log").fit(X)
    assert half.log_evidence_ == pytest.approx(half.log_densities_.sum(), abs=1e-4)
    assert robust.log_evidence_ != pytest.approx(robust.log_densities_.sum(), abs=1)


def test_weaker_divergence_learns_less():
    """KL(weight=4): four rows teach what one does. Robust and standard alike."""
    X = series(60)
    for loss in ("log", BetaLoss(1 + 1e-8)):
        common = {"hazard": 1e9, "loss": loss, "scaling": None}
        model = ConstantMean(noise_scale=1.0)
        a = BayesianChangepointDetector(model, divergence=KL(4.0), **common)
        b = BayesianChangepointDetector(model, **common)
        a.fit(np.repeat(X[:10], 4, 0))
        b.fit(X[:10])
        assert a.predict_next()[0] == pytest.approx(b.predict_next()[0], abs=1e-5)


def test_features_are_regressed_on():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((160, 2))
    coef = np.where(np.arange(160)[:, None] < 80, [[2.0, 0.0]], [[-2.0, 1.0]])
    y = (features * coef).sum(1) + 0.3 * rng.standard_normal(160)
    X = np.column_stack([features[:, 0], y, features[:, 1]])
    detector = BayesianChangepointDetector(
        LinearRegression(), feature_columns=[0, 2]
    ).fit(X)
    assert detector.changepoints_.tolist() == [80]
    assert detector.predict_next([1.0, 0.0])[0] == pytest.approx(-2, abs=0.2)
