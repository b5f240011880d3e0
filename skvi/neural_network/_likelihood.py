"""Likelihoods of regressors that are not noise: counts, and a user's own."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from sklearn.base import clone

from skvi._estimator._model import NumberColumns
from skvi._estimator._regressors import units_of
from skvi.base._units import Units
from skvi.exceptions import IncompatibleComponentsError
from skvi.likelihoods import (
    GeneralizedGammaLikelihood,
    HurdleLikelihood,
    Likelihood,
    RoundedLikelihood,
)
from skvi.likelihoods._independent import IndependentLikelihood
from skvi.neural_network._noises import noise_of
from skvi.utils._arrays import as_tensor

__all__ = [
    "CountColumns",
    "check_other_likelihood",
    "coarse_grid",
    "given_grid",
    "joined_units",
    "learned_numbers",
    "origin_of",
    "targets_in_units",
    "units_on_grid",
]

# Logarithms of rates and of odds beyond this are no origin.
REACH = 20.0
# Decimals of a step that is found.
MAX_DECIMALS = 6
# Steps in the scale of a target up to which noise may be as narrow as one: it is where
# a fit explains 99 % of the variance. Wider noise has a density.
COARSE = 10.0
# Largest distance from a grid, in steps.
OFF = 1e-2

Grid = tuple[float, float]


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


def check_other_likelihood(likelihood: Likelihood) -> None:
    """Raise if a likelihood that is not of noise has a posterior of its number."""
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
        return -float(bound._total_log_prob(constant(f), targets, each))

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


def learned_numbers(
    likelihood: Likelihood, hyper: np.ndarray, units: Units
) -> dict[str, Any]:
    """Fitted attributes of what a likelihood learned: numbers, or one per target.

    Scales of noise are in units of y, or of its logarithm.
    """
    found: dict[str, list[float]] = {}
    numbers = iter(np.exp(hyper).tolist())
    for part, (_, scale) in zip(*_parts_in(units, likelihood), strict=True):
        noise = noise_of(part)
        if isinstance(noise, GeneralizedGammaLikelihood):
            scale = noise.log_unit
        for name in part.learned:
            unit = scale if name == "noise_scale" else 1.0
            found.setdefault(f"{name}_", []).append(unit * next(numbers))
    return {k: v[0] if len(v) == 1 else np.array(v) for k, v in found.items()}


def given_grid(likelihood: RoundedLikelihood, y: np.ndarray) -> Grid:
    """Step and origin of the values of one target, as far as they are to be found."""
    if likelihood.step != "auto":
        return float(likelihood.step), float(likelihood.origin)
    return _step_of(y), float(y[0])


def coarse_grid(y: np.ndarray, weight: np.ndarray | None) -> Grid | None:
    """Step and origin of a target whose noise may be as narrow as its step, or None.

    Values occur at least twice on average, all distances are multiples of the smallest
    one, and the scale of y is at most `COARSE` of these. The units of y do not matter.
    """
    n_rows = float(len(y))
    if weight is not None:
        y, weight = y[weight > 0], weight[weight > 0]
        n_rows = float(weight.sum())
    values = np.unique(y)
    if not 2 <= len(values) <= n_rows / 2:
        return None
    low, gap = float(values[0]), float(np.diff(values).min())
    numbers = np.round((values - low) / gap)
    step = float((values - low) @ numbers / (numbers @ numbers))
    off = np.abs(values - low - step * numbers)
    scale = units_of(y, weight, None, True, True, robust=True).y_scale
    return None if off.max() > OFF * step or scale > COARSE * step else (step, low)


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


def targets_in_units(likelihood: Likelihood, units: Units) -> list[Likelihood]:
    """Likelihood of each target that a model describes, in units of y."""
    parts, each = _parts_in(units, likelihood)
    return [_in_units(part, *own) for part, own in zip(parts, each, strict=True)]


def _parts_in(
    units: Units, likelihood: Likelihood
) -> tuple[list[Likelihood], list[tuple[float, float]]]:
    """Likelihoods of the targets, and the origin and scale of each."""
    parts = [likelihood]
    if isinstance(likelihood, IndependentLikelihood):
        parts = likelihood.likelihoods
    mean, scale = (
        np.broadcast_to(x, len(parts)).tolist() for x in (units.y_mean, units.y_scale)
    )
    return parts, list(zip(mean, scale, strict=True))


def _in_units(likelihood: Likelihood, mean: float, scale: float) -> Likelihood:
    """A specification whose scales, and grid, are those of a target."""
    is_relative = isinstance(noise_of(likelihood), GeneralizedGammaLikelihood)
    new = {
        name: value * scale
        for name, value in likelihood.get_params().items()
        if name.endswith("noise_scale") and value != "learn" and not is_relative
    }
    if isinstance(likelihood, RoundedLikelihood):
        step, origin = likelihood.step * scale, likelihood.origin * scale + mean
        new |= {"step": float(step), "origin": float(origin)}
    if isinstance(likelihood, HurdleLikelihood):
        new["at"] = float(likelihood.at * scale + mean)
    return clone(likelihood).set_params(**new)


def joined_units(each: list[Units]) -> Units:
    """Units of several targets."""
    means, scales = ([u.y_mean for u in each], [u.y_scale for u in each])
    return Units(np.array(means), np.array(scales))


def units_on_grid(units: Units, grids: list[Grid | None]) -> Units:
    """Units near others in which values of grids are exact: by powers of two."""
    means, scales = (
        np.array(np.broadcast_to(x, len(grids)), dtype=float)
        for x in (units.y_mean, units.y_scale)
    )
    for k, grid in enumerate(grids):
        if grid is not None:
            step, origin = grid
            means[k] = origin + step * np.round((means[k] - origin) / step)
            scales[k] = step * 2.0 ** np.round(np.log2(scales[k] / step))
    if np.ndim(units.y_mean) == 0:
        return Units(float(means[0]), float(scales[0]))
    return Units(means, scales)
