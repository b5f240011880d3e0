"""Any torch module as a predictor, and blocks that are point parameters."""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from copy import copy, deepcopy
from typing import Any, Self

import torch
from torch import nn
from torch.func import vmap

from skvi.base import Layout, NormalForm
from skvi.exceptions import IncompatibleComponentsError
from skvi.predictors._mlp import INITIAL_SHARE
from skvi.predictors._passes import ModulePasses
from skvi.predictors.base import Predictor
from skvi.utils._modules import PROCESS_WIDE, Function
from skvi.utils._tensors import CPU

# Elements of the widest layer kept in memory for all draws of a forward pass.
MAX_ELEMENTS = 2**25
# On CPUs one draw after the other is quicker for few draws, and where a draw has at
# least so many elements, in a digits network, LeNet and a multilayer perceptron.
FEW_DRAWS, LARGE_DRAW = 2, 2**17
# Rows on which a module is checked to treat each one separately.
PROBE_ROWS, TOLERANCE = 4, 1e-4
# Rows, at least, whose statistics layers of batch normalization take.
STATISTICS_ROWS = 1000
# Scales of random parameters, in units of the natural ones, for the sizes of outputs.
PROBE_SCALES = (1.0, 3.0, 10.0)
AFFINE = (nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.modules.batchnorm._NormBase)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
NEEDS_INTEGERS = (
    "features arrive as floats, and a layer takes integers: begin forward with "
    "x = x.long(), or x[:, columns].long()"
)


