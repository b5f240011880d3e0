"""The layout of the flat parameter vector, and the units that it refers to."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from skvi.utils._tensors import CPU

#: Role of a block in the model. In a predictor: "weight", "intercept" (added to a
#: layer's output), "affine" (scale and shift of a normalization layer); elsewhere:
#: "scale" (a precision or another positive parameter of the model), "noise" and
#: "shape" (parameters of the likelihood) and "prior" (a parameter of the prior), which
#: fits may learn.
ROLES = ("weight", "intercept", "affine", "scale", "noise", "shape", "prior")
#: From real coordinates to the values that a parameter can take.
BIJECTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "identity": lambda x: x,
    "exp": torch.exp,
    "softplus": lambda x: -torch.nn.functional.logsigmoid(-x),
    "sigmoid": torch.sigmoid,
    "integer": lambda x: x,  # a discrete parameter is its own coordinate
}
UNLIMITED = (-math.inf, math.inf)


@dataclass(frozen=True)
class Block:
    """One named block of the parameter vector: its place, and what its numbers are.

    `scale` is the natural size of the parameters, which priors multiply: 1 over the
    square root of the number of inputs for the weights of a network, so that its layers
    preserve the variance of their inputs. Solvers respect the `limits` of coordinates.
    `input_axis` is the axis along which the inputs of a dense layer are; None for
    other blocks.
    """

    start: int
    shape: tuple[int, ...]
    bijection: str = "identity"
    scale: float = 1.0
    role: str = "weight"
    limits: tuple[float, float] = UNLIMITED
    input_axis: int | None = None

    @property
    def size(self) -> int:
        """Number of parameters in the block."""
        return math.prod(self.shape)

    @property
    def slice(self) -> slice:
        """Positions of the block in the parameter vector."""
        return slice(self.start, self.start + self.size)


class Layout(Mapping):
    """Immutable map from block names to blocks of one flat vector theta.

    Parameters
    ----------
    shapes : mapping of str to tuple of int
        Shape of every block, in their order in theta. Names are arbitrary, for example
        those of a torch module, such as "conv1.weight".
    bijections : mapping of str to str, default=None
        Blocks that are constrained: "exp", "softplus", "sigmoid", or "integer" for
        discrete ones between their `limits`; the others are real.
    scales : mapping of str to float, default=None
        Natural sizes of blocks, see `Block`; 1 for the others.
    roles : mapping of str to str, default=None
        Roles of blocks, see `ROLES`; "weight" for the others.
    limits : mapping of str to (float, float), default=None
        Ranges of coordinates, see `Block`; none for the others.
    input_axes : mapping of str to int, default=None
        Axes of the inputs of the weights of dense layers; none for the others.

    Attributes
    ----------
    size : int
        P, the length of theta.

    Examples
    --------
    >>> from skvi.base import Layout
    >>> layout = Layout(
    ...     {"coef": (1, 3), "intercept": (1,)}, roles={"intercept": "intercept"}
    ... )
    >>> layout.size, layout["intercept"].slice, layout["intercept"].role
    (4, slice(3, 4, None), 'intercept')
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        bijections: Mapping[str, str] | None = None,
        scales: Mapping[str, float] | None = None,
        roles: Mapping[str, str] | None = None,
        limits: Mapping[str, tuple[float, float]] | None = None,
        input_axes: Mapping[str, int] | None = None,
    ) -> None:
        bijections, roles = bijections or {}, roles or {}
        scales, limits, input_axes = scales or {}, limits or {}, input_axes or {}
        for given in (bijections, roles, scales, limits, input_axes):
            _check_names(given, shapes)
        _check_values("bijection", bijections, BIJECTIONS)
        _check_values("role", roles, ROLES)
        self._blocks: dict[str, Block] = {}
        self.size = 0
        for name, shape in shapes.items():
            self._blocks[name] = Block(
                self.size,
                tuple(shape),
                bijections.get(name, "identity"),
                scales.get(name, 1.0),
                roles.get(name, "weight"),
                limits.get(name, UNLIMITED),
                input_axes.get(name),
            )
            self.size += self._blocks[name].size

    def __getitem__(self, name: str) -> Block:
        """Return the block of that name."""
        return self._blocks[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over block names in the order of theta."""
        return iter(self._blocks)

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self._blocks)

    def __repr__(self) -> str:
        """Show names and shapes."""
        shapes = {name: block.shape for name, block in self._blocks.items()}
        return f"Layout({shapes})"

    def __add__(self, other: "Layout") -> "Layout":
        """Return this layout followed by the blocks of another one."""
        both = {**self._blocks, **other._blocks}
        if len(both) < len(self) + len(other):
            raise ValueError(f"{self} and {other} share names.")
        return _layout_of(both)

    @property
    def positive(self) -> list[str]:
        """Names of the blocks whose logarithms are in theta, such as precisions."""
        return [name for name, b in self._blocks.items() if b.bijection == "exp"]

    @property
    def discrete(self) -> list[str]:
        """Names of the blocks of integers, between the limits of the block."""
        return [name for name, b in self._blocks.items() if b.bijection == "integer"]

    @property
    def is_finite(self) -> bool:
        """Whether all blocks are discrete: theta has finitely many values."""
        return len(self.discrete) == len(self)

    def only(self, *names: str) -> "Layout":
        """Layout of some blocks alone.

        Parameters
        ----------
        *names : str
            Names, in the desired order.

        Returns
        -------
        Layout
            The same blocks, with positions from 0.

        Raises
        ------
        ValueError
            There is no block of one of these names.
        """
        _check_names(names, self._blocks)
        return _layout_of({name: self._blocks[name] for name in names})

    def without(self, *names: str) -> "Layout":
        """Layout of all other blocks, in their order.

        Parameters
        ----------
        *names : str

        Returns
        -------
        Layout

        Raises
        ------
        ValueError
            There is no block of one of these names.
        """
        _check_names(names, self._blocks)
        return self.only(*(name for name in self if name not in names))

    def positions(self, names: Iterable[str]) -> torch.Tensor:
        """Positions of blocks in theta.

        Parameters
        ----------
        names : iterable of str

        Returns
        -------
        Tensor of int of shape (m,)
            Positions in the order of `names`: ``theta[:, positions]`` has the layout
            ``only(*names)``.
        """
        every = torch.arange(self.size, device=CPU)
        return torch.cat([every[:0], *(every[self[name].slice] for name in names)])

    def natural_scales(self) -> torch.Tensor:
        """Natural size of every parameter.

        Returns
        -------
        Tensor of shape (P,)
            The blocks' `scale`, in float64.
        """
        return self._fill([block.scale for block in self._blocks.values()])

    def limits(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Lower and upper limit of every coordinate.

        Returns
        -------
        low, high : Tensor of shape (P,)
            In float64; infinite if there is no limit.
        """
        blocks = self._blocks.values()
        low = self._fill([block.limits[0] for block in blocks])
        return low, self._fill([block.limits[1] for block in blocks])

    def _fill(self, numbers: list[float]) -> torch.Tensor:
        """Repeat one value of each block for all of its parameters."""
        parts = [
            torch.full((block.size,), float(number), dtype=torch.float64, device=CPU)
            for block, number in zip(self._blocks.values(), numbers, strict=True)
        ]
        return torch.cat([torch.zeros(0, dtype=torch.float64, device=CPU), *parts])

    def unpack(self, theta: torch.Tensor) -> dict[str, torch.Tensor]:
        """Split theta into blocks, in constrained coordinates.

        Parameters
        ----------
        theta : Tensor of shape (S, P)
            Unconstrained coordinates, one row for each draw.

        Returns
        -------
        dict of str to Tensor
            For every block a tensor of shape ``(S, *shape)``.
        """
        # One derivative for all blocks: those of slices have the size of theta.
        own = theta if theta.shape[1] == self.size else theta[:, : self.size]
        parts = own.split([block.size for block in self._blocks.values()], 1)
        out = {}
        for (name, block), part in zip(self._blocks.items(), parts, strict=True):
            value = part.reshape(-1, *block.shape)
            out[name] = BIJECTIONS[block.bijection](value)
        return out


def _layout_of(blocks: Mapping[str, Block]) -> Layout:
    """The same blocks, with positions from 0."""
    layout = Layout({})
    for name, block in blocks.items():
        layout._blocks[name] = replace(block, start=layout.size)
        layout.size += block.size
    return layout


def _check_names(given: Iterable[str], known: Iterable[str]) -> None:
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ValueError(f"There are no blocks {unknown}, but {sorted(known)}.")


def _check_values(kind: str, given: Mapping[str, str], known: Iterable[str]) -> None:
    for name, value in given.items():
        if value not in known:
            raise ValueError(
                f"The {kind} of block {name!r} must be one of {tuple(known)}. Got "
                f"{value!r} instead."
            )


@dataclass(frozen=True, eq=False)
class Units:
    """Origins and scales of a fit: of the target, the features, and the offset of f.

    The parameters describe ``(y - y_mean) / y_scale``, for each of K targets, as a
    function of ``(X - x_mean) / x_scale`` and of ``offset - f_mean``, the logarithm of
    an exposure. `x_mean` is None if the features are not centered. `unseen` are
    features whose scale is not known yet, since they were constant; None for none.
    Targets are also divided by ``exp(log_unit)``, of whose mean f is the logarithm.
    """

    y_mean: float | np.ndarray
    y_scale: float | np.ndarray
    x_mean: np.ndarray | None = None
    x_scale: float | np.ndarray = 1.0
    f_mean: float = 0.0
    unseen: np.ndarray | None = None
    log_unit: float = 0.0

    @property
    def of_target(self) -> float | np.ndarray:
        """By what targets are divided."""
        return self.y_scale * math.exp(self.log_unit)
