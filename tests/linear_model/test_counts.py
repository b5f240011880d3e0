"""Poisson regression: against scikit-learn, quadrature and its own definition."""

import math
import warnings
from functools import partial

import numpy as np
import pytest
import sklearn
import torch
from scipy import stats
from scipy.integrate import quad
from scipy.sparse import csr_matrix
from sklearn import config_context
from sklearn.base import clone
from sklearn.linear_model import PoissonRegressor
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.fixes import parse_version

from skvi.exceptions import IncompatibleComponentsError, SkviWarning
from skvi.expectations._poisson import (
    poisson_mixture_cdf,
    poisson_mixture_log_mass,
    poisson_mixture_quantiles,
)
from skvi.linear_model import BayesianLogisticRegression, BayesianPoissonRegressor
from skvi.losses import BetaLoss, GammaLoss
from skvi.priors import HalfCauchy, Normal
from skvi.solvers import Stochastic
from skvi.solvers._nodes import Nodes

# Their targets are no counts: log loss only.


def make_counts(n=300, d=3, seed=0, level=1.0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    exposure = rng.uniform(0.5, 4, size=n)
    coef = np.array([0.5, -0.3, 0.1])[:d]
    y = rng.poisson(exposure * np.exp(X @ coef + level))
    return X, y.astype(float), exposure


X, Y, T = make_counts()
WIDE = {"prior": Normal(scale=100.0)}


def test_the_mode_is_scikit_learns():
    """With a wide prior, up to the half variance by which a mean differs.

    Wrong variant: the exposure as an offset of its own, not of its logarithm.
    """
    ours = BayesianPoissonRegressor(**{"prior": "normal", **WIDE}).fit(X, Y, exposure=T)
    theirs = PoissonRegressor(alpha=0, tol=1e-9, max_iter=1000)
    theirs.fit(X, Y / T, sample_weight=T)
    assert ours.coef_ == pytest.approx(theirs.coef_, abs=2e-4)
    assert ours.intercept_ == pytest.approx(theirs.intercept_, abs=3e-3)
    rate = np.exp(X @ theirs.coef_ + theirs.intercept_)
    A = np.column_stack([X, np.ones(len(X))])
    covariance = np.linalg.inv(A.T @ (A * (T * rate)[:, None]))
    assert ours.coef_std_ == pytest.approx(np.sqrt(covariance.diagonal())[:3], rel=0.01)
    assert ours.converged_


def test_score_is_scikit_learns():
    """Wrong variants: the null model without weights; R^2."""
    ours = BayesianPoissonRegressor(**{"prior": "normal", **WIDE}).fit(X, Y)
    theirs = PoissonRegressor(alpha=0, tol=1e-9, max_iter=1000).fit(X, Y)
    weight = np.linspace(0, 2, len(Y))
    expected = theirs.score(X, Y, sample_weight=weight)
    assert ours.score(X, Y, sample_weight=weight) == pytest.approx(expected, abs=1e-4)
    assert ours.score(X, np.full(len(Y), 2.0)) == 0.0
    exposed = BayesianPoissonRegressor(**{"prior": "normal", **WIDE}).fit(
        X, Y, exposure=T
    )
    assert exposed.score(X, Y, exposure=T) > 0.2


def test_exposure_is_an_offset_of_the_log_rate():
    """Constant exposure moves the intercept; rates with weights are the same thing."""
    counts = BayesianPoissonRegressor(**{"prior": "normal", **WIDE}).fit(
        X, Y, exposure=T
    )
    rates = BayesianPoissonRegressor(**{"prior": "normal", **WIDE}).fit(
        X, Y / T, sample_weight=T
    )
    # But for the intercept's prior, which acts at means with other weights.
    assert rates.coef_ == pytest.approx(counts.coef_, abs=1e-5)
    assert rates.intercept_ == pytest.approx(counts.intercept_, abs=1e-5)
    assert rates.coef_std_ == pytest.approx(counts.coef_std_, rel=1e-5)
    plain = BayesianPoissonRegressor(**{"prior": "normal", **WIDE}).fit(X, Y)
    twice = BayesianPoissonRegressor(**{"prior": "normal", **WIDE}).fit(
        X, Y, exposure=2.0 * np.ones(len(Y))
    )
    assert twice.coef_ == pytest.approx(plain.coef_, abs=1e-5)
    assert twice.intercept_ == pytest.approx(plain.intercept_ - math.log(2), abs=1e-4)
    two = twice.predict(X, exposure=np.full(len(X), 2.0))
    one = twice.predict(X, exposure=1)
    assert two == pytest.approx(2 * one, rel=1e-12)
    assert two == pytest.approx(plain.predict(X), rel=1e-4)
    # Weights and exposures of dropped rows are dropped.
    weight = (np.arange(len(Y)) % 3 > 0).astype(float)
    some = weight > 0
    full = BayesianPoissonRegressor(prior="normal").fit(
        X, Y, sample_weight=weight, exposure=T
    )
    part = BayesianPoissonRegressor(prior="normal").fit(
        X[some], Y[some], exposure=T[some]
    )
    assert full.coef_ == pytest.approx(part.coef_, abs=1e-9)


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"objective": "eubo"},
        {"objective": "iwelbo", "max_iter": 8},
        {"solver": Stochastic(batch_size=50), "max_iter": 30},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_every_path_knows_the_exposure(parts):
    """Wrong variant: an offset in the expectations, and none in the draws."""
    model = BayesianPoissonRegressor(random_state=0, prior="normal", **parts)
    model.fit(X, Y, exposure=T)
    rates = BayesianPoissonRegressor(**{"prior": "normal", **WIDE}).fit(
        X, Y / T, sample_weight=T
    )
    assert model.coef_ == pytest.approx(rates.coef_, abs=0.02)
    assert model.intercept_ == pytest.approx(rates.intercept_, abs=0.03)


