"""Heavy-tailed noise and overdispersed counts, and likelihoods of a user's own."""

import math
import os

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from skvi.likelihoods import (
    GaussianLikelihood,
    Likelihood,
    NegativeBinomialLikelihood,
    NoiseLikelihood,
    StudentTLikelihood,
)
from skvi.linear_model import BayesianLinearRegression, BayesianPoissonRegressor
from skvi.model_selection import EvidenceSearch
from skvi.priors import GammaHyperprior, Normal
from tests.linear_model.reference_likelihoods import NegativeBinomial, StudentT, data_of
from tests.references.make_likelihoods import PROBLEMS, load

STORED = load()


def student_t_data(n, seed=0, df=4.0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    y = 50 + 10 * (X @ [1.0, -2.0, 0.5] + 0.6 * rng.standard_t(df, size=n))
    return X, y


def overdispersed(n, seed=0, alpha=0.4, rate=3.0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    mean = np.exp(X @ [0.5, -0.4, 0.2] + rate)
    return X, rng.poisson(rng.gamma(1 / alpha, alpha * mean))


@pytest.mark.parametrize("name", PROBLEMS)
def test_coefficients_are_those_of_long_chains(name):
    """Wrong variants: normal noise, or Poisson counts; the gamma step left out."""
    kind, data = PROBLEMS[name]
    if data != "diabetes" and "SKVI_DATA" not in os.environ:
        pytest.skip("SKVI_DATA is not set")
    (X, y), found = data_of(data), {k: np.array(v) for k, v in STORED[name].items()}
    parts = {"prior": Normal(), "intercept_prior": Normal(10.0)}
    if kind is StudentT:
        model = BayesianLinearRegression(
            likelihood="student_t", normalize_y=False, **parts
        )
        number = model.fit(X, (y - y.mean()) / y.std()).noise_scale_
    else:
        model = BayesianPoissonRegressor(
            likelihood="negative_binomial", **{"prior": "normal", **parts}
        )
        number = model.fit(X, y).dispersion_
    mean = np.append(model.coef_, model.intercept_)
    std = np.append(model.coef_std_, model.intercept_std_)
    deviation = np.sqrt(found["variance"])
    errors = np.abs(mean - found["mean"][:-1]) / found["error"][:-1]
    assert errors.max() < 4.0
    np.testing.assert_allclose(std, deviation[:-1], rtol=0.03)
    assert abs(np.log(number) - found["mean"][-1]) < 0.15 * deviation[-1]


def grid_evidence(problem, center, width):
    """Log of the integral over one coefficient and one number, on a grid."""
    ends = zip(np.subtract(center, 9 * width), np.add(center, 9 * width), strict=True)
    axes = [np.linspace(low, high, 301) for low, high in ends]
    theta = np.stack([m.ravel() for m in np.meshgrid(*axes, indexing="ij")], 1)
    values = np.concatenate([problem.log_joint(t) for t in np.array_split(theta, 50)])
    return logsumexp(values) + sum(np.log(a[1] - a[0]) for a in axes)


class WithoutIntercept:
    """Mixin of references: one coefficient."""

    def __init__(self, X, y):
        self.A, self.y, self.widths = X, y, np.ones(1)


class OneStudentT(WithoutIntercept, StudentT):
    pass


class OneNegativeBinomial(WithoutIntercept, NegativeBinomial):
    pass


@pytest.mark.filterwarnings("ignore:.*vague Gamma hyperpriors:UserWarning")
def test_student_t_evidence_against_quadrature():
    """Wrong variants: without the Jacobian of the log precision; df - 1 for df."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(25, 1))
    y = 0.7 * X[:, 0] + 0.5 * rng.standard_t(4, size=25)
    parts = {"prior": Normal(), "noise_scale": GammaHyperprior(1e-6, 1e-6)}
    model = BayesianLinearRegression(
        likelihood="student_t", fit_intercept=False, normalize_y=False, **parts
    ).fit(X, y)
    truth = grid_evidence(OneStudentT(X, y), (0.7, -0.7), np.array([0.15, 0.25]))
    bounds = model.evidence_bounds(X, y, precision=0.1, random_state=0)
    low, high = bounds.interval()
    assert bounds.reliable
    assert not bounds.plug_in
    assert low < truth < high
    assert high - low < 0.3
    assert truth - 0.1 < model.lower_bound_ < truth
    assert model.lower_bound_se_ == 0


def test_negative_binomial_evidence_against_quadrature():
    """Wrong variants: the exponential prior as one of the logarithm; rate 2."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(40, 1))
    y = rng.poisson(rng.gamma(1 / 0.6, 0.6 * np.exp(0.8 * X[:, 0])))
    model = BayesianPoissonRegressor(
        likelihood="negative_binomial", prior=Normal(), fit_intercept=False
    ).fit(X, y)
    truth = grid_evidence(OneNegativeBinomial(X, y), (0.8, -0.8), np.array([0.2, 0.8]))
    bounds = model.evidence_bounds(X, y, precision=0.1, random_state=0)
    low, high = bounds.interval()
    assert bounds.reliable
    assert not bounds.plug_in
    assert low < truth < high
    assert high - low < 0.3
    assert truth - 0.15 < model.lower_bound_ < truth


def test_learned_numbers_are_plugged_in():
    """Type-II maxima are named, and their evidence is larger. Wrong variant: not."""
    X, y = overdispersed(60, rate=1.0)
    learned = BayesianPoissonRegressor(
        likelihood=NegativeBinomialLikelihood("learn"), prior="normal"
    )
    integrated = BayesianPoissonRegressor(
        likelihood="negative_binomial", prior="normal"
    )
    first = learned.fit(X, y).evidence_bounds(X, y, precision=0.2, random_state=0)
    second = integrated.fit(X, y).evidence_bounds(X, y, precision=0.2, random_state=0)
    assert first.plug_in == ("dispersion",)
    assert second.plug_in == ()
    assert first.estimate > second.estimate + 0.5
    ratio = learned.dispersion_ / integrated.dispersion_
    assert 0.7 < ratio < 1.1  # the mode is below the mean


@pytest.mark.slow
def test_student_t_intervals_hold_what_they_promise():
    """90 % intervals of new targets. Wrong variant: those of normal noise."""
    inside = []
    for seed in range(8):
        X, y = student_t_data(400, seed)
        model = BayesianLinearRegression(likelihood="student_t").fit(X[:80], y[:80])
        low, high = model.predict_interval(X[80:]).T
        inside.append((low < y[80:]) & (y[80:] < high))
    assert 0.88 < np.mean(inside) < 0.92


@pytest.mark.slow
def test_overdispersed_counts():
    """Intervals of 90 % hold them where Poisson's hold half; the evidence knows."""
    inside = {"poisson": [], "negative_binomial": []}
    for seed in range(5):
        X, y = overdispersed(400, seed, alpha=0.3, rate=3.5)
        for name, found in inside.items():
            model = BayesianPoissonRegressor(
                likelihood=name, intercept_prior=Normal(5.0), prior="normal"
            )
            low, high = model.fit(X[:100], y[:100]).predict_interval(X[100:]).T
            found.append((low <= y[100:]) & (y[100:] <= high))
    assert 0.88 < np.mean(inside["negative_binomial"]) < 0.92
    assert np.mean(inside["poisson"]) < 0.55
    search = EvidenceSearch(
        BayesianPoissonRegressor(intercept_prior=Normal(5.0), prior="normal"),
        {"likelihood": ["poisson", "negative_binomial"]},
        random_state=0,
    ).fit(X[:100], y[:100])
    assert search.best_params_ == {"likelihood": "negative_binomial"}


def mixture_cdf(model, X, y, n_draws=4000):
    """Distribution function of new targets by fresh draws of the posterior."""
    draws = model.sample_y(X, n_draws, random_state=1)
    return (draws <= y[:, None]).mean(1), (draws < y[:, None]).mean(1)


CASES = [
    BayesianLinearRegression(likelihood="student_t"),
    BayesianLinearRegression(likelihood="student_t", noise_scale="learn"),
    BayesianLinearRegression(likelihood=StudentTLikelihood(df=2.5), noise_scale=6.0),
    BayesianPoissonRegressor(likelihood="negative_binomial", prior="normal"),
    BayesianPoissonRegressor(
        likelihood=NegativeBinomialLikelihood("learn"), prior="normal"
    ),
    BayesianPoissonRegressor(
        likelihood=NegativeBinomialLikelihood(0.5), prior="normal"
    ),
]


def data_for(model, n=12):
    if isinstance(model, BayesianPoissonRegressor):
        return overdispersed(n, rate=1.0)
    return student_t_data(n)


@pytest.mark.parametrize("model", CASES, ids=repr)
def test_predictions_agree_with_fresh_draws(model):
    """Of few rows, so that coefficients and numbers are uncertain.

    Wrong variants: nodes of f with equal weights; numbers in the wrong order;
    deviations without the dispersion.
    """
    X, y = data_for(model)
    model = clone(model).fit(X, y)
    levels = [0.05, 0.5, 0.9]
    found = model.predict_quantiles(X, levels)
    for level, column in zip(levels, found.T, strict=True):
        at_most, below = mixture_cdf(model, X, column)
        assert np.all(at_most > level - 0.03)
        assert np.all(below < level + 0.03)
    mean, std = model.predict(X, return_std=True)
    draws = model.sample_y(X, 4000, random_state=2)
    error = draws.std(1).max() / 4000**0.5
    np.testing.assert_allclose(np.mean(draws, 1), mean, atol=4 * error)
    assert np.all(std > 0)
    step = 1.0 if isinstance(model, BayesianPoissonRegressor) else 1e-3
    at = found[:, 1] + (0.0 if step == 1.0 else step / 2)
    density = np.exp(model.predict_log_density(X, at))
    if step == 1.0:
        np.testing.assert_allclose(draws.std(1), std, rtol=0.3)
        at_most, below = mixture_cdf(model, X, at)
        np.testing.assert_allclose(density, at_most - below, atol=0.04)
    rows = [model.predict_quantiles(X[i : i + 1], levels)[0] for i in range(3)]
    np.testing.assert_allclose(np.array(rows), found[:3], rtol=1e-11)


class LogisticNoise(NoiseLikelihood):
    """A user's noise: logistic."""

    _standard_variance = np.pi**2 / 3

    def __init__(self, noise_scale=1.0):
        self.noise_scale = noise_scale

    def _standard_log_prob(self, z):
        return torch.nn.functional.logsigmoid(z) + torch.nn.functional.logsigmoid(-z)

    def _standard_cdf(self, z):
        return torch.sigmoid(z)

    def _standard_quantile(self, level):
        return torch.logit(level)  # levels are tensors: they may differ between rows

    def _standard_slope(self, z):
        return torch.tanh(z / 2)

    def _standard_noise(self, generator, shape):
        return torch.logit(torch.rand(shape, generator=generator, dtype=torch.float64))


class ZeroInflated(Likelihood):
    """A user's counts: Poisson, or 0 with a probability of 0.3."""

    is_discrete = True
    share = 0.3

    def _counts(self, f, y):
        rate = f[..., 0]
        return y * rate - rate.exp() - torch.lgamma(y + 1)

    def log_prob(self, f, y):
        log_p = self._counts(f, y) + np.log(1 - self.share)
        return torch.where(y == 0, torch.log(self.share + log_p.exp()), log_p)

    def mean(self, f):
        return (1 - self.share) * f[..., 0].exp()

    def variance(self, f):
        rate = f[..., 0].exp()
        return (1 - self.share) * (rate + self.share * rate.square())

    def cdf(self, f, y):
        rate = f[..., 0].exp()
        below = torch.special.gammaincc((y + 1).expand_as(rate), rate)
        return self.share + (1 - self.share) * below

    def sample(self, f, generator):
        kept = torch.rand(f.shape[:-1], generator=generator, dtype=f.dtype) > self.share
        return kept * torch.poisson(f[..., 0].exp(), generator=generator)


def test_noise_of_a_users_own():
    """Compared with normal noise by its evidence. Wrong variant: it is not used."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    y = X @ [1.0, -1.0] + rng.logistic(size=300)
    model = BayesianLinearRegression(likelihood=LogisticNoise(), prior=Normal())
    model.fit(X, y)
    assert model.noise_scale_ == pytest.approx(1.0, rel=0.1)
    low, high = model.predict_interval(X).T
    assert 0.86 < np.mean((low < y) & (y < high)) < 0.94
    draws = model.sample_y(X[:3], 5000, random_state=0)
    np.testing.assert_allclose(draws.std(1), model.predict(X[:3], True)[1], rtol=0.06)
    normal = BayesianLinearRegression(prior=Normal()).fit(X, y)
    assert model.lower_bound_ > normal.lower_bound_ + 1


def test_counts_of_a_users_own():
    """Wrong variant: the mean or quantiles of a Poisson distribution."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    f = X @ [0.5, -0.3] + 1.5
    y = rng.poisson(np.exp(f)) * (rng.random(300) > 0.3)
    model = BayesianPoissonRegressor(likelihood=ZeroInflated(), prior=Normal()).fit(
        X, y
    )
    np.testing.assert_allclose(model.coef_, [0.5, -0.3], atol=0.1)
    mean, std = model.predict(X, return_std=True)
    draws = model.sample_y(X, 3000, random_state=0)
    np.testing.assert_allclose(draws.mean(1), mean, rtol=0.12)
    np.testing.assert_allclose(draws.std(1), std, rtol=0.12)
    at_most = (draws <= model.predict_quantiles(X, 0.9)).mean(1)
    assert np.all(at_most > 0.87)
    poisson = BayesianPoissonRegressor(prior=Normal()).fit(X, y)
    assert model.lower_bound_ > poisson.lower_bound_ + 10
    bounds = model.evidence_bounds(X, y, precision=0.1, random_state=0)
    assert bounds.reliable


def test_grid_over_strings_and_objects():
    """A search sets them, and what is inside. Wrong variant: strings stay strings."""
    X, y = overdispersed(60, rate=1.0)
    search = GridSearchCV(
        BayesianPoissonRegressor(likelihood="negative_binomial", prior="normal"),
        {"likelihood__dispersion": [0.01, 0.5, "hyperprior"]},
        scoring=lambda e, X, y: e.predict_log_density(X, y).mean(),
        cv=3,
    ).fit(X, y)
    assert search.best_params_["likelihood__dispersion"] != 0.01
    X, y = student_t_data(60)
    model = BayesianLinearRegression(likelihood="student_t").set_params(
        likelihood__df=2.0
    )
    assert model.likelihood.df == 2.0
    assert model.fit(X, y).predict(X[:1], return_std=True)[1] == np.inf


@pytest.mark.parametrize("likelihood", ["gaussian", "student_t"])
def test_the_mean_variance_of_noise_counts_weights_and_batches(likelihood):
    """One row of weight 100 is 100 rows; three batches of a row are three.

    Wrong variants: rows are counted, not their weights; those of the last batch alone.
    """
    X, y = student_t_data(3)
    model = BayesianLinearRegression(likelihood=likelihood)
    weighted = clone(model).fit(X[:1], y[:1], [100.0])
    repeated = clone(model).fit(np.repeat(X[:1], 100, 0), np.repeat(y[:1], 100))
    std = weighted.predict(X, return_std=True)[1]
    assert std == pytest.approx(repeated.predict(X, return_std=True)[1], rel=1e-5)
    for i in range(3):
        model.partial_fit(X[[i]], y[[i]])
    assert np.isfinite(model.predict(X, return_std=True)[1]).all()


def test_yesterdays_posterior_is_todays_prior():
    """Its dispersion, too. Wrong variant: that one starts from its first prior."""
    X, y = overdispersed(400, rate=1.0)
    model = BayesianPoissonRegressor(likelihood="negative_binomial", prior="normal")
    first = clone(model).fit(X[:200], y[:200])
    second = clone(model).set_params(prior=first.posterior_).fit(X[200:], y[200:])
    whole = clone(model).fit(X, y)
    np.testing.assert_allclose(second.coef_, whole.coef_, atol=0.01)
    assert second.dispersion_ == pytest.approx(whole.dispersion_, rel=0.02)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            BayesianPoissonRegressor(
                likelihood="negative_binomial", loss="beta", prior="normal"
            ),
            "dispersion=0.5",
        ),
        (BayesianLinearRegression(likelihood="poisson"), "student_t"),
        (BayesianLinearRegression(likelihood=GaussianLikelihood(2.0)), "noise_scale"),
        (
            BayesianPoissonRegressor(likelihood="student_t", prior="normal"),
            "negative_binomial",
        ),
        (
            BayesianPoissonRegressor(likelihood=GaussianLikelihood(), prior="normal"),
            "is_discrete",
        ),
    ],
)
def test_wrong_likelihoods_say_what_is_right(model, message):
    """Wrong variant: they are fitted."""
    X, y = overdispersed(30)
    with pytest.raises(ValueError, match=message):
        model.fit(X, y)


