"""The evidence sandwich: importance sampling below, posterior chains above."""

import math
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from skvi.base import NormalForm
from skvi.evidence._estimates import (
    block_size,
    bridge_estimate,
    finite_sample_bounds,
    forward_bound,
    reverse_bound,
)
from skvi.evidence._fit_checks import lower_bound
from skvi.evidence._power_rows import power_rows
from skvi.evidence._result import EvidenceBounds, NamedBound
from skvi.exceptions import IncompatibleComponentsError
from skvi.sampling import (
    Chains,
    HamiltonianChains,
    StudentT,
    WeightedDraws,
    adapt_proposal,
    draw_limit,
    draw_weighted,
    effective_sample_size,
    pareto_khat,
)
from skvi.sampling._diagnostics import khat_limit
from skvi.sampling._importance import tail_score
from skvi.solvers import dispersed_starts, fit_proposal_normal

__all__ = ["bound_evidence"]

DEFAULT_PRECISION = 0.03
MIN_DRAWS = 2**12
N_CHAINS, N_WARMUP, N_FORGET, MIN_ITER = 64, 150, 5, 50
MAX_RHAT = 1.05
# Chains that disagree so much after their warm-up are stopped early, and reported.
HOPELESS_RHAT, MAX_HOPELESS_ITER = 2.0, 200
LEVEL = 0.95
REVERSE_SCALES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7)


@torch.no_grad()
def bound_evidence(
    target: Any,
    posterior: Any,
    generator: torch.Generator,
    n_draws: int | None = None,
    precision: float | None = None,
    quantity: str = "log evidence",
    normal: NormalForm | None = None,
) -> EvidenceBounds:
    """Bound log Z of a target with a linear predictor.

    Parameters
    ----------
    target : Target
    posterior : Posterior
        The fitted one; it only enters the table's ELBO and EUBO.
    generator : torch.Generator
    n_draws : int, default=None
        Draws on each side. None chooses the number that `precision` needs.
    precision : float, default=None
        Nats between each bound and log Z to aim for; None is 0.03.
    quantity : str, default="log evidence"
        What the result calls itself.
    normal : NormalForm, default=None
        Near the posterior: where proposals start. None is the ELBO's solution.

    Returns
    -------
    EvidenceBounds
        In nats, summed over the data, with all constants; from draws.

    Raises
    ------
    IncompatibleComponentsError
        The prior is improper.

    Examples
    --------
    >>> import torch
    >>> from skvi.evidence import bound_evidence
    >>> from skvi.likelihoods import GaussianLikelihood
    >>> from skvi.losses import LogLoss
    >>> from skvi.posteriors import FullRankNormal
    >>> from skvi.predictors import LinearPredictor
    >>> from skvi.priors import Normal
    >>> from skvi.targets import SupervisedTarget
    >>> model, X = LinearPredictor(1, fit_intercept=False), torch.ones(2, 1).double()
    >>> prior, y = Normal().build(model.layout), torch.tensor([1.0, 3.0])
    >>> target = SupervisedTarget(model, GaussianLikelihood(), LogLoss(), prior, X, y)
    >>> posterior = FullRankNormal().build(model.layout)
    >>> bounds = bound_evidence(target, posterior, torch.Generator().manual_seed(0))
    >>> round(bounds.estimate, 1)  # log p(D) is -4.72
    -4.7
    """
    if not target.prior.is_proper:
        raise IncompatibleComponentsError(IMPROPER)
    normal = fit_proposal_normal(target) if normal is None else normal
    proposal, pilot = adapt_proposal(target, normal, generator)
    starts = dispersed_starts(target, proposal.normal, generator, N_CHAINS)
    sampler = HamiltonianChains(target, starts, proposal.normal, generator)
    sampler.warm_up(N_WARMUP)
    # Everything that shapes an estimate is chosen from draws that do not enter it.
    variance_below = len(pilot.theta) / pilot.ess - 1
    above, variance_above, spread_above, correlation = _reverse_proposal(
        sampler.pilot, (normal, proposal.normal)
    )
    variance = max(variance_below, _spread(pilot.log_weights))
    limit = draw_limit(target.layout.size)
    n_below = n_draws or _n_draws(variance, precision, limit)
    variance = max(variance_above, spread_above)
    n_above = n_draws or _n_draws(variance, precision, limit)
    setup = _Setup(
        proposal,
        above,
        block_size(variance_below, n_below),
        block_size(variance_above, n_above),
        math.inf if n_draws is not None else _error(precision),
    )
    # The choices above used the last states of the warm-up: forget them.
    sampler.run(N_FORGET)
    n_iter = math.ceil(n_above * correlation / N_CHAINS)
    if sampler.pilot.rhat > HOPELESS_RHAT:  # more of the same would not help
        n_iter = min(n_iter, MAX_HOPELESS_ITER)
    chains = sampler.run(max(MIN_ITER, n_iter))
    draws = draw_weighted(target, proposal, n_below, generator)
    return _summarise(target, posterior, setup, draws, chains, generator, quantity)


