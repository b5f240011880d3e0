"""Scores agree with their definitions, and scorers with scikit-learn's machinery."""

import math
import pickle
import warnings

import numpy as np
import pytest
import sklearn
from scipy.integrate import quad
from scipy.stats import lognorm, norm
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import NotFittedError, UnsetMetadataPassedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import (
    ARDRegression,
    BayesianRidge,
    LinearRegression,
    LogisticRegression,
    RidgeClassifier,
)
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.fixes import parse_version

from skvi.exceptions import SkviWarning
from skvi.likelihoods import StudentTLikelihood
from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
)
from skvi.metrics import (
    interval_coverage_scorer,
    interval_score,
    log_predictive_density_scorer,
    neg_crps_scorer,
    neg_interval_score_scorer,
    normal_crps,
    sample_crps,
)
from skvi.metrics._scorers import (
    IntervalCoverage,
    LogPredictiveDensity,
    NegCRPS,
    NegIntervalScore,
)
from skvi.neural_network import BayesianMLPRegressor

PREDICTIVE = (
    log_predictive_density_scorer,
    neg_crps_scorer,
    neg_interval_score_scorer,
    interval_coverage_scorer,
)


def crps_by_quadrature(cdf, y, low=-40.0, high=40.0):
    """The definition: the squared distance of distribution functions."""
    below = quad(lambda t: cdf(t) ** 2, low, y, limit=400)[0]
    return below + quad(lambda t: (1 - cdf(t)) ** 2, y, high, limit=400)[0]


@pytest.fixture(scope="module")
def regression():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    return X, 3 * X[:, 0] - X[:, 1] + 2 * rng.normal(size=60) + 7


@pytest.fixture(scope="module")
def classes(regression):
    X, y = regression
    return X, np.where(y > 7, "high", "low")


@pytest.fixture(scope="module")
def linear(regression):
    return BayesianLinearRegression().fit(*regression)


# Formulas


@pytest.mark.parametrize("y", [-3.0, 0.4, 8.0])
def test_crps_of_normals(y):
    """Quadrature, and the closed form of Gneiting and Raftery.

    Wrong variants: 1 / sqrt(2 pi) for 1 / sqrt(pi); a factor 2 before the density.
    """
    found = normal_crps([y], [1.0], [1.7])[0]
    assert found == pytest.approx(crps_by_quadrature(norm(1.0, 1.7).cdf, y), rel=1e-7)
    z = (y - 1.0) / 1.7
    closed = z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / math.sqrt(math.pi)
    assert found == pytest.approx(1.7 * closed, rel=1e-12)


