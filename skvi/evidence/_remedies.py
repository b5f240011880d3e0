"""What helps where bounds are not reliable: a cause that is known, and a remedy."""

import math
from dataclasses import replace

from skvi.evidence._result import EvidenceBounds
from skvi.targets import SupervisedTarget, Target
from skvi.targets._hierarchical import base_prior

__all__ = ["BUDGET", "PATH_SECONDS", "remedy", "with_remedy", "with_width"]

#: Seconds of a path that "auto" takes: without a limit some take more than 280.
PATH_SECONDS = 120

BUDGET = (
    f"max_seconds ended the run before the planned draws ({PATH_SECONDS} for "
    "tempering, unless given): allow more seconds, or ask for less, such as "
    "precision=0.5"
)
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
    "; the interval holds, but it is {:.2g} nats wide, more than was asked for: a "
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
        return BUDGET
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