@pytest.mark.parametrize(
    "parts", [{}, {"prior": "horseshoe"}, {"normalize_y": False}], ids=str
)
def test_heavy_tails_survive_a_sentinel(parts):
    """One target that stands for "missing" moves coefficients as any outlier does.

    Wrong variant: mean and standard deviation as units (deviation 4.3 for .04).
    """
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 1))
    y = X[:, 0] + 0.2 * rng.standard_normal(50)
    found = []
    for sentinel in (1e2, 999_999, 1e9):
        y[3] = sentinel
        model = BayesianLinearRegression(likelihood="student_t", **parts).fit(X, y)
        found.append([model.coef_[0], model.coef_std_[0], model.noise_scale_])
    assert found[0] == pytest.approx([0.975, 0.037, 0.197], rel=0.03)
    np.testing.assert_allclose(found[1:], found[:1] * 2, rtol=2e-3)


def test_a_mode_far_from_the_peak_of_the_prior():
    """The bound is that of quadrature over coefficient and log noise.

    Wrong variant: a start at large likelihood is moved to the mode beside a normal as
    wide as the prior: 27 nats below, at a coefficient of 0.
    """
    rng = np.random.default_rng(15)
    X = 0.003 * rng.normal(size=(40, 1))
    y = 1000 * X[:, 0] + rng.standard_t(3, size=40)
    parts = {"prior": "horseshoe", "fit_intercept": False}
    model = BayesianLinearRegression(likelihood="student_t", **parts).fit(X, y)
    target, _ = model._make_target(X, y)
    unit = model.posterior_.units.y_scale
    mean, std = (float(x[0]) / unit for x in (model.coef_, model.coef_std_))
    middle = -2 * math.log(model.noise_scale_ / unit)
    axes = mean + std * np.linspace(-8, 8, 201), middle + np.linspace(-3, 3, 121)
    theta = torch.tensor(np.stack(np.meshgrid(*axes), -1).reshape(-1, 2))
    cell = math.log((axes[0][1] - axes[0][0]) * (axes[1][1] - axes[1][0]))
    exact = float(torch.logsumexp(target.log_joint(theta), 0)) + cell
    assert exact - 0.05 < model.lower_bound_ < exact + 1e-4
