"""Evidence under a prior with one unknown scale."""

import math
import warnings

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, logsumexp
from scipy.stats import norm, poisson, t
from sklearn.datasets import load_iris
from sklearn.preprocessing import scale

from skvi._estimator._model import TrainingData
from skvi.evidence import _bounds
from skvi.evidence._row_particles import _Rows
from skvi.exceptions import SkviWarning
from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
)
from skvi.priors import GammaHyperprior, HalfCauchy, Normal
from skvi.priors._blocks import build_prior

CASES = {  # rows, effects
    "one": (60, [0.5]),
    "none": (40, [0.0, 0.0]),
    "two": (60, [1.0, -0.5]),
}


def grid_of(model, X, y, n_nodes, reach=12.5):
    """Log evidence without an intercept, by the trapezoidal rule over coefficients.

    An even number of nodes leaves out 0, where the density may be infinite.
    """
    size = X.shape[1]
    # Equal steps of asinh are dense near 0, where the density has a peak.
    reach = 20 if size == 1 else reach
    line = torch.linspace(-reach, reach, n_nodes, dtype=torch.float64)
    axis, log_width = 1e-4 * torch.sinh(line), (1e-4 * torch.cosh(line)).log()
    theta = torch.cartesian_prod(*[axis] * size).reshape(-1, size)
    widths = torch.cartesian_prod(*[log_width] * size).reshape(-1, size).sum(1)
    prior = build_prior(model.prior_, model.posterior_.layout)
    unit = model.posterior_.units.x_scale
    signed = torch.from_numpy(X / unit * np.where(y, 1, -1)[:, None])
    parts = [
        torch.nn.functional.logsigmoid(t @ signed.T).sum(1) + prior.log_prob(t)
        for t in theta.split(10_000)
    ]
    step = size * math.log(float(line[1] - line[0]))
    return float(torch.logsumexp(torch.cat(parts) + widths, 0)) + step


@pytest.mark.parametrize("case", CASES)
def test_whitened_parameters_and_scale_hold_the_integral(case, monkeypatch):
    """Wrong variants: the lifted density without a determinant; a clamped scale."""
    n, effects = CASES[case]
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n, len(effects)))
    y = X @ np.array(effects) > rng.logistic(size=n)
    monkeypatch.setattr(_bounds, "row_particle_sides", lambda *_: None)
    model = BayesianLogisticRegression(prior="auto", fit_intercept=False).fit(X, y)
    found = model.evidence_bounds(X, y, random_state=0, precision=0.1)
    exact = grid_of(model, X, y, 6000 if len(effects) == 1 else 200)
    low, high = found.interval()
    assert found.reliable
    assert low < exact < high
    # Each side is asked for .1; by seed the width is .11 to .24.
    assert high - low < 0.3


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


@pytest.mark.parametrize("posterior", ["full_rank", "mean_field"])
def test_the_gap_is_that_of_the_mixture(posterior):
    """What exact fits at the scales gain. Wrong variant: of the fit before them."""
    X, y = load_iris(return_X_y=True)
    rough = BayesianLogisticRegression(posterior=posterior).fit(X, y)
    exact = BayesianLogisticRegression(posterior=posterior, tol=1e-10).fit(X, y)
    gain = exact.lower_bound_ - rough.lower_bound_
    assert gain / 4 < rough.diagnostics_["gap"] < 4 * gain
    assert exact.diagnostics_["gap"] < 1e-6


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


def test_draws_given_f_have_its_fitted_values():
    """Matheron's rule. Wrong variant: without the intercept in what is missing."""
    X, y = separable(3)
    model = BayesianLogisticRegression().fit(X, y)
    data = TrainingData.gather(model._model.response, X, y, None, None)
    target = model._model.target(data).frozen()
    rows, generator = _Rows(target, 1.0), torch.Generator().manual_seed(0)
    runs = rows.run(torch.linspace(-2, 2, 5).double(), 64, generator)
    theta = rows.theta(runs, generator)
    f = target.predictor.forward(theta, target.X).mT
    torch.testing.assert_close(
        f, runs.noise @ rows.roots(runs.log_scale).mT, atol=1e-3, rtol=1e-3
    )
    # The coordinates that the rows leave open have the deviation of the prior.
    coef = theta[:, :90].reshape(5, 3, 30)
    basis = torch.linalg.svd(rows.X, full_matrices=True)[2][12:]
    ratio = (coef @ basis.T).std((1, 2)) / runs.log_scale.exp()
    assert bool((ratio - 1).abs().max() < 0.5)


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


def test_normal_noise_beside_an_unknown_scale():
    """A Gamma distribution of the noise, and its evidence by quadrature over both.

    Wrong variants: the density of a half-Cauchy scale as that of its precision, without
    the Jacobian; of the noise for the coefficients.
    """
    rng = np.random.default_rng(0)
    X = scale(rng.normal(size=(30, 2)))
    y = X @ [1.0, 0.0] + rng.normal(size=30)
    gamma = GammaHyperprior(2.0, 1.0)
    model = BayesianLinearRegression(
        prior=Normal(HalfCauchy()),
        noise_scale=gamma,
        normalize_y=False,
        fit_intercept=False,
    ).fit(X, y)
    found = model.evidence_bounds(X, y, random_state=0)
    z, u = np.linspace(-20, 14, 341), np.linspace(-6, 5, 111)
    lengths, axes = np.linalg.eigh(X @ X.T)
    variance = np.exp(2 * z)[:, None, None] * lengths + np.exp(-u)[:, None]
    values = norm.logpdf(axes.T @ y, scale=np.sqrt(variance)).sum(2)
    values -= np.log(math.pi * np.cosh(z))[:, None]
    values += 2 * u - np.exp(u)  # Gamma(2, 1), of the log
    exact = logsumexp(values) + math.log((z[1] - z[0]) * (u[1] - u[0]))
    low, high = found.interval()
    assert found.reliable
    assert exact == pytest.approx(found.estimate, abs=1e-6)
    assert high - low < 1e-6
    assert model.lower_bound_ == pytest.approx(exact, abs=1e-6)
