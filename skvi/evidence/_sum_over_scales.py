"""One unknown scale, integrated over by quadrature between bounds at known ones.

Where parameters and scale together are far from normal, as with classes that few rows
separate, the posterior at each scale is log-concave nevertheless.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch

from skvi.evidence._clock import UNLIMITED, Clock
from skvi.evidence._named import NamedBound
from skvi.evidence._result import EvidenceBounds
from skvi.evidence._table import EXPECTED, BoundsTable
from skvi.targets import SupervisedTarget
from skvi.utils._device import CPU

__all__ = ["bound_over_scales"]

# Steps of the log scale: a fraction of its posterior deviation, by a parabola through
# points a trial apart, within these limits. The sum ends where the rest of the mass,
# whose tails are exponential, is small; that, and the difference from the sum over
# every second node, widen the bounds.
TRIAL, FRACTION, SHORTEST, LONGEST = 0.3, 0.7, 1e-3, 0.7
REST, MAX_NODES = 1e-4, 40
# Scales of less mass decide nothing about what is reliable.
NO_MASS = 1e-3

Bound = Callable[[SupervisedTarget], EvidenceBounds]


def bound_over_scales(
    target: SupervisedTarget,
    center: float,
    bound: Bound,
    table: BoundsTable,
    clock: Clock = UNLIMITED,
) -> EvidenceBounds | None:
    """Integrate lower and upper bounds over the one unknown scale of a prior.

    ``p(D) = integral p(log s) p(D | log s) d log s``: a sum of positive terms, so that
    bounds of each are bounds of all.

    Parameters
    ----------
    target : SupervisedTarget
        Without hyperparameters, that `has_unknown_scale`.
    center : float
        A likely log scale.
    bound : callable
        Bounds of a target under a prior of a known scale.
    table : BoundsTable
        What is known of the fit; the sums are added to it.
    clock : Clock, default=UNLIMITED

    Returns
    -------
    EvidenceBounds or None
        None if the seconds were over before all terms were known.
    """

    def at(log_scale: float) -> EvidenceBounds:
        known = target.prior.given_scale(math.exp(log_scale))
        found = bound(target.with_prior(known))
        like = torch.tensor(log_scale, dtype=torch.float64, device=CPU)
        return _shifted(found, float(target.prior.log_density_of_scale(like)))

    first = at(center)
    if first.method == "none":  # it would take too long
        return first
    around = []
    for trial in (-TRIAL, TRIAL):
        if clock.left() == 0.0:
            return None
        around.append(at(center + trial))
    values = [found.estimate for found in (around[0], first, around[1])]
    curvature = max(2 * values[1] - values[0] - values[2], 1e-9)
    step = min(max(FRACTION * TRIAL * curvature**-0.5, SHORTEST), LONGEST)
    found = {0: first}
    for sign in (-1, 1):
        for i in range(sign, sign * MAX_NODES, sign):
            if clock.left() == 0.0:
                return None
            found[i] = at(center + i * step)
            if not found[i].estimate >= _log_sum(found.values()) + math.log(REST):
                break
    return _sum(found, step, table)


def _log_sum(found: Iterable[EvidenceBounds]) -> float:
    values = torch.tensor([f.estimate for f in found], dtype=torch.float64, device=CPU)
    return float(torch.logsumexp(values, 0))


def _shifted(found: EvidenceBounds, shift: float) -> EvidenceBounds:
    return replace(
        found,
        lower=found.lower + shift,
        upper=found.upper + shift,
        estimate=found.estimate + shift,
    )


def _sum(
    nodes: dict[int, EvidenceBounds], step: float, table: BoundsTable
) -> EvidenceBounds:
    """Bounds of the sum from those of its terms, which are independent."""
    found = list(nodes.values())
    every_second = [f for i, f in nodes.items() if i % 2 == 0]
    coarse = math.log(2) + _log_sum(every_second)
    error = abs(_log_sum(found) - coarse) + 2 * REST

    def total(name: str) -> tuple[float, torch.Tensor]:
        values = torch.tensor(
            [getattr(f, name) for f in found], dtype=torch.float64, device=CPU
        )
        return float(torch.logsumexp(values, 0)) + math.log(step), values.softmax(0)

    lower, share_below = total("lower")
    upper, share_above = total("upper")
    estimate, share = total("estimate")
    lower, upper = lower - error, upper + error
    errors = [
        math.sqrt(sum((float(p) * getattr(f, name)) ** 2 for p, f in pairs))
        for name, pairs in (
            ("lower_se", zip(share_below, found, strict=True)),
            ("upper_se", zip(share_above, found, strict=True)),
        )
    ]
    ends = min(nodes), max(nodes)  # where the sum was ended must be known, too
    counted = [
        f
        for p, (i, f) in zip(share, nodes.items(), strict=True)
        if p > NO_MASS or i in ends
    ]
    worst = next((f for f in counted if not f.reliable), counted[0])
    rows = {
        **table,
        "IW-ELBO": NamedBound(lower, errors[0], "lower", EXPECTED),
        "IW-EUBO": NamedBound(upper, errors[1], "upper", EXPECTED),
    }
    return replace(
        worst,
        lower=lower,
        upper=upper,
        lower_se=errors[0],
        upper_se=errors[1],
        estimate=estimate,
        gap=upper - lower,
        ess=min(f.ess for f in counted),
        khat=max(f.khat for f in counted),
        table=BoundsTable(rows),
        weights={},
    )
