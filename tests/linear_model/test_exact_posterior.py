"""Linear regression with its precisions integrated: against sums over a dense grid."""

import math

import numpy as np
import pytest
import torch
from scipy import sparse, stats
from scipy.special import logsumexp, ndtr

from skvi.linear_model import (
    BayesianLinearRegression,
)
from skvi.priors import GammaHyperprior, Normal
from skvi.solvers import _exact
from skvi.targets._precisions import find_nodes

MODEL = BayesianLinearRegression
NOISE, COEF = (2.0, 1.5), (3.0, 2.0)
PARTS = {
    "noise_scale": GammaHyperprior(*NOISE),
    "prior": Normal(GammaHyperprior(*COEF)),
    "intercept_prior": Normal(2.0),
    "normalize_y": False,
}


def make_data(n, d, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) + 1
    y = X @ rng.standard_normal(d) + 1.5 + 0.7 * rng.standard_normal(n)
    return X, y, rng.standard_normal((4, d)) + 1


def log_precision(known):
    """Nodes of a log precision and their log prior: of a Gamma, or known."""
    if not isinstance(known, tuple):
        return np.log([known]), np.zeros(1)
    (shape, rate), x = known, np.linspace(-9, 7, 90)
    return x, shape * x - rate * np.exp(x)


class Grid:
    """The posterior by dense algebra, at every node of a grid of both precisions."""

    def __init__(self, X, y, new, w=None, noise=NOISE, coef=COEF):
        w = np.ones(len(y)) if w is None else w
        center = np.average(X, axis=0, weights=w)
        self.d, self.center = X.shape[1], center
        A = np.column_stack([X - center, np.ones(len(y))])
        axes, priors = zip(
            *(log_precision(known) for known in (noise, coef)), strict=True
        )
        t, s = (x.ravel() for x in np.meshgrid(*axes))
        log_w = np.add(*(x.ravel() for x in np.meshgrid(*priors)))
        prior = np.repeat(np.exp(s)[:, None], self.d, 1)
        prior = np.column_stack([prior, np.full(len(s), 0.25)])
        gram, moment = A.T * w @ A, A.T @ (w * y)
        precision = np.exp(t)[:, None, None] * gram + prior[:, :, None] * np.eye(
            self.d + 1
        )
        self.covariance = np.linalg.inv(precision)
        self.mean = np.exp(t)[:, None] * (self.covariance @ moment)
        # Of the normal integral: log joint density at the mode, and the determinant.
        residual = ((y - self.mean @ A.T) ** 2) @ w
        squares = np.exp(t) * residual + (prior * self.mean**2).sum(1)
        log_w += 0.5 * (w.sum() * t + np.log(prior).sum(1) - squares)
        log_w -= 0.5 * np.linalg.slogdet(precision)[1]
        self.w, self.noise = np.exp(log_w - logsumexp(log_w)), np.exp(-t)
        self.rows = np.column_stack([new - center, np.ones(len(new))])

    def normals(self, rows, noise=0.0):
        """Means and deviations of linear combinations, (m, n)."""
        variance = np.einsum("ni,mij,nj->mn", rows, self.covariance, rows)
        return self.mean @ rows.T, np.sqrt(variance + np.reshape(noise, (-1, 1)))

    def coefficients(self):
        rows = np.eye(self.d + 1)
        rows[-1, :-1] = -self.center
        return self.normals(np.roll(rows, 1, 0))

    def cdf(self, normals, x):
        mean, std = normals
        return self.w @ ndtr((x - mean) / std)


CASES = [
    ({"n": 6, "d": 3}, {}),
    ({"n": 5, "d": 7}, {}),
    ({"n": 9, "d": 2}, {"weighted": True}),
    ({"n": 9, "d": 2}, {"sparse": True}),
]


