"""One unknown scale, integrated over by quadrature between bounds at known ones."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from skvi.evidence._fit_checks import lower_bound
from skvi.evidence._named import NamedBound
from skvi.evidence._result import EvidenceBounds
from skvi.evidence._table import EXPECTED, BoundsTable, elbo_row
from skvi.posteriors import Posterior
from skvi.solvers import implied_scale
from skvi.targets import SupervisedTarget, Target
from skvi.utils._device import CPU

__all__ = ["bound_over_scales", "has_unknown_scale"]

# Steps of the log scale: most of its posterior deviation, by a parabola, within
# these limits. The trapezoidal rule is then exact to a thousandth of a nat. It ends
# where the rest of the mass, whose tails are exponential, is less than that.
TRIAL, SHORTEST, LONGEST, REST, MAX_NODES = 0.5, 0.08, 0.8, 1e-4, 40
# Scales of less mass decide nothing about what is reliable.
NO_MASS = 1e-3

Bound = Callable[[SupervisedTarget], EvidenceBounds]


def has_unknown_scale(target: Target) -> bool:
    """Whether the evidence is one integral over evidences at known scales."""
    return target.has_design and target.reference.n_unknown_scales == 1


def bound_over_scales(
    target: SupervisedTarget,
    posterior: Posterior,
    generator: torch.Generator,
    bound: Bound,
) -> EvidenceBounds:
    """Integrate lower and upper bounds over the one unknown scale of a prior.

    ``p(D) = integral p(log s) p(D | log s) d log s``: a sum of positive terms, so that
    bounds of each are bounds of all.

    Parameters
    ----------
    target : SupervisedTarget
        Without hyperparameters, that `has_unknown_scale`.
    posterior : Posterior
        It says where the scale is about, and what its own ELBO is.
    generator : torch.Generator
    bound : callable
        Bounds of a target under a prior of a known scale.

    Returns
    -------
    EvidenceBounds
    """
    normal = posterior.components[0].as_normal()
    center = 0.0 if normal is None else math.log(implied_scale(target.prior, normal)[0])

    def at(log_scale: float) -> EvidenceBounds:
        known = target.prior.given_scale(math.exp(log_scale))
        found = bound(target.with_prior(known))
        shift = target.prior.log_density_of_scale(log_scale)
        return _shifted(found, shift)

    nodes = {d: at(center + d) for d in (-TRIAL, 0.0, TRIAL)}
    values = [found.estimate for found in nodes.values()]
    bend = max(2 * values[1] - values[0] - values[2], 1e-9)
    step = min(max(0.8 * TRIAL * bend**-0.5, SHORTEST), LONGEST)
    found = [nodes[0.0]]
    for sign in (-1, 1):
        for i in range(1, MAX_NODES):
            found.append(at(center + sign * i * step))
            total = torch.logsumexp(
                torch.tensor([f.estimate for f in found], device=CPU), 0
            )
            if found[-1].estimate < float(total) + math.log(REST):
                break
    return _sum(found, step, target, posterior, generator)


def _shifted(found: EvidenceBounds, shift: float) -> EvidenceBounds:
    return replace(
        found,
        lower=found.lower + shift,
        upper=found.upper + shift,
        estimate=found.estimate + shift,
    )


def _sum(
    found: list[EvidenceBounds],
    step: float,
    target: SupervisedTarget,
    posterior: Posterior,
    generator: torch.Generator,
) -> EvidenceBounds:
    """Bounds of the sum from those of its terms, which are independent."""

    def total(name: str) -> tuple[float, torch.Tensor]:
        values = torch.tensor(
            [getattr(f, name) for f in found], dtype=torch.float64, device=CPU
        )
        return float(torch.logsumexp(values, 0)) + math.log(step), values.softmax(0)

    lower, share_below = total("lower")
    upper, share_above = total("upper")
    estimate, share = total("estimate")
    errors = [
        math.sqrt(sum((float(p) * getattr(f, name)) ** 2 for p, f in pairs))
        for name, pairs in (
            ("lower_se", zip(share_below, found, strict=True)),
            ("upper_se", zip(share_above, found, strict=True)),
        )
    ]
    counted = [f for p, f in zip(share, found, strict=True) if p > NO_MASS]
    worst = next((f for f in counted if not f.reliable), counted[0])
    rows = {
        "ELBO of q": elbo_row(lower_bound(target, posterior, generator)),
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