@pytest.mark.parametrize("weights", [None, [0.1, 0.6, 0.3]])
def test_crps_of_mixtures(weights):
    """Quadrature. Wrong variant: pairs of a component with itself left out."""
    w = np.full(3, 1 / 3) if weights is None else np.array(weights)
    mean, std = np.array([-2.0, 0.0, 3.0]), np.array([0.3, 1.0, 2.0])
    y = np.array([-4.0, -1.9, 0.7, 9.0])
    shape = (len(y), 3)
    found = normal_crps(
        y, np.broadcast_to(mean, shape), np.broadcast_to(std, shape), weights
    )
    expected = [
        crps_by_quadrature(lambda t: w @ norm.cdf((t - mean) / std), one) for one in y
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_certain_forecasts_get_the_absolute_error():
    y, mean = np.array([1.0, -2.0]), np.array([0.5, -2.0])
    np.testing.assert_allclose(
        normal_crps(y, mean, np.zeros(2)), [0.5, 0.0], atol=1e-299
    )
    np.testing.assert_allclose(
        normal_crps(y, mean, np.full(2, 1e-300)), [0.5, 0], atol=1e-299
    )
    np.testing.assert_allclose(sample_crps(y, np.repeat(mean[:, None], 5, 1)), [0.5, 0])
    assert normal_crps([1e8], [0.0], [1.0])[0] == pytest.approx(1e8)


@pytest.mark.parametrize("n_draws", [2, 7])
def test_crps_of_draws_has_no_bias(n_draws, global_random_seed):
    """Mean over 20,000 sets of draws. Wrong variant: S^2 for S (S - 1)."""
    draws = np.random.default_rng(global_random_seed).normal(size=(20_000, n_draws))
    found = sample_crps(np.full(20_000, 0.8), draws)
    expected = normal_crps([0.8], [0.0], [1.0])[0]
    assert abs(found.mean() - expected) < 5 * found.std() / math.sqrt(20_000)


def test_crps_of_draws_is_its_definition():
    rng = np.random.default_rng(0)
    y, draws = rng.normal(size=(4, 3)), rng.normal(size=(4, 3, 6))
    pairs = np.abs(draws[..., None] - draws[..., None, :]).sum((-1, -2)) / (2 * 6 * 5)
    expected = np.abs(draws - y[..., None]).mean(-1) - pairs
    np.testing.assert_allclose(sample_crps(y, draws), expected, rtol=1e-12)


def test_interval_score_is_that_of_its_two_quantiles():
    """2 / (1 - c) times the pinball losses. Wrong variant: 1 / (1 - c)."""
    y, c = np.linspace(-3, 3, 13), 0.8
    low, high = np.full(13, -1.0), np.full(13, 1.5)
    pinball = [(level - (y < q)) * (y - q) for level, q in ((0.1, low), (0.9, high))]
    found = interval_score(y, np.stack([low, high], 1), c)
    np.testing.assert_allclose(found, 2 / (1 - c) * sum(pinball), rtol=1e-12)


@pytest.mark.parametrize("score", ["crps", "interval"])
def test_scores_are_proper(score):
    """The expected score under N(0, 1) is best for the true standard deviation."""
    nodes, w = np.polynomial.hermite_e.hermegauss(201)
    w = w / w.sum()

    def expected(std):
        if score == "crps":
            return w @ normal_crps(nodes, np.zeros(201), np.full(201, std))
        ends = np.tile(norm.ppf([0.1, 0.9]) * std, (201, 1))
        return w @ interval_score(nodes, ends, 0.8)

    best = expected(1.0)
    assert all(expected(std) > best for std in (0.5, 0.8, 1.25, 2.0))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: normal_crps([0.0], [0.0, 1.0], [1.0, 1.0]), r"shape of y.*Got y \(1,"),
        (lambda: normal_crps([0.0], [0.0], [1.0], [1.0]), "that weights need"),
        (lambda: normal_crps([0.0], [0.0], [[1.0]]), "shape of y"),
        (lambda: sample_crps([0.0], [[1.0]]), "at least two draws"),
        (lambda: sample_crps([0.0], [1.0, 2.0]), "shape of y"),
        (lambda: interval_score([0.0], [[1.0, 2.0]], 90), "'coverage' parameter"),
        (lambda: interval_score([0.0], [1.0, 2.0], 0.9), r"shape \(n_samples, 2\)"),
        (lambda: NegIntervalScore(1.0), "'coverage' parameter of NegIntervalScore"),
        (lambda: IntervalCoverage(0), "'coverage' parameter of IntervalCoverage"),
    ],
)
def test_wrong_arguments(call, match):
    with pytest.raises(ValueError, match=match):
        call()


# Scorers


def test_values_of_the_linear_regression(regression, linear):
    """By hand from predictions; the CRPS by quadrature over its quantiles.

    Wrong variants: the noise left out of the mixture; weights not normalized.
    """
    X, y = regression
    density = linear.predict_log_density(X, y)
    assert log_predictive_density_scorer(linear, X, y) == pytest.approx(density.mean())
    ends = linear.predict_interval(X, 0.9)
    expected = -interval_score(y, ends, 0.9).mean()
    assert neg_interval_score_scorer(linear, X, y) == pytest.approx(expected)
    inside = (y >= ends[:, 0]) & (y <= ends[:, 1])
    assert interval_coverage_scorer(linear, X, y) == pytest.approx(inside.mean())
    # CRPS = twice the integral of the pinball loss over all levels.
    levels, w = np.polynomial.legendre.leggauss(150)
    levels, w = (levels + 1) / 2, w / 2
    q = linear.predict_quantiles(X, levels)
    pinball = (levels - (y[:, None] < q)) * (y[:, None] - q)
    assert neg_crps_scorer(linear, X, y) == pytest.approx(
        -2 * (pinball @ w).mean(), rel=1e-4
    )


