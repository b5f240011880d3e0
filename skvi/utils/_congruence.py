"""Products of a triangular matrix, in half of the time where BLAS can."""

import torch
from scipy.linalg.blas import dtrmm


def congruence(scale: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Return ``scale' @ matrix @ scale``: lower triangular scale, symmetric matrix."""
    if not scale.is_cpu or scale.requires_grad or matrix.requires_grad:
        return scale.T @ matrix @ scale
    # Transposes have the order that BLAS takes.
    upper = scale.numpy().T
    left = dtrmm(1.0, upper, matrix.numpy().T)
    return torch.from_numpy(dtrmm(1.0, upper, left, side=1, trans_a=1, overwrite_b=1))


def times_transpose(scale: torch.Tensor) -> torch.Tensor:
    """Return ``scale @ scale'`` for a lower triangular scale in double precision."""
    if not scale.is_cpu or scale.requires_grad:
        return scale @ scale.T
    upper = scale.numpy().T
    return torch.from_numpy(dtrmm(1.0, upper, upper, trans_a=1))
