"""Quantiles of mixtures of normals."""

import numpy as np
import torch
from scipy.special import ndtri

# Halvings of the bracket: 2**-50 of its width is left.
N_HALVINGS = 50


def normal_mixture_quantiles(
    means: torch.Tensor, scale: float, levels: np.ndarray
) -> torch.Tensor:
    """Quantiles of equally weighted normals with one scale, by bisection.

    Parameters
    ----------
    means : Tensor of shape (S, n)
    scale : float
    levels : ndarray of shape (q,)
        Probabilities.

    Returns
    -------
    Tensor of shape (n, q)
    """
    columns = []
    for level in levels:
        # A mixture's quantile lies between those of its components.
        shift = scale * float(ndtri(level))
        low, high = means.min(0).values + shift, means.max(0).values + shift
        for _ in range(N_HALVINGS):
            middle = (low + high) / 2
            below = torch.special.ndtr((middle - means) / scale).mean(0) < level
            low = torch.where(below, middle, low)
            high = torch.where(below, high, middle)
        columns.append((low + high) / 2)
    return torch.stack(columns, 1)
