"""What every predictor must implement, and its optional capabilities."""

from typing import Self

import torch

from skvi.base import Layout, NormalForm
from skvi.predictors._passes import Symmetry
from skvi.utils._rows import Features
from skvi.utils._tensors import CPU, Movable

__all__ = ["Predictor"]


class Predictor(Movable):
    """Base class of predictors: subclasses implement `layout`, `n_outputs`, `forward`.

    Attributes
    ----------
    layout : Layout
        The layout of theta, with P parameters. Roles distinguish intercepts and
        normalization layers from weights.
    n_outputs : int
        K, columns of f.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import Layout
    >>> from skvi.predictors import Predictor
    >>> class Decay(Predictor):
    ...     layout, n_outputs = Layout({"rate": (1,)}, {"rate": "softplus"}), 1
    ...
    ...     def forward(self, theta, X):
    ...         rate = self.layout.unpack(theta)["rate"]
    ...         return torch.exp(-rate[:, None] * X)
    >>> Decay().forward(torch.zeros(5, 1), torch.ones(4, 1)).shape
    torch.Size([5, 4, 1])
    """

    layout: Layout
    n_outputs: int
    #: Whether f is linear in theta, with the design matrix behind `project`,
    #: `pull_back`, `gram` and the like: Newton steps. Under a normal theta it has known
    #: `moments`: expected losses are integrals over f, by quadrature.
    has_design = False
    #: What networks trained in one stack have in common; None if f and its gradient
    #: have no `passes` in buffers.
    structure: tuple | None = None
    #: Point parameters: learned besides the posterior, not part of theta.
    point_layout = Layout({})

    @property
    def symmetry(self) -> Symmetry | None:
        """Finite group that leaves f unchanged; None if none is known."""
        return None

    @property
    def row_width(self) -> int:
        """Elements that one row and one draw keep in memory; K by default."""
        return self.n_outputs

    def forward(self, theta: torch.Tensor, X: torch.Tensor) -> torch.Tensor:
        """Evaluate f.

        Parameters
        ----------
        theta : Tensor of shape (S, P)
        X : Tensor of shape (n, ...)

        Returns
        -------
        Tensor of shape (S, n, K)
            In the dtype of `theta`, differentiable in it.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement forward.")

    def initial_normal(self, generator: torch.Generator) -> NormalForm | None:
        """Start of a fit.

        Parameters
        ----------
        generator : torch.Generator

        Returns
        -------
        NormalForm or None
            A factorized normal over theta. None, the default, if the family's own start
            near 0 suffices, which it does not for layers with interchangeable units.
        """
        return None

    def initial_point(self) -> torch.Tensor:
        """Start of the point parameters.

        Returns
        -------
        Tensor of shape (H,)
            Unconstrained, in float64, in the order of `point_layout`.
        """
        return torch.zeros(self.point_layout.size, dtype=torch.float64, device=CPU)

    def bind(self, point: torch.Tensor) -> Self:
        """Return the predictor with these point parameters, and none left to learn.

        Parameters
        ----------
        point : Tensor of shape (H,)

        Returns
        -------
        Predictor
            Differentiable in `point`; the predictor itself if H is 0.
        """
        return self

    def with_design(self, X: Features) -> tuple["Predictor", Features]:
        """Return an equivalent predictor and features.

        Parameters
        ----------
        X : Tensor or SparseRows of shape (n, ...)

        Returns
        -------
        predictor : Predictor
        X : Tensor or SparseRows
            In the form that is fastest for many products with the same rows. Theta is
            the same vector, but its layout may differ. By default both are returned
            unchanged.
        """
        return self, X

    def block_forward(self, theta: torch.Tensor, n_rows: int) -> "BlockForward":
        """Return a function that evaluates f at one theta for many blocks of rows.

        Parameters
        ----------
        theta : Tensor of shape (S, P)
        n_rows : int
            Rows in a block.

        Returns
        -------
        BlockForward
        """
        return BlockForward(self, theta, n_rows)


class BlockForward:
    """f of a block of rows, by a product of constant size; without gradients.

    Matrix products of other sizes may round differently.
    """

    def __init__(self, predictor: Predictor, theta: torch.Tensor, n_rows: int) -> None:
        self.predictor, self.theta, self.n_rows = predictor, theta, n_rows
        #: Multiply-adds computed at once.
        self.work = n_rows * theta.numel()

    def __call__(self, X: torch.Tensor) -> torch.Tensor:
        """Evaluate f for at most a block of rows: (S, n_rows, K), padded after them.

        The next call may overwrite it.
        """
        padding = [0, 0] * (X.ndim - 1) + [0, self.n_rows - len(X)]
        return self.predictor.forward(self.theta, torch.nn.functional.pad(X, padding))
