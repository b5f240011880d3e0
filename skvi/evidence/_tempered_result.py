"""The result of the two bounds of a tempered run."""

import math

import torch

from skvi._sampling._diagnostics import MAX_RHAT, effective_sample_size
from skvi.evidence._estimates import Estimate
from skvi.evidence._fit_checks import lower_bound
from skvi.evidence._named import NEVER, PROBABLE, BoundsTable, NamedBound
from skvi.evidence._remedies import remedy, with_remedy, with_width
from skvi.evidence._result import REFUTED, EvidenceBounds
from skvi.evidence._stepping import (
    ladder_bridge,
    tail_limit,
    tail_shape,
)
from skvi.evidence._summarize import LEVEL, ROUNDING
from skvi.evidence._table import (
    EXPECTED,
    IF_EXACT,
    elbo_row,
    rows_of_chains,
    upper_exists,
)
from skvi.evidence._tempered import (
    MIN_TRIPS,
    TemperedSides,
    mean_and_error,
)
from skvi.posteriors import Posterior
from skvi.targets import Target

__all__ = ["summarize_tempered"]

# Nats below the chains at which particles from the prior are mentioned.
FAR = 2.0
IF_MIXED = (
    "both bounds are valid if the chains have mixed: they came {:.3g} times per system "
    "from {} to the posterior, and agree on fitted values and on the log joint "
    "density (R-hat {:.3f})"
)
UNCONFIRMED = (
    "; particles, whose bound needs no mixing, show no more than {:.4g} nats: few of "
    "them find what the chains have found"
)


@torch.no_grad()
def summarize_tempered(
    target: Target,
    posterior: Posterior,
    sides: TemperedSides,
    generator: torch.Generator,
    quantity: str,
) -> EvidenceBounds:
    """Bounds, estimate, diagnostics and table of a tempered run."""
    draws, betas = sides.draws, sides.draws.ladder.betas
    below, above = mean_and_error(sides.below), mean_and_error(sides.above)
    bridge = ladder_bridge(draws.log_weights, betas)
    if not sides.effort.is_precise:
        below, above = _of_few_systems(below, above, bridge.value)
    khat = tail_shape(draws.log_weights, betas)
    elbo = elbo_row(lower_bound(target, posterior, generator))
    reasons = _why_not(sides, below, above, khat)
    reason = with_remedy(reasons, remedy(target, sides.is_cut, sides.error))
    valid = IF_MIXED.format(draws.round_trips, sides.effort.origin, sides.rhat)
    floor = mean_and_error(sides.particles).value
    valid += UNCONFIRMED.format(floor) if floor < below.value - FAR else ""
    ess = effective_sample_size(draws.chains.log_joint[..., None])
    found = EvidenceBounds(
        lower=below.value,
        upper=above.value,
        lower_se=below.se,
        upper_se=above.se,
        estimate=bridge.value,
        gap=above.value - below.value,
        ess=float(ess[0]),
        khat=khat,
        reliable=not reason,
        reason=reason or valid,
        method="tempering",
        quantity=quantity,
        table=_table(target, posterior, sides, (below, above), bridge, elbo),
    )
    return with_width(found, sides.error, sides.is_cut)


def _of_few_systems(
    below: Estimate, above: Estimate, estimate: float
) -> tuple[Estimate, Estimate]:
    """Both bounds with the larger error, and at least two of it from an estimate.

    Errors of the same systems differ by chance, and blocks have a least length.
    """
    error = max(below.se, above.se)
    low, high = estimate - 2 * error, estimate + 2 * error
    low, high = min(below.value, low), max(above.value, high)
    return Estimate(low, error), Estimate(high, error)


def _why_not(
    sides: TemperedSides,
    below: Estimate,
    above: Estimate,
    khat: float,
) -> list[str]:
    """List every failed diagnostic."""
    reasons, trips = [], sides.draws.round_trips
    values = (*below, *above)
    if not all(math.isfinite(value) for value in values):
        return ["a bound is not finite: the ladder of temperatures has a gap"]
    if not sides.rhat <= MAX_RHAT:
        reasons.append(
            f"the MCMC chains disagree on fitted values or on the log joint density "
            f"(R-hat {sides.rhat:.2f}, at most {MAX_RHAT} is allowed)"
        )
    if trips < MIN_TRIPS:
        reasons.append(
            f"chains came only {trips:.2g} times per system from "
            f"{sides.effort.origin} to the posterior, so that modes in which none of "
            "them started may be missing"
        )
    limit = tail_limit(sides.draws.log_weights)
    if not khat <= limit:
        reasons.append(
            "the weights between neighboring temperatures are too heavy-tailed (Pareto "
            f"k {khat:.2f}, at most {limit:.2f} is allowed)"
        )
    crossing, error = below.value - above.value, math.hypot(below.se, above.se)
    if crossing > REFUTED * error + ROUNDING:
        reasons.append(f"the two bounds cross by {crossing:.3g} nats")
    floor = mean_and_error(sides.particles)
    excess, error = floor.value - above.value, math.hypot(floor.se, above.se)
    if excess > REFUTED * error + ROUNDING:
        reasons.append(
            f"particles from the prior lie {excess:.3g} nats above the upper bound: "
            "the chains miss a part of the posterior"
        )
    halves = (0.5 * (sides.below + sides.above)).reshape(2, -1)
    between = float(halves.mean(1).diff().abs())
    # Twice the error of the mean of all, without what is between.
    error = 2 * mean_and_error((halves - halves.mean(1, keepdim=True)).flatten()).se
    if between > REFUTED * error + ROUNDING:
        reasons.append(
            "chains that started in a resampled population and chains that came down "
            f"from the start alone differ by {between:.3g} nats"
        )
    return reasons


def _table(
    target: Target,
    posterior: Posterior,
    sides: TemperedSides,
    both: tuple[Estimate, Estimate],
    bridge: Estimate,
    elbo: NamedBound,
) -> BoundsTable:
    """Every bound with the sense in which it is valid."""
    draws, penalty = sides.draws, -math.log(1 - LEVEL)
    exists = upper_exists(target)
    rows = {"ELBO of q": elbo}
    rows["particles"] = NamedBound(*mean_and_error(sides.particles), "lower", EXPECTED)
    # All of R independent estimates exceed log Z + b with probability exp(-R b).
    sure = float(sides.particles.min()) - penalty / len(sides.particles)
    holds = "holds with 95 % probability"
    rows["lower, 95 %"] = NamedBound(sure, 0.0, "lower", holds, holds=PROBABLE)
    rows["tempered chains, lower"] = NamedBound(*both[0], "lower", IF_EXACT)
    rows["bridge"] = NamedBound(
        *bridge, "estimate", "consistent, not a bound", holds=NEVER
    )
    rows["tempered chains, upper"] = NamedBound(*both[1], "upper", IF_EXACT)
    rows.update(rows_of_chains(draws.chains, posterior, exists))
    return BoundsTable(rows)
