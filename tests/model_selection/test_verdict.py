"""A search says no more than its numbers: words, probabilities, and ties."""

import math

import numpy as np
import pytest
from scipy import stats
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    OneHotEncoder,
    PolynomialFeatures,
    RobustScaler,
    StandardScaler,
)

from skvi.evidence import EvidenceBounds
from skvi.linear_model import BayesianLinearRegression
from skvi.model_selection import EvidenceSearch, _race
from skvi.model_selection._race import (
    DEGREES_OF_FREEDOM,
    Comparison,
    n_standard_errors,
)
from skvi.plotting._rows import describe_candidates
from skvi.priors import Normal


class Told(BayesianLinearRegression):
    """Has the evidence that it is told to have."""

    def __init__(self, value=0.0, reliable=True, error=0.01):
        super().__init__()
        self.value, self.reliable, self.error = value, reliable, error

    def fit(self, X, y):
        return self

    def evidence_bounds(self, X, y, *, precision=None, random_state=None):
        low, high = self.value - self.error, self.value + self.error
        reason = "" if self.reliable else "the chains disagree"
        numbers = (low, high, 0.0, 0.0, self.value, 2 * self.error, 9.0, 0.1)
        return EvidenceBounds(*numbers, self.reliable, reason, "told")


def search(values, reliable=None, **params):
    reliable = reliable or [True] * len(values)
    grid = [
        {"value": [v], "reliable": [r]} for v, r in zip(values, reliable, strict=True)
    ]
    found = EvidenceSearch(Told(), grid, refit=False, **params)
    return found.fit(np.zeros((2, 1)), np.zeros(2))


@pytest.mark.parametrize("others", [[-0.15], [-0.15, -3.0], [-0.9, -0.91]])
def test_models_that_are_nearly_equal_are_a_tie(others):
    """Wrong variant: the default difference is 0.1 nats, and odds of 1.2 decide."""
    found = search([0.0, *others])
    assert not found.decided_
    assert "within min_difference" in found.verdict_
    assert found.contenders_[:2] == [0, 1]


def test_half_width_of_an_interval():
    """The distance from its middle, at which runs aim. Wrong variant: its width."""
    numbers = (-1.0, 2.0, 0.1, 0.1, 0.0, 3.0, 9.0, 0.1)
    bounds = EvidenceBounds(*numbers, True, "", "told")
    model = _race.Model([0], 0, None, bounds=bounds)
    assert model.half_width() == pytest.approx(1.7)


def test_what_decided_means():
    """The word stands beside its odds and the whole interval of the probability.

    Wrong variants: the interval is rounded inwards; the probability is that of the
    estimates.
    """
    values = [0.0, -1.2, -1.21, -1.22]
    found = search(values)
    assert found.decided_
    low, high = (found.results_[f"probability_{end}"][0] for end in ("lower", "upper"))
    assert low < 1 / np.exp(values).sum() < high
    assert "by more than 1 nats (odds above 2.7 to 1)" in found.verdict_
    printed = found.verdict_.partition("probability is ")[2].split(" to ")
    assert float(printed[0]) <= low <= high <= float(printed[1])
    assert float(printed[1]) - float(printed[0]) < high - low + 2e-3
    low_odds = search([0.0, -0.15], min_difference=0.1)
    assert "decided: value=0" in low_odds.verdict_
    assert "(odds above 1.1 to 1); its probability is 0.532 to 0.543" in (
        low_odds.verdict_
    )


def test_nothing_reliable_has_no_probability():
    """Wrong variant: the softmax of the estimates, 1.0 and 0.0."""
    found = search([0.0, -20.0, -30.0], [False] * 3)
    assert not found.decided_
    assert found.verdict_.startswith("undecided: no model has reliable bounds (")
    assert "the chains disagree" in found.verdict_
    results = found.results_
    assert np.isnan(results["probability"]).all()
    assert results["probability_lower"].tolist() == [0.0] * 3
    assert results["probability_upper"].tolist() == [1.0] * 3