class ModulePredictor(Predictor):
    """Any `torch.nn.Module`, with its parameters in one flat vector.

    Its ``forward`` maps rows (n, ...) to (n, K), or to (n,) for K = 1; it is tried on a
    few rows of X. It is not changed, and its parameters are the start of fits. Blocks
    have the names of the parameters, such as "conv1.weight". Those of normalization
    layers have the role "affine", other biases "intercept", the rest is "weight". The
    natural scale of a weight is ``gain / sqrt(fan_in)``, at which a layer preserves the
    variance of its input; the root of two suits layers before relu, `output_gain` is
    that of the last weight with two or more dimensions. Parameters with
    ``requires_grad=False`` and buffers are fixed. With `shuffle` the entries of each
    weight are permuted at every start, a new random one if they were drawn
    independently. `outputs` says in messages what the outputs are. With `inputs`, a
    mapping of names to columns, ``forward`` takes those columns by these names.

    In training mode, batch normalization takes the statistics of X at the start, and
    keeps them, or those of a `past` fit, so that every row has a likelihood; dropout is
    off. `settled` says what was done.

    IncompatibleComponentsError if an output still depends on other rows, is random, or
    changes buffers; ValueError if there are no parameters, or another number of
    outputs.
    """

    def __init__(
        self,
        module: nn.Module,
        X: torch.Tensor,
        n_outputs: int = 1,
        gain: float = math.sqrt(2),
        output_gain: float = 1.0,
        shuffle: bool = False,
        outputs: str = "one column for each number that it predicts",
        inputs: Mapping[str, Any] | None = None,
        past: "ModulePredictor | None" = None,
    ) -> None:
        module = deepcopy(module).to(CPU)
        self.n_outputs, self.shuffle = n_outputs, shuffle
        self._row_shape = tuple(X.shape[1:])
        self.inputs = None if inputs is None else dict(inputs)
        free = {k: p.detach() for k, p in module.named_parameters() if p.requires_grad}
        if not free:
            raise ValueError(
                f"{type(module).__name__} has no parameters with requires_grad=True: "
                "there is nothing to learn."
            )
        every: dict[str, torch.Tensor] = {}
        every.update(module.named_parameters(remove_duplicate=False))
        names = {id(p): name for name, p in module.named_parameters()}
        #: Parameters used in several places go by their first name.
        self._first_names = {k: names[id(p)] for k, p in every.items()}
        self.settled = self._settled(module, X)
        fixed = {k: p for k, p in every.items() if not p.requires_grad}
        fixed |= dict(module.named_buffers(remove_duplicate=False))
        self._fixed = {name: value.detach().clone() for name, value in fixed.items()}
        if past is not None and _shapes(past._fixed) == _shapes(self._fixed):
            self._fixed = past._fixed
        elif len(X) < 2 and self.settled.startswith("batch"):
            raise ValueError(
                "Batch normalization in training mode keeps the statistics of at least "
                f"two rows. Got {len(X)}; give more, or module.eval()."
            )
        self.layout = _layout(module, free, gain, output_gain)
        start = [free[name].reshape(-1).double() for name in self.layout]
        self._start = torch.cat(start).clone()
        # Its parameters come from theta; the module itself holds none.
        self.module = Function(module.to("meta"))
        self._width, self._loops = n_outputs, False
        self._probe(X, outputs)
        self._loops = not self._has_batching_rules(X[:PROBE_ROWS])

    def _settled(self, module: nn.Module, X: torch.Tensor) -> str:
        """Fix what training would change; see `_settle`."""

        def run() -> None:
            rows = X[:: max(1, len(X) // STATISTICS_ROWS)]
            rows = rows.to(next(module.parameters()).dtype)
            named = {name: rows[:, at] for name, at in (self.inputs or {}).items()}
            module(*([rows] if self.inputs is None else []), **named)

        return _settle(module, run)

    @property
    def row_width(self) -> int:
        """Numbers that one row and one draw keep alive: the widest layer."""
        return self._width

    @property
    def structure(self) -> tuple:  # type: ignore[override]
        """Only the components of one ensemble share a module; see `MLPPredictor`."""
        return "module", id(self)

    def passes(
        self, n_members: int, n_draws: int, n_rows: int, like: torch.Tensor
    ) -> ModulePasses:
        """Buffers of many modules; see `MLPPredictor.passes`."""
        sizes = n_members, n_draws, n_rows
        shape, size = self._row_shape, self.layout.size
        return ModulePasses(self.forward, shape, size, self.n_outputs, sizes, like)

    def initial_normal(self, generator: torch.Generator) -> NormalForm:
        """Start of a fit: narrow, at the parameters of the module."""
        device, mean = generator.device, self._start.to(generator.device).clone()
        for block in self.layout.values():
            if self.shuffle and block.role == "weight":
                order = torch.randperm(block.size, generator=generator, device=device)
                mean[block.slice] = mean[block.slice][order]
        scale = self.layout.natural_scales().to(device)
        return NormalForm(mean, INITIAL_SHARE * scale)

    def forward(self, theta: torch.Tensor, X: torch.Tensor) -> torch.Tensor:
        """f, (S, n, K), of as many draws together as fit into memory."""
        blocks, X = self.layout.unpack(theta), X.to(theta.dtype)
        fixed = {name: _as(value, theta) for name, value in self._fixed.items()}
        if self._loops or self._is_slow_together(theta, X):
            draws = zip(*(v.unbind() for v in blocks.values()), strict=True)
            own = [dict(zip(blocks, one, strict=True)) for one in draws]
            return torch.stack([self._call(one, fixed, X) for one in own])
        chunk = max(1, MAX_ELEMENTS // (len(X) * self._width or 1))
        size = chunk if chunk < len(theta) else None
        evaluate = vmap(self._call, in_dims=(0, None, None), chunk_size=size)
        return evaluate(blocks, fixed, X)

    def _is_slow_together(self, theta: torch.Tensor, X: torch.Tensor) -> bool:
        """Whether the draws are quicker one after the other."""
        if len(theta) == 1 or not theta.is_cpu:
            return len(theta) == 1
        return len(theta) <= FEW_DRAWS or len(X) * self._width >= LARGE_DRAW

    def outputs_of_random_parameters(self, X: torch.Tensor) -> torch.Tensor:
        """Outputs for random parameters of increasing scales, (scales, draws, n, K)."""
        generator = torch.Generator().manual_seed(0)
        size = 16, self.layout.size
        unit = torch.randn(size, generator=generator, dtype=torch.float64, device=CPU)
        unit *= self.layout.natural_scales().to(CPU)
        unit = unit.to(X.dtype)
        with torch.no_grad():
            found = [self.forward(scale * unit, X) for scale in PROBE_SCALES]
        return torch.stack(found)

    def _call(
        self,
        blocks: dict[str, torch.Tensor],
        fixed: dict[str, torch.Tensor],
        X: torch.Tensor,
    ) -> torch.Tensor:
        firsts = self._first_names.items()
        values = {name: blocks[first] for name, first in firsts if first in blocks}
        named = {name: X[:, at] for name, at in (self.inputs or {}).items()}
        args = (X,) if self.inputs is None else ()
        f = self.module({**values, **fixed}, args, named, tie_weights=False)
        return f[:, None] if f.ndim == 1 else f

    def _has_batching_rules(self, rows: torch.Tensor) -> bool:
        """Whether torch evaluates draws together, with gradients and without."""
        n_draws = FEW_DRAWS + 1  # together
        theta = self._start.expand(n_draws, -1).to(rows.dtype).requires_grad_()
        with PROCESS_WIDE, warnings.catch_warnings():
            # It says so if a rule is missing and slow; other threads may warn, too.
            warnings.filterwarnings("error", ".*batching rule")
            try:
                torch.autograd.grad(self.forward(theta, rows).sum(), theta)
                with torch.no_grad():
                    self.forward(theta, rows)
            except (RuntimeError, UserWarning, ValueError):
                return False
        return True

    def _probe(self, X: torch.Tensor, outputs: str) -> None:
        """Try the module on a few rows: shapes, widths, and independence of rows."""
        rows, widths = X[:PROBE_ROWS], [self.n_outputs]
        module = self.module.module
        name = type(module).__name__

        def note(layer: nn.Module, inputs: tuple, output: object) -> None:
            output = output[0] if isinstance(output, tuple) else output
            if isinstance(output, torch.Tensor) and len(output):
                widths.append(output.numel() // len(output))

        hooks = [layer.register_forward_hook(note) for layer in module.modules()]
        theta = self._start[None].to(rows.dtype)
        try:
            with torch.no_grad():
                f = self.forward(theta, rows)[0]
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            hint = f" ({NEEDS_INTEGERS})" if _takes_integers(module, error) else ""
            raise ValueError(
                f"{name} fails on rows of shape {tuple(X.shape[1:])}: {error}{hint}"
            ) from error
        finally:
            for hook in hooks:
                hook.remove()
        if f.shape != (len(rows), self.n_outputs):
            raise ValueError(
                f"{name} returns an array of shape {tuple(f.shape)} for {len(rows)} "
                f"rows; this model needs ({len(rows)}, {self.n_outputs}): {outputs}."
            )
        self._refuse_changes(theta, rows)
        self._width = max(widths)
        with torch.no_grad():
            alone = [self.forward(theta, rows[i : i + 1])[0] for i in range(len(rows))]
        if not torch.allclose(f, torch.cat(alone), TOLERANCE, TOLERANCE):
            raise IncompatibleComponentsError(
                name,
                "outputs that do not depend on other rows of a batch, or on chance",
                "layers that treat each row separately, such as nn.GroupNorm and "
                "nn.LayerNorm, or nn.BatchNorm2d, whose statistics are fixed, and no "
                "random numbers",
            )

    def _refuse_changes(self, theta: torch.Tensor, rows: torch.Tensor) -> None:
        """Raise if an evaluation changes buffers, and with them the next one."""
        fixed = {name: _as(value, theta).clone() for name, value in self._fixed.items()}
        before = {name: value.clone() for name, value in fixed.items()}
        blocks = {name: block[0] for name, block in self.layout.unpack(theta).items()}
        with torch.no_grad():
            self._call(blocks, fixed, rows)
        changed = [name for name in fixed if not torch.equal(fixed[name], before[name])]
        if changed:
            owners = dict(self.module.module.named_modules())
            owner = changed[0].rpartition(".")[0]
            raise IncompatibleComponentsError(
                f"{type(owners[owner]).__name__} {owner!r}",
                f"eval mode: in training mode every evaluation changes {changed}",
                "module.eval(), or no such layer, since the prior limits the weights",
            )


def _takes_integers(module: nn.Module, error: Exception) -> bool:
    """Whether the error is that of floats in the place of integers."""
    layers = nn.Embedding, nn.EmbeddingBag
    if any(isinstance(layer, layers) for layer in module.modules()):
        return "indices" in str(error)
    return "Long" in str(error) or "index tensor" in str(error)


def _as(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return value.to(like.dtype) if value.is_floating_point() else value


def _shapes(values: Mapping[str, torch.Tensor]) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in values.items()}


def _settle(module: nn.Module, run: Callable[[], object]) -> str:
    """Give a row one likelihood: no chance, and statistics of the rows of the fit.

    `run` evaluates the module on rows, whose statistics layers of batch normalization
    in training mode take, and keep. Spectral norms, which follow the weights, and
    layers with hooks stay in their mode. Returns what was done, in words.
    """
    modes = [(layer, layer.training) for layer in module.modules()]
    batch = [m for m, training in modes if _takes_statistics(m, training)]
    drops = [m for m, on in modes if on and _drops(m)]
    for layer, training in modes:
        layer.training = training and _has_hooks(layer)
    momenta = [layer.momentum for layer in batch]
    for layer in batch:
        _start_statistics(layer)
    with torch.no_grad(), suppress(RuntimeError, ValueError, TypeError, IndexError):
        if batch:  # errors are those of the probe
            run()
    for layer, momentum in zip(batch, momenta, strict=True):
        layer.momentum = momentum
        layer.eval()
    words = ["batch normalization keeps the statistics of the start"] if batch else []
    return "; ".join([*words, "dropout is off"] if drops else words)


def _takes_statistics(layer: nn.Module, training: bool) -> bool:
    """Whether a layer normalizes by the rows that it sees, or would track them."""
    if not isinstance(layer, nn.modules.batchnorm._NormBase):
        return False
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        return training or not layer.track_running_stats
    return training and layer.track_running_stats


def _drops(layer: Any) -> bool:
    """Whether a layer, such as a recurrent one, leaves units out."""
    is_layer = isinstance(layer, nn.modules.dropout._DropoutNd)
    rate = layer.p if is_layer else getattr(layer, "dropout", 0.0)
    return isinstance(rate, float | int) and rate > 0


def _has_hooks(layer: nn.Module) -> bool:
    """Whether a layer prepares its weights before each evaluation."""
    return bool(layer._forward_pre_hooks) or hasattr(layer, "n_power_iterations")


def _start_statistics(layer: Any) -> None:
    """Let a layer of normalization average over what it sees from now on."""
    if not layer.track_running_stats:
        dtype = torch.float32 if layer.weight is None else layer.weight.dtype
        layer.track_running_stats = True
        layer.running_mean = torch.zeros(layer.num_features, dtype=dtype, device=CPU)
        layer.running_var = torch.ones(layer.num_features, dtype=dtype, device=CPU)
        layer.num_batches_tracked = torch.tensor(0, device=CPU)
    layer.reset_running_stats()
    layer.momentum = 1.0
    layer.train()


def _layout(
    module: nn.Module, free: dict[str, torch.Tensor], gain: float, output_gain: float
) -> Layout:
    """Blocks of the parameters, with roles and natural scales."""
    owners = {
        f"{prefix}.{own}".lstrip("."): layer
        for prefix, layer in module.named_modules(remove_duplicate=False)
        for own, _ in layer.named_parameters(recurse=False)
    }
    shapes, roles, scales, inputs, last = {}, {}, {}, {}, ""
    for name, value in free.items():
        owner = owners[name]
        shapes[name] = tuple(value.shape)
        if isinstance(owner, AFFINE):
            roles[name] = "affine"
        elif name.rpartition(".")[2].startswith("bias"):
            roles[name] = "intercept"
        elif value.ndim > 1 and not isinstance(owner, nn.Embedding):
            scales[name], last = gain / math.sqrt(_fan_in(owner, value)), name
            if isinstance(owner, nn.Linear):
                inputs[name] = 1
    if last:
        scales[last] *= output_gain / gain
    return Layout(shapes, None, scales, roles, input_axes=inputs)


def _fan_in(owner: nn.Module, weight: torch.Tensor) -> float:
    """Number of inputs of a unit."""
    if not isinstance(owner, TRANSPOSED):
        return weight[0].numel()
    return weight[:, 0].numel() / math.prod(owner.stride)


# Seed for the start of blocks that a predictor draws at random.
SEED = 0


class PartialPredictor(Predictor):
    """A predictor with the blocks `names` as point parameters, not part of theta.

    They are learned by type-II maximum likelihood, like noise and prior scales: for
    example a normalization layer, or an embedding whose uncertainty is of no interest.
    They start at the mean of `Predictor.initial_normal`, if there is one, else at 0.
    """

    def __init__(self, predictor: Predictor, names: Iterable[str]) -> None:
        names, full = list(names), predictor.layout
        if not set(names) < set(full):
            raise IncompatibleComponentsError(
                f"deterministic={names}",
                "some, but not all blocks of the predictor",
                f"some of {list(full)}",
            )
        self.predictor, self.n_outputs = predictor, predictor.n_outputs
        self.layout = full.without(*names)
        self.point_layout = full.only(*names)
        self._random = full.positions(self.layout)
        self._fixed = full.positions(names)
        self._point = self.initial_point()

    @property
    def row_width(self) -> int:
        """That of the predictor."""
        return self.predictor.row_width

    def initial_point(self) -> torch.Tensor:
        """Start of the point parameters; see `Predictor.initial_point`."""
        if not len(self.point_layout):
            return super().initial_point()
        start = self.predictor.initial_normal(torch.Generator().manual_seed(SEED))
        if start is None:
            return super().initial_point()
        return start.mean[self._fixed.to(start.mean.device)].double()

    def initial_normal(self, generator: torch.Generator) -> NormalForm | None:
        """Start of theta; see `Predictor.initial_normal`."""
        start = self.predictor.initial_normal(generator)
        if start is None:
            return None
        return NormalForm(start.mean[self._random], start.scale[self._random])

    def bind(self, point: torch.Tensor) -> Self:
        """Fix the points; see `Predictor.bind`."""
        if not len(self.point_layout):  # they are fixed already
            return self
        bound = copy(self)
        bound._point, bound.point_layout = point, Layout({})
        return bound

    def forward(self, theta: torch.Tensor, X: torch.Tensor) -> torch.Tensor:
        """Evaluate f, (S, n, K), also differentiable in the points."""
        full = theta.new_empty(len(theta), self.predictor.layout.size)
        full = full.index_copy(1, self._random, theta)
        point = self._point.to(theta.dtype).expand(len(theta), -1)
        return self.predictor.forward(full.index_copy(1, self._fixed, point), X)
