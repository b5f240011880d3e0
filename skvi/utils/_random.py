"""Seeds: scikit-learn's `random_state` on one side, torch generators on the other."""

import numpy as np
import torch
from sklearn.utils import check_random_state

RandomState = int | np.random.RandomState | None


def make_generator(random_state: RandomState) -> torch.Generator:
    """Return a torch generator seeded from a scikit-learn `random_state`."""
    seed = int(check_random_state(random_state).randint(2**31 - 1))
    return torch.Generator().manual_seed(seed)


def randn(
    generator: torch.Generator, *shape: int, dtype: torch.dtype = torch.float64
) -> torch.Tensor:
    """Draw standard normal values from a local generator."""
    return torch.randn(*shape, generator=generator, dtype=dtype)


def rand(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Draw uniform float64 values from a local generator."""
    return torch.rand(*shape, generator=generator, dtype=torch.float64)