@pytest.mark.parametrize("noise_scale", ["hyperprior", 2.0])
def test_exact_crps_agrees_with_draws(regression, noise_scale):
    """Within 5 standard errors of the rows' differences, at 20,000 draws."""
    X, y = regression
    model = BayesianLinearRegression(noise_scale=noise_scale).fit(X[:30], y[:30])
    draws = model.sample_y(X[30:], 20_000, random_state=0)
    exact = [-neg_crps_scorer(model, X[[i]], y[[i]]) for i in range(30, 60)]
    halves = [sample_crps(y[30:], part) for part in np.split(draws, 20, axis=1)]
    error = np.std(halves, 0) / math.sqrt(20)
    assert (np.abs(np.mean(halves, 0) - exact) < 5 * error).all()


@pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::skvi.exceptions.SkviWarning",
)
def test_crps_of_networks(regression):
    """A mixture of the drawn networks, against quadrature over its quantiles."""
    X, y = regression
    model = BayesianMLPRegressor(
        skip_connection=False,
        likelihood="gaussian",
        activation="softplus",
        divergence="kl",
        posterior="mean_field",
        hidden_layer_sizes=(3,),
        max_iter=5,
        n_predict_draws=20,
        random_state=0,
    ).fit(X, y)
    levels, w = np.polynomial.legendre.leggauss(150)
    levels, w = (levels + 1) / 2, w / 2
    q = model.predict_quantiles(X, levels)
    pinball = (levels - (y[:, None] < q)) * (y[:, None] - q)
    found = neg_crps_scorer(model, X, y)
    assert found == pytest.approx(-2 * (pinball @ w).mean(), rel=1e-4)


def test_several_targets(regression):
    """Log densities add up over targets; the others are means over them."""
    X, y = regression
    Y = np.stack([y, 10 * y + X[:, 0], -X[:, 1] + y], 1)
    model = BayesianLinearRegression().fit(X, Y)
    for scorer in PREDICTIVE:
        parts = [scorer(o, X, c) for o, c in zip(model.outputs_, Y.T, strict=True)]
        combine = np.sum if scorer is log_predictive_density_scorer else np.mean
        assert scorer(model, X, Y) == pytest.approx(combine(parts), rel=1e-9)
    drawn = [
        sample_crps(Y, model.sample_y(X, 1000, random_state=0)).mean(),
        -neg_crps_scorer(model, X, Y),
    ]
    assert drawn[0] == pytest.approx(drawn[1], rel=0.02)


@pytest.mark.parametrize("scorer", PREDICTIVE)
def test_weights_equal_repetition(regression, linear, scorer):
    """Also zero, even where the row's score is not finite. Wrong variant: sums."""
    X, y = regression
    w = np.arange(60) % 3
    rows = np.repeat(np.arange(60), w)
    found = scorer(linear, X, y, sample_weight=w)
    assert found == pytest.approx(scorer(linear, X[rows], y[rows]), rel=1e-12)
    far = y.copy()
    far[0] = 1e200
    assert scorer(linear, X, far, sample_weight=w) == pytest.approx(found)
    for bad in (np.zeros(60), -np.ones(60)):
        with pytest.raises(ValueError, match=r"zero|[Nn]egative"):
            scorer(linear, X, y, sample_weight=bad)


def test_classifiers(classes):
    X, y = classes
    model = BayesianLogisticRegression(prior="normal").fit(X, y)
    expected = -log_loss(y, model.predict_proba(X))
    assert log_predictive_density_scorer(model, X, y) == pytest.approx(expected)
    with pytest.raises(TypeError, match=r"needs numbers.*predicts classes"):
        neg_crps_scorer(model, X, y)
    for scorer in PREDICTIVE[1:]:
        with pytest.raises(TypeError, match=r"needs numbers.*predicts classes"):
            scorer(model, X, y)
    with pytest.raises(TypeError, match=r"no method predict_log.*predict_proba"):
        log_predictive_density_scorer(RidgeClassifier().fit(X, y), X, y)
    other = LogisticRegression().fit(X, y)
    found = log_predictive_density_scorer(other, X, y)
    assert found == pytest.approx(-log_loss(y, other.predict_proba(X)))
    with pytest.raises(ValueError, match="label middle, which was not in the fit"):
        log_predictive_density_scorer(other, X, np.where(X[:, 0] > 1, "middle", y))


