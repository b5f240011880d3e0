"""Predictors against explicit design matrices and explicit loops."""

from itertools import pairwise

import pytest
import scipy.sparse as sp
import torch
from torch.nn.functional import linear, softplus

from skvi import predictors
from skvi.base import NormalForm
from skvi.predictors import LinearPredictor, MLPPredictor
from skvi.utils._rows import SparseRows
from skvi.utils._validation import row_chunks
from tests.densities import randn

N, D = 13, 3
intercepts = pytest.mark.parametrize("fit_intercept", [True, False])
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
kinds = pytest.mark.parametrize("kind", ["diag", "full"])


@pytest.fixture(params=[2**21, 8], ids=["one chunk", "many chunks"])
def _chunks(request, monkeypatch):
    for name in ("CACHE_ELEMENTS", "CHUNK_ELEMENTS"):
        monkeypatch.setattr(predictors._linear, name, request.param)


def problem(fit_intercept, dtype):
    """The predictor, its features, and the design matrix that it never builds."""
    X = randn(N, D).to(dtype)
    design = torch.cat([X, torch.ones(N, 1)], 1) if fit_intercept else X
    return LinearPredictor(D, 1, fit_intercept), X, design.double()


def assert_close(actual, expected, dtype):
    """Up to rounding in the dtype of the features."""
    rtol, atol = (1e-12, 1e-12) if dtype == torch.float64 else (2e-5, 2e-5)
    torch.testing.assert_close(actual.double(), expected.double(), rtol=rtol, atol=atol)


@intercepts
@dtypes
@pytest.mark.usefixtures("_chunks")
class TestLinearPredictor:
    def test_project_and_pull_back(self, fit_intercept, dtype):
        # Wrong variants: the intercept's row first, or left out.
        predictor, X, design = problem(fit_intercept, dtype)
        size = predictor.layout.size
        assert size == design.shape[1]
        matrix, rows = randn(size, 2, seed=1), randn(4, N, seed=2)
        assert_close(predictor.project(X, matrix), design @ matrix, dtype)
        assert_close(predictor.pull_back_draws(X, rows), rows @ design, dtype)
        assert_close(predictor.pull_back(X, rows[0]), design.T @ rows[0], dtype)
        assert predictor.pull_back(X, rows[0]).dtype == torch.float64

    def test_gram(self, fit_intercept, dtype):
        # Wrong variants: h squared; h left out of the intercept's row.
        predictor, X, design = problem(fit_intercept, dtype)
        h = randn(N, seed=1).abs() + 0.1
        gram = predictor.gram(X, h)
        assert_close(gram, design.T @ torch.diag(h) @ design, dtype)
        assert_close(predictor.gram_diagonal(X, h), gram.diagonal(), dtype)
        assert gram.dtype == predictor.gram_diagonal(X, h).dtype == torch.float64

    def test_with_design(self, fit_intercept, dtype):
        """The same function of the same vector, of other features.

        Wrong variant: the features alone, without ones for the intercept.
        """
        predictor, X, _ = problem(fit_intercept, dtype)
        theta, h = randn(2, predictor.layout.size, seed=1), randn(N, seed=2).abs()
        other, Z = predictor.with_design(X)
        assert_close(other.forward(theta, Z), predictor.forward(theta, X), dtype)
        assert_close(other.gram(Z, h), predictor.gram(X, h), dtype)

    @kinds
    def test_moments(self, fit_intercept, dtype, kind, make_normal):
        # Wrong variants: L for L'; standard deviations summed where variances are.
        predictor, X, design = problem(fit_intercept, dtype)
        normal = make_normal(predictor.layout.size, kind)
        mean, variance = predictor.moments(X, normal)
        assert_close(mean, design @ normal.mean, dtype)
        covariance = design @ normal.covariance() @ design.T
        assert_close(variance, covariance.diagonal(), dtype)
        assert mean.dtype == variance.dtype == torch.float64

    @kinds
    def test_moments_are_differentiable(self, fit_intercept, dtype, kind, make_normal):
        predictor, X, _ = problem(fit_intercept, dtype)
        normal = make_normal(predictor.layout.size, kind)
        scale = normal.scale.clone().requires_grad_()
        variance = predictor.moments(X, NormalForm(normal.mean, scale))[1]
        (gradient,) = torch.autograd.grad(variance.sum(), scale)
        gram = predictor.gram(X, torch.ones(N).double())
        full = torch.diag(normal.scale) if kind == "diag" else normal.scale
        expected = 2 * gram @ full
        expected = expected.diagonal() if kind == "diag" else expected
        assert_close(gradient, expected, dtype)

    @pytest.mark.parametrize("n_outputs", [1, 3])
    def test_forward(self, fit_intercept, dtype, n_outputs):
        # Wrong variant: rows of coef read as features, that is its transpose.
        X, predictor = (
            randn(N, D).to(dtype),
            LinearPredictor(D, n_outputs, fit_intercept),
        )
        theta = randn(5, predictor.layout.size, seed=1)
        f = predictor.forward(theta, X)
        assert f.shape == (5, N, n_outputs)
        assert f.dtype == theta.dtype
        for s in range(5):
            coef = theta[s, : n_outputs * D].reshape(n_outputs, D)
            bias = theta[s, n_outputs * D :] if fit_intercept else None
            assert_close(f[s], linear(X.double(), coef, bias), dtype)
        assert predictor.has_moments
        assert predictor.has_design


