"""Learned scales: their limits, and messages if they degenerate."""

import math

import torch

from skvi.base import NormalForm
from skvi.exceptions import NoOptimumError
from skvi.targets import SupervisedTarget, Target

__all__ = ["check_noise", "hyper_range", "runaway_message", "suspicion"]

# Robust losses can be unbounded below: a lower limit that a diverging scale reaches
# before its steps have become too small, and a decrease that is worth a warning.
ROBUST_FLOOR, SUSPICIOUS = math.log(1e2), math.log(0.3)
# Of the rows within three standard deviations of the noise, 8 % lie within a tenth of
# one if the noise is normal, and nearly all if the noise has degenerated.
INSIDE, EXACT, MAX_EXACT = 3.0, 0.1, 0.5


def hyper_range(
    target: Target, has_small_steps: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Lower and upper limits of the point parameters of a target, (H,) each.

    With decreasing step sizes, robust losses need a higher lower limit.
    """
    layout = target.point_layout
    low, high = (end.to(target.hyper.device) for end in layout.limits())
    if has_small_steps and _is_robust(target):
        noise = layout.positions(n for n, b in layout.items() if b.role == "noise")
        low[noise] = target.initial_hyper()[noise] - ROBUST_FLOOR
    return low, high


def suspicion(target: Target, hyper: torch.Tensor) -> str:
    """Say that a noise scale decreases with a robust loss, as if degenerating."""
    fallen = hyper - target.initial_hyper().to(hyper.dtype) < SUSPICIOUS
    layout = target.point_layout
    noise = layout.positions(n for n, b in layout.items() if b.role == "noise")
    is_suspicious = _is_robust(target) and bool(fallen[noise].any())
    return f"; a learned scale decreases, too: {RUNAWAY}" if is_suspicious else ""


def runaway_message(
    target: Target, to_zero: torch.Tensor, to_infinity: torch.Tensor
) -> str:
    """Name the learned scales without optimum, and a remedy; empty if there is none.

    Raises NoOptimumError if a noise scale degenerates to 0 with a robust loss.
    """
    floor_remedies = {"noise": target.floor_remedy, "prior": _FLOOR_OF_PRIOR}
    parts = []
    for name, block in target.point_layout.items():
        if block.role not in floor_remedies:
            continue
        if bool(to_zero[block.slice].any()):
            _check_loss(target, name, block.role)
            parts.append(f"{name} degenerates to 0: {floor_remedies[block.role]}")
        elif bool(to_infinity[block.slice].any()):
            parts.append(f"{name} diverges: {_CEILING[block.role]}")
    return "; ".join(parts)


def check_noise(
    target: SupervisedTarget, normal: NormalForm, scale: torch.Tensor
) -> None:
    """Raise NoOptimumError if a robust loss has settled on exactly fitted rows.

    That is, on more than half of those that are not outliers: a meaningless optimum
    near 0, if a hyperprior keeps the noise from reaching 0.
    """
    first = target.likelihood_spec.initial_hyper(target.y)
    if not (_is_robust(target) and target.likelihood_spec.is_location and len(first)):
        return
    if scale.log() > first[0] - ROBUST_FLOOR:
        return
    mean, _ = target.predictor.moments(target.X, normal)
    distance = (target.y - mean).abs() / scale
    n_exact, n_inside = ((distance < bound).sum() for bound in (EXACT, INSIDE))
    if n_exact > MAX_EXACT * n_inside:
        raise NoOptimumError(
            f"With loss={target.loss!r} the noise degenerates to 0: {RUNAWAY}."
        )


def _is_robust(target: Target) -> bool:
    """Whether the loss is not the log loss: a learned noise may have no optimum."""
    return isinstance(target, SupervisedTarget) and not target.loss.is_log_loss


def _check_loss(target: Target, name: str, kind: str) -> None:
    if kind == "noise" and isinstance(target, SupervisedTarget) and _is_robust(target):
        raise NoOptimumError(
            f"With loss={target.loss!r} the {name} degenerates to 0: {RUNAWAY}."
        )


RUNAWAY = (
    "if some rows are fitted exactly, as equal targets are, a robust loss has no "
    "minimum, and the result would be meaningless. Fix the scale (such as "
    "noise_scale=0.5), use loss='log', or an order closer to 1"
)
_FLOOR_OF_PRIOR = (
    "with these data the evidence is largest without any effect of the features; give "
    "the prior a number for its scale, or leave the features out"
)
_CEILING = {
    "noise": "the model explains nothing; standardize the target, or fix it at a "
    "number",
    "prior": "the data set no limit to the size of the coefficients (features of a "
    "tiny unit, or classes that can be separated); standardize the features, or give "
    "the prior a number for its scale",
}