def test_counts_with_exposure():
    """The CRPS from draws, against the sum over counts with its exact probabilities."""
    rng = np.random.default_rng(0)
    X, years = rng.normal(size=(80, 1)), rng.uniform(1, 4, size=80)
    y = rng.poisson(years * np.exp(0.5 * X[:, 0] + 0.5))
    model = BayesianPoissonRegressor(prior="normal").fit(X, y, exposure=years)
    scorer = NegCRPS(n_draws=4000)
    found = [-scorer(model, X[[i]], y[[i]], exposure=years[[i]]) for i in range(20)]
    for i in range(20):
        k = np.arange(60)
        rows = np.repeat(X[[i]], 60, 0)
        mass = model.predict_log_density(rows, k, exposure=np.full(60, years[i]))
        exact = ((np.cumsum(np.exp(mass)) - (k >= y[i])) ** 2).sum()
        draws = model.sample_y(X[[i]], 4000, 1, exposure=years[[i]])
        parts = sample_crps(np.full(40, float(y[i])), draws.reshape(40, 100))
        assert abs(found[i] - exact) < 5 * parts.std() / math.sqrt(40)
    with_exposure = interval_coverage_scorer(model, X, y, exposure=years)
    assert with_exposure >= 0.8
    with pytest.warns(SkviWarning, match="the fit had an exposure"):
        assert with_exposure > interval_coverage_scorer(model, X, y)


class GivenIntervals(RegressorMixin, BaseEstimator):
    """A regressor whose features are its intervals."""

    def predict_interval(self, X, coverage):
        return X


def test_counts_at_the_ends_are_covered():
    """Wrong variants: an open interval (1 of 5); half open (2 of 5)."""
    ends = np.array([[0.0, 0.0], [0.0, 1.0], [2.0, 4.0], [1.0, 3.0], [0.0, 4.0]])
    y = np.array([0, 1, 2, 2, 5])
    assert IntervalCoverage(0.8)(GivenIntervals(), ends, y) == 0.8


# Earlier versions of scikit-learn hand nothing on to a pipeline's own score.
ROUTES_TO_SCORES = parse_version(sklearn.__version__) >= parse_version("1.8")


def test_scores_without_the_exposure_of_the_fit_say_so():
    """Once a score, in cross-validation as well, unless routing passes it on.

    Predictions of one unit say so, too, unless an exposure of 1 asks for them. Wrong
    variants: silence; two warnings of one score.
    """
    rng = np.random.default_rng(0)
    X, years = rng.normal(size=(60, 1)), rng.uniform(10, 40, size=60)
    y = rng.poisson(years * np.exp(0.5 * X[:, 0] + 0.5))
    pipe = make_pipeline(StandardScaler(), BayesianPoissonRegressor(prior="normal"))
    name = "bayesianpoissonregressor__exposure"
    params = {name: years}
    for scoring in (None, *PREDICTIVE):
        with pytest.warns(SkviWarning, match="the fit had an exposure") as found:
            low = cross_val_score(pipe, X, y, scoring=scoring, cv=2, params=params)
        assert len(found) == 2
        if scoring is None and not ROUTES_TO_SCORES:
            continue
        with sklearn.config_context(enable_metadata_routing=True):
            model = BayesianPoissonRegressor(prior="normal")
            model.set_fit_request(exposure=True).set_score_request(exposure=True)
            routed = scoring and scoring.set_score_request(exposure=True)
            high = cross_val_score(
                make_pipeline(StandardScaler(), model),
                X,
                y,
                scoring=routed,
                cv=2,
                params={"exposure": years},
            )
        assert high.mean() > low.mean()
    model = BayesianPoissonRegressor(prior="normal").fit(X, y, exposure=years)
    with pytest.warns(SkviWarning, match="of one unit") as found:
        rates = model.predict(X), model.predict_interval(X), model.sample_y(X)
    assert len(found) == 3
    assert all(np.isfinite(rate).all() for rate in rates)
    np.testing.assert_array_equal(model.predict(X, exposure=1), rates[0])
    with pytest.warns(SkviWarning, match="has none.*set_score_request"):
        assert model.score(X, y) < 0 < model.score(X, y, exposure=years)
    with pytest.warns(SkviWarning, match="the fit had an exposure"):
        model.predict_log_density(X, y)
    BayesianPoissonRegressor(prior="normal").fit(X, y).score(X, y)