@pytest.mark.parametrize(("shape", "kind"), CASES, ids=str)
def test_everything_is_that_of_the_exact_posterior(shape, kind):
    """Moments to 1e-5, probabilities to 0.001; also with more features than rows.

    Wrong variants: nodes without the prior; the noise plugged in; no part from
    directions without data; the intercept moved the other way.
    """
    X, y, new = make_data(**shape)
    w = np.linspace(0.5, 2.0, len(y)) if "weighted" in kind else None
    grid = Grid(X, y, new, w)
    if "sparse" in kind:
        X, new = sparse.csr_array(X), sparse.csr_array(new)
    model = MODEL(**PARTS).fit(X, y, w)
    table = model.summary(coverage=0.9)
    mean, std = grid.coefficients()
    expected = grid.w @ mean
    np.testing.assert_allclose(table.mean, expected, atol=1e-5)
    spread = np.sqrt(grid.w @ (std**2 + (mean - expected) ** 2))
    np.testing.assert_allclose(table.std, spread, rtol=1e-4)
    apart = (grid.mean - grid.w @ grid.mean) * np.sqrt(grid.w)[:, None]
    covariance = np.tensordot(grid.w, grid.covariance, 1) + apart.T @ apart
    covariance = covariance[:-1, :-1]
    np.testing.assert_allclose(model.sigma_, covariance, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(grid.cdf((mean, std), table.lower), 0.05, atol=1e-5)
    np.testing.assert_allclose(grid.cdf((mean, std), table.upper), 0.95, atol=1e-5)
    future = grid.normals(grid.rows, grid.noise)
    levels = np.array([0.001, 0.05, 0.5, 0.95])
    found = model.predict_quantiles(new, levels)
    for level, x in zip(levels, found.T, strict=True):
        np.testing.assert_allclose(grid.cdf(future, x), level, rtol=0.01, atol=5e-4)
    f, total = model.predict(new, return_std=True)
    middle = grid.w @ future[0]
    np.testing.assert_allclose(f, middle, atol=1e-4)
    variance = grid.w @ (future[1] ** 2 + (future[0] - middle) ** 2)
    np.testing.assert_allclose(total**2, variance, rtol=1e-3)
    covariance = model.predict(new, return_cov=True)[1]
    np.testing.assert_allclose(np.diag(covariance), total**2)
    far = middle + np.array([-12.0, -1.0, 0.5, 8.0]) * np.sqrt(variance)
    density = np.log(grid.w @ stats.norm(*future).pdf(far))
    np.testing.assert_allclose(model.predict_log_density(new, far), density, atol=0.01)
    means, stds, w = model._predictive_normals(new)
    np.testing.assert_allclose(means @ w, f, atol=1e-3)
    np.testing.assert_allclose((means**2 + stds**2) @ w - f**2, total**2, rtol=0.01)


@pytest.mark.parametrize("n", [4, 20])
def test_student_t_of_a_flat_prior(n):
    """Known from textbooks: flat coefficients, and a Gamma prior of the precision.

    Wrong variants: degrees of freedom of all rows; normal intervals.
    """
    X, y, new = make_data(n, 2)
    shape, rate = NOISE
    parts = {**PARTS, "prior": Normal(1e5), "intercept_prior": None}
    model = MODEL(**parts, fit_intercept=False).fit(X, y)
    inverse = np.linalg.inv(X.T @ X)
    coef = inverse @ X.T @ y
    # The prior of each coefficient adds to the shape what it takes in freedom.
    df = 2 * shape + n - 2
    scale2 = (2 * rate + ((y - X @ coef) ** 2).sum()) / df
    table = model.summary(coverage=0.9)
    known = stats.t(df, coef, np.sqrt(scale2 * np.diag(inverse)))
    np.testing.assert_allclose([table.lower, table.upper], known.interval(0.9), 1e-4)
    np.testing.assert_allclose(table.std, known.std(), rtol=1e-4)
    spread = np.sqrt(scale2 * (1 + np.einsum("ni,ij,nj->n", new, inverse, new)))
    known = stats.t(df, new @ coef, spread)
    found = model.predict_quantiles(new, [0.001, 0.05, 0.95])
    expected = [known.ppf(level) for level in (0.001, 0.05, 0.95)]
    np.testing.assert_allclose(found.T, expected, rtol=1e-3)
    far = new @ coef + 12 * spread
    found = model.predict_log_density(new, far)
    np.testing.assert_allclose(found, known.logpdf(far), atol=0.01)


def test_finer_nodes_change_no_prediction(monkeypatch):
    """Neither in the middle nor in the tails.

    Wrong variants: nodes between which predictions hardly differ are merged (off by
    1e-5 of a deviation); improbable precisions are left out.
    """
    X, y, new = make_data(20, 3)
    levels = [1e-4, 0.05, 0.5, 0.95]
    found = MODEL().fit(X, y)
    expected = found.predict_quantiles(new, levels)
    far = new @ np.ones(3) + 10
    density = found.predict_log_density(new, far)
    monkeypatch.setattr(
        _exact, "find_nodes", lambda form, by=1.0, *_: find_nodes(form, 3 * by)
    )
    finer = MODEL().fit(X, y)
    quantiles = finer.predict_quantiles(new, levels)
    np.testing.assert_allclose(quantiles, expected, rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(finer.predict_log_density(new, far), density, 2e-6)


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("d", [2, 12])
def test_the_density_is_the_joint_one_over_the_evidence(d, fit_intercept):
    """At draws and elsewhere, and draws have the moments; also with learned noise.

    Wrong variants: the prior of directions without data left out; log q without the
    Jacobian of the log precisions.
    """
    X, y, _ = make_data(8, d)
    scales = [PARTS["noise_scale"], 0.5]
    if d < len(y):  # else the likeliest is 0
        scales.append("learn")
    for scale in scales:
        parts = PARTS | {"fit_intercept": fit_intercept, "noise_scale": scale}
        parts["intercept_prior"] = parts["intercept_prior"] if fit_intercept else None
        model = MODEL(**parts).fit(X, y)
        target, _ = model._make_target(X, y)
        target = target.at(torch.from_numpy(model._hyper))
        q, generator = model.posterior_, torch.Generator().manual_seed(0)
        draw = q.draw(20_000, generator)
        theta = torch.cat([draw.theta[:4], draw.theta[:4] + 0.3])
        log_weights = target.log_joint(theta) - q.log_prob(theta)
        expected = torch.full_like(log_weights, model.lower_bound_)
        torch.testing.assert_close(log_weights, expected, rtol=0, atol=1e-7)
        torch.testing.assert_close(draw.log_q[:4], q.log_prob(theta[:4]))
        normal = q.matching_normal()
        coef = draw.theta[:, : normal.size]
        z = (coef.mean(0) - normal.mean) / coef.std(0) * 20_000**0.5
        assert z.abs().max() < 4.5
        torch.testing.assert_close(coef.var(0), normal.variance, rtol=0.15, atol=0)


def test_fits_continue_from_exact_ones_and_go_on_to_them():
    """Wrong variant: the parameters of the exact posterior, which has none."""
    X, y, _ = make_data(12, 3)
    model = MODEL(warm_start=True, **PARTS).fit(X, y)
    model.set_params(posterior="full_rank").fit(X, y)
    expected = MODEL(posterior="full_rank", **PARTS).fit(X, y)
    assert model.lower_bound_ == pytest.approx(expected.lower_bound_, abs=1e-4)
    exact = MODEL(**PARTS).fit(X, y)
    model.set_params(posterior="auto").fit(X, y)
    assert model.lower_bound_ == exact.lower_bound_


def test_posteriors_are_priors_of_later_rows():
    """A normal with the moments of the exact one, of the log of the noise, too.

    Wrong variants: moments of the precision for those of its log; of one node.
    """
    X, y, _ = make_data(40, 2)
    first = MODEL(**PARTS).fit(X[:20], y[:20])
    q, draws = first.posterior_.as_prior(), first.sample_posterior(20_000, 0)
    normal, log_noise = q.as_normal(), np.log(draws["noise_precision"])
    unit = -2 * math.log(first.posterior_.units.y_scale)
    error = 5 * log_noise.std() / 20_000**0.5
    assert float(normal.mean[-1]) + unit == pytest.approx(log_noise.mean(), abs=error)
    assert float(normal.variance[-1]) == pytest.approx(log_noise.var(), rel=0.05)
    later = MODEL(prior=first.posterior_, noise_scale="hyperprior").fit(X[20:], y[20:])
    whole = MODEL(**PARTS).fit(X, y)
    assert np.abs(later.coef_ - whole.coef_).max() < 0.3 * whole.coef_std_.min()


def curve(n_powers):
    """Powers of a number of which the first three explain nothing."""
    x = np.linspace(0.05, 0.95, 15)
    y = np.sin(2 * np.pi * x) + 0.1 * np.tile([1, -1, 0], 5)
    return np.vander(x, n_powers + 1, increasing=True)[:, 1:], y


def waves():
    X = np.cos(np.outer(np.linspace(0, 3, 12), np.arange(1, 9)))
    return X, np.sign(X[:, 0])


def columns_of_other_units(n, d, seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * np.exp(rng.standard_normal(d))
    return X, X[:, 0] + rng.standard_normal(n)


OPTIMA = {
    "cubic": curve(3),
    "quintic": curve(5),
    "octic": curve(8),
    "waves": waves(),
    "few": columns_of_other_units(8, 3, 0),
    "as many": columns_of_other_units(15, 14, 1),
    "two": columns_of_other_units(10, 2, 2),
}


def test_many_scales_start_where_the_likelihood_is_large():
    """Above the best of 30 starts of independent precisions, -54.71.

    Wrong variant: -61.5, from the peak of the prior alone.
    """
    X, y = OPTIMA["cubic"]
    model = MODEL(prior="ard", noise_scale=GammaHyperprior(1e-6, 1e-6)).fit(X, y)
    assert model.lower_bound_ > -54.71
    assert model.noise_scale_ < 0.13