def test_one_unreliable_model_leaves_no_probability():
    """All shares depend on it; what is known of the others stays in the intervals."""
    found = search([0.0, -5.0, -1000.0], [True, True, False])
    results = found.results_
    assert np.isnan(results["probability"]).all()
    first, second, _ = results["probability_upper"]
    assert first == pytest.approx(1 / (1 + math.exp(-5.02)))
    assert second == pytest.approx(1 / (1 + math.exp(4.98)))
    assert results["probability_lower"].tolist() == [0.0] * 3
    assert not found.decided_
    assert "its bounds are not reliable" in found.verdict_


def test_the_only_model():
    assert search([0.0]).verdict_.endswith("is the only model")
    unreliable = search([0.0], [False])
    assert "bounds are not reliable, the chains disagree" in unreliable.verdict_
    assert unreliable.results_["probability"].tolist() == [1.0]


def test_an_interval_without_an_end_has_no_probability():
    """Also if the bounds are reliable, but a side is infinite."""
    low, high = np.array([-1.0, -np.inf]), np.array([1.0, np.inf])
    nothing = [frozenset(), frozenset()]
    found = Comparison(np.zeros(2), low, high, nothing, 1.0)
    assert np.isnan(found.probabilities()[0]).all()


@pytest.mark.parametrize(("n_models", "n_runs"), [(1, 1), (3, 2)])
def test_all_intervals_hold_together(n_models, n_runs):
    """Bonferroni over both ends of every interval of every run.

    Wrong variants: one end, or twice as many; models or runs left out.
    """
    n_se = n_standard_errors(0.9, n_models, n_runs)
    fails = 2 * stats.t.sf(n_se, DEGREES_OF_FREEDOM)
    assert fails * n_models * n_runs == pytest.approx(0.1, rel=1e-9)


class Scaled:
    """Somebody's transformer, with a long repr."""

    def __repr__(self):
        return f"Scaled({'x' * 50})"


def test_short_names_of_candidates():
    """Wrong variants: multi-line reprs; full names of all keys if two end alike."""
    pipes = [make_pipeline(PolynomialFeatures(k), StandardScaler()) for k in (2, 3)]
    mapping = {"coef": Normal(0.5), "intercept": Normal(10.0)}
    grid = [
        {"features": pipes[0], "model__prior": "ard", "a__b__degree": 1.0},
        {"features": pipes[1], "model__prior": Normal(0.5), "a__b__degree": 2.0},
        {"features": Scaled(), "model__prior": mapping, "a__c__degree": 1},
        {"features": np.log1p, "model__prior": "ard"},
    ]
    assert describe_candidates(grid) == [
        "b__degree=1, features=Pipeline(degree=2), prior=ard",
        "b__degree=2, features=Pipeline(degree=3), prior=Normal(scale=0.5)",
        "c__degree=1, features=Scaled, prior={'coef': Normal(scale=0.5), 'intercep...",
        "features=log1p, prior=ard",
    ]


def test_names_say_what_tells_transformers_apart():
    """Columns, parameters and kinds; numbers only where nothing does.

    Wrong variant: "ColumnTransformer 1".
    """

    def columns(*steps):
        return ColumnTransformer([("numbers", *steps[:2]), ("rest", *steps[2:])])

    scaled = columns(StandardScaler(), [0, 1], OneHotEncoder(), [2])
    wider = columns(StandardScaler(), [0, 1], OneHotEncoder(), [2, 3])
    robust = columns(RobustScaler(), [0, 1], OneHotEncoder(drop="first"), [2])
    only = ColumnTransformer([("numbers", StandardScaler(), [0, 1])])
    for others, expected in (
        ([wider], ["rest columns=[2]", "rest columns=[2, 3]"]),
        (
            [robust],
            [
                "numbers=StandardScaler, drop=None",
                "numbers=RobustScaler, drop=first",
            ],
        ),
        ([only], ["transformers=numbers+rest", "transformers=numbers"]),
    ):
        names = describe_candidates([{"f": value} for value in (scaled, *others)])
        assert names == [f"f=ColumnTransformer({text})" for text in expected]
    names = describe_candidates([{"f": lambda X: X}, {"f": lambda X: 2 * X}])
    assert names == ["f=<lambda> 1", "f=<lambda> 2"]
