"""Checks of a user's log density before its fit: what is wrong, and what helps."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from skvi.base import NormalForm
from skvi.targets._density import (
    FAILURES,
    DensityTarget,
    RowsDensityTarget,
    parts,
    unchecked,
)
from skvi.targets._maps import SUPPORTS
from skvi.utils._tensors import make_generator, rand

# Relative difference of log densities of one draw, alone and among others.
ROUNDING = 1e-6
# Nats by which sums over halves of the rows may differ, and relative to rounding.
NATS, ROUNDING_OF_SUMS = 1e-3, 1e4
# Points where gradients are compared, beyond the number of parameters; they are
# uniform in this range, as the starts of a fit.
N_POINTS, RANGE = 32, 2.0
# Fraction of points that may have no density, and smallest share of a gradient, of one
# by differences.
FEW, FLAT, FLAT_DIFFERENCES = 0.05, 1e-12, 1e-7
# Nats, in the mean of draws, that rounding may change a density by.
ROUNDED = 0.003
# Powers of ten of deviations, between which a density with an integral falls by log 10.
POWERS = range(2, 7)
# Parameters up to which constant directions are searched.
MAX_PARAMS = 300
# A flat density is proper on others.
UNBOUNDED = [SUPPORTS[k] for k in ("real", "positive", "ordered", "positive_ordered")]
#: Supports that may have been forgotten, the simpler one first.
FORGOTTEN = {"positive": torch.exp, "unit_interval": torch.sigmoid}


def check_density(
    target: DensityTarget, few: torch.Tensor, center: torch.Tensor | None = None
) -> None:
    """Raise a ValueError if a density cannot be fitted, with its cause and a remedy.

    `few`: some points, whose discrete coordinates have a probability. `center`: around
    which others are tried, in place of 0.
    """
    generator = make_generator(0)
    n_points = N_POINTS + min(target.layout.size, MAX_PARAMS)
    theta = few.repeat(-(-n_points // len(few)), 1)[:n_points]
    smooth = target.layout.positions(target.layout.without(*target.layout.discrete))
    theta[:, smooth] = RANGE * (2 * rand(generator, n_points, len(smooth)) - 1)
    if center is not None:
        theta[:, smooth] += center
        few[:, smooth] += center
        few[0, smooth] = center
    _check_prior(target, few)
    few = _where_it_works(target, few, theta)
    with torch.no_grad():
        _check_result(_call(target, target.constrain(few)[0]), len(few))
        _check_alone(target, few)
        if isinstance(target, RowsDensityTarget):
            _check_rows(target, few)
    _check_finite(target, theta)
    found = _with_gradient(target, values := _named(target, few))
    target.is_differentiable = found is not None
    if found is None:
        _check_differences(target, theta)
    else:
        _check_use(target, values, found)
    if len(smooth) <= MAX_PARAMS:
        _check_directions(target, theta, smooth)


@torch.no_grad()
def _where_it_works(
    target: DensityTarget, few: torch.Tensor, theta: torch.Tensor
) -> torch.Tensor:
    """Points at which a density does not fail; its error if it fails at all."""
    try:
        _call(target, target.constrain(few)[0])
    except FAILURES as error:
        if isinstance(error.__cause__, TypeError):  # of its data, at every point
            raise
        found: Any = None
        with suppress(*FAILURES):
            found = _call(target, target.constrain(few[:1])[0])
        if found is not None:
            _check_result(found, 1)
        every = torch.cat([few, theta])
        works = target.log_joint(every) > -math.inf
        if not works.any():
            raise
        return every[works][: len(few)]
    return few


def _named(target: DensityTarget, theta: torch.Tensor) -> dict[str, torch.Tensor]:
    """Parameters on their supports, from which gradients are taken."""
    values, _ = target.constrain(theta.detach())
    return {
        name: value.requires_grad_() if value.is_floating_point() else value
        for name, value in values.items()
    }


def _call(target: DensityTarget, values: Mapping[str, torch.Tensor]) -> Any:
    """The log density; errors of arrays where torch needs tensors are explained."""
    try:
        with unchecked():
            return target.evaluate(values)
    except (TypeError, ValueError) as error:
        if not any(isinstance(part, np.ndarray) for part in parts(target.data)):
            raise
        raise ValueError(
            f"log_density raised {str(error)!r}. Data are passed to it as they are, "
            "and hold numpy arrays: pass tensors, by torch.from_numpy, or convert "
            "them in log_density."
        ) from error


def _check_result(found: Any, n_draws: int) -> None:
    """Whether it is one number a draw."""
    wanted = (n_draws,)
    if not isinstance(found, torch.Tensor) or tuple(found.shape) != wanted:
        got = tuple(getattr(found, "shape", ())) or type(found).__name__
        raise ValueError(
            "log_density gets a dict of tensors of shape (n_draws, *shape) and must "
            f"return one number a draw, of shape {wanted} for {n_draws} draws, or a "
            f"dict of such factors. Got {got}. Sum over all other axes; a density of "
            "one draw takes vectorize=True."
        )


@torch.no_grad()
def _check_prior(target: DensityTarget, theta: torch.Tensor) -> None:
    """Whether a user's log prior is one number a draw, or one for all, or factors."""
    found: Any = None
    if target.log_prior is not None:
        with suppress(*FAILURES), unchecked():  # other checks say where it fails
            found = target.log_prior(target.constrain(theta)[0])
    shape = tuple(getattr(found, "shape", ()))
    if shape not in ((), (len(theta),)):
        raise ValueError(
            "prior must return one number a draw, of shape "
            f"{(len(theta),)} for {len(theta)} draws. Got {shape}. Sum over all other "
            "axes; a density of one draw takes vectorize=True."
        )


