"""`plug_in` is empty exactly where the evidence is a probability of the data."""

import numpy as np
import pytest

import skvi
from skvi.evidence import EvidenceBounds
from skvi.likelihoods import GaussianLikelihood
from skvi.linear_model import BayesianLinearRegression
from skvi.model_selection import EvidenceSearch
from skvi.neural_network import BayesianMLPRegressor
from skvi.plotting._rows import row_label
from skvi.priors import GammaHyperprior, Normal

X = np.array([[-1.0], [1.5]])
GIVEN = {"prior": Normal(0.8), "noise_scale": 0.7, "normalize_y": False}
GIVEN |= {"intercept_prior": Normal(0.8)}
NO_INTERCEPT = {"fit_intercept": False, "intercept_prior": None}
NEARLY_GIVEN = GIVEN | {"prior": Normal(GammaHyperprior(shape=40.0, rate=30.0))}
CASES = {
    "given": (GIVEN, ()),
    "intercept": (GIVEN | {"intercept_prior": Normal(3.0)}, ()),
    "none": (GIVEN | NO_INTERCEPT, ()),
    "hyperprior": (NEARLY_GIVEN, ()),
    "intercept from y": (GIVEN | {"intercept_prior": None}, ("intercept_scale",)),
    "normalized": (GIVEN | {"normalize_y": True}, ("y_mean", "y_scale")),
    "normalized, hyperprior": (
        NEARLY_GIVEN | {"normalize_y": True},
        ("y_mean", "y_scale"),
    ),
    "scaled": (GIVEN | NO_INTERCEPT | {"normalize_y": True}, ("y_scale",)),
}


def bound(params, y):
    return BayesianLinearRegression(**params).fit(X, y).evidence_bounds(X, y)


def integral(params, n_nodes=5):
    """Integral of exp(evidence) over both targets, and the names in `plug_in`.

    Gauss-Hermite nodes of a normal that is a little wider than the marginal of y: exact
    to 1e-4 where y is normal.
    """
    own, ones = params["intercept_prior"] or Normal(0.8), "fit_intercept" not in params
    design = np.column_stack([X - X.mean() if ones else X, np.ones(2) * ones])
    scales = np.diag([0.8, own.scale]) ** 2
    root = np.linalg.cholesky(1.2 * (design @ scales @ design.T + 0.7**2 * np.eye(2)))
    z, w = np.polynomial.hermite_e.hermegauss(n_nodes)
    found = [
        (bound(params, root @ [a, b]), u * v * np.exp(0.5 * (a * a + b * b)))
        for a, u in zip(z, w, strict=True)
        for b, v in zip(z, w, strict=True)
    ]
    total = sum(np.exp(b.estimate) * weight for b, weight in found)
    (names,) = {b.plug_in for b, _ in found}
    return total * np.linalg.det(root), names


@pytest.mark.parametrize("case", list(CASES))
def test_it_is_empty_where_the_evidence_integrates_to_one(case):
    """Over two targets, by quadrature.

    Wrong variants: `_taken_from_y` returns nothing, or the scale alone; an intercept
    whose prior is as wide as y is large is not named.
    """
    params, names = CASES[case]
    total, found = integral(params)
    assert found == names
    if names:
        assert abs(total - 1) > 0.05
    else:
        assert total == pytest.approx(1, abs=2e-3)


def test_a_larger_target_is_as_probable_when_it_is_normalized():
    """The number of two far targets: no density that integrates to 1 does this."""
    y = np.array([-1.0, 1.0])
    params = GIVEN | {"normalize_y": True}
    far = [bound(params, 1000 * y + shift).estimate for shift in (0, 1e5)]
    assert far[0] == pytest.approx(far[1], abs=1e-6)  # wherever y is
    text = str(bound(params, y))
    assert "with y_mean, y_scale from y: the prior depends on y" in text
    assert "learned" not in text
    assert row_label("a", bound(params, y)) == "a\n(prior made from y)"


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_learned_noise_is_named_beside():
    y = np.array([1.0, 3.0])
    bounds = bound({"prior": "normal", "noise_scale": "learn"}, y)
    assert bounds.plug_in == ("noise_scale", "y_mean", "y_scale")
    assert "at the learned noise_scale: optimistic" in str(bounds)


@pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::skvi.exceptions.SkviWarning",
)
def test_networks_and_several_targets(monkeypatch):
    """Wrong variant: only linear models say what they take from y."""
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(20, 2)), rng.normal(size=(20, 2))
    monkeypatch.setattr(
        "skvi._estimator._base.bound_evidence",
        lambda *a, **k: EvidenceBounds(*[0.0] * 8, True, "", "stub"),
    )
    network = BayesianMLPRegressor(
        skip_connection=False,
        likelihood=GaussianLikelihood(1.0),
        activation="softplus",
        divergence="kl",
        posterior="mean_field",
        hidden_layer_sizes=(2,),
        max_iter=5,
    )
    for normalize_y, names in ((True, ("y_mean", "y_scale")), (False, ())):
        network.set_params(normalize_y=normalize_y).fit(X, Y[:, 0])
        assert skvi.evidence_bounds(network, X, Y[:, 0]).plug_in == names
        params = GIVEN | {"normalize_y": normalize_y}
        both = BayesianLinearRegression(**params).fit(X, Y)
        assert both.evidence_bounds(X, Y).plug_in == names


@pytest.mark.parametrize(
    "grid",
    [
        {"normalize_y": [True, False]},
        {"normalize_y": [True], "fit_intercept": [True, False]},
    ],
)
def test_a_search_refuses_candidates_that_take_different_things(grid):
    """Before any fit. Wrong variant: only robust losses are checked for it."""
    search = EvidenceSearch(BayesianLinearRegression(**GIVEN), grid)
    with pytest.raises(ValueError, match=r"in normalize_y.*priors in units of y"):
        search.fit(None, None)


def test_normalized_candidates_are_compared():
    """All take the same from y, and merged ones are not taken apart for it."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    y = 10 + X[:, 0] + 0.5 * rng.normal(size=30)
    model = BayesianLinearRegression(prior="normal", noise_scale=0.5)
    grid = {"prior__scale": [0.01, 1.0], "posterior": ["full_rank", "mean_field"]}
    search = EvidenceSearch(model, grid).fit(X, y)
    assert search.results_["model"].tolist() == [0, 1, 0, 1]
    assert search.decided_
    assert search.best_params_["prior__scale"] == 1.0
    assert set(search.results_["plug_in"]) == {"y_mean, y_scale"}
