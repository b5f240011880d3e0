"""Rows: parts, chunks, checksums, and memory that nobody copies."""

import numpy as np
import pytest
import torch
from scipy import sparse

from skvi.base._rows import CACHE_ELEMENTS, CHUNK_ELEMENTS, Rows, deal
from skvi.utils._rows import ShiftedRows

N = 40
RNG = np.random.default_rng(0)
DENSE = RNG.normal(size=(N, 3)) * (RNG.random((N, 3)) < 0.7)
Y, WEIGHT, OFFSET = RNG.normal(size=(3, N))
KINDS = {
    "dense": DENSE,
    "single": DENSE.astype(np.float32),
    "sparse": sparse.csr_array(DENSE),
    "images": DENSE.reshape(N, 1, 3, 1),
}


@pytest.mark.parametrize("kind", KINDS)
def test_parts_belong_together(kind):
    """Wrong variants: weights of other rows; the offset left out."""
    rows = Rows.of(KINDS[kind], Y, WEIGHT, OFFSET)
    assert len(rows) == N
    assert rows.width <= 3
    assert rows.total_weight == pytest.approx(WEIGHT.sum())
    assert rows.take(None) is rows
    for index in (slice(3, 7), torch.tensor([5, 1, 1])):
        part = rows.take(index)
        assert part.dtype == rows.dtype == rows.X.dtype
        chosen = index if isinstance(index, slice) else index.numpy()
        X = part.X.matrix.toarray() if kind == "sparse" else part.X.numpy()
        np.testing.assert_array_equal(
            X.reshape(-1, 3), KINDS["dense"].astype(X.dtype)[chosen]
        )
        np.testing.assert_array_equal(part.y, Y[chosen])
        np.testing.assert_array_equal(part.weight, WEIGHT[chosen])
        np.testing.assert_array_equal(part.offset, OFFSET[chosen])


def test_chunks_bound_both_results_and_features():
    """Wrong variant: as many rows whatever they hold."""
    for width, n_features in ((1, 1), (1000, 1), (1, 10_000), (7, 500)):
        X = np.broadcast_to(np.float32(0), (300_000, n_features))
        chunks = Rows.of(X, np.zeros(len(X))).chunks(width)
        sizes = [len(range(len(X))[chunk]) for chunk in chunks]
        assert sum(sizes) == len(X)
        assert chunks[0].start == 0
        assert chunks[-1].stop == len(X)
        most = max(sizes)
        assert (most - 1) * width <= CACHE_ELEMENTS
        assert (most - 1) * n_features <= 1.1 * CHUNK_ELEMENTS


def test_batches_deal_all_rows():
    batches = deal(len(Y), 3, torch.Generator().manual_seed(0))
    assert [len(batch) for batch in batches] == [14, 13, 13]
    assert torch.cat(batches).sort().values.tolist() == list(range(N))


def test_fingerprint_tells_data_apart():
    """Wrong variant: of targets alone. Storage makes no difference, order does."""
    first = Rows.of(KINDS["single"], Y, WEIGHT).fingerprint()
    single = KINDS["single"]
    assert first == Rows.of(sparse.csr_array(single), Y, WEIGHT).fingerprint()
    assert first == Rows.of(single.astype(np.float64), Y, WEIGHT).fingerprint()
    others = [(single[::-1], Y, WEIGHT), (single, Y[::-1], WEIGHT), (single, Y)]
    assert first not in [Rows.of(*other).fingerprint() for other in others]


def test_memory_maps_are_shared(tmp_path):
    """Read only, as `joblib` makes them. Wrong variant: a copy into memory."""
    KINDS["single"].tofile(tmp_path / "X")
    X = np.memmap(tmp_path / "X", np.float32, "r", shape=DENSE.shape)
    rows = Rows.of(X, Y)
    assert rows.X.data_ptr() == X.ctypes.data
    assert rows.take(slice(3, 5)).X.data_ptr() == X[3:].ctypes.data


def test_rows_standardized_where_they_are_read():
    """Wrong variants: not centered; a copy of all of them; in single precision."""
    X, scale = torch.from_numpy(KINDS["single"]), torch.tensor([1.0, 0.3, 7.0]).double()
    shifted = ShiftedRows(X, torch.tensor([1.0, 2.0, 3.0]), scale)
    expected = (X.double() - torch.tensor([1.0, 2.0, 3.0]).double()) / scale
    assert torch.equal(shifted[3:5], expected[3:5])
    assert torch.equal(shifted.to(torch.float32), expected.float())
    assert shifted.to(torch.device("cpu")).X is X
    assert Rows(shifted, torch.zeros(N)).width == 3