def _with_gradient(
    target: DensityTarget, values: Mapping[str, torch.Tensor]
) -> torch.Tensor | None:
    """The log density, as torch differentiates it; None if it does not."""
    try:
        found = _call(target, values)
        if found.requires_grad:  # the backward pass may fail, too
            inputs = [value for value in values.values() if value.requires_grad]
            torch.autograd.grad(found.sum(), inputs, None, True, allow_unused=True)
    except (RuntimeError, TypeError, ValueError):  # numpy takes no such tensors
        return None
    return found if found.requires_grad or target.layout.is_finite else None


@torch.no_grad()
def _check_differences(target: DensityTarget, theta: torch.Tensor) -> None:
    """Whether all parameters without limits change a density without derivatives."""
    if isinstance(target, RowsDensityTarget):
        raise ValueError(
            "With batch_size log_density must be differentiable in its parameters by "
            "torch: its result has no gradient. Use torch functions throughout, and no "
            "numpy, .item() or .detach(); or leave batch_size out."
        )
    values, _ = target.constrain(theta)
    before = target.density(values)
    for name, transform in target.transforms.items():
        moved = {**values, name: values[name].roll(1, 0)}
        if transform in UNBOUNDED and torch.equal(target.density(moved), before):
            _refuse_unused([name])


def _check_use(
    target: DensityTarget, values: Mapping[str, torch.Tensor], found: torch.Tensor
) -> None:
    """Whether all parameters without limits are in it: their integral is infinite."""
    names = [name for name, t in target.transforms.items() if t in UNBOUNDED]
    if not names or not found.requires_grad:
        return
    inputs = [values[name] for name in names]
    slopes = torch.autograd.grad(found.sum(), inputs, allow_unused=True)
    unused = [n for n, slope in zip(names, slopes, strict=True) if slope is None]
    if unused:
        _refuse_unused(unused)


def _refuse_unused(names: Sequence[str]) -> None:
    raise ValueError(
        f"log_density does not depend on {names} (or not in a way that torch "
        "differentiates), so that its integral over them is infinite. Add the log "
        "density of their prior, or leave them out of shapes."
    )


