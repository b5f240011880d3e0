"""Gaussian processes against scikit-learn's, quadrature and finite differences.

Each test has been seen to fail on the wrong variant that it names.
"""

from itertools import product

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import expit, logsumexp
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    DotProduct,
    ExpSineSquared,
    Matern,
    PairwiseKernel,
    RationalQuadratic,
    WhiteKernel,
)

from skvi.divergences import KLDivergence
from skvi.gaussian_process import (
    SparseGaussianProcessClassifier,
    SparseGaussianProcessRegressor,
    _collapsed,
    _evidence,
    _model,
)
from skvi.gaussian_process._bounds import Collapsed, Fitted, uniform_prior
from skvi.gaussian_process._collapsed import NormalRows
from skvi.gaussian_process._evidence import sandwich
from skvi.gaussian_process._minibatches import Minibatches
from skvi.gaussian_process._search import Place, Search
from skvi.kernels import register_kernel
from skvi.kernels._kernels import covariance, variance
from skvi.likelihoods import BernoulliLikelihood, GaussianLikelihood
from skvi.losses import LogLoss
from skvi.model_selection import EvidenceSearch

SMOOTH = ConstantKernel(1.3) * Matern([1.0, 0.7], nu=2.5)
FLAT = uniform_prior(4)
NOISY = SMOOTH + WhiteKernel(0.1)


