"""Forward and backward passes of networks, and the symmetries of their units."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from skvi.utils._tensors import CPU

_softplus_in_place = torch.ops.aten.softplus.out
_relu_slope = torch.ops.aten.threshold_backward.grad_input
_tanh_slope = torch.ops.aten.tanh_backward.grad_input
_logistic_slope = torch.ops.aten.sigmoid_backward.grad_input


def _identity(x: torch.Tensor) -> None:
    """Return x."""


def _relu(x: torch.Tensor) -> None:
    x.clamp_min_(0)


def _softplus(x: torch.Tensor) -> None:
    _softplus_in_place(x, out=x)


def _tanh(x: torch.Tensor) -> None:
    # torch.tanh takes ten times as long as the sigmoid, and this is as accurate in
    # units of the largest value, 1.
    x.mul_(2).sigmoid_().mul_(2).sub_(1)


def _logistic(x: torch.Tensor) -> None:
    x.sigmoid_()


def _no_slope(gradient: torch.Tensor, value: torch.Tensor) -> None:
    """Return the gradient."""


def _by_relu(gradient: torch.Tensor, value: torch.Tensor) -> None:
    _relu_slope(gradient, value, 0, grad_input=gradient)


def _by_softplus(gradient: torch.Tensor, value: torch.Tensor) -> None:
    # sigmoid(x) = 1 - exp(-softplus(x)); the value is not needed again.
    gradient.addcmul_(gradient, value.neg_().exp_(), value=-1)


def _by_tanh(gradient: torch.Tensor, value: torch.Tensor) -> None:
    _tanh_slope(gradient, value, grad_input=gradient)


def _by_logistic(gradient: torch.Tensor, value: torch.Tensor) -> None:
    _logistic_slope(gradient, value, grad_input=gradient)


#: Activation, in place; the product of a gradient with its derivative, given its value,
#: in place, which may overwrite the value; and an argument at which it is 1.
STEPS = {
    "identity": (_identity, _no_slope, 1.0),
    "logistic": (_logistic, _by_logistic, 40.0),
    "relu": (_relu, _by_relu, 1.0),
    "softplus": (_softplus, _by_softplus, math.log(math.expm1(1.0))),
    "tanh": (_tanh, _by_tanh, 20.0),
}


class MLPPasses:
    """f of S networks for each of M members, and backpropagation to their weights.

    Fill `weights`, call `forward`; fill `slope`, the derivatives in `f`, call
    `pull_back` for `gradients`. All are buffers: steps allocate no memory.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        activation: str,
        n_members: int,
        n_draws: int,
        n_rows: int,
        like: torch.Tensor,
        skip_outputs: Sequence[int] = (),
    ) -> None:
        self._activate, self._multiply, one = STEPS[activation]
        self._shapes = [(a + 1, b) for a, b in pairwise(sizes)]
        M, S = n_members, n_draws
        # One more unit of every hidden layer is always 1: intercepts become weights.
        # Rows are the last axis of activations: products write contiguous memory.
        widths = [*(size + 1 for size in sizes[1:-1]), sizes[-1]]

        def empty(*shape: int) -> torch.Tensor:
            return like.new_empty(shape)

        def by_member(x: torch.Tensor) -> torch.Tensor:
            return x.unflatten(-3, (M, S))

        # In the first layer, the units of a member's networks are side by side.
        first = empty(M, sizes[0] + 1, S, widths[0])
        upper = [empty(M * S, *pair) for pair in pairwise(widths)]
        for_first = empty(2, *first.shape)
        for_upper = [empty(2, M * S, *shape) for shape in self._shapes[1:]]
        weights = [first.transpose(1, 2), *map(by_member, upper)]
        gradients = [for_first.transpose(2, 3), *map(by_member, for_upper)]
        for block in weights[:-1]:  # the unit that is always one
            block[..., -1] = 0
            block[..., -1, -1] = one
        values = [empty(M * S, width, n_rows) for width in widths]
        slopes = [torch.empty_like(value) for value in values]

        # Weights (M, S, inputs + 1, outputs) have intercepts in the last row; of their
        # gradients (2, ...) the first is the result, the second a work array; f and
        # slope are (M, S, n, K). All views are made once: making them costs as much as
        # small products.
        units = [size for _, size in self._shapes]
        self.f, self.slope = by_member(values[-1]).mT, by_member(slopes[-1]).mT
        self.weights = [x[..., :size] for x, size in zip(weights, units, strict=True)]
        self.gradients = [
            x[..., :size] for x, size in zip(gradients, units, strict=True)
        ]
        self._first = first.flatten(2).mT, values[0].view(M, -1, n_rows)
        self._forward = [
            (values[i], block.mT, values[i + 1]) for i, block in enumerate(upper)
        ]
        self._backward = []
        for i in reversed(range(len(upper))):
            slope = slopes[i + 1][:, : units[i + 1]]
            # With one output a product of a column and a row.
            product = torch.mul if units[i + 1] == 1 else torch.bmm
            to_units = upper[i][..., : units[i + 1]], slope, slopes[i]
            for_weights = _weight_product(values[i], slope, for_upper[i][0])
            self._backward.append((for_weights, product, to_units, values[i]))
        self._last = slopes[0].view(M, -1, n_rows).mT, for_first[0].flatten(2)
        self._direct: tuple | None = None
        if skip_outputs:
            self._link_directly(skip_outputs, values[-1], slopes[-1])

    def _link_directly(
        self, outputs: Sequence[int], f: torch.Tensor, slope: torch.Tensor
    ) -> None:
        """Buffers of the weights from features to some outputs.

        The networks of a member are side by side, as in the first layer.
        """
        M, S, width, _ = self.weights[0].shape
        d, K, n_rows = width - 1, len(outputs), f.shape[-1]
        self._shapes.append((d, K))
        weights, gradients = f.new_empty(M, d, S, K), f.new_empty(2, M, d, S, K)
        self.weights.append(weights.transpose(1, 2))
        self.gradients.append(gradients.transpose(2, 3))
        index = torch.tensor(outputs, device=f.device)
        room = f.new_empty(M, S, K, n_rows)
        f, slope = (x.view(M, S, -1, n_rows) for x in (f, slope))
        flat = room.view(M, S * K, n_rows), weights.flatten(2).mT
        self._direct = index, room, *flat, f, slope, gradients[0].flatten(2)

    def blocks(self, theta: torch.Tensor) -> list[torch.Tensor]:
        """Views of theta as weights of every layer; see `layer_blocks`."""
        return layer_blocks(theta, self._shapes)

    def forward(self, columns: torch.Tensor) -> torch.Tensor:
        """Evaluate f at `weights`: a buffer of shape (M, S, n, K).

        `columns`, of shape (M, d + 1, n), has a column for each row of X, and ends in
        ones.
        """
        self._columns = columns
        weights, out = self._first
        torch.bmm(weights, columns, out=out)
        for values, weights, out in self._forward:
            self._activate(values)
            torch.bmm(weights, values, out=out)
        if self._direct is not None:
            index, room, flat, weights, f, *_ = self._direct
            torch.bmm(weights, columns[:, :-1], out=flat)
            f.index_add_(2, index, room)
        return self.f

    def pull_back(self) -> None:
        """Compute the gradient of a sum over rows, after `forward` and `slope`."""
        if self._direct is not None:
            index, room, flat, *_, slope, gradient = self._direct
            torch.index_select(slope, 2, index, out=room)
            torch.bmm(self._columns[:, :-1], flat.mT, out=gradient)
        for (left, right, gradient), product, to_units, values in self._backward:
            torch.bmm(left, right, out=gradient)
            weights, slope, out = to_units
            product(weights, slope, out=out)
            self._multiply(out, values)
        slopes, gradient = self._last
        torch.bmm(self._columns, slopes, out=gradient)


