"""Symmetric matrices in the coordinates of a triangular one."""

import pytest
import torch

from skvi.utils._rows import congruence, times_transpose


@pytest.mark.parametrize("requires_grad", [False, True])
def test_congruence(requires_grad):
    """Wrong variants: a scale that is not transposed on one side, or on both."""
    generator = torch.Generator().manual_seed(0)
    scale, matrix = torch.randn(2, 5, 5, generator=generator, dtype=torch.float64)
    scale, matrix = scale.tril(), matrix + matrix.T
    before = matrix.clone()
    expected = scale.T @ matrix @ scale
    scale.requires_grad_(requires_grad)
    found = congruence(scale, matrix)
    assert found.requires_grad is requires_grad
    torch.testing.assert_close(found.detach(), expected)
    torch.testing.assert_close(times_transpose(scale), scale @ scale.T)
    assert torch.equal(matrix, before)
