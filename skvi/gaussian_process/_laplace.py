"""The integral over hyperparameters, by one of them at a time: no bound.

Their logarithms are normal a priori, or uniform between their limits. Laplace's method
has a normal of the curvature at the optimum; its independent directions are kept here,
and the density is followed along each, to the limits: logarithms on which the rows tell
nothing beyond a point have no normal shape.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import ndtr

from skvi.evidence._summarize import PATH_SECONDS
from skvi.evidence._table import NEVER, NamedBound
from skvi.gaussian_process._search import Place
from skvi.utils._interrupts import Clock, OutOfTime, check_time

# Step of a logarithm for differences of slopes: widths of posteriors are larger.
STEP = 0.05
# Steps along a direction, of the inverse hyperbolic sine of deviations, and nats below
# the optimum at which they end.
SPACING, END = 0.5, 15.0
APPROXIMATE = "an approximation (Laplace) for the learned {}, no bound"
NO_LIMITS = "unknown: without finite limits the learned {} have no proper prior"
NO_SECONDS = "unknown: the seconds ended before Laplace's method for the learned {}"
SINGULAR = "unknown: beside the learned {} covariances are singular"


@dataclass(frozen=True, eq=False)
class LogPrior:
    """Normals of logarithms, (H,), that are uniform where deviations are infinite."""

    middle: torch.Tensor
    deviation: torch.Tensor

    def __call__(self, theta: torch.Tensor) -> torch.Tensor:
        """Log density, up to a constant."""
        return -0.5 * ((theta - self.middle) / self.deviation).square().sum()

    def log_constant(self, bounds: np.ndarray) -> float:
        """Log of the integral of its exponential between limits, (H, 2)."""
        deviation = self.deviation.numpy()[:, None]
        is_normal = np.isfinite(deviation[:, 0])
        scaled = ((bounds - self.middle.numpy()[:, None]) / deviation)[is_normal]
        size = deviation[is_normal] * math.sqrt(2 * math.pi)
        sizes = size * np.diff(ndtr(scaled)), np.diff(bounds[~is_normal])
        return float(np.log(np.concatenate(sizes)).sum())


def row_over_learned(
    value: float,
    names: str,
    objective: Any,
    place: Place,
    bounds: np.ndarray,
    max_seconds: float | None,
) -> NamedBound:
    """Row of the log evidence over hyperparameters, from its value at their optimum.

    `objective` is the log joint density, which was maximized at a place within bounds,
    (H, 2). The value is NaN where there is none.
    """
    clock = Clock(PATH_SECONDS if max_seconds is None else max_seconds)
    term, says = math.nan, APPROXIMATE
    if not np.isfinite(bounds).all():
        says = NO_LIMITS
    else:
        try:
            with clock.enforced():
                term = laplace_term(objective, place, bounds)
        except OutOfTime:
            says = NO_SECONDS
        except (np.linalg.LinAlgError, torch.linalg.LinAlgError):
            says = SINGULAR
    says = says.format(names)
    return NamedBound(value + term, 0.0, "estimate", says, holds=NEVER)


def laplace_term(objective: Any, place: Place, bounds: np.ndarray) -> float:
    """Log of the mean likelihood under the prior, relative to that at the optimum."""
    theta, prior = place.theta, objective.log_prior

    def log_joint(at: np.ndarray) -> float:
        check_time()
        with torch.no_grad():
            return float(objective(torch.from_numpy(at), place.Z))

    top, log_integral = log_joint(theta), 0.0
    for i, line in enumerate(_directions(objective, place, bounds).T):
        ends = (bounds[i] - theta[i]) / line[i]
        halves = [
            _integral(
                lambda u, line=line: (
                    log_joint((theta + np.sinh(u) * line).clip(*bounds.T)) - top
                ),
                math.asinh(end),
            )
            for end in ends
        ]
        log_integral += math.log(line[i] * sum(halves))
    density = float(prior(torch.from_numpy(theta))) - prior.log_constant(bounds)
    return log_integral + density


def _integral(log_ratio: Callable[[float], float], end: float) -> float:
    """Integral of a density from the optimum to a limit, in deviations."""
    n_steps = math.ceil(abs(end) / SPACING)
    nodes, values = [0.0], [1.0]
    for u in np.linspace(0.0, end, n_steps + 1)[1:]:
        value = log_ratio(u)
        nodes.append(u)
        values.append(math.exp(value) * math.cosh(u))
        if value < -END:
            break
    return abs(float(np.trapezoid(values, nodes)))


def _directions(objective: Any, place: Place, bounds: np.ndarray) -> np.ndarray:
    """Root of the inverse curvature, lower triangular, (H, H): a column for each.

    A column moves one logarithm by a deviation, and those after it as they follow.
    """
    theta, deviation = place.theta, objective.log_prior.deviation.numpy()

    def slope_at(at: np.ndarray) -> np.ndarray:
        check_time()
        point = torch.from_numpy(at).requires_grad_()
        with torch.enable_grad():
            joint = objective(point, place.Z)
            found: np.ndarray = torch.autograd.grad(joint, point)[0].numpy()
        return found

    slope, eye = slope_at(theta), np.eye(len(theta))
    steps = STEP * eye
    curvature = [slope_at(theta - s) - slope_at(theta + s) for s in steps]
    curvature = np.array(curvature) / (2 * STEP)
    # A range has the width of a normal of equal density; a slope is that at a limit.
    ranges = np.diff(bounds)[:, 0] / math.sqrt(2 * math.pi)
    widths = np.minimum(deviation, ranges)
    curvature += np.diag(slope**2 + np.where(widths < deviation, widths**-2.0, 0.0))
    relative = 0.5 * (curvature + curvature.T) * np.outer(widths, widths)
    values, vectors = np.linalg.eigh(relative)
    # No direction is wider than the prior: rounding and searches that end early.
    inverse = (vectors / values.clip(min=1.0)) @ vectors.T
    root: np.ndarray = np.linalg.cholesky(inverse * np.outer(widths, widths))
    return root
