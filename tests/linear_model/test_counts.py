"""Poisson regression: against scikit-learn, quadrature and its own definition."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy import stats

from skvi.expectations._poisson import (
    poisson_mixture_cdf,
    poisson_mixture_log_mass,
)
from skvi.likelihoods import (
    HurdleLikelihood,
    Likelihood,
    NegativeBinomialLikelihood,
    PoissonLikelihood,
    ZeroInflatedLikelihood,
)
from skvi.linear_model import BayesianLogisticRegression, BayesianPoissonRegressor
from skvi.losses import BetaLoss
from skvi.priors import Normal

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
    ("y", "exposure", "message"),
    [
        (Y - 1, None, "Negative values in y"),
        (Y, -T, "one positive number for each"),
        (Y, 0 * T, "smallest is 0"),
        (Y, T[:10], "Got 10 numbers"),
        (Y, np.where(T > 3, np.nan, T), "NaN"),
    ],
)
def test_bad_input(y, exposure, message):
    with pytest.raises(ValueError, match=message):
        BayesianPoissonRegressor(prior="normal").fit(X, y, exposure=exposure)


# --- predictions -----------------------------------------------------------------


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


def test_a_wide_prior_and_more_columns_than_rows():
    """Wrong variant: a start as wide as the prior, where no mean of a count exists."""
    X, y = make_wide(3)
    full = BayesianPoissonRegressor(prior="normal").fit(X, y)
    assert full.converged_
    part = BayesianPoissonRegressor(prior="normal", posterior="mean_field").fit(X, y)
    assert part.converged_
    assert part.lower_bound_ < full.lower_bound_ < -180


ZEROS = [ZeroInflatedLikelihood(NegativeBinomialLikelihood(0.5))]
ZEROS += [HurdleLikelihood(part, 0.0) for part in (PoissonLikelihood(), ZEROS[0].rest)]


@pytest.mark.parametrize("likelihood", ZEROS, ids=repr)
def test_expectations_of_two_columns(likelihood):
    """Wrong variants: without the slope of 1 - p(0); zeros as of counts alone."""
    rng = np.random.default_rng(0)
    y, f = torch.tensor([0.0, 0, 1, 3]), torch.from_numpy(rng.normal(size=(2, 4, 2)))
    general = Likelihood.log_prob_derivatives(likelihood, f, y)
    closed = likelihood.log_prob_derivatives(f, y)
    for found, expected in zip(closed, general, strict=True):
        assert found.numpy() == pytest.approx(expected.numpy(), abs=1e-12)
    line, w = np.polynomial.hermite_e.hermegauss(40)
    z = np.stack(np.meshgrid(line, line), -1).reshape(-1, 2)
    w = torch.from_numpy(np.outer(w, w).ravel() / w.sum() ** 2)
    root = torch.tensor([[0.3, 0.0], [-0.2, 0.8]]).double()
    nodes = f[0] + (torch.from_numpy(z) @ root.T)[:, None]
    expected = likelihood.log_prob_derivatives(nodes, y)
    covariance = (root @ root.T).expand(4, 2, 2).contiguous()
    for part, mean in zip(
        likelihood.expected_log_loss(f[0], covariance, y), expected, strict=True
    ):
        reference = -torch.tensordot(w, mean, 1)
        assert part.numpy() == pytest.approx(reference.numpy(), abs=1e-5)


def test_zeros_apart():
    """A hurdle is a logistic model of zeros beside the others, which share no number.

    Wrong variants: an exposure of the odds as well; the sign of the odds.
    """
    y = np.where(np.arange(len(Y)) % 3 == 0, 0.0, Y)
    model = BayesianPoissonRegressor(
        likelihood="hurdle_poisson", prior="normal", tol=1e-10
    ).fit(X, y, exposure=T)
    zeros = BayesianLogisticRegression(prior="normal", tol=1e-10).fit(X, y == 0)
    assert model.coef_[1] == pytest.approx(zeros.coef_[0], abs=1e-5)
    assert model.intercept_std_[1] == pytest.approx(zeros.intercept_std_[0], rel=1e-4)
    p = np.exp(model.predict_log_density(X[:2], [0, 0], exposure=T[:2]))
    assert p == pytest.approx(zeros.predict_proba(X[:2])[:, 1], abs=1e-3)
    model.set_params(likelihood="zero_inflated_poisson").fit(X, y, exposure=T)
    one = {"X": X[:1], "exposure": T[:1]}
    mass = [np.exp(model.predict_log_density(y=[k], **one)[0]) for k in range(60)]
    mean, std = model.predict(**one, return_std=True)
    assert np.sum(mass) == pytest.approx(1, abs=1e-9)
    assert mean == pytest.approx(np.arange(60) @ mass, rel=1e-9)
    assert std**2 + mean**2 == pytest.approx(np.arange(60) ** 2 @ mass, rel=1e-9)
    high = model.predict_interval(coverage=0.8, **one)[0, 1]
    assert high == np.searchsorted(np.cumsum(mass), 0.9)
    assert model.coef_[0] == pytest.approx([0.5, -0.3, 0.1], abs=0.15)


@pytest.mark.parametrize("rest", [PoissonLikelihood(), NegativeBinomialLikelihood(0.5)])
def test_hurdle_of_tiny_rates(rest):
    """Others are 1 at a rate of 1e-17. Endless, or nan, with 1 - P(0) as a difference.

    The mean over several sets of points failed where their number was odd.
    """
    hurdle, f = HurdleLikelihood(rest, 0.0), torch.tensor([[[-40.0, 0.0]]]).double()
    assert float(hurdle.mean(f)) == pytest.approx(0.5)
    assert float(hurdle.variance(f)) == pytest.approx(0.25)
    draws = hurdle.sample(f.expand(400, 1, 2), torch.Generator().manual_seed(0))
    assert set(draws.unique().tolist()) == {0.0, 1.0}
    cdf = [float(hurdle.cdf(f, torch.tensor([y]))) for y in (-1.0, 0.0, 1.0)]
    assert cdf == pytest.approx([0, 0.5, 1])


def test_zero_inflation_of_zeros_and_ones():
    y = (np.random.default_rng(1).random(len(Y)) < 0.5).astype(float)
    model = BayesianPoissonRegressor(likelihood="zero_inflated_poisson").fit(X, y)
    assert model.predict(X).mean() == pytest.approx(y.mean(), abs=0.05)


@pytest.mark.parametrize(
    "likelihood", [ZeroInflatedLikelihood(), HurdleLikelihood(PoissonLikelihood(), 0.0)]
)
def test_robust_losses_of_two_columns(likelihood):
    """Against dense quadrature. Wrong: nodes of a softmax, by .03 to .13 nats."""
    nodes, w = np.polynomial.hermite_e.hermegauss(60)
    grid = np.stack(np.meshgrid(nodes, nodes), -1).reshape(-1, 2)
    w = np.outer(w, w).ravel() / w.sum() ** 2
    covariance = np.array([[0.3, 0.1], [0.1, 0.5]])
    f = [0.4, -0.3] + grid @ np.linalg.cholesky(covariance).T
    mean, covariance, f = map(torch.tensor, ([[0.4, -0.3]], covariance[None], f))
    f.requires_grad_()
    for y in (torch.zeros(1).double(), torch.ones(1).double() + 1):
        value, first, _ = BetaLoss(1.25).expected(
            likelihood, mean.double(), covariance, y
        )
        rows = BetaLoss(1.25)(likelihood, f[:, None], y)[:, 0]
        (slope,) = torch.autograd.grad(rows @ torch.tensor(w), f)
        assert float(value[0]) == pytest.approx(w @ rows.detach().numpy(), abs=1e-7)
        assert first[0].numpy() == pytest.approx(slope.sum(0).numpy(), abs=1e-7)