def log_evidence(y, exposure, scale):
    """One coefficient, an intercept only, by adaptive quadrature."""
    center = math.log(y.sum() / exposure.sum())

    def log_joint(b):
        law = stats.poisson(exposure * math.exp(b))
        return law.logpmf(y).sum() + stats.norm.logpdf(b, 0, scale)

    top = log_joint(center)
    total = quad(
        lambda b: math.exp(log_joint(b) - top), center - 4, center + 4, points=[center]
    )
    return top + math.log(total[0])


def test_bounds_enclose_the_evidence():
    """Two-sided, with the exposure. Wrong variant: log y! left out."""
    y, exposure = Y[:12], T[:12]
    column = np.ones((12, 1))
    model = BayesianPoissonRegressor(fit_intercept=False, prior="normal").fit(
        column, y, exposure=exposure
    )
    exact = log_evidence(y, exposure, 1.0)
    assert exact - 0.01 < model.lower_bound_ < exact
    bounds = model.evidence_bounds(
        column, y, exposure=exposure, n_draws=4096, random_state=0
    )
    assert bounds.lower - 5 * bounds.lower_se < exact
    assert exact < bounds.upper + 5 * bounds.upper_se
    assert bounds.estimate == pytest.approx(exact, abs=0.02)
    with pytest.raises(ValueError, match="sample_weight and exposure of the fit"):
        model.evidence_bounds(column, y)


def test_rates_are_refused_where_counts_are_needed():
    model = BayesianPoissonRegressor(prior="normal").fit(X, Y / T, sample_weight=T)
    with pytest.raises(ValueError, match=r"evidence_bounds needs counts.*exposure"):
        model.evidence_bounds(X, Y / T, sample_weight=T)
    with pytest.raises(ValueError, match="predict_log_density needs counts"):
        model.predict_log_density(X, Y)
    counts = BayesianPoissonRegressor(prior="normal").fit(X, Y)
    with pytest.raises(ValueError, match="predict_log_density needs counts"):
        counts.predict_log_density(X, Y + 0.5)
    with pytest.raises(IncompatibleComponentsError, match="needs counts"):
        BayesianPoissonRegressor(loss="beta", prior="normal").fit(X, Y / T)


@pytest.mark.parametrize(
    ("y", "exposure", "message"),
    [
        (Y - 1, None, "Negative values in y"),
        (Y, -T, "one positive number for each"),
        (Y, 0 * T, "smallest 0"),
        (Y, T[:10], "Got 10 numbers"),
        (Y, np.where(T > 3, np.nan, T), "NaN"),
    ],
)
def test_bad_input(y, exposure, message):
    with pytest.raises(ValueError, match=message):
        BayesianPoissonRegressor(prior="normal").fit(X, y, exposure=exposure)


def test_one_exposure_for_all_rows():
    same = BayesianPoissonRegressor(prior="normal").fit(
        X, Y, exposure=np.full(len(X), 2.0)
    )
    model = BayesianPoissonRegressor(prior="normal").fit(X, Y, exposure=2)
    assert np.array_equal(model.coef_, same.coef_)
    each = same.predict(X, exposure=np.full(len(X), 3.0))
    assert np.array_equal(model.predict(X, exposure=3.0), each)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_bounds_where_the_prior_allows_huge_rates(seed):
    """Chains that start at rates of exp(10) still find the posterior."""
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(800, 3))
    Z[:, 1] = np.exp(Z[:, 1])
    Z = (Z - Z.mean(0)) / Z.std(0)
    counts = rng.poisson(np.exp(0.3 * Z[:, 0] + 0.2))
    model = BayesianPoissonRegressor(prior="normal").fit(Z, counts)
    bounds = model.evidence_bounds(Z, counts, random_state=0)
    assert bounds.reliable, bounds.reason
    assert abs(bounds.gap) < 0.1


