"""Loss and divergence that held-out rows choose."""

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from skvi._estimator._fitting import cost_of_prior, fit_likeliest
from skvi._estimator._held_out import split_rows
from skvi.divergences import KLDivergence
from skvi.exceptions import IncompatibleComponentsError
from skvi.linear_model import BayesianGammaRegressor
from skvi.linear_model import BayesianLinearRegression as Linear
from skvi.linear_model import BayesianLogisticRegression as Logistic
from skvi.linear_model import BayesianOrdinalClassifier as Ordinal
from skvi.linear_model import BayesianPoissonRegressor as Poisson
from skvi.losses import BetaLoss
from skvi.model_selection import EvidenceSearch
from skvi.priors import Normal

SOURCE, COEF = np.random.default_rng(0), [0.5, -0.5, 0.2]
X = SOURCE.standard_normal((200, 3))
y = X @ COEF + 0.5 * SOURCE.standard_normal(200)
COUNTS = SOURCE.poisson(2 * np.exp(X @ COEF))


CASES = [
    (Linear, y, {}),
    (Logistic, y > 0, {}),
    (Poisson, COUNTS, {"exposure": np.full(200, 2.0)}),
]


@pytest.mark.parametrize(("kind", "target", "rows"), CASES)
def test_a_misplaced_prior_gets_less_weight(kind, target, rows):
    """Wrong variants: the standard one; the worst one; a fit without the weight."""
    prior = Normal(loc=3.0, scale=0.1)
    model = kind(divergence="auto", prior=prior).fit(X, target, **rows)
    scores, weight = model.diagnostics_["held_out"]["divergence"], model.divergence_
    assert weight.weight < 1
    assert max(scores.values()) - scores[repr(weight)] < 0.01
    given = kind(divergence=weight, prior=prior).fit(X, target, **rows)
    np.testing.assert_array_equal(model.coef_, given.coef_)


@pytest.mark.parametrize(
    "params", [{"posterior": "exact"}, {"prior": Normal(loc=2.0, scale=0.5)}]
)
def test_the_cost_of_a_prior(params):
    """Of squares, in the noise's variance; wrong: without 1/2; the prior's curvature.

    With little to gain no other weight is tried, nor without outliers another loss.
    """
    model = Linear(noise_scale=0.5, **params)
    cost = cost_of_prior(fit_likeliest(model, X, y, None, {}))
    errors = [y - one.predict(X) for one in (model, LinearRegression().fit(X, y))]
    squares = [e @ e for e in errors]
    assert cost == pytest.approx((squares[0] - squares[1]) / (2 * 0.5**2), rel=1e-5)
    model.set_params(divergence="auto", loss="auto").fit(X, y)
    tried = model.diagnostics_["held_out"]
    assert [len(tried[name]) for name in ("divergence", "loss")] == [1, 1]


def test_a_contradicted_prior_is_left_for_one_standard_error():
    """Wrong: for two, as a prior that may be right."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 3))
    y = X @ COEF + rng.standard_normal(40)
    model = Linear(divergence="auto", prior=Normal(loc=0.8, scale=0.2), noise_scale=1.0)
    assert model.fit(X, y).divergence_.weight == 0.1


def test_outliers_ask_for_a_robust_loss():
    """Rows without any do not, nor a third of the rows: there the model is wrong."""
    robust = Linear(loss="auto", noise_scale=0.5)
    robust.fit(X, np.where(np.arange(200) % 10, y, 20))
    assert isinstance(robust.loss_function_, BetaLoss)
    np.testing.assert_allclose(robust.coef_, COEF, atol=0.15)
    both = {
        "prior": "normal",
        "loss": "auto",
        "divergence": KLDivergence(weight="auto"),
    }
    clean = Logistic(**both).fit(X, y > 0)
    assert clean.loss_function_.is_log_loss
    assert clean.divergence_.weight == 1
    assert list(clean.diagnostics_["held_out"]) == ["divergence", "loss"]
    ordinal = Ordinal(loss="auto").fit(X[:50], np.digitize(y[:50], [-1, 1]))
    assert ordinal.loss_function_.is_log_loss
    wrong = robust.fit(X, np.where(np.arange(200) % 3, 0.1, 20) * y)
    assert wrong.diagnostics_["held_out"]["loss"]["BetaLoss(beta=1.25)"] == -np.inf


def test_where_nothing_can_be_held_out_or_compared():
    """Few rows keep the standard rule; streams, bounds and evidences refuse."""
    few = Linear(divergence="auto", loss="auto").fit(X[:8], y[:8])
    assert few.divergence_.weight == 1
    for model in (few, Poisson(divergence="auto")):
        with pytest.raises(IncompatibleComponentsError, match="all rows at once"):
            model.partial_fit(X, COUNTS)
    with pytest.raises(IncompatibleComponentsError, match="objective='elbo'"):
        Logistic("eubo", divergence="auto").fit(X, y > 0)
    with pytest.raises(IncompatibleComponentsError, match="loss='auto' needs"):
        BayesianGammaRegressor(loss="auto").fit(
            X, np.exp(9 * np.sin(np.arange(len(X))))
        )
    search = EvidenceSearch(Linear(loss="auto"), {"tol": [1e-5]})
    with pytest.raises(ValueError, match="loss='auto'"):
        search.fit(X, y)


def test_rows_of_a_sorted_file_are_held_out_from_all_of_it():
    """Wrong: the first thousand of the rows that are held out."""
    y = np.repeat([0, 1], 6000)
    (_, held_out), *_ = split_rows(Logistic(divergence="auto"), y)
    assert 400 < y[held_out].sum() < 600


def test_equal_targets_choose_the_same():
    """Wrong: a seed for each target."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3))
    y = X[:, 0] + rng.normal(size=40)
    model = Linear(divergence="auto").fit(X, np.stack([y, y], 1))
    first, second = (o.diagnostics_["held_out"]["divergence"] for o in model.outputs_)
    assert first == second
