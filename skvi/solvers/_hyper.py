"""Learnt scales: how far they may run, and what to say where they do."""

import math

import torch

from skvi.base import NormalForm
from skvi.exceptions import NoOptimumError
from skvi.targets import SupervisedTarget, Target

__all__ = ["check_noise", "hyper_range", "runaway_message", "suspicion"]

# Ratio of a learnt noise scale to its start, and of a prior scale: without a floor
# the likelihood of a row that is fitted exactly has no bound.
NOISE_RANGE, PRIOR_RANGE = math.log(1e4), math.log(1e6)
# Robust losses may have no lowest value at all: a floor that a run away reaches before
# its steps have become too small, and a fall that is worth a word.
ROBUST_FLOOR, SUSPICIOUS = math.log(1e2), math.log(0.3)
# Of the rows within three deviations of the noise, 8 % lie within a tenth of one where
# the noise is normal, and nearly all where the noise has run away.
INSIDE, EXACT, MAX_EXACT = 3.0, 0.1, 0.5


def hyper_range(
    target: Target, has_small_steps: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Least and largest values of the hyperparameters of a target, (H,) each.

    With steps that become smaller on the way, robust losses need a nearer floor.
    """
    start = target.initial_hyper()
    above = torch.full_like(start, NOISE_RANGE)
    is_near = has_small_steps and _is_robust(target)
    below = torch.full_like(start, ROBUST_FLOOR if is_near else NOISE_RANGE)
    for i, name in enumerate(target.learnt):
        if name.startswith("prior"):
            above[i] = below[i] = PRIOR_RANGE
    return start - below, start + above


def suspicion(target: Target, hyper: torch.Tensor) -> str:
    """Say that a scale of the noise falls with a robust loss, as a run away does."""
    fallen = hyper - target.initial_hyper().to(hyper.dtype) < SUSPICIOUS
    names = target.learnt or ("",) * len(fallen)
    noise = [not name.startswith("prior") for name in names]
    falls = any(f and n for f, n in zip(fallen, noise, strict=True))
    return (
        f"; a learnt scale falls too: {RUNAWAY}" if falls and _is_robust(target) else ""
    )


def _is_robust(target: Target) -> bool:
    return isinstance(target, SupervisedTarget) and not target.loss.is_log_loss


def runaway_message(
    target: Target, to_zero: torch.Tensor, to_infinity: torch.Tensor
) -> str:
    """Say which learnt scales have no optimum, and what to change.

    Parameters
    ----------
    target : Target
        With the names of its hyperparameters in `learnt`.
    to_zero, to_infinity : Tensor of bool of shape (H,)

    Returns
    -------
    str
        Empty where none ran away.

    Raises
    ------
    NoOptimumError
        A scale of the noise runs to 0 with a robust loss, which has no lower bound
        there.
    """
    names = target.learnt or ("a learnt scale",) * len(to_zero)
    parts = []
    for name, low, high in zip(names, to_zero, to_infinity, strict=True):
        kind = "prior" if name.startswith("prior") else "noise"
        if low:
            _check_loss(target, name, kind)
            parts.append(f"{name} runs to 0: {_floor_remedy(target, kind)}")
        elif high:
            parts.append(f"{name} grows without limit: {_CEILING[kind]}")
    return "; ".join(parts)


def _floor_remedy(target: Target, kind: str) -> str:
    if kind == "prior":
        return _FLOOR_OF_PRIOR
    if isinstance(target, SupervisedTarget):
        return target.likelihood.floor_remedy
    return "fix it at a number"


def check_noise(
    target: SupervisedTarget, normal: NormalForm, scale: torch.Tensor
) -> None:
    """Raise where a robust loss has settled on rows that are fitted exactly.

    A hyperprior of the noise precision stops the noise from reaching zero, so that it
    has an optimum there, which says nothing of the data.

    Parameters
    ----------
    target : SupervisedTarget
        Of a linear model with a noise that is not given.
    normal : NormalForm
        Posterior of its coefficients.
    scale : Tensor
        Of the noise.

    Raises
    ------
    NoOptimumError
        More than half of the rows that are not outliers are fitted exactly.
    """
    first = target._likelihood.initial_hyper(target.y)
    if not (_is_robust(target) and len(first)):
        return
    if scale.log() > first[0] - ROBUST_FLOOR:
        return
    mean, _ = target.predictor.moments(target.X, normal)
    distance = (target.y - mean).abs() / scale
    n_exact, n_inside = ((distance < bound).sum() for bound in (EXACT, INSIDE))
    if n_exact > MAX_EXACT * n_inside:
        raise NoOptimumError(
            f"With loss={target.loss!r} the noise runs to 0: {RUNAWAY}."
        )


def _check_loss(target: Target, name: str, kind: str) -> None:
    if kind == "noise" and isinstance(target, SupervisedTarget) and _is_robust(target):
        raise NoOptimumError(
            f"With loss={target.loss!r} the {name} runs to 0: {RUNAWAY}."
        )


RUNAWAY = (
    "where some rows are fitted exactly, as equal targets are, a robust loss has no "
    "lowest value, and its result would mean nothing. Fix the scale (such as "
    "noise_scale=0.5), use loss='log', or an order closer to 1"
)
_FLOOR_OF_PRIOR = (
    "with these data the evidence is largest without any effect of the features; give "
    "the prior a number for its scale, or leave the features out"
)
_CEILING = {
    "noise": "the model explains nothing; standardise the target, or fix it at a "
    "number",
    "prior": "the data set no limit to the size of the coefficients (features of a "
    "tiny unit, or classes that can be separated); standardise the features, or give "
    "the prior a number for its scale",
}