def test_hard_data():
    """No event at all; counts of a million; sparse features."""
    none = BayesianPoissonRegressor(prior="normal").fit(X, np.zeros(len(Y)))
    assert (none.predict(X) < 0.1).all()
    assert none.score(X, np.zeros(len(Y))) == 0.0
    many = BayesianPoissonRegressor(prior=Normal(scale=10.0))
    rate = 1e6 * np.exp(0.3 * X[:, 0])
    many.fit(X, np.random.default_rng(0).poisson(rate))
    assert many.converged_
    assert many.predict(X) == pytest.approx(rate, rel=0.001)
    dense = BayesianPoissonRegressor(prior="normal").fit(X, Y, exposure=T)
    sparse = BayesianPoissonRegressor(prior="normal").fit(csr_matrix(X), Y, exposure=T)
    assert sparse.coef_ == pytest.approx(dense.coef_, rel=1e-9)
    draws = sparse.sample_y(csr_matrix(X), 2, random_state=0, exposure=T)
    assert draws.shape == (len(X), 2)


@pytest.mark.parametrize("loss", [BetaLoss(1.5), GammaLoss(1.5)], ids=repr)
def test_robust_losses_ignore_wrong_counts(loss):
    """Two percent of the counts are 500. Wrong variant: the sign of the normalizer."""
    y = Y.copy()
    y[::50] = 500
    clean = BayesianPoissonRegressor(prior="normal").fit(X, Y, exposure=T)
    moved = BayesianPoissonRegressor(prior="normal").fit(X, y, exposure=T)
    robust = BayesianPoissonRegressor(loss=loss, prior="normal").fit(X, y, exposure=T)

    def distance(model):
        found, expected = (m.predict(X, exposure=1) for m in (model, clean))
        return abs(np.log(found) - np.log(expected)).mean()

    assert robust.converged_
    assert distance(robust) < 0.1 < 5 * distance(robust) < distance(moved)


# --- predictions -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("mean", "std"), [(-3.0, 2.0), (1.0, 1e-6), (1.0, 0.4), (9.0, 0.03), (9.0, 2.0)]
)
def test_distribution_of_a_mixture(mean, std):
    """Against adaptive quadrature. Wrong variant: nodes over the wider variable."""
    for k in sorted({0.0, 3.0, np.ceil(np.exp(mean)), np.ceil(np.exp(mean + std))}):

        def integrand(z, k=k):
            return stats.poisson.cdf(k, np.exp(mean + std * z)) * stats.norm.pdf(z)

        step = (np.log(k + 0.5) - mean) / std
        points = [step] if abs(step) < 9 else None
        width = 8 / np.sqrt(k + 1) / std
        points = [p for p in (step - width, step, step + width) if abs(p) < 9]
        exact = quad(integrand, -9, 9, points=points or None, limit=200, epsabs=1e-10)
        args = [torch.tensor([v], dtype=torch.float64) for v in (k, mean, std)]
        assert float(poisson_mixture_cdf(*args)) == pytest.approx(exact[0], abs=1e-8)


def test_quantiles_invert_the_distribution():
    """The smallest count. Wrong variants: one less; one more."""
    rng = np.random.default_rng(0)
    mean = torch.from_numpy(rng.uniform(-4, 8, 60))
    std = torch.from_numpy(10 ** rng.uniform(-4, 0.3, 60))
    levels = np.array([0.01, 0.05, 0.5, 0.95, 0.999])
    one = torch.ones(1, dtype=torch.float64)
    found = poisson_mixture_quantiles(mean[None], std[None], one, levels)
    for level, k in zip(levels, found.T, strict=True):
        assert bool((poisson_mixture_cdf(k, mean, std) >= level).all())
        assert bool((poisson_mixture_cdf(k - 1, mean, std) < level).all())
    alone = poisson_mixture_quantiles(mean[None, 3:4], std[None, 3:4], one, levels)
    assert bool((alone[0] == found[3]).all())
    # Of two normals: the weighted mean of the distribution functions.
    pair, weights = torch.stack([mean, mean.flip(0)]), torch.tensor([0.3, 0.7]).double()
    both = poisson_mixture_quantiles(pair, torch.stack([std, std]), weights, levels)

    def cdf(k):
        parts = [poisson_mixture_cdf(k, m, std) for m in pair]
        return 0.3 * parts[0] + 0.7 * parts[1]

    for level, k in zip(levels, both.T, strict=True):
        assert bool((cdf(k) >= level).all())
        assert bool((cdf(k - 1) < level).all())


