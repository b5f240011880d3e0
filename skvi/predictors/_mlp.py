"""Multilayer perceptrons, for one theta or for many."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch

from skvi.base import Layout, NormalForm
from skvi.predictors._local_passes import LocalPasses
from skvi.predictors._passes import MLPPasses, Symmetry
from skvi.predictors.base import BlockForward, Predictor
from skvi.utils._tensors import CPU, randn
from skvi.utils._validation import CACHE_ELEMENTS


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


#: Names as in scikit-learn or torch, and the gain that preserves variances from layer
#: to layer (He et al. 2015 for relu, which softplus is far from 0; Glorot and
#: Bengio 2010 for the others).
ACTIVATIONS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float]] = {
    "identity": (torch.nn.Identity(), 1.0),
    "logistic": (torch.sigmoid, 1.0),
    "relu": (torch.relu, math.sqrt(2)),
    "softplus": (torch.nn.functional.softplus, math.sqrt(2)),
    "tanh": (torch.tanh, 1.0),
}
# Odd activations: the sign of a unit may change, with all of its weights.
ODD_ACTIVATIONS = ("identity", "tanh")
# Standard deviation of an initial mean-field posterior, as a fraction of the natural
# scale: wider starts switch units off permanently before the data have shaped them.
INITIAL_SHARE = 0.01
# Means of the last layer's weights, likewise: a large random function must first be
# unlearned, which switches units off.
LAST_SHARE = 0.2
# Standard deviation of the means of the first layer's intercepts, in sizes of what its
# weights make of standardized features: units bend at places all over the data. Those
# of relu and softplus move there by themselves; a saturated unit hardly moves.
FIRST_SPREAD = {"tanh": 2.0, "logistic": 2.0}


class MLPPredictor(Predictor):
    """A multilayer perceptron with all weights in one flat vector.

    Layer i has blocks ``coef_{i}`` of shape (fan_in, fan_out) and ``intercept_{i}`` of
    shape (fan_out,). The natural scale of ``coef_{i}`` is ``gain / sqrt(fan_in)``, at
    which a layer preserves the variance of its input. `input_scale` and `output_scale`
    multiply the gains of the first hidden and of the last layer: 1 for standardized
    targets, more for log odds, which are large, and change quickly, if classes are well
    separated. Columns `flat_outputs` of f are 0 everywhere at the start, such as the
    log of a scale. The block ``coef_skip`` leads from the features to the columns
    `skip_outputs`, if there are hidden layers: these are linear, plus what hidden units
    add, which are switched off where that does not pay.
    """

    def __init__(
        self,
        n_features: int,
        n_outputs: int = 1,
        hidden_layer_sizes: tuple[int, ...] = (50,),
        activation: str = "relu",
        input_scale: float = 1.0,
        output_scale: float = 1.0,
        flat_outputs: Sequence[int] = (),
        skip_outputs: Sequence[int] = (),
    ) -> None:
        self.sizes = (n_features, *hidden_layer_sizes, n_outputs)
        self.flat_outputs = list(flat_outputs)
        self.activation_name, gain = activation, ACTIVATIONS[activation][1]
        gains = [gain] * len(hidden_layer_sizes) + [output_scale]
        gains[0] *= input_scale if hidden_layer_sizes else 1.0
        shapes: dict[str, tuple[int, ...]] = {}
        scales = {}
        for i, (fan_in, fan_out) in enumerate(pairwise(self.sizes)):
            shapes[f"coef_{i}"] = (fan_in, fan_out)
            shapes[f"intercept_{i}"] = (fan_out,)
            scales[f"coef_{i}"] = gains[i] / math.sqrt(fan_in)
        roles = {name: "intercept" for name in shapes if name.startswith("intercept")}
        self.skip_outputs = tuple(skip_outputs) if hidden_layer_sizes else ()
        if self.skip_outputs:
            shapes["coef_skip"] = (n_features, len(self.skip_outputs))
            scales["coef_skip"] = output_scale / math.sqrt(n_features)
        inputs = {name: 0 for name in scales}
        self.layout = Layout(shapes, None, scales, roles, input_axes=inputs)
        self.n_outputs = n_outputs

    @property
    def activation(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """Function applied after every layer except the last."""
        return ACTIVATIONS[self.activation_name][0]

    @property
    def structure(self) -> tuple | None:  # type: ignore[override]
        """Structure that networks trained in one stack have in common.

        None without hidden layers: f itself can then be drawn, which takes fewer random
        numbers than draws of theta, and has less noise.
        """
        shape = self.sizes, self.activation_name, self.skip_outputs
        return shape if self.n_layers > 1 else None

    @property
    def row_width(self) -> int:
        """Elements that one row and one draw keep in memory: the widest layer."""
        return max(self.sizes)

    @property
    def n_layers(self) -> int:
        """Number of affine maps."""
        return len(self.sizes) - 1

    @property
    def symmetry(self) -> Symmetry | None:
        """Hidden units can be permuted; with "tanh" their signs can change as well.

        Scalings of "relu" units are not a finite group, and change the prior.
        """
        units = []
        for i in range(self.n_layers - 1):
            into, intercept, out = (
                self._indices(name)
                for name in (f"coef_{i}", f"intercept_{i}", f"coef_{i + 1}")
            )
            units.append(torch.cat([into.T, intercept[:, None], out], 1))
        is_odd = self.activation_name in ODD_ACTIVATIONS
        return Symmetry(tuple(units), is_odd) if units else None

    def _indices(self, name: str) -> torch.Tensor:
        """Positions of a block in theta, in its shape."""
        places = torch.arange(self.layout.size, device=CPU)
        return places[self.layout[name].slice].reshape(self.layout[name].shape)

    @property
    def last_intercept(self) -> torch.Tensor:
        """Positions of the intercepts of the outputs in theta, (K,)."""
        return self._indices(f"intercept_{self.n_layers - 1}")

    def zeros_of(self, kind: str) -> torch.Tensor:
        """Parameters that are 0 in a network that is simpler, a mask of shape (P,).

        "linear" has no hidden units, "constant" no features either.
        """
        names = [f"coef_{self.n_layers - 1}"] if self.n_layers > 1 else []
        if kind == "constant":
            names += ["coef_skip"] if self.skip_outputs else ["coef_0"]
        found = torch.zeros(self.layout.size, dtype=torch.bool, device=CPU)
        found[self.layout.positions(dict.fromkeys(names))] = True
        return found

    def initial_normal(self, generator: torch.Generator) -> NormalForm:
        """Random start: with equal weights all units of a layer would stay equal.

        Means of the size that preserves variances from layer to layer, a fifth of it in
        the last layer; 0 for intercepts, except those of a first layer of "tanh" or
        "logistic" units, which bend all over standardized features. Narrow, so that
        training starts from a single network, which is nearly flat.
        """
        scale = self.layout.natural_scales().to(generator.device)
        mean = scale * randn(generator, self.layout.size)
        for i in range(self.n_layers):
            mean[self.layout[f"intercept_{i}"].slice] *= self._intercept_scale(i)
        last = mean[self.layout[f"coef_{self.n_layers - 1}"].slice]
        last *= LAST_SHARE
        for output in self.flat_outputs:
            last.view(-1, self.n_outputs)[:, output] = 0
        if self.skip_outputs:
            mean[self.layout["coef_skip"].slice] = 0
        return NormalForm(mean, INITIAL_SHARE * scale)

    def _skip_index(self, like: torch.Tensor) -> torch.Tensor:
        return torch.tensor(self.skip_outputs, device=like.device)

    def _intercept_scale(self, layer: int) -> float:
        """Standard deviation of the intercepts at the start."""
        if layer > 0 or self.n_layers == 1:
            return 0.0
        size = self.layout["coef_0"].scale * math.sqrt(self.sizes[0])
        return FIRST_SPREAD.get(self.activation_name, 0.0) * size

    def forward(self, theta: torch.Tensor, X: torch.Tensor) -> torch.Tensor:
        """f, (S, n, K), all draws in one batched pass; see `Predictor.forward`."""
        blocks = self.layout.unpack(theta)
        h = X.to(theta.dtype).expand(len(theta), *X.shape)
        for i in range(self.n_layers):
            h = self.activation(h) if i else h
            h = torch.baddbmm(blocks[f"intercept_{i}"][:, None], h, blocks[f"coef_{i}"])
        if self.skip_outputs:
            added = X.to(theta.dtype) @ blocks["coef_skip"]
            h = h.index_add(-1, self._skip_index(h), added)
        return h

    def passes(
        self, n_members: int, n_draws: int, n_rows: int, like: torch.Tensor
    ) -> MLPPasses:
        """Buffers of many networks, evaluated and differentiated together.

        For M data sets of n rows, and S networks for each of them; `like` has the dtype
        and the device.
        """
        name = self.activation_name
        shape = n_members, n_draws, n_rows
        return MLPPasses(self.sizes, name, *shape, like, self.skip_outputs)

    def local_passes(
        self,
        theta: tuple[torch.Tensor, torch.Tensor],
        gradient: tuple[torch.Tensor, torch.Tensor],
        n_draws: int,
        n_rows: int,
    ) -> LocalPasses:
        """As `passes`, for draws of activations in place of weights."""
        parts = self.sizes, self.activation_name, theta, gradient, n_draws, n_rows
        return LocalPasses(*parts, self.skip_outputs)

    def block_forward(self, theta: torch.Tensor, n_rows: int) -> MLPBlocks:
        """In buffers; see `Predictor.block_forward`."""
        settings = self.n_layers, self.activation, self.skip_outputs
        return MLPBlocks(self.layout, *settings, theta, n_rows)

    def sample_locally(
        self,
        normal: NormalForm,
        X: torch.Tensor,
        n_draws: int,
        generator: torch.Generator,
    ) -> torch.Tensor:
        """Draw f, (S, n, K), by sampling activations instead of weights.

        Every row gets its own weights (Kingma et al. 2015, section 2): valid for sums
        over rows of per-row expectations under a factorized normal, with less noise
        than draws of theta, but not for quantities that need one theta for all rows.
        """
        mean = self.layout.unpack(normal.mean[None])
        variance = self.layout.unpack(normal.variance[None])
        dtype = normal.mean.dtype
        h = X.to(dtype)  # the first layer's moments are the same for all draws
        for i in range(self.n_layers):
            h = self.activation(h) if i else h
            m = h @ mean[f"coef_{i}"][0] + mean[f"intercept_{i}"][0]
            v = h.square() @ variance[f"coef_{i}"][0] + variance[f"intercept_{i}"][0]
            if self.skip_outputs and i == self.n_layers - 1:
                m[..., self.skip_outputs] += X.to(dtype) @ mean["coef_skip"][0]
                v[..., self.skip_outputs] += (
                    X.to(dtype).square() @ variance["coef_skip"][0]
                )
            shape = m.shape if i else (n_draws, *m.shape)
            h = m + v.sqrt() * randn(generator, *shape, dtype=dtype)
        return h
