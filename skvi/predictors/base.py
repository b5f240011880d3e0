"""What every predictor can do."""

import torch

from skvi.utils._device import Movable

__all__ = ["BlockForward", "Predictor"]


class Predictor(Movable):
    """Base class of predictors: a subclass owes `forward(theta, X)`.

    Examples
    --------
    >>> import torch
    >>> from skvi.predictors.base import Predictor
    >>> class Exponential(Predictor):
    ...     def forward(self, theta, X):
    ...         return (theta @ X.T).exp()[..., None]
    >>> forward = Exponential().block_forward(torch.zeros(5, 2), n_rows=8)
    >>> forward(torch.ones(3, 2)).shape
    torch.Size([5, 8, 1])
    """

    def forward(self, theta: torch.Tensor, X: torch.Tensor) -> torch.Tensor:
        """Evaluate f.

        Parameters
        ----------
        theta : Tensor of shape (S, P)
        X : Tensor of shape (n, d)

        Returns
        -------
        Tensor of shape (S, n, K)
        """
        raise NotImplementedError

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