@dataclass(frozen=True, eq=False)
class _Setup:
    """Proposals and block sizes of the lower and the upper side."""

    below: StudentT
    above: NormalForm
    k_below: int
    k_above: int
    error: float


def _reverse_proposal(
    pilot: Chains, candidates: tuple[NormalForm, ...]
) -> tuple[NormalForm, float, float, float]:
    """Choose the normal r whose ratio r/p varies least under the posterior.

    Its tails must be lighter than the posterior's: for a Student-t r and a normal
    prior the variance is infinite. So narrower versions are tried as well. Returns
    r, the relative variance of r/p, the variance of its logarithm, and how many
    chain draws are worth one independent draw.
    """
    theta, log_joint = pilot.theta.flatten(0, 1), pilot.log_joint.flatten()
    best, best_score = (candidates[0], math.inf, 0.0, 1.0), math.inf
    for base, factor in product(candidates, REVERSE_SCALES):
        trial = NormalForm(base.mean, factor * base.scale)
        log_u = trial.log_prob(theta) - log_joint
        u = torch.exp(log_u - log_u.max())
        variance = float(u.var() / u.mean() ** 2)
        score = tail_score(variance, pareto_khat(log_u))
        if score < best_score:
            ess = float(effective_sample_size(u.reshape(*pilot.log_joint.shape, 1))[0])
            correlation = min(max(len(u) / ess, 1.0), 4.0)
            best, best_score = (trial, variance, _spread(log_u), correlation), score
    return best


def _spread(log_weights: torch.Tensor) -> float:
    """Variance of log weights, which the log mean exp of few weights has."""
    variance = float(log_weights.var())
    return variance if math.isfinite(variance) else 0.0


def _n_draws(variance: float, precision: float | None, limit: int) -> int:
    return int(min(max(variance / _error(precision) ** 2, MIN_DRAWS), limit))


def _error(precision: float | None) -> float:
    """Standard error to aim for: the bias is two of it, and the noise two more."""
    return (DEFAULT_PRECISION if precision is None else precision) / 4


