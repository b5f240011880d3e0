"""Components, layouts, the normal form, and rows with a fixed shift."""

import numpy as np
import pytest
import torch
from scipy import sparse

from skvi.base import Layout, NormalForm
from skvi.base._rows import Rows
from skvi.utils import _interrupts, _rows
from skvi.utils._rows import (
    ShiftedRows,
    dense_gram,
    dense_moments,
    is_dense,
)

LAYOUT = Layout(
    {"coef": (2, 3), "noise": (), "scale": (2,)},
    {"scale": "exp", "noise": "softplus"},
    roles={"noise": "noise", "scale": "scale"},
    limits={"noise": (-3.0, 2.0)},
)


def test_layout_unpacks_in_order():
    theta = torch.arange(18, dtype=torch.float64).reshape(2, 9) / 10
    blocks = LAYOUT.unpack(theta)
    assert torch.equal(blocks["coef"][1], theta[1, :6].reshape(2, 3))
    torch.testing.assert_close(blocks["noise"], theta[:, 6].exp().log1p())
    # Wrong variant: the unconstrained coordinates themselves.
    torch.testing.assert_close(blocks["scale"], theta[:, 7:].exp())


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Layout({"a": ()}, {"a": "log"}), r"block 'a' .* Got 'log' instead"),
        (lambda: Layout({"a": ()}, roles={"a": "bias"}), "role of block 'a'"),
        (lambda: Layout({"a": ()}, roles={"b": "weight"}), "no blocks .'b'."),
        (lambda: LAYOUT.only("bias"), "no blocks .'bias'."),
        (lambda: LAYOUT + LAYOUT.only("coef"), "share names"),
    ],
)
def test_layout_refuses_what_it_does_not_know(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_low_rank_normal():
    """All of a normal with a factor against its covariance matrix.

    Wrong variant: the capacity matrix left out of the determinant.
    """
    generator = torch.Generator().manual_seed(0)
    mean, scale, factor, theta = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((5,), (5,), (5, 2), (7, 5))
    )
    normal = NormalForm(mean, scale.abs() + 0.1, factor)
    covariance = torch.diag(normal.scale.square()) + factor @ factor.T
    full = NormalForm(mean, torch.linalg.cholesky(covariance))
    torch.testing.assert_close(normal.log_prob(theta), full.log_prob(theta))
    torch.testing.assert_close(normal.entropy(), full.entropy())
    torch.testing.assert_close(normal.variance, full.variance)
    torch.testing.assert_close(normal.covariance(), covariance)
    whitened = normal.whiten(theta - mean)
    torch.testing.assert_close(
        whitened.square().sum(1), full.squared_distance(theta - mean)
    )
    # The map from noise is linear: its matrix is a root of the covariance.
    root = normal.transform(torch.eye(normal.n_noise, dtype=torch.float64)) - mean
    torch.testing.assert_close(root.T @ root, covariance)


@pytest.mark.parametrize("kind", ["diag", "full", "low_rank"])
def test_draws_of_a_normal(kind, make_normal, generator, z_score):
    """First and second moments. Wrong variants: noise unscaled; factor transposed."""
    normal = make_normal(3, "diag", width=2.0)
    if kind == "full":
        factor = torch.diag(normal.scale) + torch.ones(3, 3).double().tril(-1)
        normal = NormalForm(normal.mean, factor)
    if kind == "low_rank":
        factor = torch.ones(3, 1, dtype=torch.float64)
        normal = NormalForm(normal.mean, normal.scale, factor)
    theta = normal.sample(20_000, generator)
    deviation = theta - normal.mean
    products = deviation[:, :, None] * deviation[:, None]
    assert z_score(theta, normal.mean) < 5
    assert z_score(products, normal.covariance()) < 5


N = 40
RNG = np.random.default_rng(0)
DENSE = RNG.normal(size=(N, 3)) * (RNG.random((N, 3)) < 0.7)
KINDS = {
    "dense": DENSE,
    "single": DENSE.astype(np.float32),
    "sparse": sparse.csr_array(DENSE),
    "images": DENSE.reshape(N, 1, 3, 1),
}


def test_rows_standardized_where_they_are_read():
    """Wrong variants: not centered; a copy of all of them; in single precision."""
    X, scale = torch.from_numpy(KINDS["single"]), torch.tensor([1.0, 0.3, 7.0]).double()
    shifted = ShiftedRows(X, torch.tensor([1.0, 2.0, 3.0]), scale)
    expected = (X.double() - torch.tensor([1.0, 2.0, 3.0]).double()) / scale
    assert torch.equal(shifted[3:5], expected[3:5])
    assert torch.equal(shifted.to(torch.float32), expected.float())
    assert shifted.to(torch.device("cpu")).X is X
    assert Rows(shifted, torch.zeros(N)).width == 3


N_DENSE, D = 53, 4
intercepts = pytest.mark.parametrize("with_ones", [True, False])
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


@pytest.fixture(autouse=True, params=[1, 20, 1000], ids=lambda rows: f"{rows} rows")
def _chunks(request, monkeypatch):
    monkeypatch.setattr(_rows, "BUFFER_ELEMENTS", D)
    monkeypatch.setattr(_rows, "MIN_ROWS", request.param)


@pytest.fixture(autouse=True, params=[1, 3], ids=lambda count: f"{count} threads")
def _counts(request, monkeypatch):
    """Three work on stretches of uneven length."""
    monkeypatch.setattr(_interrupts, "SMALL_WORK", 0)
    monkeypatch.setattr(_rows, "BLOCK_COLUMNS", 2)
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def problem(with_ones, dtype, generator):
    """X, the design matrix, weights, and a lower triangular matrix."""
    X = torch.randn(N_DENSE, D, dtype=torch.float64, generator=generator).to(dtype)
    ones = torch.ones(N_DENSE, int(with_ones), dtype=torch.float64)
    design = torch.cat([X.double(), ones], 1)
    size = design.shape[1]
    scale = torch.randn(size, size, dtype=torch.float64, generator=generator).tril()
    h = torch.rand(N_DENSE, dtype=torch.float64, generator=generator)
    h[3] = 0
    return X, design, h, scale


@intercepts
@dtypes
def test_gram(with_ones, dtype, generator):
    """Wrong variants: the last chunk alone; weights instead of their roots."""
    X, design, h, _ = problem(with_ones, dtype, generator)
    expected = design.T @ (h[:, None] * design)
    torch.testing.assert_close(
        dense_gram(X, h, with_ones), expected, rtol=1e-12, atol=1e-12
    )
    by_columns = X.T.contiguous().T  # as a data frame stores them
    found = dense_gram(by_columns, h, with_ones)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@intercepts
@dtypes
def test_standardized_rows(with_ones, dtype, generator):
    """As a copy of them. Wrong variants: not scaled; in single precision."""
    X, _, h, scale = problem(with_ones, dtype, generator)
    X, unit = 1000 + X, torch.tensor([1.0, 0.5, 3.0, 0.1], dtype=torch.float64)
    rows = ShiftedRows(X, torch.full_like(unit, 1000.0), unit)
    ones = torch.ones(N_DENSE, int(with_ones), dtype=torch.float64)
    design = torch.cat([(X.double() - 1000.0) / unit, ones], 1)
    assert is_dense(rows)
    expected = design.T @ (h[:, None] * design)
    found = dense_gram(rows, h, with_ones)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    found = dense_moments(rows, scale[-1], scale, with_ones)
    expected = design @ scale[-1], (design @ scale).square().sum(1)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