def _check_alone(target: DensityTarget, theta: torch.Tensor) -> None:
    """Whether every draw is treated alone, and equally every time."""
    alone, among = target.log_joint(theta[:1]), target.log_joint(theta)[:1]
    again = target.log_joint(theta)[:1]
    if not torch.equal(among, again):
        raise ValueError(
            f"log_density is random: two calls with the same parameters return "
            f"{float(among):.6g} and {float(again):.6g}. Let it draw no random "
            "numbers. For minibatches pass batch_size, the log prior as prior, and "
            "a log_density(parameters, rows), the log likelihood of rows of the data."
        )
    if bool((alone - among).abs() > ROUNDING * (1 + alone.abs())):
        raise ValueError(
            "log_density must treat every draw alone: that of the first draw is "
            f"{float(among):.6g} among others, and {float(alone):.6g} alone. Sum over "
            "the axes of a parameter, not over draws (axis 0)."
        )


def _check_rows(target: RowsDensityTarget, theta: torch.Tensor) -> None:
    """Whether the log likelihood is a sum over rows: parts of it add up."""
    values, middle = target.constrain(theta)[0], target.n_rows // 2
    both = target.likelihood(values)
    cuts = (slice(middle), slice(middle, None)) if middle else (slice(None),)
    halves = [target.subset(cut) for cut in cuts]
    found = sum(h.likelihood(values) * (h.n_rows / target.n_rows) for h in halves)
    rounding = ROUNDING_OF_SUMS * torch.finfo(both.dtype).eps * both.abs()
    if bool(((both - found).abs() > NATS + rounding).any()):
        raise ValueError(
            "With batch_size, log_density must be the log likelihood of the rows it "
            f"gets, a sum over them: that of all is {float(both[0]):.6g}, and of two "
            f"halves together {float(found[0]):.6g}. Pass the log prior, and what else "
            "is not of single rows, as prior, and take sums, no means, over rows."
        )


@torch.no_grad()
def _check_finite(target: DensityTarget, theta: torch.Tensor) -> None:
    """Whether it is finite at most points; find out why not."""
    values, _ = target.constrain(theta)

    def missing(supports: Mapping[str, str]) -> int:
        moved = {
            name: FORGOTTEN[supports[name]](value) if name in supports else value
            for name, value in values.items()
        }
        return int((~target.density(moved).isfinite()).sum())

    n_missing = missing({})
    if n_missing <= FEW * len(theta):
        return
    supports: dict[str, str] = {}
    for name, transform in target.transforms.items():
        is_real = torch.equal(values[name], transform.inv(values[name]))
        if is_real and name not in target.layout.discrete:
            counts = {kind: missing({name: kind}) for kind in FORGOTTEN}
            best = min(counts, key=lambda kind: counts[kind])
            if counts[best] < n_missing:
                supports[name] = best
    # A single one may not help where two are needed.
    if supports and missing(supports) <= FEW * len(theta):
        raise ValueError(
            f"log_density is NaN or -inf at {n_missing} of {len(theta)} points, and "
            f"finite if {_listed(supports)}: pass supports={supports} too."
        )
    n_nan = sum(_count_nan(part) for part in parts(target.data))
    if n_nan and n_missing == len(theta):
        raise ValueError(
            f"log_density is NaN or infinite at all points that were tried, and the "
            f"data hold {n_nan} NaN: remove or impute them, or leave them out in "
            "log_density."
        )
    if n_missing == len(theta):
        first = {name: value[0].tolist() for name, value in values.items()}
        number = float(target.density(values)[0])
        raise ValueError(
            f"log_density is NaN or infinite at all {len(theta)} points that were "
            f"tried, such as {number:g} at {str(first)[:200]}. Check its terms there, "
            "and that data hold no NaN; probabilities of 0 have no finite logarithm."
        )


def _listed(supports: Mapping[str, str]) -> str:
    return " and ".join(f"{name!r} is {kind}" for name, kind in supports.items())


def _count_nan(part: Any) -> int:
    try:
        return int(np.isnan(np.asarray(part, dtype=np.float64)).sum())
    except (TypeError, ValueError):
        return 0


