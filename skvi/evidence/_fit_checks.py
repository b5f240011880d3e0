"""Cheap diagnostics of a fitted posterior."""

from typing import cast

import torch

from skvi._sampling._importance import WeightedDraws
from skvi.divergences import KLDivergence
from skvi.evidence._estimates import Estimate
from skvi.objectives.base import Objective
from skvi.posteriors import Posterior
from skvi.targets import SupervisedTarget, Target

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
    if target.has_moments and normal is not None:
        if kl.has_closed_form(target.reference):
            linear = cast(SupervisedTarget, target)
            loss = linear.expected_loss_terms(normal)[0]
            value = -float(loss + kl.closed_form(normal, target.reference))
            return Estimate(value, 0.0)
    log_weights = _log_weights(target, posterior, n_draws, generator)
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
    draw = posterior.draw_below(n_draws, generator)
    if draw is None:
        return {}
    values = (target.log_joint_batched(draw.theta) - draw.log_q).double()
    error = float(values.std()) / n_draws**0.5
    return {"elbo_upper": float(values.mean()), "elbo_upper_se": error}


def _log_weights(
    target: Target, posterior: Posterior, n_draws: int, generator: torch.Generator
) -> torch.Tensor:
    """Log weights of draws of q, which are generated in chunks."""
    n_draws = min(n_draws, posterior.n_stored or n_draws)
    block = max(1, BLOCK_ELEMENTS // target.layout.size)
    parts = []
    for start in range(0, n_draws, block):
        size = min(block, n_draws - start)
        draw = posterior.draw(size, generator)
        theta, log_q = draw.theta, draw.log_q
        parts.append(target.log_joint_batched(theta) - log_q)
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
    >>> from skvi.evidence._fit_checks import weight_diagnostics
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
    if is_improper or is_quick or posterior.n_stored is not None:
        return {"efficiency": None, "khat": None}
    size, n_rows = target.layout.size, target.cost_per_draw
    cost = WEIGHT_DRAWS * n_rows * (size + 20)
    fit_cost = max(n_iter, 3) * n_rows * (4 * size**2 + 600)
    if n_draws is not None:  # a gradient costs as much as two evaluations
        fit_cost = 2 * n_draws * n_rows * (size + 20)
    if cost > 1e7 and cost > 0.1 * fit_cost:
        return {"efficiency": None, "khat": None}
    log_weights = _log_weights(target, posterior, WEIGHT_DRAWS, generator)
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
