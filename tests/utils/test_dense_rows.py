"""Products over rows in a buffer, against the products themselves."""

import pytest
import torch
from scipy.sparse import csr_array

from skvi.base import NormalForm
from skvi.predictors import LinearPredictor
from skvi.utils import _interrupts, _rows
from skvi.utils._rows import (
    ShiftedRows,
    SparseRows,
    dense_gram,
    dense_moments,
    is_dense,
)

N, D = 53, 4
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
    X = torch.randn(N, D, dtype=torch.float64, generator=generator).to(dtype)
    ones = torch.ones(N, int(with_ones), dtype=torch.float64)
    design = torch.cat([X.double(), ones], 1)
    size = design.shape[1]
    scale = torch.randn(size, size, dtype=torch.float64, generator=generator).tril()
    h = torch.rand(N, dtype=torch.float64, generator=generator)
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
def test_moments(with_ones, dtype, generator):
    """Wrong variant: the transpose of the scale."""
    X, design, _, scale = problem(with_ones, dtype, generator)
    mean, variance = dense_moments(X, scale[-1], scale, with_ones)
    torch.testing.assert_close(mean, design @ scale[-1], rtol=1e-12, atol=1e-12)
    expected = (design @ scale).square().sum(1)
    torch.testing.assert_close(variance, expected, rtol=1e-12, atol=1e-12)


@intercepts
@dtypes
def test_standardized_rows(with_ones, dtype, generator):
    """As a copy of them. Wrong variants: not scaled; in single precision."""
    X, _, h, scale = problem(with_ones, dtype, generator)
    X, unit = 1000 + X, torch.tensor([1.0, 0.5, 3.0, 0.1], dtype=torch.float64)
    rows = ShiftedRows(X, torch.full_like(unit, 1000.0), unit)
    ones = torch.ones(N, int(with_ones), dtype=torch.float64)
    design = torch.cat([(X.double() - 1000.0) / unit, ones], 1)
    assert is_dense(rows)
    expected = design.T @ (h[:, None] * design)
    found = dense_gram(rows, h, with_ones)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    found = dense_moments(rows, scale[-1], scale, with_ones)
    expected = design @ scale[-1], (design @ scale).square().sum(1)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@intercepts
def test_a_linear_predictor_takes_weights_of_any_sign(with_ones, generator):
    """Wrong variant: roots of negative weights."""
    X, design, h, scale = problem(with_ones, torch.float64, generator)
    predictor = LinearPredictor(D, 1, with_ones)
    for weight in (h, h - 0.5):
        expected = design.T @ (weight[:, None] * design)
        assert torch.allclose(predictor.gram(X, weight), expected, rtol=1e-12)
    mean, variance = predictor.moments(X, NormalForm(scale[0], scale))
    assert torch.allclose(mean, design @ scale[0], rtol=1e-12)
    assert torch.allclose(variance, (design @ scale).square().sum(1), rtol=1e-12)


def test_only_matrices_in_memory_are_dense():
    """Wrong variant: sparse rows are taken for a matrix."""
    X = torch.ones(N, D, dtype=torch.float64)
    assert is_dense(X)
    assert not is_dense(X.to("meta"))
    assert not is_dense(SparseRows(csr_array(X.numpy())))


def test_other_threads_get_back_what_they_had(generator):
    """Wrong variant: libraries stay at one thread."""
    pools = _interrupts._controller().select(user_api="blas").lib_controllers
    X, _, h, _ = problem(True, torch.float64, generator)
    with _interrupts._limited(pools, 2):
        dense_gram(X, h, True)
        assert all(pool.num_threads == 2 for pool in pools)