@intercepts
@dtypes
@pytest.mark.parametrize("n_outputs", [3, 8])
@pytest.mark.parametrize("is_singular", [True, False])
@pytest.mark.parametrize("is_sparse", [True, False])
@pytest.mark.usefixtures("_chunks")
def test_gram_of_several_outputs(
    fit_intercept, dtype, n_outputs, is_singular, is_sparse
):
    """The sum of Kronecker products of each row's weights and features.

    Weights whose rows sum to 0 need products of distinct outputs only. Wrong variants:
    diagonal blocks are left 0; they are made so for all weights; a triangle is missing.
    """
    X, k = randn(N, D).to(dtype), n_outputs
    h = randn(N, k, k, seed=1)
    h = h + h.mT
    if is_singular:
        h.diagonal(dim1=1, dim2=2).zero_()
        h.diagonal(dim1=1, dim2=2).copy_(-h.sum(2))
    predictor = LinearPredictor(D, k, fit_intercept)
    rows = SparseRows(sp.csr_matrix(X.numpy())) if is_sparse else X
    expected = randn(k * D, k * D).zero_()
    for x, weight in zip(X.double(), h, strict=True):
        expected += torch.kron(weight, torch.outer(x, x))
    gram = predictor.gram(rows, h)
    assert_close(gram[: k * D, : k * D], expected, dtype)
    assert_close(gram, gram.T, dtype)
    if fit_intercept:
        edge = torch.einsum("nij,nd->ijd", h, X.double()).reshape(k, k * D)
        assert_close(gram[k * D :, : k * D], edge, dtype)
        assert_close(gram[k * D :, k * D :], h.sum(0), dtype)
    assert_close(predictor.gram_diagonal(rows, h), gram.diagonal(), dtype)


@intercepts
def test_covariances_of_many_rows(fit_intercept):
    """From products of pairs of features, as from a root of the covariance.

    Wrong variant: products of two different features count once.
    """
    predictor, X = LinearPredictor(D, 3, fit_intercept), randn(60, D)
    size = predictor.layout.size
    normal = NormalForm(randn(size, seed=1), randn(size, size, seed=2).tril())
    mean, covariance = predictor.moments(X, normal)
    few = [predictor.moments(X[i : i + 3], normal) for i in range(0, 60, 3)]
    assert (predictor._pays(60), predictor._pays(3)) == (True, False)
    torch.testing.assert_close(mean, torch.cat([m for m, _ in few]))
    expected = torch.cat([v for _, v in few])
    torch.testing.assert_close(covariance, expected, rtol=1e-12, atol=1e-12)


def test_row_chunks_partition_the_rows():
    for n_rows, width in [(1, 1), (7, 30), (1000, 7), (50, 1000), (30, 0)]:
        chunks = row_chunks(n_rows, width, 100)
        assert [i for c in chunks for i in range(n_rows)[c]] == list(range(n_rows))
        assert all((c.stop - c.start - 1) * width <= 100 for c in chunks)


