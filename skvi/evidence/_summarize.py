"""The result computed from two sets of log weights, what it rests on, what helps."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import torch

from skvi._sampling._importance import (
    MAX_RHAT,
    WeightedDraws,
    effective_sample_size,
    khat_limit,
    pareto_khat,
)
from skvi.base import Draw
from skvi.divergences import KLDivergence
from skvi.evidence._estimates import (
    NEARLY_CONSTANT,
    Estimate,
    Sides,
    bridge_estimate,
    error_of,
    finite_sample_bounds,
    forward_bound,
    missing_distance,
    reverse_bound,
)
from skvi.evidence._result import REFUTED, ROUNDING, EvidenceBounds
from skvi.evidence._table import ALWAYS, BoundsTable, build_table, elbo_row
from skvi.objectives.base import Objective
from skvi.posteriors import Posterior
from skvi.targets import SupervisedTarget, Target
from skvi.targets._hierarchical import base_prior
from skvi.utils._tensors import log_mean_exp

# Draws for the bound of posteriors without a closed form, and for the weights.
BOUND_DRAWS = 1000
WEIGHT_DRAWS = 128
# Maximum number of elements of draws in memory.
BLOCK_ELEMENTS = 2**23


@torch.no_grad()
def lower_bound(
    target: Target,
    posterior: Posterior,
    generator: torch.Generator,
    n_draws: int = BOUND_DRAWS,
) -> Estimate:
    """ELBO (KL, weight 1) of a fitted posterior in nats, and its standard error.

    The error is 0 for closed forms and quadrature, else that of `n_draws` log weights.
    Stored samples are used once.
    """
    normal, kl = posterior.as_normal(), KLDivergence()
    if target.has_design and normal is not None:
        if kl.has_closed_form(target.reference):
            linear = cast(SupervisedTarget, target)
            loss = linear.expected_loss_terms(normal)[0]
            value = -float(loss + kl.closed_form(normal, target.reference))
            return Estimate(value, 0.0)
    if target.has_density:
        n_draws = min(n_draws, posterior.n_stored or n_draws)
        log_weights = _log_weights(target, posterior.draw, n_draws, generator)
    else:
        log_weights = target.elbo_draws(posterior, n_draws, generator)
    # Two stored samples, from opposed noise, count as one.
    n_independent = len(log_weights) / (2 if posterior.n_stored else 1)
    error = float(log_weights.std()) / n_independent**0.5
    return Estimate(float(log_weights.mean()), error)


@torch.no_grad()
def upper_elbo(
    target: Target,
    posterior: Posterior,
    generator: torch.Generator,
    n_draws: int = BOUND_DRAWS,
) -> dict[str, float]:
    """Bound of the ELBO from above, where `lower_bound` is one from below.

    "elbo_upper" and "elbo_upper_se", in nats; empty where draws have no such side.
    """
    if posterior.draw_below(1, generator) is None:
        return {}
    most = BLOCK_ELEMENTS // 8  # a draw has several terms
    values = _log_weights(target, posterior.draw_below, n_draws, generator, most)
    error = float(values.std()) / n_draws**0.5
    return {"elbo_upper": float(values.mean()), "elbo_upper_se": error}


def _log_weights(
    target: Target,
    draw: Callable[[int, torch.Generator], Draw | None],
    n_draws: int,
    generator: torch.Generator,
    most: int = BLOCK_ELEMENTS,
) -> torch.Tensor:
    """Log weights of draws of q, which are generated in chunks."""
    block = max(1, most // target.layout.size)
    parts = []
    for start in range(0, n_draws, block):
        found = cast(Draw, draw(min(block, n_draws - start), generator))
        parts.append(target.log_joint_batched(found.theta) - found.log_q)
    return torch.cat(parts).double()


@torch.no_grad()
def weight_diagnostics(
    target: Target,
    posterior: Posterior,
    n_iter: int,
    generator: torch.Generator,
    solver: str = "",
    n_draws: int | None = None,
) -> dict[str, float | None]:
    """Effective sample size (as a fraction) and Pareto k of 128 weights of q.

    They are None if they would cost more than about a tenth of the fit;
    `evidence_bounds` then gives them. An improper prior has no weights either.

    Parameters
    ----------
    target : Target
    posterior : Posterior
    n_iter : int
        Iterations of the fit, from which its cost is estimated.
    generator : torch.Generator
    solver : str, default=""
        Name of the solver that was used.
    n_draws : int, default=None
        Draws of the posterior in all iterations of a stochastic fit.

    Returns
    -------
    dict of str to float or None
        "efficiency": effective sample size over 128, at most 1. "khat": Pareto k.
        Both are estimates from these draws, and cannot see what q misses.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import Layout, NormalForm
    >>> from skvi.evidence._summarize import weight_diagnostics
    >>> from skvi.posteriors import MeanFieldNormal
    >>> from skvi.targets import Target
    >>> class Bell(Target):  # a standard normal
    ...     layout = Layout({"coef": (1,)})
    ...
    ...     def log_joint(self, theta, rows=None):
    ...         return -0.5 * theta.square().sum(1)
    >>> posterior = MeanFieldNormal().build(Bell.layout)
    >>> posterior = posterior.near(NormalForm(torch.zeros(1), torch.ones(1)))
    >>> found = weight_diagnostics(Bell(), posterior, 10, torch.Generator())
    >>> round(found["efficiency"], 3)
    1.0
    """
    is_improper = target.prior is not None and not target.prior.is_proper
    # Solvers that are faster than the draws; and samples, which are too few.
    is_quick = solver == "exact"
    has_weights = target.has_density and posterior.n_stored is None
    if is_improper or is_quick or not has_weights:
        return {"efficiency": None, "khat": None}
    size, n_rows = target.layout.size, target.cost_per_draw
    cost = WEIGHT_DRAWS * n_rows * (size + 20)
    fit_cost = max(n_iter, 3) * n_rows * (4 * size**2 + 600)
    if n_draws is not None:  # a gradient costs as much as two evaluations
        fit_cost = 2 * n_draws * n_rows * (size + 20)
    if cost > 1e7 and cost > 0.1 * fit_cost:
        return {"efficiency": None, "khat": None}
    log_weights = _log_weights(target, posterior.draw, WEIGHT_DRAWS, generator)
    draws = WeightedDraws(log_weights[:, None], log_weights)
    return {"efficiency": draws.ess / WEIGHT_DRAWS, "khat": draws.khat}


def judge_existence(
    objective: Objective, target: Target, posterior: Posterior, message: str = ""
) -> tuple[bool | None, str]:
    """Whether the exact bound of a fitted posterior is finite, and a message.

    None if unknown. The message is the solver's, with a second part if it is infinite.
    """
    exists = objective.exists(target, posterior)
    if exists is not False:
        return exists, message
    sign, why, remedy = _INFINITE[objective.direction]
    infinite = (
        f"the exact bound of {objective!r} at the fitted posterior is {sign} in "
        f"expectation, because {why}: any printed value is an estimate from draws that "
        f"is no valid bound; use {remedy}"
    )
    return exists, "; ".join(part for part in (message, infinite) if part)


#: For each direction: the value, the reason, and what to use instead.
_INFINITE = {
    "upper": (
        "+inf",
        "the posterior's tails are too light",
        "objective='eubo', or a posterior that is wider",
    ),
    "lower": (
        "-inf",
        "the posterior's tails are too heavy",
        "objective='elbo', or an alpha from 0 to 1",
    ),
}


#: Seconds of a path that "auto" takes: without a limit some take more than 280.
PATH_SECONDS = 120

BUDGET = (
    f"max_seconds ended the run before the planned draws ({PATH_SECONDS} for "
    "tempering, unless given): allow more seconds"
)
LESS = ", or ask for less, such as precision=0.5"
FEW = "n_draws is few: give more, or None, which takes as many as are needed"
HEAVY = (
    "this prior is not log-concave, so that there can be several modes: compare models "
    "under prior='normal' or 'laplace', or try method='tempering'"
)
LINEAR = (
    "standardize the features, drop columns that repeat others, or give the prior a "
    "smaller scale"
)
NETWORK = "use fewer hidden units, or a larger n_draws, which makes chains longer"
WIDE = (
    "; the interval holds, but it is {:.2g} nats wide, more than its precision: a "
    "larger {} narrows it"
)
DISCRETE = "sum discrete parameters out of the log density (torch.logsumexp)"
GENERAL = (
    "try method='tempering' or another random_state, and parameters in which the "
    "posterior is closer to a normal"
)


def with_remedy(reasons: list[str], helps: str) -> str:
    """All reasons and what helps; empty if there is none."""
    return "; ".join([*reasons, f"what helps: {helps}"]) if reasons else ""


def with_width(bounds: EvidenceBounds, error: float, is_cut: bool) -> EvidenceBounds:
    """The same bounds; if wider than asked for, the reason says by how much."""
    is_narrow = max(bounds.lower_se, bounds.upper_se) <= 1.5 * error
    if is_narrow or not bounds.reliable:
        return bounds
    low, high = bounds.interval()
    wide = WIDE.format(high - low, "max_seconds" if is_cut else "n_draws")
    return replace(bounds, reason=bounds.reason + wide)


def remedy(target: Target, is_cut: bool, error: float) -> str:
    """Cause of a failure and its remedy, known from a model and its run; no full stop.

    `error`: target standard error in nats, infinite if the number of draws was given.
    """
    if is_cut:
        return BUDGET if error_of(0.5) <= error < math.inf else BUDGET + LESS
    if target.layout.discrete:
        return DISCRETE
    if error == math.inf:
        return FEW
    if target.symmetry is not None:
        return NETWORK
    prior = base_prior(target) if isinstance(target, SupervisedTarget) else None
    if prior is not None and not prior.is_log_concave:
        return HEAVY
    return LINEAR if target.has_design else GENERAL


LEVEL = 0.95


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
    )
    return with_width(found, sides.error, sides.is_cut)


def without_bounds(
    target: Target,
    posterior: Posterior,
    generator: torch.Generator,
    quantity: str,
    reason: str,
    n_draws: int = BOUND_DRAWS,
) -> EvidenceBounds:
    """Result with the ELBO only, and the reason why no bounds were computed."""
    elbo = elbo_row(lower_bound(target, posterior, generator, n_draws))
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
    is_near = target.prior is None or target.noise_hyperprior is not None
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
