"""Rows of the table that are powers of the weights of q."""

from typing import Any

import torch

from skvi.evidence._estimates import jackknife
from skvi.evidence._result import NamedBound
from skvi.objectives import ChiBound, RenyiBound

__all__ = ["power_rows"]

# Draws of q behind all of them.
N_DRAWS = 4096


def power_rows(
    target: Any, posterior: Any, generator: torch.Generator
) -> dict[str, NamedBound]:
    """Rényi and chi bounds of q, from draws of q; the last two are the same one."""
    theta, log_q = posterior.rsample_with_log_prob(N_DRAWS, generator)
    log_weights = target.log_joint_batched(theta) - log_q
    objectives = {
        "Renyi (alpha=0.5) of q": RenyiBound(0.5),
        "Renyi (alpha=-1) of q": RenyiBound(-1),
        "chi (order=2) of q": ChiBound(2),
    }
    rows = {}
    for name, objective in objectives.items():
        says = "a bound in expectation"
        if objective.direction == "upper":
            says = _OF_UPPER[objective.exists(target, posterior)]
        found = jackknife(objective.bound, log_weights)
        rows[name] = NamedBound(*found, objective.direction, says)
    return rows


#: By whether the exact bound is finite.
_OF_UPPER = {
    True: "certifies nothing: from draws it is biased low",
    False: "+inf in expectation; certifies nothing",
    None: "certifies nothing: biased low, and perhaps +inf in expectation",
}
