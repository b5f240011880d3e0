"""Evidence of models whose evidence is known."""

import math
import warnings
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, logsumexp
from scipy.stats import norm, poisson, t
from torch.distributions import Gamma, LKJCholesky

from benchmarks.evidence_networks import NOISE, small_data, truth
from skvi.base import NormalForm
from skvi.evidence import _bounds
from skvi.evidence._changes import Changes, other_modes
from skvi.evidence._row_particles import (
    ladder_bridge,
    ladder_lower,
    ladder_upper,
)
from skvi.exceptions import SkviWarning
from skvi.likelihoods import GaussianLikelihood
from skvi.linear_model import (
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
)
from skvi.neural_network import BayesianMLPRegressor
from skvi.posteriors import FullRankNormal
from skvi.solvers._paths import Start
from skvi.targets._density import DensityTarget
from tests.reference import (
    real_data,
)
from tests.references.make_estimators import load


@lru_cache
def fitted(name, posterior, objective="elbo", seed=0):
    priors = {"prior": "normal", "intercept_prior": "normal"}
    model = BayesianLogisticRegression(
        posterior=posterior, objective=objective, random_state=seed, **priors
    )
    return model.fit(*real_data(name))


EUBO_SETS = [
    "setosa",
    "virginica",
    pytest.param("breast_cancer", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("posterior", ["mean_field", "full_rank"])
@pytest.mark.parametrize("name", EUBO_SETS)
def test_eubo_has_the_moments_of_the_posterior(name, posterior):
    """Against chains of another kind, within the noise of both; mean of 4 fits.

    The ELBO's full-rank deviations are 1 to 3 % too small here, its mean-field ones
    10 to 60 %. Wrong variants: equal weights for the importance draws; the moments of
    the ELBO solution that serves as the proposal.
    """
    stored = load()["moments"][name]
    mean, mean_error = np.array(stored["mean"])
    variance, variance_error = np.array(stored["variance"])
    sd = np.sqrt(variance)
    models = [fitted(name, posterior, "eubo", seed) for seed in range(4)]
    normals = [model.posterior_.as_normal() for model in models]
    ess = sum(model.diagnostics_["ess"] for model in models)
    assert all(model.converged_ for model in models)
    assert ess > 4 * 5000
    shift = np.mean([n.mean.numpy() for n in normals], 0) - mean
    # The weights of skewed posteriors make the moments noisier than 1 / sqrt(ess).
    assert np.all(np.abs(shift) < 5 * np.hypot(mean_error, 1.5 * sd / np.sqrt(ess)))
    ratio = np.mean([n.variance.sqrt().numpy() for n in normals], 0) / sd - 1
    error = variance_error / variance / 2
    assert np.all(np.abs(ratio) < 5 * np.hypot(error, 1 / np.sqrt(ess)))
    for normal in normals:
        one_shift = np.abs(normal.mean.numpy() - mean)
        assert np.all(one_shift < 0.05 * sd + 2 * mean_error)
        one_ratio = np.abs(normal.variance.sqrt().numpy() / sd - 1)
        assert np.all(one_ratio < 0.05 + 2 * error)
    if posterior == "full_rank":
        i, j = np.triu_indices(len(sd), 1)
        products, error = np.array(stored["products"])
        found = np.mean([n.covariance().numpy()[i, j] for n in normals], 0)
        error = np.hypot(error, 1.5 / np.sqrt(ess))
        assert np.all(np.abs(found / (sd[i] * sd[j]) - products) < 5 * error)


def in_row_space(X, y, n_draws=4000):
    """Log evidence of Poisson counts by quadrature over the scale, in terms of f.

    Given the scale f is normal: importance sampling around its mode, for 57 scales.
    """
    rng, rows, n = np.random.default_rng(0), (X - X.mean(0)) / X.std(0), len(y)
    gram = rows @ rows.T
    log_scales, step = np.linspace(-9, 5, 57, retstep=True)
    values = []
    for z in log_scales:
        root = np.linalg.cholesky(math.exp(2 * z) * gram + 100 + 1e-9 * np.eye(n))
        e = np.zeros(n)
        for _ in range(100):
            rate = np.exp(root @ e)
            hessian = np.eye(n) + root.T @ (rate[:, None] * root)
            change = np.linalg.solve(hessian, root.T @ (y - rate) - e)
            e = e + change * min(1.0, 1.0 / np.abs(root @ change).max())
        width = np.linalg.cholesky(np.linalg.inv(hessian))
        noise = rng.standard_t(10, size=(n_draws, n))
        draws = e + noise @ width.T
        f = draws @ root.T
        log_p = poisson.logpmf(y, np.exp(np.minimum(f, 50))).sum(1)
        log_p += norm.logpdf(draws).sum(1)
        log_q = t.logpdf(noise, 10).sum(1) - np.log(np.diag(width)).sum()
        value = logsumexp(log_p - log_q) - math.log(n_draws)
        values.append(value - math.log(math.pi * math.cosh(z)))
    return logsumexp(values) + math.log(step)


def test_wide_counts_hold_the_integral():
    """40 coefficients and 20 rows, whose scale is hardly known from below.

    Wrong variants: a scale that is clamped at the last node (2.5 nats too much);
    coordinates outside of the row space without their noise.
    """
    rng = np.random.default_rng(5)
    X = rng.normal(size=(20, 40))
    y = rng.poisson(np.exp(0.3 * X @ rng.normal(size=40) / 3))
    model = BayesianPoissonRegressor().fit(X, y)
    found = model.evidence_bounds(X, y, random_state=0)
    low, high = found.interval()
    assert found.reliable
    assert low - 0.02 < in_row_space(X, y) < high + 0.02
    assert high - low < 0.1
    # Draws of the chains are those of all coefficients, near which q is.
    assert found.table["IW-EUBO of q"].value < model.lower_bound_ + 0.5


def separable(n_classes, n=12, d=30):
    rng = np.random.default_rng(n_classes)
    X = rng.normal(size=(n, d))
    return X, np.arange(n) % n_classes


@pytest.mark.parametrize("n_classes", [2, 3])
def test_separable_rows_hold_the_integral(n_classes):
    """As a quadrature over the scale of means over draws of f, without particles.

    Wrong variants: a row left out; the weights without the density of the scale;
    offered runs in place of accepted ones.
    """
    X, y = separable(n_classes, n=5, d=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkviWarning)  # of means that are medians
        model = BayesianLogisticRegression(intercept_prior="normal").fit(X, y)
    found = model.evidence_bounds(X, y, random_state=0)
    rng, rows = np.random.default_rng(0), (X - X.mean(0)) / X.std(0)
    gram = rows @ rows.T
    log_scales, step = np.linspace(-8, 8, 33, retstep=True)
    k, values = 1 if n_classes == 2 else 3, []
    noise = rng.standard_normal((40_000, k, 5))
    for z in log_scales:
        f = noise @ np.linalg.cholesky(math.exp(2 * z) * gram + 1 + 1e-9 * np.eye(5)).T
        f = np.concatenate([0 * f, f], 1) if k == 1 else f
        log_p = np.take_along_axis(log_softmax(f, 1), y[None, None], 1)[:, 0].sum(1)
        values.append(logsumexp(log_p) - math.log(len(f) * math.pi * math.cosh(z)))
    exact = logsumexp(values) + math.log(step)
    low, high = found.interval()
    assert found.reliable
    assert found.method == "particles"
    assert low - 0.01 < exact < high + 0.01
    assert high - low < 0.15


def test_particles_leave_out_scales_at_which_rates_overflow(monkeypatch):
    """Counts that need no particles. Wrong variant: all scales are kept."""
    monkeypatch.setattr(_bounds, "near_normal_sides", lambda *_: None)
    rng = np.random.default_rng(2)
    X = rng.normal(size=(8, 16))
    y = rng.poisson(np.exp(X @ rng.normal(size=16) / 4))
    model = BayesianPoissonRegressor().fit(X, y)
    found = model.evidence_bounds(X, y, random_state=0)
    low, high = found.interval()
    assert found.reliable
    assert found.method == "particles"
    assert low - 0.02 < in_row_space(X, y) < high + 0.02
    assert high - low < 0.2


quiet = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::skvi.exceptions.SkviWarning",
)


@quiet
def test_bounds_from_exact_draws_of_a_ladder(generator, z_score):
    """Normals of variance 1 / (1 + 3 beta): log Z = -log(4) / 2.

    In expectation on either side, with few draws, and with more blocks farther out.
    Wrong variants: weights of the other neighbor; the sign of the upper one.
    """
    betas = torch.linspace(0, 1, 4, dtype=torch.float64)
    scale = (1 + 3 * betas).rsqrt()[:, None, None]
    draws = scale * torch.randn(4, 4000, 20, generator=generator, dtype=torch.float64)
    log_weights, exact = -1.5 * draws.square(), -0.5 * math.log(4)
    lower, upper = (f(log_weights, betas) for f in (ladder_lower, ladder_upper))
    error = float(upper.std()) / 4000**0.5
    assert exact - 0.3 < float(lower.mean()) < exact < float(upper.mean()) < exact + 0.3
    assert float(ladder_upper(log_weights, betas, 5).mean()) > upper.mean() + 5 * error
    assert float(ladder_lower(log_weights, betas, 5).mean()) < lower.mean() - 5 * error
    value, error = ladder_bridge(log_weights, betas)
    assert abs(value - exact) < 5 * error < 0.05


@quiet
@pytest.mark.parametrize(
    ("activation", "units"),
    [pytest.param(*p, marks=pytest.mark.slow) for p in [("tanh", 1), ("relu", 1)]],
)
def test_small_networks(activation, units, monkeypatch):
    """Truth by quadrature. Wrong variants: a ladder that begins at another normal than
    it weighs with; bounds of the neighbors exchanged."""
    short = replace(_bounds.FROM_PRIOR, n_warmup=80)
    monkeypatch.setattr(_bounds, "FROM_PRIOR", short)
    X, y = small_data(activation, units, 1, seed=3)
    model = BayesianMLPRegressor(
        skip_connection=False,
        likelihood=GaussianLikelihood(NOISE),
        divergence="kl",
        posterior="mean_field",
        hidden_layer_sizes=units,
        activation=activation,
        normalize_y=False,
        max_iter=20,
        random_state=0,
    ).fit(X, y)
    bounds = model.evidence_bounds(X, y, n_draws=1600, random_state=0)
    value, _, _ = truth(activation, units, X, y)
    low, high = bounds.interval()
    assert bounds.reliable, bounds.reason
    assert low < value < high < low + 1.5
    assert bounds.table["particles"].value < value + 4 * bounds.lower_se


@pytest.mark.parametrize("place", ["on the ridge", "elsewhere"])
def test_other_modes(place):
    """A long ridge, under a factorized normal of its width, and a start on it.

    Wrong variant: distances in deviations of the factorized normal alone.
    """
    covariance = torch.tensor([[1.0, 0.9999], [0.9999, 1.0]], dtype=torch.float64)
    zero = torch.zeros(2, dtype=torch.float64)
    ridge = NormalForm(zero, torch.linalg.cholesky(covariance))
    width = (1 / torch.linalg.inv(covariance).diagonal()).sqrt()
    best = NormalForm(zero, width)
    end = 2.0 + zero if place == "on the ridge" else torch.tensor([2.0, -2.0]).double()
    starts = [Start(ridge, 10.0), Start(NormalForm(end, width), 14.0)]
    message = other_modes(starts, best, 14.0)
    assert ("1 of 2 starts" in message) == (place == "elsewhere")


def changes(density, shape, support, normal, seed):
    target = DensityTarget(
        lambda p: density(p["x"]).reshape(len(p["x"]), -1).sum(1),
        {"x": shape},
        {"x": support},
    )
    q = FullRankNormal().build(target.layout).near(normal)
    return Changes.of(target, q, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("seed", range(5))
def test_constants_do_not_change(seed):
    """Zeros above the diagonal of a matrix, and its first element.

    Wrong variant: deviations of at least 1e-300 (4e284 of them).
    """
    b = torch.tensor([2.5, 2.5, 2.0], dtype=torch.float64)  # of partial correlations
    normal = NormalForm(0 * b, torch.diag((torch.polygamma(1, b) / 2).sqrt()))
    density = LKJCholesky(3, torch.tensor(2.0, dtype=torch.float64)).log_prob
    found = changes(density, (3, 3), "corr_cholesky", normal, seed)
    assert found.mean < 0.1
    assert found.std < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("shift", [0.0, 0.4])
def test_changes_are_beyond_their_errors(seed, shift):
    """A hundred logs of gammas, and normals of their moments, but for one mean.

    Wrong variant: changes without errors, which are 0.2 of some of them.
    """
    shape = torch.tensor(6.0, dtype=torch.float64)
    d, size = 100, torch.polygamma(1, shape)
    mean = torch.digamma(shape).expand(d).clone()
    mean[0] += shift * size.sqrt()
    normal = NormalForm(mean, size.sqrt() * torch.eye(d, dtype=torch.float64))
    density = Gamma(shape, torch.tensor(1.0, dtype=torch.float64)).log_prob
    found = changes(density, (d,), "positive", normal, seed)
    assert (found.mean > 0.15) == (shift > 0), found.mean
