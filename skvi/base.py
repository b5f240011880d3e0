"""Ground: components, the layout of the parameter vector, the normal form."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from sklearn.base import BaseEstimator

from skvi.utils._arrays import NumpyState

__all__ = ["Block", "Component", "Layout", "NormalForm"]


class Component(BaseEstimator):
    """A specification: a scikit-learn object that holds hyperparameters only.

    Components have `get_params`, `set_params`, `clone` and `repr`, hold no
    tensors and are never changed by a fit. Their parameters are checked when
    they are used, through `validate`.

    Examples
    --------
    >>> from skvi.divergences import Renyi
    >>> Renyi(alpha=0.5).get_params()
    {'alpha': 0.5}
    """

    _parameter_constraints: dict = {}

    def validate(self) -> None:
        """Check the parameters.

        Raises
        ------
        ValueError
            Says what was given and what is allowed.
        """
        self._validate_params()


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

    def only(self, name: str) -> "Layout":
        """Layout of one block alone.

        Parameters
        ----------
        name : str

        Returns
        -------
        Layout
            With the block's shape, bijection and scale, starting at 0.
        """
        block = self._blocks[name]
        return Layout({name: block.shape}, {name: block.bijection}, {name: block.scale})

    def natural_scales(self) -> torch.Tensor:
        """Natural size of every parameter.

        Returns
        -------
        Tensor of shape (P,)
            The blocks' `scale`, in float64.
        """
        parts = [
            torch.full((block.size,), float(block.scale), dtype=torch.float64)
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


@dataclass(frozen=True, eq=False)
class NormalForm(NumpyState):
    """A normal distribution over theta: the common language of parts.

    Parameters
    ----------
    mean : Tensor of shape (P,)
    scale : Tensor of shape (P,) or (P, P)
        Standard deviations of a factorised normal, or the lower Cholesky factor
        of the covariance.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import NormalForm
    >>> normal = NormalForm(torch.zeros(2), torch.tensor([1.0, 2.0]))
    >>> normal.variance
    tensor([1., 4.])
    """

    mean: torch.Tensor
    scale: torch.Tensor

    @property
    def is_diagonal(self) -> bool:
        """Whether the covariance is stored as standard deviations."""
        return self.scale.ndim == 1

    @property
    def variance(self) -> torch.Tensor:
        """Marginal variances, of shape (P,)."""
        squared = self.scale.square()
        return squared if self.is_diagonal else squared.sum(1)

    @property
    def half_log_det(self) -> torch.Tensor:
        """Half the log determinant of the covariance, a scalar."""
        diagonal = self.scale if self.is_diagonal else self.scale.diagonal()
        return diagonal.log().sum()

    def covariance(self) -> torch.Tensor:
        """Compute the covariance matrix.

        Returns
        -------
        Tensor of shape (P, P)
            Also where the normal is factorised.
        """
        if self.is_diagonal:
            return torch.diag(self.variance)
        return self.scale @ self.scale.T

    def entropy(self) -> torch.Tensor:
        """Compute the differential entropy.

        Returns
        -------
        Tensor
            A scalar in nats, exact.
        """
        return self.half_log_det + 0.5 * len(self.mean) * (1 + math.log(2 * math.pi))

    def transform(self, eps: torch.Tensor) -> torch.Tensor:
        """Map standard normal values to draws.

        Parameters
        ----------
        eps : Tensor of shape (S, P)
            Whitened coordinates.

        Returns
        -------
        Tensor of shape (S, P)
            ``mean + scale @ eps`` for each draw, differentiable.
        """
        if self.is_diagonal:
            return self.mean + self.scale * eps
        return self.mean + eps @ self.scale.T

    def whiten(self, deviation: torch.Tensor) -> torch.Tensor:
        """Divide deviations from the mean by the scale.

        Parameters
        ----------
        deviation : Tensor of shape (S, P)
            ``theta - mean``.

        Returns
        -------
        Tensor of shape (S, P)
            Whitened coordinates: the inverse of `transform`.
        """
        if self.is_diagonal:
            return deviation / self.scale
        solve = torch.linalg.solve_triangular
        return solve(self.scale, deviation.T, upper=False).T

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        """Log density at points.

        Parameters
        ----------
        theta : Tensor of shape (S, P)

        Returns
        -------
        Tensor of shape (S,)
            In nats, with the normalising constant.
        """
        return self.log_prob_whitened(self.whiten(theta - self.mean))

    def log_prob_whitened(self, eps: torch.Tensor) -> torch.Tensor:
        """Log density at ``transform(eps)``, without a solve.

        Parameters
        ----------
        eps : Tensor of shape (S, P)
            Whitened coordinates.

        Returns
        -------
        Tensor of shape (S,)
            In nats: the density in theta, not the one in `eps`.
        """
        constant = self.half_log_det + 0.5 * len(self.mean) * math.log(2 * math.pi)
        return -0.5 * eps.square().sum(1) - constant
