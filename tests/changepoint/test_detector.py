"""What a detector takes, prints and draws."""

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

from skvi.changepoint import (
    BayesianChangepointDetector,
    BernoulliTrials,
    ChangepointDisplay,
    PoissonCounts,
    Regression,
)
from skvi.divergences import RenyiDivergence
from skvi.exceptions import IncompatibleComponentsError
from skvi.losses import BetaLoss, LogLoss
from skvi.priors import Normal
from tests.changepoint.series import jump, state


def test_results_have_the_rows_of_the_fit():
    X = jump()
    detector = BayesianChangepointDetector("constant_mean", history=20).fit(X)
    assert detector.changepoints_.tolist() == [100]
    assert detector.labels_.tolist() == [0] * 100 + [1] * 100
    assert detector.change_probability_.shape == (200,)
    assert np.array_equal(detector.predict(X), detector.labels_)
    assert np.array_equal(detector.fit_predict(X), detector.labels_)
    transformed = detector.transform(X)
    np.testing.assert_array_equal(transformed[:, 0], detector.change_probability_)
    part = BayesianChangepointDetector(
        Regression(noise_scale=detector._stream.scaling.burn_in.noise[0]),
        scaling=(detector.location_, detector.scale_),
    ).fit(X[:103])
    expected = (part.run_lengths_ - 1) @ part.run_length_posterior_
    assert transformed[102, 1] == pytest.approx(expected, abs=1e-6)
    assert detector.score(X) == pytest.approx(detector.log_evidence_ / 200, abs=1e-4)


def test_dates_are_kept():
    index = pd.date_range("2024-01-01", periods=200, freq="h", name="time")
    X = pd.DataFrame(jump(200, 2), index=index, columns=["a", "b"])
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


