"""Likelihoods of regressors that are not noise: counts, and a user's own."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize_scalar

from skvi._model import NumberColumns
from skvi.base._units import Units
from skvi.exceptions import IncompatibleComponentsError
from skvi.likelihoods import Likelihood, NoiseLikelihood, RoundedLikelihood
from skvi.utils._arrays import as_tensor

__all__ = [
    "CountColumns",
    "check_other_likelihood",
    "find_grid",
    "learned_numbers",
    "noise_of",
    "origin_of",
    "units_on_grid",
]

# Logarithms of rates and of odds beyond this are no origin.
REACH = 20.0
# Decimals of a step that is found.
MAX_DECIMALS = 6


@dataclass(frozen=True, eq=False)
class CountColumns(NumberColumns):
    """Targets that are one or several counts."""

    def encode(self, y: Any) -> np.ndarray:
        """Check that targets are counts; see `Response.encode`."""
        y = super().encode(y)
        wrong = y[(y < 0) | (y != np.floor(y))]
        if len(wrong):
            raise ValueError(
                f"y must hold counts, 0, 1, 2, ..., and holds {wrong[0]:.6g}. For such "
                "numbers use likelihood='gaussian', or a Likelihood of your own."
            )
        return y


def check_other_likelihood(network: Any, likelihood: Likelihood) -> None:
    """Raise if parameters of noise are given beside a likelihood that has none."""
    wrong = {"noise": network.noise, "noise_scale": network.noise_scale}
    usual = {"noise": ("auto", "constant"), "noise_scale": ("learn",)}
    given = [f"{name}={v!r}" for name, v in wrong.items() if v not in usual[name]]
    if given:
        raise IncompatibleComponentsError(
            f"likelihood={likelihood!r} is not that of noise around the outputs: leave "
            f"{' and '.join(given)} out, or use a NoiseLikelihood such as 'gaussian'."
        )
    if likelihood.gamma_prior is not None:
        name, _ = likelihood.gamma_block or ("parameter", 1.0)
        raise IncompatibleComponentsError(
            f"likelihood={likelihood!r} asks for a posterior of its {name}, which "
            f"networks learn as a number: use {type(likelihood).__name__}('learn')."
        )


def origin_of(likelihood: Likelihood, y: np.ndarray, weight: Any) -> float:
    """Output that fits all targets best if it is constant; 0 if outputs are several.

    Raises ValueError for targets that the likelihood says are impossible.
    """
    targets = as_tensor(y.ravel())
    bound = likelihood.bind(likelihood.initial_hyper(targets))
    each = None if weight is None else as_tensor(np.repeat(weight, y[:1].size))

    def constant(f: float) -> torch.Tensor:
        return targets.new_full((1, len(targets), likelihood.n_outputs), f)

    def loss(f: float) -> float:
        return -float(bound.total_log_prob(constant(f), targets, each))

    origin = 0.0
    if likelihood.n_outputs == 1:
        found = minimize_scalar(loss, bounds=(-REACH, REACH), method="bounded")
        origin = float(found.x)
    possible = torch.isfinite(bound.log_prob(constant(origin), targets)[0])
    if not possible.all():
        raise ValueError(
            f"y holds {float(targets[~possible][0]):.6g}, which "
            f"likelihood={likelihood!r} says is impossible."
        )
    return origin


def learned_numbers(likelihood: Likelihood, hyper: np.ndarray) -> dict[str, Any]:
    """Fitted attributes of what a likelihood learned: numbers, or one per target."""
    found: dict[str, list[float]] = {}
    for name, number in zip(likelihood.learned, np.exp(hyper), strict=False):
        found.setdefault(f"{name.partition('[')[0]}_", []).append(float(number))
    return {k: v[0] if len(v) == 1 else np.array(v) for k, v in found.items()}


def noise_of(likelihood: Likelihood) -> Any:
    """Noise around the outputs of a likelihood; None for other distributions."""
    if isinstance(likelihood, RoundedLikelihood):
        return likelihood.smooth
    return likelihood if isinstance(likelihood, NoiseLikelihood) else None


def find_grid(likelihood: RoundedLikelihood, y: np.ndarray) -> tuple[Any, Any]:
    """Step and origin of the values of y, or of those of its columns."""
    if likelihood.step != "auto":
        return likelihood.step, likelihood.origin
    if y.ndim == 1:
        return _step_of(y), y[0]
    return np.array([_step_of(column) for column in y.T]), y[0]


def _step_of(y: np.ndarray) -> float:
    """Largest decimal number of which all differences are multiples."""
    for power in 10.0 ** np.arange(MAX_DECIMALS + 1):
        whole = np.round(y * power)
        if (np.abs(whole - y * power) <= 1e-14 * np.abs(whole)).all():
            gaps = np.diff(np.unique(whole)).astype(np.int64)
            return float(max(np.gcd.reduce(gaps), 1) / power)
    raise ValueError(
        f"likelihood='rounded' finds no step of y: not all numbers end within "
        f"{MAX_DECIMALS} decimals. Give it, as RoundedLikelihood(step=0.5), or use "
        "likelihood='gaussian' for numbers that were not rounded."
    )


def units_on_grid(units: Units, step: Any, origin: Any) -> Units:
    """Units near others in which values of a grid are exact: by powers of two."""
    mean = origin + step * np.round((units.y_mean - origin) / step)
    scale = step * 2.0 ** np.round(np.log2(units.y_scale / step))
    return Units(mean, scale)