@pytest.mark.parametrize("scorer", PREDICTIVE)
def test_pipelines_and_searches_find_the_estimator(regression, scorer):
    X, y = regression
    inner = BayesianLinearRegression().fit(StandardScaler().fit_transform(X), y)
    expected = scorer(inner, StandardScaler().fit_transform(X), y)
    pipe = make_pipeline(StandardScaler(), BayesianLinearRegression())
    assert scorer(clone(pipe).fit(X, y), X, y) == pytest.approx(expected)
    nested = make_pipeline(GridSearchCV(pipe, {}, cv=2)).fit(X, y)
    assert scorer(nested, X, y) == pytest.approx(expected)
    with pytest.raises(NotFittedError, match="refit=True"):
        scorer(GridSearchCV(pipe, {}, refit=False).fit(X, y), X, y)


def test_one_scoring_for_all_regressors(regression):
    """Normals of scikit-learn's estimators; a target in logs in its own units.

    Wrong variants: the CRPS from draws; scores of the logs.
    """
    X, y = regression
    y = np.exp(0.2 * y)
    kernel = ConstantKernel() * RBF() + WhiteKernel()
    process = GaussianProcessRegressor(kernel, normalize_y=True, optimizer=None)
    for model in (BayesianRidge(), ARDRegression(), process):
        pipe = make_pipeline(StandardScaler(), model).fit(X, y)
        mean, std = model.predict(pipe[:-1].transform(X), return_std=True)
        ends = np.stack(norm(mean, std).interval(0.9), 1)
        inside = (ends[:, 0] <= y) & (y <= ends[:, 1])
        expected = [
            norm(mean, std).logpdf(y).mean(),
            -normal_crps(y, mean, std).mean(),
            -interval_score(y, ends, 0.9).mean(),
            inside.mean(),
        ]
        found = [scorer(pipe, X, y) for scorer in PREDICTIVE]
        np.testing.assert_allclose(found, expected)
    logs = TransformedTargetRegressor(BayesianRidge(), func=np.log, inverse_func=np.exp)
    logs.fit(X, y)
    mean, std = logs.regressor_.predict(X, return_std=True)
    law = lognorm(std, scale=np.exp(mean))
    crps = np.mean(
        [
            crps_by_quadrature(lognorm(s, scale=np.exp(m)).cdf, one, 0, 400)
            for one, m, s in zip(y[:5], mean, std, strict=False)
        ]
    )
    assert neg_crps_scorer(logs, X[:5], y[:5]) == pytest.approx(-crps, rel=0.1)
    density = log_predictive_density_scorer(logs, X, y)
    assert density == pytest.approx(law.logpdf(y).mean())


@pytest.mark.parametrize("scorer", PREDICTIVE)
def test_wrong_estimators_are_refused(regression, scorer):
    X, y = regression
    with pytest.raises(TypeError, match=r"LinearRegression has no method.*return_std"):
        scorer(LinearRegression().fit(X, y), X, y)
    certain = GaussianProcessRegressor(RBF(), optimizer=None).fit(X, y)
    with pytest.raises(ValueError, match=r"deviation of 0.*WhiteKernel"):
        scorer(Certain().fit(X, y), X, y)
    assert np.isfinite(scorer(certain, X + 0.1, y))


class Certain(LinearRegression):
    """Says that it knows y."""

    def predict(self, X, return_std=False):
        mean = super().predict(X)
        return (mean, 0 * mean) if return_std else mean


def test_multi_metric_search_with_numbers_by_hand(regression):
    """Every split has the score of a model that is fitted and scored by hand."""
    X, y = regression
    scoring = {
        "density": log_predictive_density_scorer,
        "crps": neg_crps_scorer,
        "interval": NegIntervalScore(0.5),
        "coverage": interval_coverage_scorer,
    }
    folds = [(np.arange(40), np.arange(40, 60)), (np.arange(20, 60), np.arange(20))]
    search = GridSearchCV(
        make_pipeline(StandardScaler(), BayesianLinearRegression()),
        {"bayesianlinearregression__prior": ["hierarchical", "normal"]},
        scoring=scoring,
        refit="crps",
        cv=folds,
    ).fit(X, y)
    for i, prior in enumerate(("hierarchical", "normal")):
        for j, (train, test) in enumerate(folds):
            scale = StandardScaler().fit(X[train])
            model = BayesianLinearRegression(prior=prior)
            model.fit(scale.transform(X[train]), y[train])
            for name, scorer in scoring.items():
                found = search.cv_results_[f"split{j}_test_{name}"][i]
                by_hand = scorer(model, scale.transform(X[test]), y[test])
                assert found == pytest.approx(by_hand, rel=1e-9)
    assert search.best_index_ == np.argmax(search.cv_results_["mean_test_crps"])


