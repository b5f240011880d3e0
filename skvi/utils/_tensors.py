"""Torch's generators and devices, and numbers of log space."""

import math
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, Self

import numpy as np
import torch
from sklearn.utils import check_random_state

CPU = torch.device("cpu")
# Multiply-adds of a pass over the data above which a GPU is worthwhile. One core takes
# about a tenth of a second for them; the GPU launches some thousand operations in that
# time, about the cost of an iteration and of copying the data. An estimate.
WORTH_MOVING = 2**28


def resolve_device(device: str, work: float = math.inf) -> torch.device:
    """Return the device that a parameter names, or raise ValueError.

    "auto" takes the CPU below 2**28 multiply-adds (`work`) of a pass over the data.
    """
    if device == "auto":
        return _best_device() if work >= WORTH_MOVING else CPU
    try:
        found = torch.ones(1, device=device).device  # with its number
        float(torch.ones(1, device=found))
    except (RuntimeError, NotImplementedError, AssertionError, ImportError) as error:
        raise ValueError(
            f"device={device!r} is not a device of this machine, which has "
            f"{_names_of_devices()}. Use one of them, or device='auto'."
        ) from error
    try:
        torch.ones(1, dtype=torch.float64, device=found)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"device={device!r} has no double precision, which fits and evidences "
            f"need. Use one of {_names_of_devices()}, or device='auto'."
        ) from error
    return found


def device_or_cpu(device: str) -> torch.device:
    """Return the device that a parameter names, or the CPU if it is unavailable.

    Models fitted on another machine can predict nevertheless.
    """
    try:
        return resolve_device(device)
    except ValueError:
        return CPU


def _best_device() -> torch.device:
    if not torch.cuda.is_available():
        return CPU
    return torch.device("cuda", torch.cuda.current_device())


def _names_of_devices() -> list[str]:
    n_cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return ["cpu", *["cuda"][:n_cuda], *(f"cuda:{i}" for i in range(n_cuda))]


class Movable:
    """Mixin: an object whose tensors, at every depth, move to a device together.

    Pickles contain numpy arrays instead, which load on any CPU.
    """

    def __copy__(self) -> Self:
        """Share all tensors, with their gradients."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __getstate__(self) -> dict[str, Any]:
        """Replace every tensor by a numpy array; "tensors" says where they were."""
        places: list[str] = []

        def to_numpy(place: str, value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            places.append(place)
            return value.detach().cpu().numpy().copy()

        return {"tensors": places, **_map_leaves(self.__dict__, "", to_numpy)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Rebuild the tensors on the CPU."""
        places = set(state.pop("tensors"))

        def to_tensor(place: str, value: Any) -> Any:
            return torch.from_numpy(np.array(value)) if place in places else value

        self.__dict__.update(_map_leaves(state, "", to_tensor))

    def to(self, device: torch.device) -> Self:
        """Return a copy with all tensors on a device.

        Parameters
        ----------
        device : torch.device

        Returns
        -------
        Self
            Tensors already on the device, and objects without tensors, are shared.
        """
        other = copy(self)
        other.__dict__.update(to_device(self.__dict__, device))
        return other


def to_device(value: Any, device: torch.device) -> Any:
    """Move a tensor, an object that holds some, or a list, tuple or dict of them."""

    def move(_: str, leaf: Any) -> Any:
        return leaf.to(device) if isinstance(leaf, torch.Tensor | Movable) else leaf

    return _map_leaves(value, "", move)


def _map_leaves(value: Any, place: str, change: Callable[[str, Any], Any]) -> Any:
    """Map the leaves of lists, tuples and dictionaries, given their path: "/a/0"."""
    if type(value) is dict:
        return {k: _map_leaves(v, f"{place}/{k}", change) for k, v in value.items()}
    if type(value) in (list, tuple):
        parts = enumerate(value)
        return type(value)(_map_leaves(v, f"{place}/{i}", change) for i, v in parts)
    return change(place, value)


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
    precision for speed. `shape` is that of one draw; if its last axis is one of rows, a
    member has `n_rows` of them, which are followed by zeros.
    """

    #: Steps drawn at once, and their maximum number of elements.
    STEPS, ELEMENTS = 8, 2**21

    def __init__(
        self,
        generators: Sequence[torch.Generator],
        n_draws: int,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        n_rows: Sequence[int] | None = None,
    ) -> None:
        n_elements = n_draws * math.prod(shape)
        steps = min(max(self.ELEMENTS // n_elements, 1), self.STEPS)
        if n_rows is not None:  # their number must not depend on other members' rows
            steps = 1
        # Seeded by the members' generators: the noise must not depend on what else
        # these draw between the steps.
        self.generators, self.position = [spawn(g, 1)[0] for g in generators], steps
        self._before: list[
            torch.Tensor
        ] = []  # states of the generators when they filled it
        self._sizes = [shape[-1]] * len(generators) if n_rows is None else list(n_rows)
        shape = steps, (n_draws + 1) // 2, *shape
        device = self.generators[0].device
        self.block = torch.zeros(len(generators), *shape, dtype=dtype, device=device)
        #: The buffers of `next`; it was the one before `position` that came last.
        self.steps = self.block.unbind(1)

    def next(self) -> torch.Tensor:
        """Noise of one step, (M, pairs, ...): a buffer, for this step only."""
        if self.position == len(self.steps):
            self._fill()
            self.position = 0
        self.position += 1
        return self.steps[self.position - 1]

    def _fill(self) -> None:
        self._before = [generator.get_state() for generator in self.generators]
        sources = zip(self.generators, self._sizes, strict=True)
        for block, (generator, size) in zip(self.block, sources, strict=True):
            noise = torch.empty(*block.shape[:-1], size, device=block.device)
            block[..., :size] = noise.normal_(generator=generator)

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
        self._sizes = [self._sizes[m] for m in members]
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


LOG_2PI = math.log(2 * math.pi)


def log_mean_exp(values: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """Return ``log mean exp`` over one axis."""
    return torch.logsumexp(values, dim) - math.log(values.shape[dim])
