"""Multilayer perceptrons."""

from itertools import pairwise

import torch

from skvi.base import Layout, NormalForm
from skvi.utils._random import randn

__all__ = ["MLPPredictor"]


class MLPPredictor:
    """A multilayer perceptron with all weights in one flat vector.

    Parameters
    ----------
    n_features, n_outputs : int
        d and K.
    hidden_layer_sizes : tuple of int, default=(50,)
        Units of each hidden layer.
    activation : {"relu", "tanh"}, default="relu"
        Applied after every layer but the last.

    Examples
    --------
    >>> import torch
    >>> from skvi.predictors import MLPPredictor
    >>> predictor = MLPPredictor(2, 1, hidden_layer_sizes=(3,))
    >>> predictor.forward(torch.zeros(5, predictor.layout.size), torch.ones(4, 2)).shape
    torch.Size([5, 4, 1])
    """

    is_scalar_linear = False

    def __init__(
        self,
        n_features: int,
        n_outputs: int = 1,
        hidden_layer_sizes: tuple[int, ...] = (50,),
        activation: str = "relu",
    ) -> None:
        self.sizes = (n_features, *hidden_layer_sizes, n_outputs)
        self.activation = {"relu": torch.relu, "tanh": torch.tanh}[activation]
        shapes: dict[str, tuple[int, ...]] = {}
        for i, (fan_in, fan_out) in enumerate(pairwise(self.sizes)):
            shapes[f"coef_{i}"] = (fan_in, fan_out)
            shapes[f"intercept_{i}"] = (fan_out,)
        self.layout, self.n_outputs = Layout(shapes), n_outputs

    def forward(self, theta: torch.Tensor, X: torch.Tensor) -> torch.Tensor:
        """Evaluate f.

        Parameters
        ----------
        theta : Tensor of shape (S, P)
        X : Tensor of shape (n, d)

        Returns
        -------
        Tensor of shape (S, n, K)
            In the dtype of `theta`.
        """
        blocks = self.layout.unpack(theta)
        h = X.to(theta.dtype).expand(len(theta), *X.shape)
        for i in range(len(self.sizes) - 1):
            h = self.activation(h) if i else h
            h = torch.baddbmm(blocks[f"intercept_{i}"][:, None], h, blocks[f"coef_{i}"])
        return h

    def sample_locally(
        self,
        normal: NormalForm,
        X: torch.Tensor,
        n_draws: int,
        generator: torch.Generator,
    ) -> torch.Tensor:
        """Draw f by sampling activations instead of weights.

        Every row gets its own weights (Kingma et al. 2015, section 2): right for
        sums over rows of per-row expectations under a factorised normal, wrong
        for anything that needs one theta for all rows.

        Parameters
        ----------
        normal : NormalForm
            Over theta; only its variances are used.
        X : Tensor of shape (n, d)
        n_draws : int
            S.
        generator : torch.Generator

        Returns
        -------
        Tensor of shape (S, n, K)
            Differentiable in `normal`. Means over S draws of a function of one
            row's f are unbiased, with less noise than draws of theta give.
        """
        mean = self.layout.unpack(normal.mean[None])
        variance = self.layout.unpack(normal.variance[None])
        h = X.to(normal.mean.dtype).expand(n_draws, *X.shape)
        for i in range(len(self.sizes) - 1):
            h = self.activation(h) if i else h
            m = h @ mean[f"coef_{i}"][0] + mean[f"intercept_{i}"][0]
            v = h.square() @ variance[f"coef_{i}"][0] + variance[f"intercept_{i}"][0]
            h = m + v.sqrt() * randn(generator, *m.shape)
        return h