def test_sample_weights_without_routing(regression):
    """Searches pass the weights of the fit on to the scorer. Wrong variant: they do
    not, because the scorer does not say that it takes them."""
    X, y = regression
    w = np.linspace(0.1, 2, 60)
    search = GridSearchCV(
        BayesianLinearRegression(), {}, scoring=log_predictive_density_scorer, cv=2
    ).fit(X, y, sample_weight=w)
    train, test = np.arange(30, 60), np.arange(30)
    model = BayesianLinearRegression().fit(X[train], y[train], w[train])
    expected = log_predictive_density_scorer(model, X[test], y[test], w[test])
    if tuple(map(int, sklearn.__version__.split(".")[:2])) >= (1, 9):
        assert search.cv_results_["split0_test_score"][0] == pytest.approx(expected)


def test_metadata_routing():
    """Weights and exposure reach the scorer where it asks for them, under any name."""
    rng = np.random.default_rng(0)
    X, years, w = rng.normal(size=(60, 1)), rng.uniform(1, 4, 60), rng.uniform(size=60)
    y = rng.poisson(years * np.exp(0.5 * X[:, 0]))
    folds = [(np.arange(40), np.arange(40, 60))]
    by_hand = BayesianPoissonRegressor(prior="normal").fit(
        X[:40], y[:40], w[:40], exposure=years[:40]
    )
    scorer = log_predictive_density_scorer.set_score_request(
        exposure=True, sample_weight="v"
    )
    expected = scorer(by_hand, X[40:], y[40:], w[40:] ** 2, exposure=years[40:])
    params = {"exposure": years, "w": w, "v": w**2}
    with sklearn.config_context(enable_metadata_routing=True):
        model = BayesianPoissonRegressor(prior="normal")
        model.set_fit_request(exposure=True, sample_weight="w")
        found = cross_validate(
            model, X, y, scoring={"a": scorer}, cv=folds, params=params
        )
        # The shared scorer has not been changed by its request.
        with pytest.raises(UnsetMetadataPassedError, match="exposure"):
            cross_validate(
                model,
                X,
                y,
                scoring=log_predictive_density_scorer,
                cv=folds,
                params={"exposure": years},
            )
    assert found["test_a"][0] == pytest.approx(expected)
    with pytest.raises(TypeError, match=r"cannot ask for \['groups'\]"):
        scorer.set_score_request(groups=True)


def test_scorers_pickle_and_say_what_they_are():
    scorer = NegIntervalScore(0.5).set_score_request(sample_weight=True)
    assert repr(pickle.loads(pickle.dumps(scorer))) == "NegIntervalScore(coverage=0.5)"
    assert repr(neg_crps_scorer) == "NegCRPS(n_draws=1000, random_state=0)"
    assert repr(LogPredictiveDensity()) == "LogPredictiveDensity()"


def of_log(model):
    return TransformedTargetRegressor(model, func=np.log, inverse_func=np.exp)


@pytest.mark.parametrize(
    ("model", "has_mean"),
    [
        (of_log(BayesianLinearRegression(likelihood="student_t")), False),
        (of_log(BayesianLinearRegression()), True),
        (BayesianLinearRegression(likelihood=StudentTLikelihood(df=1.0)), False),
        (BayesianLinearRegression(likelihood=StudentTLikelihood(df=1.5)), True),
    ],
    ids=["log-student", "lognormal", "cauchy", "student"],
)
def test_forecasts_without_a_mean_have_no_finite_crps(model, has_mean):
    """The CRPS is finite where E|y| is (Gneiting and Raftery 2007).

    Wrong variants: the number of some draws, in silence; a limit of quantiles
    themselves, which lognormal forecasts exceed.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    y = np.exp(X[:, 0] + 0.3 * rng.standard_t(4, size=60))
    model.fit(X, y)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        score = NegCRPS()(model, X, y)
    assert np.isfinite(score) == has_mean
    assert ["has no mean" in str(w.message) for w in caught] == [True] * (not has_mean)