def test_mass_of_a_mixture():
    """Differences of the distribution function, and logarithms far out."""
    mean, std = (torch.tensor([v], dtype=torch.float64).expand(40) for v in (1.2, 0.7))
    y = torch.arange(40.0, dtype=torch.float64)
    mass = poisson_mixture_log_mass(y, mean, std).exp()
    difference = poisson_mixture_cdf(y, mean, std) - poisson_mixture_cdf(
        y - 1, mean, std
    )
    torch.testing.assert_close(mass, difference, rtol=1e-7, atol=1e-10)
    far = [
        torch.tensor(v, dtype=torch.float64)
        for v in ([1e4, 0.0, 1e4], [0.0, 12.0, 0.0], [0.05, 0.1, 1e-9])
    ]
    found = poisson_mixture_log_mass(*far).numpy()
    assert np.isfinite(found).all()
    # Without spread it is the Poisson mass; with it, at least that minus little.
    poisson = stats.poisson(1.0).logpmf(10_000)
    assert found[2] == pytest.approx(poisson, rel=1e-9)
    assert found[0] > poisson

    def log_product(z):
        rate = np.exp(12.0 + 0.1 * z)
        return -rate - 0.5 * z * z

    z = np.linspace(-100, 10, 400_001)
    values = log_product(z)
    exact = values.max() + np.log(np.exp(values - values.max()).sum() * (z[1] - z[0]))
    assert found[1] == pytest.approx(exact - 0.5 * math.log(2 * math.pi), rel=1e-6)


def test_predictions_agree_with_draws():
    """Mean, deviation and quantiles of 40,000 sampled counts."""
    model = BayesianPoissonRegressor(prior="normal").fit(
        X[:20], Y[:20], exposure=T[:20]
    )
    mean, std = model.predict(X[:5], return_std=True, exposure=T[:5])
    draws = model.sample_y(X[:5], 40_000, random_state=0, exposure=T[:5])
    error = draws.std(1) / 200
    assert (np.abs(draws.mean(1) - mean) < 5 * error).all()
    assert draws.std(1) == pytest.approx(std, rel=0.05)
    low, high = model.predict_interval(X[:5], coverage=0.8, exposure=T[:5]).T
    inside = ((draws >= low[:, None]) & (draws <= high[:, None])).mean(1)
    assert (inside > 0.8 - 5 * 0.002).all()
    y = draws[:, 0]
    log_mass = model.predict_log_density(X[:5], y, exposure=T[:5])
    share = (draws == y[:, None]).mean(1)
    error = np.sqrt(share * (1 - share) / draws.shape[1])
    assert (np.abs(np.exp(log_mass) - share) < 5 * error + 1e-9).all()


# Earlier versions of scikit-learn do not hand it on to a pipeline's own score.
ROUTES_TO_SCORES = parse_version(sklearn.__version__) >= parse_version("1.8")


def test_exposure_is_routed():
    """Through a pipeline and a search. Wrong variant: a fit that ignores it."""
    with config_context(enable_metadata_routing=True), warnings.catch_warnings():
        if not ROUTES_TO_SCORES:  # the model says so
            warnings.simplefilter("ignore", SkviWarning)
        model = BayesianPoissonRegressor(prior="normal").set_fit_request(exposure=True)
        model = model.set_score_request(exposure=True).set_predict_request(
            exposure=True
        )
        pipeline = make_pipeline(StandardScaler(), model)
        found = cross_validate(pipeline, X, Y, params={"exposure": T}, cv=3)
        assert found["test_score"].mean() > 0.2 or not ROUTES_TO_SCORES
        search = GridSearchCV(
            pipeline, {"bayesianpoissonregressor__prior": ["normal", "laplace"]}, cv=3
        )
        search.fit(X, Y, exposure=T)
        direct = BayesianPoissonRegressor(prior="normal").fit(
            StandardScaler().fit_transform(X), Y, exposure=T
        )
        worst = search.cv_results_["mean_test_score"].min()
        assert worst > 0.2 or not ROUTES_TO_SCORES
        pipeline.fit(X, Y, exposure=T)
        assert pipeline[-1].coef_ == pytest.approx(direct.coef_, rel=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_a_column_in_large_units_hides_no_effect(seed):
    """The scale has two modes, a hundred nats apart, with a valley between them.

    Coefficients are within a deviation of those without the column, and a prior that
    hardly shrinks; at the lower mode they are 0, which is ten deviations away.

    Wrong variant: a coarse grid of scales from -3 to 3, which ends at the lower mode.
    """
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(60, 3)) * [1.0, 1.0, 3e4]
    f = 0.5 + X[:, :2] @ [1.0, -0.8]
    y = np.random.default_rng(seed + 1).poisson(np.exp(f))
    with pytest.warns(SkviWarning, match="no single scale"):
        model = BayesianPoissonRegressor(prior=Normal(HalfCauchy())).fit(X, y)
    plain = BayesianPoissonRegressor(prior=Normal(30.0)).fit(X[:, :2], y)
    away = (model.coef_[:2] - plain.coef_) / plain.coef_std_
    assert (np.abs(away) < 1).all()


