"""Shared by Bayesian torch modules: templates, parameters, deterministic blocks."""

import inspect
import math
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from skvi.divergences import KLDivergence
from skvi.exceptions import IncompatibleComponentsError, SkviWarning
from skvi.neural_network._reports import remedies, unscaled_message
from skvi.posteriors import Ensemble
from skvi.predictors import ModulePredictor
from skvi.predictors._module import PartialPredictor
from skvi.utils._modules import StoredModule, drawing_from, is_lazy, store_module
from skvi.utils._rows import as_rows, spaced_rows

PREFIX = "module__"
# Weight of the divergence by default: candidates would cost several long fits.
USUAL_WEIGHT = 0.3
LAZY = (
    "{} has lazy layers, whose shapes are not known yet. Call it once with rows of X, "
    "module(torch.zeros(1, n_features)), before it is given, or give a class or "
    "function that returns it, whose lazy layers take their shapes from X."
)
# A linear layer of small features has small outputs, which grow with its weights.
GROWTH = 1.5


class ModuleMixin:
    """Mixin: `module`, ``module__...``, `inputs` and `deterministic`."""

    _parameter_constraints: dict = {
        "module": [None, nn.Module, type, callable],
        "inputs": [None, dict],
        "deterministic": [str, "array-like"],
    }
    _input = {"dtype": [np.float64, np.float32], "allow_nd": True}
    #: Natural size of the last layer, see `ModulePredictor`.
    _output_gain = 1.0

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Get parameters, those of the module included.

        Parameters
        ----------
        deep : bool, default=True
            Whether to return those of nested objects as well.

        Returns
        -------
        dict
        """
        own = {k: v for k, v in vars(self).items() if k.startswith(PREFIX)}
        return super().get_params(deep) | own

    def set_params(self, **params: Any) -> Self:
        """Set parameters; ``module__name`` is an argument of the module's constructor.

        Parameters
        ----------
        **params : dict

        Returns
        -------
        self
        """
        own = {k: v for k, v in params.items() if k.startswith(PREFIX)}
        vars(self).update(own)
        rest = {k: v for k, v in params.items() if k not in own}
        return super().set_params(**rest) if rest else self

    def __getstate__(self):
        state = super().__getstate__()
        if not isinstance(self.module, nn.Module):
            return state
        return state | {"module": store_module(self.module)}

    def __setstate__(self, state):
        if isinstance(state["module"], StoredModule):
            state = state | {"module": state["module"].build()}
        super().__setstate__(state)

    def _set_module_params(self, module_params):
        wrong = [name for name in module_params if not name.startswith(PREFIX)]
        if wrong:
            raise TypeError(
                f"{type(self).__name__} has no parameters {wrong}; those of the module "
                "begin with module__."
            )
        vars(self).update(module_params)

    def _usual_divergence(self):
        """A weight that predicts well; candidates would cost several long fits."""
        return (
            KLDivergence(weight=USUAL_WEIGHT)
            if self._is_generalized
            else KLDivergence()
        )

    def _network(self, X, likelihood):
        """Predictor of the module, without the deterministic blocks."""
        is_template, rows = isinstance(self.module, nn.Module), as_rows(X)
        predictor = ModulePredictor(
            self._make_module(rows, likelihood.n_outputs),
            rows,
            likelihood.n_outputs,
            output_gain=self._output_gain,
            shuffle=isinstance(self.posterior_family_, Ensemble) and not is_template,
            outputs=self._name_outputs(likelihood.n_outputs),
            inputs=self.inputs,
            past=self._past_module(),
        )
        some = rows[spaced_rows(len(rows), 50)]
        f = predictor.outputs_of_random_parameters(some)
        if not self._continues:
            self._warn(self._limit_of_outputs(f, likelihood), SkviWarning)
        names = self._deterministic_blocks(predictor.layout)
        return PartialPredictor(predictor, names) if names else predictor

    def _past_module(self):
        """Predictor whose statistics a fit that goes on keeps; None for a new fit."""
        past = getattr(self, "_model", None)
        if past is None or not (self._continues or self.warm_start):
            return None
        return getattr(past.predictor, "predictor", past.predictor)

    def _judge_fit(self, target):
        """Say, too, what was fixed in the module."""
        numbers, *messages = super()._judge_fit(target)
        predictor = getattr(target.predictor, "predictor", target.predictor)
        said = {"module": predictor.settled} if predictor.settled else {}
        return numbers | said, *messages

    def _input_remedy(self, target):
        """Name features whose size is not what networks expect."""
        if self._continues:
            return ""
        return unscaled_message(target.X[spaced_rows(target.n_rows)].cpu().numpy())

    def _make_module(self, rows, n_outputs):
        """Return a module: the template, or a new one, whose lazy layers see rows."""
        own = {k: v for k, v in vars(self).items() if k.startswith(PREFIX)}
        given = {name.removeprefix(PREFIX): value for name, value in own.items()}
        if isinstance(self.module, nn.Module):
            if given:
                raise ValueError(
                    f"module={type(self.module).__name__}(...) is an instance, so "
                    f"that {sorted(own)} cannot be passed to it. Give the class, or a "
                    "function that returns a module."
                )
            if is_lazy(self.module):
                raise ValueError(LAZY.format(type(self.module).__name__))
            return self.module
        if self.module is None:
            name = type(self).__name__
            other = name.replace("Module", "MLP")
            raise ValueError(
                f"{name} needs a module: {name}(module), with a torch.nn.Module, its "
                f"class, or a function that returns one. {other} has its own network."
            )
        make = self.module
        known = {
            "input_shape": tuple(rows.shape[1:]),
            "n_features": math.prod(rows.shape[1:]),
            "n_outputs": n_outputs,
        }
        wanted = inspect.signature(make).parameters
        arguments = {k: v for k, v in known.items() if k in wanted} | given
        # Modules draw their start from the global generator, whose state is restored.
        seed = np.random.RandomState(_seed(self.random_state)).randint(2**31 - 1)
        with drawing_from(int(seed)):
            module = make(**arguments)
            if isinstance(module, nn.Module) and is_lazy(module):
                self._initialize_lazy(module, rows[:2].float())
        if not isinstance(module, nn.Module):
            raise TypeError(
                f"module={self.module!r} must be a torch.nn.Module, its class, or a "
                f"function that returns one. It returned {type(module).__name__}."
            )
        return module

    def _initialize_lazy(self, module, rows):
        """Let lazy layers take their shapes from rows."""
        named = {name: rows[:, at] for name, at in (self.inputs or {}).items()}
        with torch.no_grad():
            module(**named) if named else module(rows)

    def _deterministic_blocks(self, layout):
        """Blocks matched by names, names of layers or patterns."""
        given = self.deterministic
        patterns = [given] if isinstance(given, str) else list(given)
        found = []
        for pattern in patterns:
            names = [
                name
                for name in layout
                if fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")
            ]
            if not names:
                raise IncompatibleComponentsError(
                    f"deterministic={pattern!r}",
                    "a parameter, layer or pattern of the module",
                    f"some of {list(layout)}",
                )
            found += names
        return [name for name in layout if name in found]

    def _posterior_attributes(self, state):
        layout, points = self._model.predictor.point_layout, {}
        found = super()._posterior_attributes(state)
        if len(layout):
            values = torch.from_numpy(found["_hyper"][-layout.size :])[None]
            points = {k: v[0].numpy().copy() for k, v in layout.unpack(values).items()}
        return found | {"point_": points}

    def _remedies(self):
        """Possible remedies for a fit that misses a signal."""
        return remedies(None, "", self.divergence_)


def _seed(random_state):
    """Seed for the start of the module; a shared generator provides it."""
    if random_state is None or isinstance(random_state, (int, np.integer)):
        return random_state
    return random_state.randint(2**31 - 1)


@dataclass(frozen=True, eq=False)
class OutputLimits:
    """Limits of every output, (n_outputs,), over parameters of several scales.

    `saturates` says of which outputs all are in [-1, 1], and do not grow with the
    scale.
    """

    low: np.ndarray
    high: np.ndarray
    saturates: np.ndarray

    @classmethod
    def of(cls, f: torch.Tensor) -> "OutputLimits":
        """Find limits of outputs, (n_scales, ..., n_outputs), by increasing scales."""
        f = f.detach().double().flatten(1, -2)
        size = f.abs().amax(1)
        saturates = (size[-1] <= 1) & (size[-1] <= GROWTH * size[-2])
        low, high = f.amin((0, 1)), f.amax((0, 1))
        return cls(low.numpy(), high.numpy(), saturates.numpy())

    def of_columns(self, columns: np.ndarray) -> "OutputLimits":
        """Limits of some outputs."""
        found = (part[columns] for part in (self.low, self.high, self.saturates))
        return OutputLimits(*found)

    def __str__(self) -> str:
        low, high = np.round([self.low.min(), self.high.max()], 2) + 0.0
        kind = "probabilities" if low >= 0 and high <= 1 else "limited"
        return f"{kind}, {low:.4g} to {high:.4g}"

    @property
    def one_sided(self) -> np.ndarray:
        """Whether an output never has one of the signs."""
        return (self.low >= 0) | (self.high <= 0)