def rows_of(n=40, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + 0.3 * rng.normal(size=n)


def tensors(X, y, weight=None):
    return NormalRows(*(torch.as_tensor(a) for a in (X, y[:, None])), weight)


@pytest.mark.parametrize(
    "kernel",
    [
        RBF([1.0, 2.0]),
        Matern([1.0, 0.3], nu=0.5),
        Matern(1.3, nu=1.5),
        Matern([1.0, 2.0], nu=2.5),
        RationalQuadratic(1.2, 0.4),
        ConstantKernel(0.3) * DotProduct(1.0) ** 2 + RBF(2.0, "fixed"),
        ExpSineSquared(1.0, 2.0),
    ],
    ids=str,
)
def test_kernels_and_slopes_are_those_of_scikit_learn(kernel):
    """Wrong: without the factor -5/6 of the slope, or theta of the other part."""
    X, _ = rows_of()
    theta = torch.tensor(kernel.theta, requires_grad=True)
    K = covariance(kernel, theta, *[torch.as_tensor(X)] * 2)
    exact, slopes = kernel(X, eval_gradient=True)
    np.testing.assert_allclose(K.detach(), exact, atol=1e-13)
    weights = np.random.default_rng(0).normal(size=K.shape)
    (slope,) = torch.autograd.grad((K * torch.as_tensor(weights)).sum(), theta)
    np.testing.assert_allclose(
        slope, np.einsum("ij,ijk", weights, slopes), atol=1e-11, rtol=1e-11
    )
    own = variance(kernel, theta, torch.as_tensor(X)).detach()
    np.testing.assert_allclose(own, kernel.diag(X), rtol=1e-13)


@pytest.mark.parametrize("normalize_y", [True, False])
def test_every_row_an_inducing_point_is_scikit_learns_process(normalize_y):
    """Wrong: the rest of the variance left out; the covariance without it."""
    X, y = rows_of()
    model = SparseGaussianProcessRegressor(normalize_y=normalize_y).fit(X, 50 * y + 9)
    exact = GaussianProcessRegressor(
        model.kernel_, optimizer=None, alpha=0, normalize_y=normalize_y
    ).fit(X, 50 * y + 9)
    unit = np.std(50 * y) if normalize_y else 1.0
    known = exact.log_marginal_likelihood_value_ - len(y) * np.log(unit)
    assert model.lower_bound_ == pytest.approx(known, abs=1e-6)
    bounds = model.evidence_bounds(X, 50 * y + 9)
    assert bounds.lower <= known + 1e-8 <= bounds.upper + 2e-8
    assert "kernel" in bounds.plug_in
    new = 2 * rows_of(9, seed=1)[0]
    for ours, theirs in (
        (model.predict(new, return_std=True), exact.predict(new, return_std=True)),
        (model.predict(new, return_cov=True), exact.predict(new, return_cov=True)),
    ):
        np.testing.assert_allclose(ours[0], theirs[0], atol=1e-6 * 50)
        np.testing.assert_allclose(ours[1], theirs[1], atol=1e-6 * 2500)
    draws = model.sample_y(new, 20_000, random_state=0)
    mean, cov = model.predict(new, return_cov=True)
    error = np.sqrt(np.diag(cov) / 20_000)
    assert (np.abs(draws.mean(1) - mean) < 5 * error).all()
    sampled, scale = np.cov(draws), np.sqrt(np.diag(cov))
    apart = (sampled - cov) / np.outer(scale, scale)
    assert np.abs(apart).max() < 5 * np.sqrt(2 / 20_000)


def test_functions_are_drawn_where_they_are_asked_for():
    """Wrong: with noise; rows of a later call independent of those before."""
    X, y = rows_of(20)
    model = SparseGaussianProcessRegressor(NOISY, optimizer=None).fit(X, 50 * y + 9)
    new = np.array([X[0], X[1], [9.0, 9.0], [9.3, 9.0]])
    drawn = [model.sample_function(k) for k in range(60)]
    draws = np.stack([np.append(f(new[:3]), f(new)[3:]) for f in drawn])
    mean, cov = model.predict(new, return_cov=True)
    cov = cov - model.noise_scale_**2 * np.eye(4)
    scale = np.sqrt(np.diag(cov))
    assert (np.abs(draws.mean(0) - mean) < 4 * scale / 60**0.5).all()
    apart = (np.cov(draws.T) - cov) / np.outer(scale, scale)
    assert np.abs(apart).max() < 4 * np.sqrt(2 / 60)
    np.testing.assert_allclose(drawn[0](new[::-1]), draws[0, ::-1], rtol=1e-9)
    assert drawn[0]([[0.0, 0.0]]) == drawn[0]([[-0.0, 0.0]])  # wrong: another row
    both = SparseGaussianProcessRegressor(NOISY, optimizer=None)
    f = both.fit(X, np.stack([y, -y], 1)).sample_function(0)
    np.testing.assert_allclose(f(X[:3]), f(X[:4])[:3], rtol=1e-9)


@pytest.mark.parametrize("n_inducing", ["auto", 12])
def test_the_marginal_likelihood_is_scikit_learns_at_any_hyperparameters(n_inducing):
    """Wrong: the slope in the deviation of the noise, half of that in its log variance.

    Known error bars are weights; wrong: variances as weights.
    """
    X, y = rows_of()
    variances = np.random.default_rng(1).uniform(0.5, 2.0, len(y))
    model = SparseGaussianProcessRegressor(
        NOISY, optimizer=None, n_inducing=n_inducing, random_state=0
    ).fit(X, 50 * y)
    exact = GaussianProcessRegressor(
        NOISY, optimizer=None, alpha=0, normalize_y=True
    ).fit(X, 50 * y)
    assert model.log_marginal_likelihood() == pytest.approx(
        model.lower_bound_, abs=0.01
    )
    theta, unit = NOISY.theta + [0.3, -0.2, 0.1, 0.4], len(y) * np.log(np.std(50 * y))
    value, slope = model.log_marginal_likelihood(theta, eval_gradient=True)
    known, known_slope = exact.log_marginal_likelihood(theta, eval_gradient=True)
    if n_inducing == "auto":
        assert value == pytest.approx(known - unit, abs=1e-8)
        np.testing.assert_allclose(slope, known_slope, rtol=1e-6)
    for k, known_slope in enumerate(slope):
        step = 1e-4 * np.eye(4)[k]
        ends = [model.log_marginal_likelihood(theta + s * step) for s in (1, -1)]
        assert known_slope == pytest.approx((ends[0] - ends[1]) / 2e-4, abs=1e-3)
    assert value <= known - unit + 1e-8
    mean, std = (
        SparseGaussianProcessRegressor(
            SMOOTH, optimizer=None, alpha=1.0, normalize_y=False
        )
        .fit(X, y, 1 / variances)
        .predict(X, return_std=True)
    )
    theirs = GaussianProcessRegressor(SMOOTH, optimizer=None, alpha=variances).fit(X, y)
    theirs = theirs.predict(X, return_std=True)
    np.testing.assert_allclose(mean, theirs[0], atol=1e-6)
    np.testing.assert_allclose(std**2 - 1.0, theirs[1] ** 2, atol=1e-6)


@pytest.mark.parametrize("Z", [None, torch.as_tensor(rows_of(7, seed=3)[0])])
def test_weights_are_repetitions_and_slopes_are_differences(Z):
    """Wrong: the factor of a row's variance left out; the trace unweighted."""
    X, y = rows_of(20)
    counts = torch.as_tensor(np.random.default_rng(0).integers(1, 4, 20)).double()
    repeated = np.repeat(np.arange(20), counts.int().numpy())
    theta = torch.tensor([*SMOOTH.theta, np.log(0.3)], requires_grad=True)
    noise = GaussianLikelihood()
    weighted = Collapsed(SMOOTH, noise, tensors(X, y, counts), FLAT)
    plain = Collapsed(SMOOTH, noise, tensors(X[repeated], y[repeated]), FLAT)
    both = [of(theta.detach(), Z).item() for of in (weighted, plain)]
    assert both[0] == pytest.approx(both[1], abs=1e-7)
    assert torch.autograd.gradcheck(lambda t: weighted(t, Z), theta, atol=1e-5)
    if Z is not None:
        assert both[0] < weighted(theta.detach(), None).item()
        Z = Z.clone().requires_grad_()
        assert torch.autograd.gradcheck(lambda z: plain(theta, z), Z, atol=1e-4)


@pytest.mark.parametrize("is_normal", [True, False])
def test_a_fitted_q_has_the_collapsed_bound_and_its_slopes(is_normal):
    """Wrong: half of the curvature twice; the noise's own slope left out."""
    X, y = rows_of(25)
    Z = torch.as_tensor(rows_of(6, seed=3)[0])
    if not is_normal:
        y = (y > 0).astype(float)
    likelihood = GaussianLikelihood() if is_normal else BernoulliLikelihood()
    point = [*SMOOTH.theta, np.log(0.3)] if is_normal else SMOOTH.theta
    theta, rows = torch.tensor(point, requires_grad=True), tensors(X, y)
    prior = uniform_prior(len(theta))
    fitted = Fitted(SMOOTH, (likelihood, LogLoss(), KLDivergence(), 1), rows, prior)
    value = fitted(theta, Z)
    (slope,) = torch.autograd.grad(value, theta)
    if is_normal:
        other = Collapsed(SMOOTH, likelihood, rows, prior)(theta, Z)
        assert value.item() == pytest.approx(other.item(), abs=1e-6)
    for i, known in enumerate(slope.tolist()):
        step = 0.02 * torch.eye(len(theta))[i].double()
        ends = [float(fitted(theta.detach() + s * step, Z)) for s in (1, -1)]
        assert known == pytest.approx((ends[0] - ends[1]) / 0.04, abs=0.02, rel=0.01)


@pytest.mark.parametrize("seed", range(8))
def test_the_evidence_is_between_its_certain_bounds(seed):
    """Wrong: the Radau node inside of the spectrum; the residual's rest dropped."""
    rng = np.random.default_rng(seed)
    X, y = rows_of(60, seed)
    weight = rng.integers(1, 4, 60).astype(float) if seed % 2 else None
    kernel = ConstantKernel(1.0) * Matern(
        rng.uniform(0.5, 2, 2), nu=[0.5, 2.5][seed % 2]
    )
    kernel = kernel + WhiteKernel(10 ** rng.uniform(-2, 0))
    gaps = []
    for n_inducing in (10, 40):
        model = SparseGaussianProcessRegressor(
            kernel, optimizer=None, n_inducing=n_inducing, random_state=0
        ).fit(X, y, weight)
        exact = model.evidence_bounds(X, y, sample_weight=weight).estimate
        y_mean, y_scale = model._model.units.y_mean, model._model.units.y_scale
        counts = None if weight is None else torch.as_tensor(weight)
        rows = tensors(X, (y - y_mean) / y_scale, counts)
        noise = torch.tensor(model.noise_scale_ / y_scale).square()
        lower, upper = sandwich(model._model.features, noise, rows, 1e-6)
        shift = rows.total * np.log(y_scale)
        assert lower - shift <= exact + 1e-8
        assert exact <= upper - shift + 1e-8
        assert model.lower_bound_ <= exact
        gaps.append(upper - lower)
    assert gaps[1] < gaps[0]


@pytest.mark.parametrize("kernel", [RBF(1.0), None])
def test_an_evidence_over_kernels_is_near_quadrature(kernel):
    """Wrong: no density of the prior (3 nats); one shape of a normal (1 nat)."""
    rng = np.random.default_rng(3)
    X = rng.uniform(-3, 3, size=(30, 1))
    y = 0.1 * X[:, 0] + 0.3 * rng.normal(size=30)
    model = SparseGaussianProcessRegressor(kernel, alpha=0.09).fit(X, y)
    bounds, n = model.evidence_bounds(X, y), 120 if kernel else 24
    ends = model.kernel_.bounds
    axes = [low + (np.arange(n) + 0.5) / n * (high - low) for low, high in ends]
    logs = [np.full(n, -np.log(n)) for _ in axes]
    if kernel is None:
        middle = np.log(X.std()) + np.sqrt(2)
        own = -((axes[1] - middle) ** 2) / 6
        logs[1] = own - logsumexp(own)
    grid = zip(product(*axes), product(*logs), strict=True)
    values = [model.log_marginal_likelihood(at) + sum(log) for at, log in grid]
    row = bounds.table["over learned numbers"]
    assert row.value == pytest.approx(logsumexp(values), abs=0.05)
    assert not row.is_certificate
    assert bounds.interval()[0] == pytest.approx(model.lower_bound_, abs=1e-6)


def test_an_approximation_over_kernels_decides_nothing():
    """Wrong: kernels compared at their optimum; without limits a prior of no mass."""
    X, y = rows_of()
    noise = SparseGaussianProcessRegressor(alpha=0.09)
    kernels = [RBF(1.0), DotProduct(), RBF(1.0, "fixed")]
    search = EvidenceSearch(noise, {"kernel": kernels}).fit(X, y)
    results = search.results_
    assert not search.decided_
    assert len(search.contenders_) == 3
    assert "decides nothing" in search.verdict_
    terms, bounds = results["laplace_term"], search.evidence_bounds_
    assert (terms < [-1, -1, 0.1]).all()
    assert terms[2] == 0
    assert results["estimate"][0] == pytest.approx(bounds[0].estimate + terms[0])
    assert results["interval_upper"].tolist()[1:] == [np.inf, bounds[2].upper]
    endless = noise.set_params(kernel=RBF(1.0, (0.1, np.inf))).fit(X, y)
    row = endless.evidence_bounds(X, y).table["over learned numbers"]
    assert np.isnan(row.value)
    assert "no proper prior" in row.certifies


def test_an_evidence_ends_in_time(monkeypatch):
    """Wrong: a look at the clock between passes alone; a guess as the upper side."""
    monkeypatch.setattr(_evidence, "FEW", 0)
    X, y = rows_of()
    model = SparseGaussianProcessRegressor(n_inducing=5, random_state=0).fit(X, y)
    over = model.evidence_bounds(X, y, max_seconds=1e-9)
    assert not over.reliable
    assert over.lower == pytest.approx(model.lower_bound_, abs=1e-9)
    assert over.upper == np.inf
    whole = model.evidence_bounds(X, y)
    assert whole.reliable
    assert whole.gap < 0.1


@pytest.mark.parametrize("is_normal", [True, False])
def test_features_in_blocks_change_nothing(is_normal, monkeypatch):
    """Wrong: blocks without their weights; the last block left out."""
    X, y = rows_of(60)
    weight = np.random.default_rng(0).integers(1, 4, 60).astype(float)
    small = {"n_inducing": 9, "max_iter": 15, "random_state": 0}
    model = SparseGaussianProcessRegressor(**small)
    if not is_normal:
        model = SparseGaussianProcessClassifier(SMOOTH, optimizer=None, **small)
        y = y > 0
    known = clone(model).fit(X, y, weight)
    for module in (_model, _collapsed):
        monkeypatch.setattr(module, "MOST_ELEMENTS", 16 * 9 * 3)
    blocks = model.fit(X, y, weight)
    assert blocks.lower_bound_ == pytest.approx(known.lower_bound_, abs=1e-4)
    assert blocks.kernel_.theta == pytest.approx(known.kernel_.theta, abs=1e-3)
    for name in ("predict",) if is_normal else ("predict_proba", "predict"):
        ours, theirs = (getattr(m, name)(X) for m in (blocks, known))
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


@pytest.mark.parametrize("weight", [None, torch.arange(1, 25).double()])
def test_minibatches_have_the_bound_and_its_slopes_in_the_mean(weight):
    """Wrong: losses of a batch not scaled up, or by its weights; q of half a step."""
    X, y = rows_of(24)
    Z, sizes = torch.as_tensor(rows_of(5, seed=3)[0]), torch.tensor([2.0, 0.5]).double()
    whole = Collapsed(SMOOTH, GaussianLikelihood(), tensors(X, y, weight), FLAT)
    start = Place(np.array([*SMOOTH.theta, np.log(0.3)]), Z)
    search = Search(whole, np.tile([-9.0, 9.0], (4, 1)), sizes, "fmin_l_bfgs_b")
    batches = Minibatches(search, 6, torch.Generator().manual_seed(0))
    at = torch.cat([torch.from_numpy(start.theta), (Z / sizes).flatten()])
    at.requires_grad_()
    value, q = batches._value(at, start, torch.arange(24), None, 1.0)
    known = whole(at[:4], at[4:].reshape(5, 2) * sizes)
    slopes = [torch.autograd.grad(v, at)[0] for v in (value, known)]
    assert value.item() == pytest.approx(known.item(), abs=1e-6)
    np.testing.assert_allclose(slopes[0], slopes[1], atol=1e-5)
    means = [batches._value(at, start, i, q, 0.0)[0] for i in torch.arange(24).split(6)]
    assert value.item() == pytest.approx(sum(means).item() / 4, abs=1e-8)


def test_a_fit_by_minibatches_comes_near_that_of_all_rows():
    """Wrong: steps up the gradient of the loss; inducing points that stay."""
    X, y = rows_of(300)
    model = SparseGaussianProcessRegressor(n_inducing=9, random_state=0)
    known = clone(model).fit(X, y)
    found = clone(model).set_params(batch_size=60, max_iter=25).fit(X, y)
    assert found.lower_bound_ == pytest.approx(known.lower_bound_, abs=5)
    assert found.noise_scale_ == pytest.approx(known.noise_scale_, rel=0.05)
    with pytest.raises(ValueError, match="has the features in blocks"):
        found.set_params(optimizer=None, alpha=0.1).fit(X, y)


def test_two_labels_have_the_evidence_of_quadrature():
    """Wrong: the prior variance of a row that is not its own kernel's."""
    X, y = np.array([[0.0], [0.8]]), np.array([0, 1])
    kernel = ConstantKernel(4.0) * RBF(1.0)
    model = SparseGaussianProcessClassifier(kernel, optimizer=None).fit(X, y)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = np.outer(weights, weights) / weights.sum() ** 2
    root = np.linalg.cholesky(kernel(X))
    f = root @ np.stack(np.meshgrid(nodes, nodes, indexing="ij")).reshape(2, -1)
    exact = np.log(weights.ravel() @ (expit(-f[0]) * expit(f[1])))
    bounds = model.evidence_bounds(X, y, random_state=0)
    low, high = bounds.interval()
    assert model.lower_bound_ < exact < model.lower_bound_ + 0.05
    assert low <= exact <= high
    assert bounds.reliable


def test_labels_are_learned_where_no_line_separates_them():
    X, _ = rows_of(160)
    y = np.array(["out", "in"])[(np.square(X).sum(1) < 1).astype(int)]
    y[X[:, 0] > 1.2] = "far"
    model = SparseGaussianProcessClassifier(
        SMOOTH, optimizer=None, n_inducing=30, random_state=0
    ).fit(X[:120], y[:120])
    assert model.score(X[120:], y[120:]) > 0.85
    assert len(model.inducing_points_) == 30
    with pytest.raises(AttributeError, match="partial_fit"):
        model.partial_fit(X, y)


@pytest.mark.parametrize("n_inducing", ["auto", 15])
def test_units_of_rows_and_targets_change_nothing(n_inducing):
    """Wrong: length scales that start in units of 1."""
    X, y = rows_of(60)
    new = rows_of(9, seed=1)[0]
    model = SparseGaussianProcessRegressor(n_inducing=n_inducing, random_state=0)
    known = model.fit(X, y).predict(new, return_std=True)
    for shift, unit in ((100.0, 1e6), (-7.0, 1e-6)):
        other = clone(model).fit(unit * X + shift * unit, unit * y + shift * unit)
        mean, std = other.predict(unit * new + shift * unit, return_std=True)
        np.testing.assert_allclose(mean / unit - shift, known[0], atol=1e-3)
        np.testing.assert_allclose(std / unit, known[1], atol=1e-3)


def test_a_robust_loss_finds_the_noise_of_clean_rows_and_ignores_outliers():
    """Wrong: the gamma loss with its sign changed, which has a noise of .94."""
    rng = np.random.default_rng(0)
    X = np.linspace(-3, 3, 300)[:, None]
    f, noise = np.sin(X[:, 0]), rng.normal(size=300)
    y = f + 0.2 * noise
    y[::10] += 4.0
    plain = SparseGaussianProcessRegressor(n_inducing=12, random_state=0)
    robust = clone(plain).set_params(loss="gamma")
    errors = [
        np.sqrt(np.mean((model.fit(X, y).predict(X) - f) ** 2))
        for model in (plain, robust)
    ]
    assert errors[1] < 0.25 * errors[0]
    assert robust.noise_scale_ == pytest.approx(0.2, rel=0.15)


def test_a_divergence_changes_the_posterior_and_neither_noise_nor_evidence():
    """Wrong: noise of 0.27 by Jeffreys' objective, which grows with the width of q."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (150, 1))
    y = np.sin(X[:, 0]) + 0.2 * rng.normal(size=150)
    plain = SparseGaussianProcessRegressor(n_inducing=12, random_state=0).fit(X, y)
    wide = clone(plain).set_params(divergence="jeffreys").fit(X, y)
    assert wide.noise_scale_ == pytest.approx(plain.noise_scale_, rel=1e-12)
    assert wide.noise_scale_ == pytest.approx(0.2, rel=0.15)
    scales = [m.posterior_.as_normal().variance.sum() for m in (plain, wide)]
    assert scales[1] > 1.3 * scales[0]
    evidences = [m.evidence_bounds(X, y).estimate for m in (plain, wide)]
    assert evidences[0] == pytest.approx(evidences[1], abs=1e-9)


def test_far_rows_change_no_other_row():
    """Wrong: distances by a product alone, around the mean of the rows to predict."""
    X, y = rows_of()
    model = SparseGaussianProcessRegressor().fit(X, y)
    alone = model.predict([[0.0, 0.0]], return_std=True)
    beside = model.predict([[0.0, 0.0], [1e9, 0.0]], return_std=True)
    np.testing.assert_allclose([a[0] for a in beside], np.ravel(alone), rtol=1e-8)
    apart = X + [[1e7, 0.0]] * (np.arange(len(X)) % 2)[:, None]
    ours = SparseGaussianProcessRegressor(NOISY, optimizer=None).fit(apart, y)
    theirs = GaussianProcessRegressor(
        NOISY, optimizer=None, alpha=0, normalize_y=True
    ).fit(apart, y)
    np.testing.assert_allclose(ours.predict(apart), theirs.predict(apart), atol=1e-7)


def test_a_found_kernel_is_kept_without_an_optimizer():
    """Wrong: noise clipped to the limits of a WhiteKernel of scikit-learn's default."""
    X = np.linspace(0, 6, 30)[:, None]
    y = np.sin(X[:, 0]) + 1e-4 * np.cos(9 * X[:, 0])
    found = SparseGaussianProcessRegressor().fit(X, y)
    assert found.kernel_.k2.noise_level < 1e-6
    again = SparseGaussianProcessRegressor(found.kernel_, optimizer=None).fit(X, y)
    assert again.lower_bound_ == pytest.approx(found.lower_bound_, abs=1e-6)
    limited = clone(found).set_params(max_iter=1).fit(X, y)
    assert not limited.diagnostics_["kernel_converged"]


def test_an_optimizer_of_ones_own_keeps_the_points():
    X, y = rows_of()

    def optimize(objective, initial_theta, *, bounds):
        found = minimize(objective, initial_theta, jac=True, bounds=bounds)
        return found.x, found.fun

    theirs = {"optimizer": optimize, "n_inducing": 8, "random_state": 0}
    model = SparseGaussianProcessRegressor(**theirs).fit(X, y)
    fixed = SparseGaussianProcessRegressor(inducing=model.inducing_points_).fit(X, y)
    assert model.lower_bound_ == pytest.approx(fixed.lower_bound_, abs=0.01)


def test_several_targets_share_a_kernel_as_in_scikit_learn():
    """Wrong: kernel of the first; units of the first; a term for each target."""
    X, y = rows_of()
    Y = np.stack([y, 5 * np.cos(X[:, 0]) + 3], 1)
    both = SparseGaussianProcessRegressor(NOISY).fit(X, Y)
    theirs = GaussianProcessRegressor(NOISY, alpha=0, normalize_y=True).fit(X, Y)
    unit = len(y) * np.log(Y.std(0)).sum()
    assert both.lower_bound_ + unit == pytest.approx(
        theirs.log_marginal_likelihood_value_, abs=1e-3
    )
    known = clone(theirs).set_params(kernel=both.kernel_, optimizer=None).fit(X, Y)
    for ours, other in zip(*(m.predict(X, True) for m in (both, known)), strict=True):
        np.testing.assert_allclose(ours, other, atol=1e-6)
    value, slope = both.log_marginal_likelihood(eval_gradient=True)
    assert value == pytest.approx(both.lower_bound_, abs=1e-6)
    np.testing.assert_allclose(slope, 0, atol=0.05)
    bounds = both.evidence_bounds(X, Y)
    row = bounds.table["over learned numbers"]
    assert -20 < row.value - bounds.estimate < -8  # of 4 numbers
    repeated = np.repeat(np.arange(40), 2), np.tile([1.0, 0.0], 40)
    twice = clone(both).fit(X[repeated[0]], Y[repeated[0]], repeated[1])
    assert twice.lower_bound_ == pytest.approx(both.lower_bound_, abs=1e-4)
    assert both.predict_interval(X[:3]).shape == (3, 2, 2)
    draws = both.sample_posterior(2, random_state=0)
    assert sorted(draws) == ["inducing_values_0", "inducing_values_1"]


def test_kernels_of_ones_own_and_what_is_refused():
    X, y = rows_of()

    class Linear(DotProduct):
        def __call__(self, X, Y=None, eval_gradient=False):
            return X @ (X if Y is None else Y).T

    with pytest.raises(TypeError, match="register_kernel adds others"):
        SparseGaussianProcessRegressor(PairwiseKernel()).fit(X, y)
    register_kernel(Linear, lambda k, h, X, Y: X @ Y.T, lambda k, h, X: (X**2).sum(1))
    model = SparseGaussianProcessRegressor(Linear() + WhiteKernel(0.1)).fit(X, y)
    assert len(model.inducing_points_) == 2  # of two features
    refused = [
        ({"kernel": NOISY, "alpha": 0.1}, "without a WhiteKernel"),
        ({"kernel": SMOOTH * WhiteKernel()}, "must be a summand"),
        ({"kernel": Matern(nu=0.7)}, "0.5, 1.5, 2.5 or inf"),
        ({"kernel": ExpSineSquared()}, "not positive definite"),
        ({"inducing": X[:, :1]}, "inducing has 1 columns"),
        ({"inducing": X[:9], "n_inducing": 3}, "leave n_inducing at 'auto'"),
        ({"optimizer": None}, "an optimizer, or a WhiteKernel"),
        ({"divergence": KLDivergence("auto")}, "a number, KLDivergence"),
        ({"likelihood": GaussianLikelihood(0.5)}, "alpha="),
    ]
    for params, message in refused:
        with pytest.raises(ValueError, match=message):
            SparseGaussianProcessRegressor(**params).fit(X, y)
    with pytest.raises(ValueError, match="several share a kernel"):
        SparseGaussianProcessRegressor(alpha=0.1).fit(X, X)
    with pytest.raises(ValueError, match="no noise"):
        SparseGaussianProcessClassifier(NOISY).fit(X, y > 0)
    with pytest.warns(UserWarning, match="equal values of y"):
        SparseGaussianProcessRegressor().fit(X, np.ones(len(X)))
