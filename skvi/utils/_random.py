"""Seeds: scikit-learn's `random_state` on one side, torch generators on the other."""

import numpy as np
import torch
from sklearn.utils import check_random_state

from skvi.utils._device import CPU

RandomState = int | np.random.RandomState | None


def make_generator(
    random_state: RandomState, device: torch.device = CPU
) -> torch.Generator:
    """Return a generator of that device, seeded from a scikit-learn `random_state`."""
    seed = int(check_random_state(random_state).randint(2**31 - 1))
    return torch.Generator(device).manual_seed(seed)


def generator_on(generator: torch.Generator, device: torch.device) -> torch.Generator:
    """Return a generator of that device: itself, or a new one that it seeds."""
    if generator.device == device:
        return generator
    seed = torch.randint(2**31 - 1, (1,), generator=generator, device=generator.device)
    return torch.Generator(device).manual_seed(int(seed))


def randn(
    generator: torch.Generator, *shape: int, dtype: torch.dtype = torch.float64
) -> torch.Tensor:
    """Draw standard normal values on the generator's device."""
    return torch.randn(
        *shape, generator=generator, dtype=dtype, device=generator.device
    )


def rand(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Draw uniform float64 values on the generator's device."""
    return torch.rand(
        *shape, generator=generator, dtype=torch.float64, device=generator.device
    )
