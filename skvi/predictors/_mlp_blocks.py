"""Outputs of many drawn networks, for blocks of rows of one constant size."""

from collections.abc import Callable, Sequence

import torch

from skvi.base import Layout
from skvi.predictors.base import BlockForward
from skvi.utils._arrays import CACHE_ELEMENTS

__all__ = ["MLPBlocks"]


def _softplus(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.softplus.out(x, out=x)


#: Activations, and their in-place versions.
IN_PLACE: dict[Callable, Callable[[torch.Tensor], torch.Tensor]] = {
    torch.nn.functional.softplus: _softplus,
    torch.relu: torch.relu_,
    torch.sigmoid: torch.sigmoid_,
    torch.tanh: torch.tanh_,
}


class MLPBlocks(BlockForward):
    """Multilayer perceptrons at fixed weights, (S, P); buffers are kept between calls.

    Rows are the last axis of all products: the first layers of several draws are one
    product, and every result is contiguous.
    """

    def __init__(
        self,
        layout: Layout,
        n_layers: int,
        activation: Callable[[torch.Tensor], torch.Tensor],
        skip_outputs: Sequence[int],
        theta: torch.Tensor,
        n_rows: int,
    ) -> None:
        self.activation = IN_PLACE.get(activation, activation)
        blocks = layout.unpack(theta)
        coefs = [blocks[f"coef_{i}"].transpose(1, 2) for i in range(n_layers)]
        shifts = [blocks[f"intercept_{i}"][..., None] for i in range(n_layers)]
        sizes = [shift.shape[1] for shift in shifts]
        # So many draws at once that the buffer of a layer stays in the cache.
        step = min(len(theta), max(1, CACHE_ELEMENTS // (n_rows * max(sizes))))
        self.work = step * n_rows * theta.shape[1]
        # The last feature is 1, for the intercepts of the first layer.
        first = torch.cat([coefs[0], shifts[0]], 2)
        self.features = theta.new_ones(first.shape[2], n_rows)
        self.outputs = theta.new_empty(len(theta), sizes[-1], n_rows)
        hidden = [theta.new_empty(step, size, n_rows) for size in sizes[:-1]]
        self.skip = blocks.get("coef_skip")
        self.index = torch.tensor(skip_outputs, device=theta.device, dtype=torch.long)
        self.passes = []
        for i in range(0, len(theta), step):
            draws = slice(i, i + step)
            results = [*(h[: len(theta) - i] for h in hidden), self.outputs[draws]]
            upper = [
                (b[draws], W[draws], below, above)
                for b, W, below, above in zip(
                    shifts[1:], coefs[1:], results[:-1], results[1:], strict=True
                )
            ]
            self.passes.append((first[draws].flatten(0, 1), results[0], upper))

    def __call__(self, X: torch.Tensor) -> torch.Tensor:
        """Evaluate f; see `BlockForward`."""
        self.features[:-1, : len(X)] = X.T
        self.features[:-1, len(X) :] = 0
        for first, result, upper in self.passes:
            torch.mm(first, self.features, out=result.flatten(0, 1))
            for shift, coef, below, above in upper:
                torch.baddbmm(shift, coef, self.activation(below), out=above)
        if self.skip is not None:
            added = self.skip.mT @ self.features[:-1]
            self.outputs.index_add_(1, self.index, added)
        return self.outputs.transpose(1, 2)