def test_means_that_do_not_exist_are_medians():
    """Six rows leave the scale open: means of 1e20, infinite and NaN without that.

    Wrong variant: the mean over the nodes, whatever its largest scale contributes.
    """
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(6, 5)), rng.poisson(2, 6)
    new = 2 * np.random.default_rng(9).normal(size=(10, 5))
    model = BayesianPoissonRegressor().fit(X, y)
    with pytest.warns(SkviWarning, match="the median is given") as caught:
        mean, std = model.predict(new, return_std=True)
    assert len(caught) == 1
    lost = np.isinf(std)
    assert lost.any()
    median = model.predict_quantiles(new[lost][:1], 0.5)[:, 0]
    assert mean[lost][0] == median
    assert (mean < 1e4).all()
    parts = model.predict_uncertainty(new)
    assert not any(np.isnan(part).any() for part in parts.values())


def test_functions_average_to_predictions():
    """Of classes and counts; wrong variant: without the origin of the exposure."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(100, 2))
    y = (X @ rng.normal(size=2) + 0.5 * rng.normal(size=100) > 0).astype(int)
    counts = BayesianPoissonRegressor(prior="normal").fit(X, y, exposure=y + 3.0)
    model = BayesianLogisticRegression().fit(X, y)
    one = partial(counts.predict, exposure=1)
    for fitted, method in ((model, model.predict_proba), (counts, one)):
        draws = np.array([fitted.sample_function(i)(X[:3]) for i in range(400)])
        se = draws.std(0) / 20
        assert (np.abs(draws.mean(0) - method(X[:3])) < 4.5 * se + 1e-9).all()


def make_wide(seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(100, 300))
    return X, rng.poisson(np.exp(X[:, :3] @ [0.5, -0.5, 0.25]))


@pytest.mark.parametrize("seed", range(4))
def test_more_columns_than_rows(seed, monkeypatch):
    """The integral over the scale is that of finer nodes, however steep it is.

    Wrong variants: the step of the first guess (bounds .09 to .24 nats too high); steps
    of the scale that are taken whatever they lead to, and of means by variances alone
    (after 100 iterations 40,000 nats from the optimum).
    """
    X, y = make_wide(seed)
    model = BayesianPoissonRegressor(posterior="mean_field").fit(X, y)
    assert model.converged_
    monkeypatch.setattr("skvi.solvers._nodes.LONGEST", 0.05)
    fine = clone(model).fit(X, y)
    assert model.lower_bound_ == pytest.approx(fine.lower_bound_, abs=0.03)


def test_a_wide_prior_and_more_columns_than_rows():
    """Wrong variant: a start as wide as the prior, where no mean of a count exists."""
    X, y = make_wide(3)
    full = BayesianPoissonRegressor(prior="normal").fit(X, y)
    assert full.converged_
    part = BayesianPoissonRegressor(prior="normal", posterior="mean_field").fit(X, y)
    assert part.converged_
    assert part.lower_bound_ < full.lower_bound_ < -180


@pytest.mark.parametrize("iteration", [6, 14])
def test_ctrl_c_at_a_scale_that_would_be_left(iteration, monkeypatch):
    """Wrong variant: what is kept is the last place, 75 nats below the best one."""
    report, values = Nodes.report, []

    def interrupted(self):
        report(self)
        values.append(self.value)
        if len(values) == iteration:
            raise KeyboardInterrupt

    monkeypatch.setattr(Nodes, "report", interrupted)
    model = BayesianPoissonRegressor(posterior="mean_field")
    with pytest.raises(KeyboardInterrupt):
        model.fit(*make_wide(3))
    assert values[-1] > min(values) + 5
    assert model.lower_bound_ == pytest.approx(-min(values), abs=0.5)