def layer_blocks(
    theta: torch.Tensor, shapes: Sequence[tuple[int, int]]
) -> list[torch.Tensor]:
    """Views of theta, (..., P), as weights of every layer, intercepts last.

    In its layout the intercepts of a layer directly follow its weights.
    """
    parts = theta.split([a * b for a, b in shapes], -1)
    return [p.unflatten(-1, shape) for p, shape in zip(parts, shapes, strict=True)]


def _weight_product(
    values: torch.Tensor, slope: torch.Tensor, gradient: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Factors and result of the product that is the gradient in a layer's weights."""
    if slope.shape[1] > 1:
        return values, slope.mT, gradient
    # The transposed product is twice as fast, and a column is its own transpose.
    return slope, values.mT, gradient.view(len(gradient), 1, -1)


@dataclass(frozen=True, eq=False)
class Symmetry:
    """Permutations of the units of hidden layers, and flips of their signs.

    `units` has for each hidden layer the m parameters of each of its H units, (H, m):
    incoming weights, intercept and outgoing weights, in the same order for all units.
    `flips`: whether the sign of all parameters of a unit may change, as for odd
    activations.
    """

    units: tuple[torch.Tensor, ...]
    flips: bool = False

    @property
    def log_order(self) -> float:
        """Log of the number of elements of the group, |G|."""
        sizes = [len(layer) for layer in self.units]
        flip = math.log(2) if self.flips else 0.0
        return sum(math.lgamma(size + 1) + size * flip for size in sizes)

    def orbits(self, size: int) -> torch.Tensor:
        """Number the sets of parameters that the group maps to one another, (P,)."""
        labels = torch.arange(size, device=CPU)
        while True:
            before = labels.clone()
            for layer in self.units:
                labels[layer] = labels[layer].amin(0).expand(layer.shape)
            if torch.equal(labels, before):
                return torch.unique(labels, return_inverse=True)[1]


class ModulePasses:
    """f of S modules for each of M members, and its gradients; used as `MLPPasses`.

    `evaluate` maps theta, (S, P), and rows, (n, ...), to f, (S, n, K).
    """

    def __init__(
        self,
        evaluate: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        row_shape: tuple[int, ...],
        n_params: int,
        n_outputs: int,
        sizes: tuple[int, int, int],
        like: torch.Tensor,
    ) -> None:
        n_members, n_draws, n_rows = sizes
        self._evaluate, self._shape = evaluate, (n_members, n_rows, *row_shape)
        self.weights = [like.new_empty(n_members, n_draws, n_params)]
        self.gradients = [like.new_empty(2, n_members, n_draws, n_params)]
        self.f, self.slope = like.new_empty(2, *sizes, n_outputs)

    def blocks(self, theta: torch.Tensor) -> list[torch.Tensor]:
        """All of theta, (..., P), is one block."""
        return [theta]

    def forward(self, columns: torch.Tensor) -> torch.Tensor:
        """Evaluate f at `weights`; see `MLPPasses.forward`."""
        with torch.inference_mode(False), torch.enable_grad():
            X = columns.mT[..., :-1].reshape(self._shape)
            self._theta = self.weights[0].clone().requires_grad_()
            found = map(self._evaluate, self._theta, X)
            self._found = torch.stack(list(found))
        return self.f.copy_(self._found.detach())

    def pull_back(self) -> None:
        """Compute the gradient of a sum over rows, after `forward` and `slope`."""
        with torch.inference_mode(False):
            (found,) = torch.autograd.grad(self._found, self._theta, self.slope)
        self.gradients[0][0].copy_(found)
