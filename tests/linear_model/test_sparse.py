"""Sparse features: the same numbers as dense ones, and never made dense."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from skvi.base import NormalForm
from skvi.linear_model import BayesianLogisticRegression
from skvi.predictors import LinearPredictor
from skvi.utils._rows import SparseRows, row_width, weighted_gram


def make(n=80, d=12, n_classes=2, density=0.2, seed=0):
    rng = np.random.default_rng(seed)
    X = sp.random(n, d, density, random_state=rng, data_rvs=rng.standard_normal)
    dense = X.toarray()
    f = dense @ rng.standard_normal((d, n_classes)) * 2
    y = (f + rng.gumbel(size=f.shape)).argmax(1)
    return dense, y


class TestSparseRows:
    @pytest.fixture
    def pair(self):
        dense = torch.from_numpy(make()[0])
        return SparseRows(sp.csr_array(dense.numpy())), dense

    def test_it_answers_as_a_tensor(self, pair, generator):
        rows, dense = pair
        B = torch.randn(12, 3, generator=generator, dtype=torch.float64)
        C = torch.randn(80, 3, generator=generator, dtype=torch.float64)
        assert len(rows) == 80
        assert rows.shape == dense.shape
        assert torch.allclose(rows @ B, dense @ B)
        assert torch.allclose(rows @ B[:, 0], dense @ B[:, 0])
        assert torch.allclose(rows.T @ C, dense.T @ C)
        assert torch.allclose(rows.square() @ B, dense.square() @ B)
        index = torch.tensor([3, 70, 3])
        assert torch.allclose(rows[index] @ B, dense[index] @ B)
        assert torch.allclose(rows[5:9] @ B, dense[5:9] @ B)
        assert (rows.to(torch.float32) @ B.float()).dtype == torch.float32
        assert 1 <= row_width(rows) < row_width(dense) == 12

    @pytest.mark.parametrize("with_ones", [True, False])
    def test_gram(self, pair, with_ones, generator):
        """Wrong variant: the square of the weights."""
        rows, dense = pair
        h = torch.randn(80, generator=generator, dtype=torch.float64)
        found = weighted_gram(rows, h, with_ones)
        assert torch.allclose(found, weighted_gram(dense, h, with_ones))

    def test_products_are_differentiable(self, pair, generator):
        rows, _ = pair
        B = torch.randn(12, 2, generator=generator, dtype=torch.float64)
        assert torch.autograd.gradcheck(lambda b: rows @ b, B.requires_grad_())

    def test_duplicates_are_summed_in_a_copy(self):
        """Wrong variant: squares of the parts of a sum."""
        raw = sp.csr_array(
            (np.array([1.0, 2.0, 5.0]), np.array([1, 1, 0]), np.array([0, 3]))
        )
        rows = SparseRows(raw)
        one = torch.ones(2, dtype=torch.float64)
        assert float(rows.square() @ one) == 9 + 25
        assert len(raw.data) == 3

    def test_forward_with_gradients(self, pair, generator):
        rows, dense = pair
        predictor = LinearPredictor(12, 3)
        theta = torch.randn(4, 39, generator=generator, dtype=torch.float64)
        gradients = []
        for X in (rows, dense):
            leaf = theta.clone().requires_grad_()
            f = predictor.forward(leaf, X)
            gradients.append(torch.autograd.grad(f.sin().sum(), leaf)[0])
        assert torch.allclose(*gradients)


@pytest.mark.parametrize("kind", ["diag", "full", "low_rank"])
@pytest.mark.parametrize("n_outputs", [1, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_standardized_rows(kind, n_outputs, dtype, make_normal):
    """As dense ones, in every product of a linear model; they stay sparse.

    One column without zeros is far from zero: its digits are not lost. Wrong variants:
    the shift added; the scale of the shift left out; the cross term of squares without
    its 2; the Gram matrix without the shift's own square; far columns shifted in
    products, which loses 1e-6 here.
    """
    rng, d = np.random.default_rng(0), 4
    X = sp.random_array((9, d), density=0.5, rng=rng).toarray()
    X[:, 1] = 1e6 + rng.integers(5, size=9)
    X = X.astype(dtype)
    origin, scale = X.mean(0, dtype=float), np.array([1.0, 0.5, 3.0, 0.1])
    rows = SparseRows.standardized(sp.csr_array(X), origin, scale)
    dense = torch.from_numpy((X - origin) / scale)
    assert rows.matrix.nnz == np.count_nonzero(X)
    predictor = LinearPredictor(d, n_outputs)
    h = torch.from_numpy(rng.uniform(size=(9, n_outputs)))
    weights = h[:, 0] if n_outputs == 1 else torch.diag_embed(h)
    slope = h[:, 0] if n_outputs == 1 else h
    size = predictor.layout.size
    theta = torch.from_numpy(rng.standard_normal((3, size)))
    normal = make_normal(size, "diag" if kind == "low_rank" else kind)
    if kind == "low_rank":
        normal = NormalForm(normal.mean, normal.scale, theta.T[:, :2].contiguous())

    def products(X):
        return [
            X.to(torch.float64)[2:5].dense() if X is rows else X[2:5],
            predictor.forward(theta, X),
            predictor.project(X, theta.T),
            predictor.pull_back(X, slope),
            predictor.gram(X, weights),
            predictor.gram_diagonal(X, weights),
            *predictor.moments(X, normal),
        ]

    for found, expected in zip(products(rows), products(dense), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("n_classes", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_evidence_of_sparse_features(n_classes):
    """The same bounds, also if one side is sparse and the other dense."""
    dense, y = make(n=40, d=6, n_classes=n_classes)
    X = sp.csr_array(dense)
    options = {"random_state": 0}
    a = BayesianLogisticRegression(prior="normal").fit(dense, y)
    b = BayesianLogisticRegression(prior="normal").fit(X, y)
    expected = a.evidence_bounds(dense, y, **options).estimate
    for model, features in ((b, dense), (a, X)):
        found = model.evidence_bounds(features, y, **options).estimate
        assert found == pytest.approx(expected, abs=1e-3)
    with pytest.raises(ValueError, match="these differ"):
        b.evidence_bounds(X * 2, y)


def test_many_columns_stay_sparse(monkeypatch):
    """5,000 columns by conjugate gradients; any dense copy of X is refused."""
    rng = np.random.default_rng(0)
    X = sp.random(300, 5000, 0.002, "csr", random_state=rng)
    y = (X @ rng.standard_normal(5000) + 0.1 * rng.logistic(size=300) > 0).astype(int)
    dense = BayesianLogisticRegression(posterior="mean_field", prior="normal").fit(
        X.toarray(), y
    )

    def refuse(self, *args, **kwargs):
        assert self.shape[0] <= 32, "a sparse matrix was made dense"
        return original(self, *args, **kwargs)

    original = sp.csr_matrix.toarray
    monkeypatch.setattr(sp.csr_matrix, "toarray", refuse)
    model = BayesianLogisticRegression(posterior="mean_field", prior="normal").fit(X, y)
    assert model.coef_ == pytest.approx(dense.coef_, abs=1e-4)
    assert model.lower_bound_ == pytest.approx(dense.lower_bound_, abs=1e-4)
