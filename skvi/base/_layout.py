"""What each stretch of the flat parameter vector is."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from skvi.utils._device import CPU

__all__ = ["Block", "Layout"]


@dataclass(frozen=True)
class Block:
    """One named stretch of the parameter vector.

    Parameters
    ----------
    start : int
        First position.
    shape : tuple of int
        Shape of the block when unpacked.
    bijection : {"identity", "exp"}, default="identity"
        Maps the unconstrained coordinates to the parameter: "exp" makes it
        positive.
    scale : float, default=1.0
        Natural size of the parameters, which priors multiply: 1 over the root of
        the number of inputs for the weights of a network, so that its layers keep
        the size of what they transform.

    Examples
    --------
    >>> from skvi.base import Block
    >>> Block(start=2, shape=(1, 3)).slice
    slice(2, 5, None)
    """

    start: int
    shape: tuple[int, ...]
    bijection: str = "identity"
    scale: float = 1.0

    @property
    def size(self) -> int:
        """Number of parameters in the block."""
        return math.prod(self.shape)

    @property
    def slice(self) -> slice:
        """Positions of the block in the parameter vector."""
        return slice(self.start, self.start + self.size)


class Layout(Mapping):
    """Immutable map from block names to stretches of one flat vector theta.

    Parameters
    ----------
    shapes : mapping of str to tuple of int
        Shape of every block, in the order in which they lie in theta.
    bijections : mapping of str to {"identity", "exp"}, default=None
        Blocks that are constrained; the others are real.
    scales : mapping of str to float, default=None
        Natural sizes of blocks, see `Block`; 1 for the others.

    Attributes
    ----------
    size : int
        P, the length of theta.

    Examples
    --------
    >>> from skvi.base import Layout
    >>> layout = Layout({"coef": (1, 3), "intercept": (1,)})
    >>> layout.size, layout["intercept"].slice
    (4, slice(3, 4, None))
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        bijections: Mapping[str, str] | None = None,
        scales: Mapping[str, float] | None = None,
    ) -> None:
        blocks, start = {}, 0
        for name, shape in shapes.items():
            kind = (bijections or {}).get(name, "identity")
            if kind not in ("identity", "exp"):
                raise ValueError(
                    f"The bijection of block {name!r} must be 'identity' or 'exp'. "
                    f"Got {kind!r} instead."
                )
            scale = (scales or {}).get(name, 1.0)
            blocks[name] = Block(start, tuple(shape), kind, scale)
            start += blocks[name].size
        self._blocks, self.size = blocks, start

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

    @property
    def positive(self) -> list[str]:
        """Names of the blocks that are positive, such as precisions."""
        return [name for name, b in self._blocks.items() if b.bijection == "exp"]

    def only(self, *names: str) -> "Layout":
        """Layout of some blocks alone.

        Parameters
        ----------
        *names : str
            In the order in which they lie in the new theta.

        Returns
        -------
        Layout
            With the blocks' shapes, bijections and scales, starting at 0.
        """
        blocks = {name: self._blocks[name] for name in names}
        return Layout(
            {name: block.shape for name, block in blocks.items()},
            {name: block.bijection for name, block in blocks.items()},
            {name: block.scale for name, block in blocks.items()},
        )

    def natural_scales(self) -> torch.Tensor:
        """Natural size of every parameter.

        Returns
        -------
        Tensor of shape (P,)
            The blocks' `scale`, in float64.
        """
        parts = [
            torch.full(
                (block.size,), float(block.scale), dtype=torch.float64, device=CPU
            )
            for block in self._blocks.values()
        ]
        return torch.cat(parts)

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
        out = {}
        for name, block in self._blocks.items():
            value = theta[:, block.slice].reshape(-1, *block.shape)
            out[name] = value.exp() if block.bijection == "exp" else value
        return out

    def log_abs_det_jacobian(self, theta: torch.Tensor) -> torch.Tensor:
        """Log determinant of the map from theta to the constrained parameters.

        Parameters
        ----------
        theta : Tensor of shape (S, P)
            Unconstrained coordinates.

        Returns
        -------
        Tensor of shape (S,)
            In nats, summed over the blocks; 0 where nothing is constrained.
        """
        total = torch.zeros_like(theta[:, 0])
        for block in self._blocks.values():
            if block.bijection == "exp":
                total = total + theta[:, block.slice].sum(1)
        return total
