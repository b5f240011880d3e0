"""Numbers and functions of log space."""

import math

import torch

__all__ = ["LOG_2PI", "log_mean_exp"]

LOG_2PI = math.log(2 * math.pi)


def log_mean_exp(values: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """Return ``log mean exp`` over one axis."""
    return torch.logsumexp(values, dim) - math.log(values.shape[dim])
