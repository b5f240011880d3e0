"""Quantiles of mixtures of normals."""

import numpy as np
import torch
from scipy.special import ndtri

# Halvings of the bracket: 2**-50 of its width is left.
N_HALVINGS = 50


def normal_mixture_quantiles(
    means: torch.Tensor, scale: torch.Tensor | float, levels: np.ndarray
) -> torch.Tensor:
    """Quantiles of equally weighted normals, by bisection.

    Parameters
    ----------
    means : Tensor of shape (S, n)
    scale : Tensor of shape (S, 1) or float
        Of each of them, or of all.
    levels : ndarray of shape (q,)
        Probabilities.

    Returns
    -------
    Tensor of shape (n, q)
    """
    columns = []
    for level in levels:
        # A mixture's quantile lies between those of its components.
        own = means + scale * float(ndtri(level))
        low, high = own.min(0).values, own.max(0).values
        for _ in range(N_HALVINGS):
            middle = (low + high) / 2
            below = torch.special.ndtr((middle - means) / scale).mean(0) < level
            low = torch.where(below, middle, low)
            high = torch.where(below, high, middle)
        columns.append((low + high) / 2)
    return torch.stack(columns, 1)