def _check_directions(
    target: DensityTarget, theta: torch.Tensor, smooth: torch.Tensor
) -> None:
    """Whether it is constant along a direction: gradients then have a lower rank."""
    slopes = target.log_joint_gradient(theta)[:, smooth]
    slopes = slopes[slopes.isfinite().all(1)]
    if len(slopes) < len(smooth) or not len(smooth):
        return
    size, flat = slopes.norm(dim=0), FLAT
    if not target.is_differentiable:
        if not bool(size.all()):  # it may have steps
            return
        flat = FLAT_DIFFERENCES
    scaled = slopes / torch.where(size > 0, size, 1.0)
    scaled = scaled / scaled.norm(dim=1, keepdim=True).clamp(min=1e-300)
    _, values, rows = torch.linalg.svd(scaled, full_matrices=False)
    if float(values[-1]) > flat * float(values[0]):
        return
    share = rows[-1].abs() / rows[-1].abs().max()
    names = _names_at(target, smooth[share > 0.1])
    what = f"on {names}" if len(names) == 1 else f"on one combination of {names}"
    raise ValueError(
        f"log_density does not depend {what}: it is constant along a direction, and "
        "its integral is infinite. Give all parameters a proper prior, or use fewer."
    )


@torch.no_grad()
def explain_ridge(
    target: DensityTarget, normal: NormalForm, theta: torch.Tensor
) -> str:
    """A direction along which the integral is infinite; empty if none is seen.

    From the center of a normal along the coordinates and its own axes, at the discrete
    values of a draw, theta.
    """
    smooth = target.layout.positions(target.layout.without(*target.layout.discrete))
    if not len(smooth) or len(smooth) > MAX_PARAMS:
        return ""
    normal = normal.marginal(smooth)
    axes = torch.diag(normal.variance.sqrt())
    if not normal.is_diagonal and normal.covariance().isfinite().all():
        values, vectors = torch.linalg.eigh(normal.covariance())
        axes = torch.cat([(vectors * values.clamp(min=0).sqrt()).T, axes])
    axes = torch.cat([axes, -axes])
    steps = 10.0 ** axes.new_tensor(POWERS)[:, None, None]
    points = theta.repeat(len(steps), len(axes), 1)
    points[..., smooth] = normal.mean + steps * axes
    found = target.log_joint(points.flatten(0, 1)).reshape(len(steps), len(axes))
    fall = (found[:-1] - found[1:]).nan_to_num(math.inf).amax(0)
    if float(fall.min()) >= math.log(10):
        return ""
    share = (axes[int(fall.argmin())] / normal.variance.sqrt()).abs()
    names = _names_at(target, smooth[share > 0.1 * share.max()])
    return (
        f"the density does not fall far out along {names}, and its integral is "
        "infinite there; a prior may be missing"
    )


def _names_at(target: DensityTarget, places: Sequence[int]) -> list[str]:
    """Blocks that coordinates belong to."""
    return [
        name
        for name, block in target.layout.items()
        if any(block.slice.start <= int(p) < block.slice.stop for p in places)
    ]


@torch.no_grad()
def lost_digits(target: DensityTarget, theta: torch.Tensor) -> str:
    """Say which parameter's rounding a density depends on; empty if there is none.

    Values near an end of a support, or far from 0, change in the last place.
    """
    values, _ = target.constrain(theta)
    generator = make_generator(0)

    def nudged(x: torch.Tensor) -> torch.Tensor:
        signs = 2 * rand(generator, *x.shape).round() - 1
        return x * (1 + signs.to(x) * torch.finfo(torch.float64).eps)

    def share(names: Sequence[str]) -> float:
        """Share of the density that is another after a change of parameters."""
        moved = {k: nudged(v) if k in names else v for k, v in values.items()}
        change = (_call(target, moved) - _call(target, values)).abs()
        return float(change.nan_to_num(0.0).clamp(max=1.0).mean())

    with suppress(RuntimeError):
        smooth = list(target.layout.without(*target.layout.discrete))
        if share(smooth) < ROUNDED or share([]) > 0:
            return ""
        name = max(smooth, key=lambda name: share([name]))
        return (
            f"log_density loses the digits of {name!r}: it changes by "
            f"{share([name]):.2g} nats in the mean of draws, if its float64 values "
            "change in the last place. Next to 0 numbers have all digits, next to "
            "other ends of a support, such as 1, and far from 0 they do not. Write it "
            "with other parameters, such as the distance from that end"
        )
    return ""
