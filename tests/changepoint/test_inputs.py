"""Hard series and bad input: a right answer, or an error that says what to do."""

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from skvi.changepoint import (
    BayesianChangepointDetector,
    BernoulliTrials,
    Hazard,
    ObservationModel,
    PoissonCounts,
    Regression,
)
from skvi.divergences import KLDivergence, RenyiDivergence
from skvi.exceptions import IncompatibleComponentsError, SkviWarning
from skvi.losses import BetaLoss
from skvi.priors import Normal
from tests.changepoint.series import jump, state


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


@pytest.mark.parametrize("loss", ["log", "beta"])
def test_constant_stretches(loss):
    """Rows that are all equal, and a change to other ones that are."""
    X = np.zeros((120, 1))
    detector = BayesianChangepointDetector(loss=loss)
    assert detector.fit(X).changepoints_.size == 0
    X[60:] = 1.0
    with pytest.warns(SkviWarning, match="only 0 and 1"):
        assert detector.fit(X).changepoints_.tolist() == [60]
    X = jump(120)
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
    X = np.column_stack([1e6 * jump(seed=1), 1e-6 * jump(seed=2)])
    X[:, 0] -= 4e6 * (np.arange(200) >= 100)  # only the small one changes
    detector = BayesianChangepointDetector().fit(X)
    assert detector.changepoints_.tolist() == [100]


def test_missing_rows():
    """Whole rows, the first and the last one, and everything."""
    X = jump()
    X[[0, 40, 41, 42, 199]] = np.nan
    detector = BayesianChangepointDetector().fit(X)
    assert detector.changepoints_.tolist() == [100]
    assert np.isfinite(detector.predictions_).all()
    with pytest.warns(SkviWarning, match="no observed value"):
        nothing = BayesianChangepointDetector().fit(np.full((9, 1), np.nan))
    assert nothing.log_evidence_ == 0
    assert nothing.changepoints_.size == 0


def test_the_most_probable_hypothesis_is_never_dropped():
    """However large the probability that is asked for."""
    X = jump(60)
    found = BayesianChangepointDetector(hazard=2.0, min_probability=0.9).fit(X)
    assert len(found.run_lengths_) == 1
    assert np.isfinite(found.log_evidence_)


def test_a_beta_that_is_too_large_finds_nothing_but_is_right():
    """Every row is an outlier to it; posteriors stay valid."""
    X = jump()
    X[::2] *= 30
    found = BayesianChangepointDetector(
        Regression(noise_scale=0.05), loss=BetaLoss(4.0)
    ).fit(X)
    for name, values in state(found).items():
        assert np.isfinite(values).all(), name


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
        ({"divergence": RenyiDivergence()}, [[0.0]], "'divergence' parameter"),
        ({"run_length_loss": "beta"}, [[0.0]], "robust loss"),
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
    with pytest.raises(IncompatibleComponentsError, match="update_part"):
        BayesianChangepointDetector(Positive(), divergence=KLDivergence(2.0)).fit(
            [[1.0]]
        )
    with pytest.raises(IncompatibleComponentsError, match="Positive"):
        BayesianChangepointDetector(Positive(), loss="beta").fit([[1.0]])
    with pytest.raises(ValueError, match="Loud"):
        BayesianChangepointDetector(hazard=Loud()).fit([[1.0], [-1.0], [0.5]])


def test_none_is_a_missing_value_in_a_list():
    """Wrong variant: the list is taken for a table, and refused."""
    found = BayesianChangepointDetector().fit([1.0, None, 2.0, 3.0])
    given = np.array([[1.0], [np.nan], [2.0], [3.0]])
    expected = BayesianChangepointDetector().fit(given)
    assert found.log_evidence_ == expected.log_evidence_
