"""Conversion of scikit-learn's `random_state` to torch generators."""

from collections.abc import Sequence
from typing import Any

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


def spawn(generator: torch.Generator, n_sources: int) -> list[torch.Generator]:
    """Return generators on the same device, seeded by a given one."""
    device = generator.device
    seeds = torch.randint(2**31 - 1, (n_sources,), generator=generator, device=device)
    return [torch.Generator(device).manual_seed(seed) for seed in seeds.tolist()]


def antithetic(noise: torch.Tensor, n_draws: int) -> torch.Tensor:
    """All S draws, (..., S, P), of a stream: pairs of opposite signs."""
    return torch.cat([noise, -noise[..., : n_draws - noise.shape[-2], :]], -2)


class NoiseStream:
    """Standard normal noise of several members, drawn for many steps at once.

    A member's noise depends neither on the others nor on the number of steps. S draws
    are antithetic pairs: the stream has the first of each, in the resolution of single
    precision for speed.
    """

    #: Steps drawn at once, and their maximum number of elements.
    STEPS, ELEMENTS = 8, 2**21

    def __init__(
        self,
        generators: Sequence[torch.Generator],
        n_draws: int,
        size: int,
        dtype: torch.dtype,
    ) -> None:
        steps = min(max(self.ELEMENTS // (n_draws * size), 1), self.STEPS)
        # Seeded by the members' generators: the noise must not depend on what else
        # these draw between the steps.
        self.generators, self.position = [spawn(g, 1)[0] for g in generators], steps
        self._before: list[
            torch.Tensor
        ] = []  # states of the generators when they filled it
        shape = steps, (n_draws + 1) // 2, size
        device = self.generators[0].device
        self.block = torch.empty(len(generators), *shape, dtype=dtype, device=device)
        self._single = torch.empty(shape, device=device)
        #: The buffers of `next`; it was the one before `position` that came last.
        self.steps = self.block.unbind(1)

    def next(self) -> torch.Tensor:
        """Noise of one step, (M, pairs, P): a buffer, for this step only."""
        if self.position == len(self.steps):
            self._fill()
            self.position = 0
        self.position += 1
        return self.steps[self.position - 1]

    def _fill(self) -> None:
        self._before = [generator.get_state() for generator in self.generators]
        for block, generator in zip(self.block, self.generators, strict=True):
            block.copy_(self._single.normal_(generator=generator))

    def get_state(self) -> dict[str, Any]:
        """State of the stream, without its noise, which is redrawn from there."""
        if self.position < len(self.steps):
            return {"generators": self._before, "position": self.position}
        now = [generator.get_state() for generator in self.generators]
        return {"generators": now, "position": self.position}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from the state of a stream of the same shape."""
        for generator, before in zip(self.generators, state["generators"], strict=True):
            generator.set_state(before)
        self.position = state["position"]
        if self.position < len(self.steps):
            self._fill()

    def keep(self, members: Sequence[int]) -> None:
        """Continue with some of the members only."""
        self.generators = [self.generators[m] for m in members]
        self._before = [self._before[m] for m in members if self._before]
        self.block = self.block[list(members)]
        self.steps = self.block.unbind(1)


def log_gamma_draws(shape: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Logs of Gamma(shape, 1) draws, differentiable, in float64.

    ``log G(a) = log G(a + 1) + log(U) / a`` does not underflow for small shapes.
    """
    draws = torch._standard_gamma(shape.double() + 1, generator)
    uniform = rand(generator, *shape.shape).clamp(min=1e-300)
    return draws.log() + uniform.log() / shape


def log_gamma_density(
    t: torch.Tensor, shape: torch.Tensor, log_rate: torch.Tensor
) -> torch.Tensor:
    """Log density of ``t = log g`` for g ~ Gamma(shape, rate), elementwise."""
    norm = shape * log_rate - torch.lgamma(shape)
    return norm + shape * t - torch.exp((t + log_rate).clamp(max=700.0))
