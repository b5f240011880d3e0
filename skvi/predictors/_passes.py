"""Forward and backward passes of multilayer perceptrons through buffers."""

from collections.abc import Sequence
from itertools import pairwise

import torch

__all__ = ["MLPPasses"]

_relu_slope = torch.ops.aten.threshold_backward.grad_input
_tanh_slope = torch.ops.aten.tanh_backward.grad_input
_logistic_slope = torch.ops.aten.sigmoid_backward.grad_input


def _identity(x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(x)


def _relu(x: torch.Tensor, out: torch.Tensor) -> None:
    torch.clamp_min(x, 0, out=out)


def _tanh(x: torch.Tensor, out: torch.Tensor) -> None:
    # torch.tanh takes ten times as long as the sigmoid, and this is as accurate in
    # units of the largest value, 1.
    torch.sigmoid(x.mul_(2), out=out)
    out.mul_(2).sub_(1)


def _logistic(x: torch.Tensor, out: torch.Tensor) -> None:
    torch.sigmoid(x, out=out)


def _no_slope(gradient: torch.Tensor, value: torch.Tensor) -> None:
    """Leave the gradient as it is."""


def _by_relu(gradient: torch.Tensor, value: torch.Tensor) -> None:
    _relu_slope(gradient, value, 0, grad_input=gradient)


def _by_tanh(gradient: torch.Tensor, value: torch.Tensor) -> None:
    _tanh_slope(gradient, value, grad_input=gradient)


def _by_logistic(gradient: torch.Tensor, value: torch.Tensor) -> None:
    _logistic_slope(gradient, value, grad_input=gradient)


#: Activation from x (which may be overwritten) into `out`; and, in place, the product
#: of a gradient with its derivative, from its value.
STEPS = {
    "identity": (_identity, _no_slope),
    "logistic": (_logistic, _by_logistic),
    "relu": (_relu, _by_relu),
    "tanh": (_tanh, _by_tanh),
}


class MLPPasses:
    """f of many networks, and the pullback of slopes in f to their weights.

    M members, each with its own rows and S networks, in M S batched matrix products.
    Everything is in buffers, and no step allocates anything. Rows are the last axis
    of activations, so that products write into memory without gaps; a row of ones
    makes the intercepts part of the weights.

    Parameters
    ----------
    sizes : sequence of int
        Inputs, units of the hidden layers, outputs.
    activation : {"identity", "logistic", "relu", "tanh"}
    n_members, n_draws, n_rows : int
        M, S and n.
    like : Tensor
        Of the dtype and on the device of the buffers.

    Attributes
    ----------
    theta : Tensor of shape (M, S, P)
        To be filled in before `forward`.
    f : Tensor of shape (M, S, n, K)
        What `forward` found.
    slope : Tensor of shape (M, S, n, K)
        To be filled in before `pull_back`: derivatives in f.

    Examples
    --------
    >>> import torch
    >>> from skvi.predictors import MLPPredictor
    >>> predictor = MLPPredictor(2, 1, hidden_layer_sizes=(3,))
    >>> passes = predictor.passes(1, 5, 4, like=torch.ones(()))
    >>> _ = passes.theta.zero_(), passes.slope.fill_(1.0)
    >>> passes.forward(passes.inputs(torch.ones(1, 4, 3))).shape
    torch.Size([1, 5, 4, 1])
    >>> passes.pull_back()[0, 0, -1]
    tensor(4.)
    """

    def __init__(
        self,
        sizes: Sequence[int],
        activation: str,
        n_members: int,
        n_draws: int,
        n_rows: int,
        like: torch.Tensor,
    ) -> None:
        self._activate, self._multiply = STEPS[activation]
        self._shape, self._last = (n_members, n_draws), len(sizes) - 2
        count, shapes = n_members * n_draws, [(a + 1, b) for a, b in pairwise(sizes)]

        def empty(*shape: int) -> torch.Tensor:
            return like.new_empty(count, *shape)

        before = [empty(b, n_rows) for _, b in shapes]
        hidden = [torch.ones_like(empty(a, n_rows)) for a, _ in shapes[1:]]
        # Of what an activation was made, nothing is left to know.
        slopes = [*before[:-1], empty(shapes[-1][1], n_rows)]
        gradients = [empty(*shape) for shape in shapes]
        theta = empty(sum(a * b for a, b in shapes))
        pulled = torch.empty_like(theta)
        weights, blocks = _blocks(theta, shapes), _blocks(pulled, shapes)

        # All views are made once: making them costs as much as small products.
        self.theta, self._pulled = self._by_member(theta), self._by_member(pulled)
        self.f, self.slope = (self._by_member(x).mT for x in (before[-1], slopes[-1]))
        units = [h[:, :-1] for h in hidden]
        self._first = self._pairs(weights[0].mT, before[0])
        self._forward = [
            (before[i], units[i], weights[i + 1].mT, hidden[i], before[i + 1])
            for i in range(self._last)
        ]
        self._backward = [
            (
                _weight_product(hidden[i - 1], slopes[i], gradients[i]),
                # With one output a product of a column and a row.
                torch.mul if shapes[i][1] == 1 else torch.bmm,
                (weights[i][:, :-1], slopes[i], slopes[i - 1]),
                units[i - 1],
            )
            for i in range(self._last, 0, -1)
        ]
        self._last_products = self._pairs(slopes[0].mT, gradients[0])
        self._copies = list(zip(blocks, gradients, strict=True))

    def _by_member(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*self._shape, *x.shape[1:])

    def _pairs(self, *tensors: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
        return list(zip(*(x.split(self._shape[1]) for x in tensors), strict=True))

    def inputs(self, X: torch.Tensor) -> list[torch.Tensor]:
        """Make the views of rows that `forward` takes.

        Parameters
        ----------
        X : Tensor of shape (M, n, d + 1)
            The last column must be one. What it holds may change between calls.

        Returns
        -------
        list of M Tensor of shape (S, d + 1, n)
        """
        return [x.mT.expand(self._shape[1], -1, -1) for x in X]

    def forward(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        """Evaluate f at `theta`.

        Parameters
        ----------
        inputs : list of Tensor
            See `inputs`.

        Returns
        -------
        Tensor of shape (M, S, n, K)
            `f`.
        """
        self._inputs = inputs
        for (weights, out), x in zip(self._first, inputs, strict=True):
            torch.bmm(weights, x, out=out)
        for before, units, weights, hidden, out in self._forward:
            self._activate(before, units)
            torch.bmm(weights, hidden, out=out)
        return self.f

    def pull_back(self) -> torch.Tensor:
        """Gradient in theta of a sum over rows, at the last `forward` and `slope`.

        Returns
        -------
        Tensor of shape (M, S, P)
            A buffer.
        """
        for (left, right, gradient), product, to_units, units in self._backward:
            torch.bmm(left, right, out=gradient)
            weights, slope, out = to_units
            product(weights, slope, out=out)
            self._multiply(out, units)
        for (slope, gradient), x in zip(self._last_products, self._inputs, strict=True):
            torch.bmm(x, slope, out=gradient)
        for block, gradient in self._copies:
            block.copy_(gradient)
        return self._pulled


def _blocks(theta: torch.Tensor, shapes: list[tuple[int, int]]) -> list[torch.Tensor]:
    """Weights of every layer, intercepts in the last row, (M S, inputs + 1, outputs).

    The layout has the intercepts of a layer right behind its weights.
    """
    parts = theta.split([a * b for a, b in shapes], 1)
    return [
        part.view(len(theta), *shape) for part, shape in zip(parts, shapes, strict=True)
    ]


def _weight_product(
    hidden: torch.Tensor, slope: torch.Tensor, gradient: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Factors and result of the product that is the gradient in a layer's weights."""
    if slope.shape[1] > 1:
        return hidden, slope.mT, gradient
    # The transposed product is twice as fast, and a column is its own transpose.
    return slope, hidden.mT, gradient.view(len(gradient), 1, -1)