def _summarise(
    target: Any,
    posterior: Any,
    setup: _Setup,
    draws: WeightedDraws,
    chains: Chains,
    generator: torch.Generator,
    quantity: str,
) -> EvidenceBounds:
    forward, theta = draws.log_weights, chains.theta.flatten(0, 1)

    def reverse_weights(log_density: torch.Tensor) -> torch.Tensor:
        return chains.log_joint - log_density.reshape(chains.log_joint.shape)

    reverse = reverse_weights(setup.above.log_prob(theta))
    sides = forward_bound(forward, setup.k_below), reverse_bound(reverse, setup.k_above)
    (lower, lower_se), (upper, upper_se) = sides
    inverse_weights = torch.exp(reverse.min() - reverse)
    ess_chains = float(effective_sample_size(inverse_weights[..., None])[0])
    bridge = bridge_estimate(
        forward, reverse_weights(setup.below.log_prob(theta)), max(ess_chains, 2.0)
    )
    of_q = reverse_weights(posterior.log_prob(theta)).mean(1)
    eubo = float(of_q.mean()), float(of_q.std()) / math.sqrt(len(of_q))
    khats = (draws.khat, pareto_khat(-reverse.flatten()))
    reason = _why_not(
        khats,
        (len(forward), reverse.numel()),
        chains.rhat,
        lower - upper,
        math.hypot(lower_se, upper_se),
    )
    is_coarse = max(lower_se, upper_se) > 1.5 * setup.error
    finite = finite_sample_bounds(forward, reverse, LEVEL)
    elbo = lower_bound(target, posterior, generator)
    return EvidenceBounds(
        lower=lower,
        upper=upper,
        lower_se=lower_se,
        upper_se=upper_se,
        estimate=bridge[0],
        gap=upper - lower,
        ess=draws.ess,
        khat=max(khats),
        reliable=not reason,
        reason=reason or CERTIFIED + (CAPPED if is_coarse else ""),
        method="importance",
        quantity=quantity,
        table=_table(
            setup,
            sides,
            bridge,
            finite,
            elbo,
            eubo,
            power_rows(target, posterior, generator),
        ),
    )


IMPROPER = (
    "An improper prior such as LogUniform has no evidence: its constant is arbitrary. "
    "Fit with a proper prior, such as prior='horseshoe' or StudentT(), to bound one."
)
CAPPED = "; the precision that was asked for needs more draws than were taken"
CERTIFIED = (
    "the upper side is certified against the modes that chains from the fit and "
    "from the prior reach"
)


Estimate = tuple[float, float]


def _table(
    setup: _Setup,
    sides: tuple[Estimate, Estimate],
    bridge: Estimate,
    finite: tuple[float, float],
    elbo: Estimate,
    eubo: Estimate,
    of_powers: dict[str, NamedBound],
) -> dict[str, NamedBound]:
    """Every number with what it certifies, from the lowest to the highest."""
    expected, if_exact = "a bound in expectation", "a bound in expectation, if so"
    holds = "holds with 95 % probability"
    below = {k: v for k, v in of_powers.items() if v.direction == "lower"}
    above = {k: v for k, v in of_powers.items() if v.direction == "upper"}
    return {
        "ELBO of q": NamedBound(
            *elbo, "lower", expected if elbo[1] else "a bound, exactly"
        ),
        **below,
        f"IW-ELBO (K={setup.k_below})": NamedBound(*sides[0], "lower", expected),
        "lower, 95 %": NamedBound(finite[0], 0.0, "lower", holds),
        "bridge": NamedBound(*bridge, "estimate", "consistent, no bound"),
        "upper, 95 %": NamedBound(
            finite[1], 0.0, "upper", f"{holds} if chains are exact"
        ),
        f"IW-EUBO (K={setup.k_above})": NamedBound(*sides[1], "upper", if_exact),
        "EUBO of q": NamedBound(*eubo, "upper", if_exact),
        **above,
    }


def _why_not(
    khats: tuple[float, float],
    n_draws: tuple[int, int],
    rhat: float,
    crossing: float,
    error: float,
) -> str:
    """Name every diagnostic that forbids the statements, or nothing."""
    reasons = []
    for khat, n, side in zip(khats, n_draws, ("lower", "upper"), strict=True):
        if not khat <= khat_limit(n):
            reasons.append(
                f"the weights of the {side} bound are too heavy-tailed "
                f"(Pareto k {khat:.2f}, at most {khat_limit(n):.2f} is allowed)"
            )
    if not rhat <= MAX_RHAT:
        reasons.append(
            f"the posterior chains disagree (R-hat {rhat:.2f}, at most "
            f"{MAX_RHAT} is allowed)"
        )
    if crossing > 4 * error + 1e-9:
        reasons.append(f"the two sides cross by {crossing:.3g} nats")
    return "; ".join(reasons)