def shown_jump(n=80, d=1):
    X = np.random.default_rng(0).standard_normal((n, d))
    X[n // 2 :] += 5.0
    return X


def test_dates_and_the_end_of_a_stream():
    X = pd.DataFrame(shown_jump(120, 7), index=pd.date_range("2024-01-01", periods=120))
    detector = BayesianChangepointDetector(burn_in=50, history=30)
    detector.partial_fit(X)
    last = X.iloc[-25:]
    display = ChangepointDisplay.from_estimator(detector, last)
    assert display.axes_[0].get_ylabel() == "5 of 7 series"
    left = display.axes_[0].get_xlim()[0]
    assert left == pytest.approx(last.index[0].toordinal() - 719163, abs=1)
    with pytest.raises(ValueError, match="120 rows"):
        ChangepointDisplay.from_estimator(detector, X)


def test_one_row_is_drawn(recwarn):
    X = shown_jump(1)
    ChangepointDisplay.from_estimator(BayesianChangepointDetector().fit(X), X)
    assert not recwarn


def test_long_series_share_pixels():
    X = np.random.default_rng(0).standard_normal((2500, 1))
    detector = BayesianChangepointDetector(max_hypotheses=20).fit(X)
    display = ChangepointDisplay.from_estimator(detector, X)
    image, _ = display._image()
    assert image.shape[1] == 800
    assert image.shape[0] <= 200


@pytest.mark.parametrize("loss", ["log", "beta"])
@pytest.mark.parametrize("size", [10.0, 100.0, 1e6])
def test_outliers(loss, size):
    """Of any size: finite results; the robust detector sees no change in them."""
    X = jump(160)
    X[[30, 120], 0] = [size, -size]
    detector = BayesianChangepointDetector(loss=loss).fit(X)
    for name, values in state(detector).items():
        if name == "prediction_stds_":  # the first row is the past of the second
            values = values[1:]
        assert np.isfinite(values).all(), name
    assert np.abs(detector.changepoints_ - 80).min() <= 1
    if loss == "beta":
        assert len(detector.changepoints_) == 1
        # The outlier teaches next to nothing.
        assert detector.predictions_[31] == pytest.approx(0, abs=0.8)


def test_the_loss_that_predicts_better_is_taken():
    """Wrong: the worse one; errors in the units of the series; memory of all rows."""
    X = jump(90)
    X[66::6] -= 9.0
    params = {"models": "constant_mean", "burn_in": 40, "history": 60}
    fits = {
        loss: BayesianChangepointDetector(
            loss=loss, run_length_loss=loss, **params
        ).fit(X)
        for loss in (LogLoss(), BetaLoss(1.25))
    }
    stream = BayesianChangepointDetector(loss="auto", **params)
    stream.partial_fit(1e6 * X[:30]).partial_fit(1e6 * X[30:60])
    assert stream.loss_function_.is_log_loss
    stream.partial_fit(1e6 * X[60:])
    noise = stream._stream.scaling.burn_in.noise * stream.scale_
    risks = {}
    for loss, fit in fits.items():
        errors = np.abs(1e6 * (X - fit.predictions_)) / noise
        risks[loss] = (1 - 1 / 60) ** np.arange(90)[::-1] @ np.minimum(errors, 2)
    best = min(risks, key=risks.get)
    assert stream._stream.risk == pytest.approx(risks[best][0])
    losses = stream.loss_function_, stream.run_length_loss_
    assert repr(losses) == repr((best, best)) == repr((BetaLoss(1.25),) * 2)
    np.testing.assert_allclose(stream.predictions_, 1e6 * fits[best].predictions_[30:])
    whole = BayesianChangepointDetector(loss="auto", **params).partial_fit(1e6 * X)
    for name, values in state(stream).items():
        np.testing.assert_array_equal(values, getattr(whole, name))


def test_wrong_shapes_in_mid_stream():
    detector = BayesianChangepointDetector().fit(jump(20, 2))
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
        ({"models": "median"}, [[0.0]], "not one of"),
        ({"models": []}, [[0.0]], "empty"),
        ({"models": [PoissonCounts(), Regression()]}, [[0.0]], "common unit"),
        ({"models": [PoissonCounts(), BernoulliTrials()]}, [[0.0]], "common unit"),
        (
            {"models": Regression(noise_df=np.inf), "loss": "beta"},
            [[0.0]],
            "noise_df=1000",
        ),
        ({"models": "poisson", "loss": "beta"}, [[0.0]], r"2 \* sqrt\(X \+ 3 / 8\)"),
        ({"models": "bernoulli", "loss": "beta"}, [[0.0]], "have no outliers"),
        ({"models": "poisson", "loss": "auto"}, [[0.0]], "^loss='auto' needs"),
        ({"divergence": RenyiDivergence()}, [[0.0]], "'divergence' parameter"),
        ({"run_length_loss": "beta"}, [[0.0]], "robust loss"),
        ({"loss": "auto", "run_length_loss": "beta"}, [[0.0]], "='auto'"),
        ({"feature_columns": [0]}, [[0.0]], "every column"),
        ({"feature_columns": [1]}, [[0.0]], "numbered from 0"),
        ({"feature_columns": ["a"]}, [[0.0]], "not a column"),
        ({"model_prior": [0.5, 0.3, 0.2]}, [[0.0]], "2 model"),
        ({"scaling": (0.0, 0.0)}, [[0.0]], "positive"),
        ({"scaling": (0.0,)}, [[0.0]], "pair"),
        ({"hazard": 0.5}, [[0.0]], "hazard"),
        ({"models": Regression(noise_scale=-1.0)}, [[0.0]], "noise_scale"),
        ({}, [[1e200]], "1e100"),
        ({"loss": BetaLoss(50.0)}, [[0.0]], "between 1 and 2"),
        ({"loss": "beta", "run_length_loss": BetaLoss(50.0)}, [[0.0]], "between 1"),
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


EXACT = {"max_hypotheses": None, "min_probability": 0.0}


@pytest.mark.parametrize(
    ("model", "after"),
    [
        (Regression(noise_scale=1.0, noise_df=np.inf), 2.0),
        (Regression(trend=True), 4.0),
        (Regression(1), 5.0),
        (Regression(1, across=True), 6.0),
        (PoissonCounts(), 9.0),
        (BernoulliTrials(), 0.7),
    ],
    ids=str,
)
def test_other_models_of_many_series(model, after):
    """Wrong variant, caught by known noise and trials: the threshold does not know the
    number of parameters."""
    d, n = 10, 300
    rng, changed = np.random.default_rng(1), np.zeros((n, d))
    changed[200:, 0] = 1.0
    X = {
        "real": lambda: rng.standard_normal((n, d)) + after * changed,
        "count": lambda: 1.0 * rng.poisson(3.0 + (after - 3.0) * changed),
        "binary": lambda: 1.0 * (rng.random((n, d)) < 0.05 + (after - 0.05) * changed),
    }[model.support]()
    detector = BayesianChangepointDetector(model).fit(X)
    exact = BayesianChangepointDetector(model, **EXACT).fit(X)
    assert np.abs(exact.changepoints_ - 200).max() <= 2
    assert detector.changepoints_.tolist() == exact.changepoints_.tolist()
    assert detector.log_evidence_ == pytest.approx(exact.log_evidence_, abs=1e-2)
