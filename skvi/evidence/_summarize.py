"""The result computed from two sets of log weights."""

import math

import torch

from skvi._sampling._diagnostics import (
    MAX_RHAT,
    effective_sample_size,
    khat_limit,
    pareto_khat,
)
from skvi.evidence._estimates import (
    Estimate,
    bridge_estimate,
    finite_sample_bounds,
    forward_bound,
    missing_distance,
    reverse_bound,
)
from skvi.evidence._fit_checks import lower_bound
from skvi.evidence._named import ALWAYS, BoundsTable
from skvi.evidence._remedies import remedy, with_remedy, with_width
from skvi.evidence._result import REFUTED, EvidenceBounds
from skvi.evidence._sides import NEARLY_CONSTANT, Sides
from skvi.evidence._table import build_table, elbo_row
from skvi.evidence._weights import summarize_weights
from skvi.posteriors import Posterior
from skvi.targets import Target
from skvi.utils._log_space import log_mean_exp

__all__ = ["summarize", "without_bounds"]

LEVEL = 0.95
ROUNDING = 1e-9  # nats


def summarize(
    target: Target,
    posterior: Posterior,
    sides: Sides,
    generator: torch.Generator,
    quantity: str,
) -> EvidenceBounds:
    """Bounds, estimate, diagnostics and table of two sets of log weights."""
    forward, reverse, chains = sides.forward, sides.reverse, sides.chains
    signed = (forward, -reverse.flatten())
    khats = (pareto_khat(signed[0]), pareto_khat(signed[1]))
    if target.layout.is_finite:  # weights are bounded, and many are equal
        khats = (-math.inf, -math.inf)
    unseen = (_unseen_tail(khats[0], signed[0]), _unseen_tail(khats[1], signed[1]))
    lower, lower_se = forward_bound(forward, sides.k_below)
    upper, upper_se = reverse_bound(reverse, sides.k_above)
    lower_se, upper_se = lower_se + unseen[0], upper_se + unseen[1]
    if sides.method == "importance":  # weights of paths are never so constant
        if sides.k_below == 1 or sides.is_block_larger:
            lower -= missing_distance(signed[0], sides.k_below, lower_se)
        if sides.k_above == 1:
            upper += missing_distance(signed[1], sides.k_above, upper_se)
    both = Estimate(lower, lower_se), Estimate(upper, upper_se)
    inverse_weights = torch.exp(reverse.min() - reverse)
    ess_chains = float(effective_sample_size(inverse_weights[..., None])[0])
    bridge = bridge_estimate(forward, sides.bridge, max(ess_chains, 2.0))
    reasons = _why_not(
        khats,
        unseen,
        (len(forward), reverse.numel()),
        chains.rhat,
        lower - upper,
        math.hypot(lower_se, upper_se),
    )
    elbo = elbo_row(lower_bound(target, posterior, generator))
    if elbo.holds == ALWAYS and elbo.value > upper + REFUTED * upper_se + ROUNDING:
        excess = elbo.value - upper
        reasons.append(f"the exact ELBO lies {excess:.3g} nats above the upper bound")
    reason = with_remedy(reasons, remedy(target, sides.is_cut, sides.error))
    finite = finite_sample_bounds(forward, reverse, LEVEL)
    weights = torch.softmax(forward, 0)
    found = EvidenceBounds(
        lower=lower,
        upper=upper,
        lower_se=lower_se,
        upper_se=upper_se,
        estimate=bridge.value,
        gap=upper - lower,
        ess=float(1 / weights.square().sum()),
        khat=max(khats),
        reliable=not reason,
        reason=reason or _say_valid(target),
        method=sides.method,
        quantity=quantity,
        table=build_table(
            target, posterior, sides, both, bridge, finite, elbo, generator
        ),
        weights=summarize_weights(forward, reverse),
    )
    return with_width(found, sides.error, sides.is_cut)


def without_bounds(
    target: Target,
    posterior: Posterior,
    generator: torch.Generator,
    quantity: str,
    reason: str,
) -> EvidenceBounds:
    """Result with the ELBO only, and the reason why no bounds were computed."""
    elbo = elbo_row(lower_bound(target, posterior, generator))
    return EvidenceBounds(
        lower=-math.inf,
        upper=math.inf,
        lower_se=0.0,
        upper_se=0.0,
        estimate=math.nan,
        gap=math.inf,
        ess=0.0,
        khat=math.nan,
        reliable=False,
        reason=reason,
        method="none",
        quantity=quantity,
        table=BoundsTable({"ELBO of q": elbo}),
    )


IF_MIXED = "the upper bound is valid if the chains have mixed: they start at the fit, "
FROM_PRIOR = (
    "in the prior, and where the likelihood is large if the prior's peak may hide that"
)
FROM_CONCAVE = (
    "and in a normal three times as wide, and at a given scale of the prior there is "
    "only one mode"
)
FROM_SCALES = "and in wider distributions at all likely scales of the prior"
FROM_FIT = "and in a normal three times as wide, which need not reach other modes"

FROM_Q = "and go to its draws, which need not reach what it has no probability for"


def _say_valid(target: Target) -> str:
    """On what the validity of the upper bound depends: where the chains started."""
    if target.layout.discrete:
        return IF_MIXED + FROM_Q
    if target.is_log_concave:
        return IF_MIXED + FROM_CONCAVE
    if target.has_design and target.reference.n_unknown_scales == 1:
        return IF_MIXED + FROM_SCALES
    is_near = target.prior is None or target.starts_near_fit
    return IF_MIXED + (FROM_FIT if is_near else FROM_PRIOR)


def _unseen_tail(khat: float, log_weights: torch.Tensor) -> float:
    """Error for the unseen tail of nearly constant weights, or 0.

    A tail beyond n draws adds about ``M / (n (1 - k))`` to the mean, M the largest
    weight. 1 - k is left out: a missing tail never makes a bound too tight.
    """
    n = len(log_weights)
    if khat <= khat_limit(n) or not math.isfinite(khat):
        return 0.0
    largest = float(log_weights.max() - log_mean_exp(log_weights))
    return NEARLY_CONSTANT / n if largest < math.log(NEARLY_CONSTANT) else 0.0


def _why_not(
    khats: tuple[float, float],
    unseen: tuple[float, float],
    n_draws: tuple[int, int],
    rhat: float,
    crossing: float,
    error: float,
) -> list[str]:
    """List every failed diagnostic."""
    reasons = []
    both = zip(khats, unseen, n_draws, ("lower", "upper"), strict=True)
    for khat, tail, n, side in both:
        if not (khat <= khat_limit(n) or tail > 0):
            reasons.append(
                f"the weights of the {side} bound are too heavy-tailed "
                f"(Pareto k {khat:.2f}, at most {khat_limit(n):.2f} is allowed)"
            )
    if not rhat <= MAX_RHAT:
        reasons.append(
            f"the MCMC chains disagree (R-hat {rhat:.2f}, at most "
            f"{MAX_RHAT} is allowed)"
        )
    if crossing > 4 * error + ROUNDING:
        reasons.append(f"the two bounds cross by {crossing:.3g} nats")
    return reasons