@dtypes
@pytest.mark.parametrize("hidden", [(), (4,), (5, 4)])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("n_outputs", [1, 2])
def test_mlp_forward(dtype, hidden, activation, n_outputs):
    """An explicit loop over draws and layers.

    Wrong variants: an activation on the output, or none between two layers; features
    that skip them to the first output.
    """
    X, outputs = randn(N, D).to(dtype), [n_outputs - 1]
    predictor = MLPPredictor(D, n_outputs, hidden, activation, skip_outputs=outputs)
    theta, sizes = randn(3, predictor.layout.size, seed=1), (D, *hidden, n_outputs)
    f = predictor.forward(theta, X)
    assert f.shape == (3, N, n_outputs)
    for s in range(3):
        h, start = X.double(), 0
        for i, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            end = start + fan_in * fan_out
            coef = theta[s, start:end].reshape(fan_in, fan_out)
            h = linear(h, coef.T, theta[s, end : end + fan_out])
            start = end + fan_out
            if i < len(sizes) - 2:
                h = getattr(torch, activation)(h)
        if hidden:
            h[:, -1] += X.double() @ theta[s, start : start + D]
            start += D
        assert start == predictor.layout.size
        torch.testing.assert_close(f[s], h, rtol=1e-10, atol=1e-12)


@pytest.fixture
def two_samplers(make_normal, generator):
    """Draws of f for 4 rows, with local activations and with weights."""
    X, predictor = randn(4, D), MLPPredictor(D, 1, (6,), "tanh", skip_outputs=[0])
    normal = make_normal(predictor.layout.size, "diag", width=0.6)
    eps = torch.randn(
        200_000, predictor.layout.size, generator=generator, dtype=torch.float64
    )
    weights = predictor.forward(normal.transform(eps), X)[..., 0]
    return predictor.sample_locally(normal, X, 200_000, generator)[..., 0], weights


def test_local_reparameterization_keeps_every_row(two_samplers, z_score):
    """Expectations of each row agree.

    Wrong variants: |h| for h squared; a noiseless intercept; the variance for its root.
    """
    local, weights = two_samplers
    for function in (lambda f: f, torch.square, softplus, lambda f: (f - 1).exp()):
        assert z_score(function(local) - function(weights), 0.0) < 5
    assert z_score(local**2 - 1.05 * weights**2, 0.0) > 5


def test_local_reparameterization_breaks_joint_quantities(two_samplers, z_score):
    """A draw is not one theta: rows are independent, so no log-mean-exp over sums."""
    local, weights = two_samplers
    assert z_score(local.sum(1) ** 2 - weights.sum(1) ** 2, 0.0) > 5
    joint = [torch.logsumexp(-softplus(f).sum(1), 0) for f in (local, weights)]
    assert abs(float(joint[0] - joint[1])) > 0.01


def test_local_draws_are_differentiable(make_normal, numeric_gradient):
    X, predictor = randn(4, D), MLPPredictor(D, 1, (2,), "tanh")
    start = make_normal(predictor.layout.size, "diag")
    start = torch.cat([start.mean, start.scale])

    def total(params):
        mean, scale = params.split(predictor.layout.size)
        generator = torch.Generator().manual_seed(3)
        normal = NormalForm(mean, scale)
        return predictor.sample_locally(normal, X, 2, generator).square().sum()

    leaf = start.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(total(leaf), leaf)
    numeric = numeric_gradient(total, start)
    torch.testing.assert_close(gradient, numeric, rtol=5e-6, atol=1e-7)


@pytest.mark.parametrize(("activation", "spread"), [("relu", 0.0), ("tanh", 2.0)])
def test_networks_start_narrow_and_nearly_flat(activation, spread):
    """Means of natural sizes, a fifth of it in the last layer, 0 for intercepts.

    Those of units that saturate are spread as widely as standardized features are.
    Wrong variants: a last layer of its natural size; the first layer as the last one;
    intercepts of any other layer that are spread.
    """
    predictor = MLPPredictor(200, 2, (300, 100), activation)
    start = predictor.initial_normal(torch.Generator().manual_seed(0))
    scales = predictor.layout.natural_scales()
    mean = predictor.layout.unpack((start.mean / scales)[None])
    std = predictor.layout.unpack((start.scale / scales)[None])
    for i, size in enumerate([1.0, 1.0, 0.2]):
        assert float(mean[f"coef_{i}"].std()) == pytest.approx(size, rel=0.2)
        expected = 0.0 if i else spread
        assert float(mean[f"intercept_{i}"].std()) == pytest.approx(expected, rel=0.2)
        assert std[f"coef_{i}"].flatten()[0] == pytest.approx(0.01)
