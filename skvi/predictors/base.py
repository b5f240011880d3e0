"""What every predictor owes, and what it may be able to do."""

from typing import Self

import torch

from skvi.base import Layout, NormalForm
from skvi.predictors._symmetry import Symmetry
from skvi.utils._device import CPU, Movable
from skvi.utils._sparse import Features

__all__ = ["BlockForward", "Predictor"]


class Predictor(Movable):
    """Base class of predictors: a subclass owes `layout`, `n_outputs` and `forward`.

    What else a predictor can do it says by the attributes whose names begin with
    "has"; solvers without draws need them.

    Attributes
    ----------
    layout : Layout
        Of theta, with P parameters. Roles tell intercepts and normalizations from
        weights.
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
    #: Whether f is normal where theta is, with `moments` that are known: expected
    #: losses are then integrals over f, by quadrature.
    has_moments = False
    #: Whether f is linear in theta, with the design matrix behind `project`,
    #: `pull_back`, `gram` and the like: Newton steps.
    has_design = False
    #: Whether `sample_locally` samples activations under a factorized normal.
    has_local_draws = False
    #: Whether f and its pullback go through buffers, as training a network does.
    has_passes = False
    #: Parameters that are points: learned beside the posterior, not part of theta.
    point_layout = Layout({})

    @property
    def symmetry(self) -> Symmetry | None:
        """Finite group that leaves f unchanged; None if none is known."""
        return None

    @property
    def log_copies(self) -> float:
        """Log of the number of known networks that compute the same."""
        return 0.0 if self.symmetry is None else self.symmetry.log_order

    @property
    def row_width(self) -> int:
        """Numbers that one row and one draw keep alive; K by default."""
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
        raise NotImplementedError

    def initial_normal(self, generator: torch.Generator) -> NormalForm | None:
        """Where a fit may start.

        Parameters
        ----------
        generator : torch.Generator

        Returns
        -------
        NormalForm or None
            Over theta, factorized. None, the default, where a family's own start
            near 0 will do: not for layers whose units are interchangeable.
        """
        return None

    def initial_point(self) -> torch.Tensor:
        """Where the point parameters start.

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
            Differentiable in `point`; the predictor itself where H is 0.
        """
        return self

    def with_design(self, X: Features) -> tuple["Predictor", Features]:
        """Return the same f as another predictor of other features.

        Parameters
        ----------
        X : Tensor or SparseRows of shape (n, ...)

        Returns
        -------
        predictor : Predictor
        X : Tensor or SparseRows
            In the form in which many products with the same rows take least time.
            Theta is the same vector; its layout need not be. By default both are
            what they were.
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

    Parameters
    ----------
    predictor : Predictor
    theta : Tensor of shape (S, P)
    n_rows : int
        Rows in a block.

    Examples
    --------
    >>> import torch
    >>> from skvi.predictors import LinearPredictor
    >>> from skvi.predictors.base import BlockForward
    >>> predictor = LinearPredictor(2, 1)
    >>> forward = BlockForward(predictor, torch.tensor([[1.0, 2.0, 0.5]]), n_rows=3)
    >>> forward(torch.ones(1, 2))[0, :, 0]
    tensor([3.5000, 0.5000, 0.5000])
    """

    def __init__(self, predictor: Predictor, theta: torch.Tensor, n_rows: int) -> None:
        self.predictor, self.theta, self.n_rows = predictor, theta, n_rows
        #: Multiply-adds that are done at once.
        self.work = n_rows * theta.numel()

    def __call__(self, X: torch.Tensor) -> torch.Tensor:
        """Evaluate f.

        Parameters
        ----------
        X : Tensor of shape (m, d)
            No more rows than a block has.

        Returns
        -------
        Tensor of shape (S, n_rows, K)
            The next call may overwrite it. Rows from m on belong to features of 0.
        """
        padding = [0, 0] * (X.ndim - 1) + [0, self.n_rows - len(X)]
        return self.predictor.forward(self.theta, torch.nn.functional.pad(X, padding))
