"""The evidence sandwich: importance sampling below, posterior chains above."""

import math
from dataclasses import dataclass, field
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
from skvi.sampling import (
    Chains,
    HamiltonianChains,
    StudentT,
    WeightedDraws,
    adapt_proposal,
    draw_weighted,
    effective_sample_size,
    pareto_khat,
)
from skvi.sampling._diagnostics import khat_limit
from skvi.sampling._importance import tail_score
from skvi.solvers import dispersed_starts, fit_proposal_normal

__all__ = ["EvidenceBounds", "NamedBound", "bound_evidence"]

DEFAULT_PRECISION = 0.03
MIN_DRAWS, MAX_DRAWS = 2**12, 2**17
N_CHAINS, N_WARMUP, N_FORGET, MIN_ITER = 64, 150, 5, 50
MAX_RHAT = 1.05
LEVEL = 0.95
REVERSE_SCALES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7)


@dataclass(frozen=True)
class NamedBound:
    """One row of the table of bounds.

    Parameters
    ----------
    value : float
        Nats.
    standard_error : float
        Asymptotic; 0 where the value has no Monte Carlo noise.
    direction : {"lower", "upper", "estimate"}
    certifies : str
        What the number says, and under which condition.

    Examples
    --------
    >>> from skvi.evidence import NamedBound
    >>> NamedBound(-7.26, 0.0, "lower", "log p(D) is above it").direction
    'lower'
    """

    value: float
    standard_error: float
    direction: str
    certifies: str


@dataclass(frozen=True)
class EvidenceBounds:
    """Lower and upper bound on the log evidence log p(D), in nats.

    `lower` and `upper` estimate bounds, with standard errors: the expectation of
    `lower` is below log p(D) at any number of draws, that of `upper` above it if
    every draw of the chains is exactly posterior. They are built so that the
    remaining distance to log p(D) is about twice the error.

    Parameters
    ----------
    lower, upper : float
        IW-ELBO and IW-EUBO, from all data, with all constants.
    lower_se, upper_se : float
        Asymptotic standard errors; to be used only while `reliable`.
    estimate : float
        Bridge estimate of log p(D): consistent, no bound, may leave the interval.
    gap : float
        ``upper - lower``.
    ess : float
        Effective number of the draws behind the lower bound.
    khat : float
        Larger Pareto k of the two sets of weights.
    reliable : bool
        Whether every diagnostic allows the statements made here.
    reason : str
        Why not; or what the upper bound is certified against.
    method : str
    plug_in : tuple of str
        Learnt hyperparameters on which the evidence is conditioned.
    quantity : str
        "log evidence", or "generalised log evidence" for other losses or weights.
    table : dict of str to NamedBound

    Notes
    -----
    The upper bound needs posterior draws. They come from chains that start half
    near the fit and half in the prior; it is certified against what these starts
    reach, not against a mode that none of them finds.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.preprocessing import scale
    >>> from skvi.linear_model import BayesianLogisticRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> X, y = scale(X[:100]), y[:100]
    >>> model = BayesianLogisticRegression().fit(X, y)
    >>> bounds = model.evidence_bounds(X, y, random_state=0)
    >>> bounds.reliable, bounds.gap < 0.1
    (True, True)
    """

    lower: float
    upper: float
    lower_se: float
    upper_se: float
    estimate: float
    gap: float
    ess: float
    khat: float
    reliable: bool
    reason: str
    method: str
    plug_in: tuple[str, ...] = ()
    quantity: str = "log evidence"
    table: dict[str, NamedBound] = field(default_factory=dict, repr=False)

    def interval(self, n_se: float = 2.0) -> tuple[float, float]:
        """Return an interval for the log evidence.

        Parameters
        ----------
        n_se : float, default=2.0
            Standard errors that are added on each side. With 2, and while
            `reliable`, each side fails with a probability well below 2.5 %.

        Returns
        -------
        low, high : float
            In nats.
        """
        return self.lower - n_se * self.lower_se, self.upper + n_se * self.upper_se

    def __str__(self) -> str:
        """Return the table of bounds as text."""
        lines = [f"{self.quantity}, nats ({'' if self.reliable else 'NOT '}reliable)"]
        for name, row in self.table.items():
            lines.append(
                f"  {name:<22} {row.value:>12.4f} +- {row.standard_error:.4f}  "
                f"{row.direction:<8} {row.certifies}"
            )
        return "\n".join([*lines, f"  {self.reason}"])


@torch.no_grad()
def bound_evidence(
    target: Any,
    posterior: Any,
    generator: torch.Generator,
    n_draws: int | None = None,
    precision: float | None = None,
    quantity: str = "log evidence",
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

    Returns
    -------
    EvidenceBounds
        In nats, summed over the data, with all constants; from draws.

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
    normal = fit_proposal_normal(target)
    proposal, pilot = adapt_proposal(target, normal, generator)
    starts = dispersed_starts(target, proposal.normal, generator, N_CHAINS)
    sampler = HamiltonianChains(target, starts, proposal.normal, generator)
    sampler.warm_up(N_WARMUP)
    # Everything that shapes an estimate is chosen from draws that do not enter it.
    variance_below = len(pilot.theta) / pilot.ess - 1
    above, variance_above, spread_above, correlation = _reverse_proposal(
        sampler.pilot, (normal, proposal.normal)
    )
    n_below = _n_draws(
        max(variance_below, _spread(pilot.log_weights)), n_draws, precision
    )
    n_above = _n_draws(max(variance_above, spread_above), n_draws, precision)
    setup = _Setup(
        proposal,
        above,
        block_size(variance_below, n_below),
        block_size(variance_above, n_above),
        n_draws is None and MAX_DRAWS in (n_below, n_above),
    )
    # The choices above used the last states of the warm-up: forget them.
    sampler.run(N_FORGET)
    n_iter = math.ceil(n_above * correlation / N_CHAINS)
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
    is_capped: bool


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


def _n_draws(variance: float, n_draws: int | None, precision: float | None) -> int:
    if n_draws is not None:
        return n_draws
    # Bias of two standard errors, plus two standard errors of noise.
    error = (DEFAULT_PRECISION if precision is None else precision) / 4
    return int(min(max(variance / error**2, MIN_DRAWS), MAX_DRAWS))


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
    lower, lower_se = forward_bound(forward, setup.k_below)
    upper, upper_se = reverse_bound(reverse, setup.k_above)
    inverse_weights = torch.exp(reverse.min() - reverse)
    ess_chains = float(effective_sample_size(inverse_weights[..., None])[0])
    bridge, bridge_se = bridge_estimate(
        forward, reverse_weights(setup.below.log_prob(theta)), max(ess_chains, 2.0)
    )
    finite = finite_sample_bounds(forward, reverse, LEVEL)
    elbo, elbo_se = lower_bound(target, posterior, generator)
    eubo = reverse_weights(posterior.log_prob(theta)).mean(1)
    eubo_se = float(eubo.std()) / math.sqrt(len(eubo))
    khats = (draws.khat, pareto_khat(-reverse.flatten()))
    reason = _why_not(
        khats,
        (len(forward), reverse.numel()),
        chains.rhat,
        lower - upper,
        math.hypot(lower_se, upper_se),
    )
    name_l, name_u = f"IW-ELBO (K={setup.k_below})", f"IW-EUBO (K={setup.k_above})"
    table = {
        "ELBO of q": NamedBound(
            elbo,
            elbo_se,
            "lower",
            "a bound in expectation" if elbo_se else "a bound, exactly",
        ),
        name_l: NamedBound(lower, lower_se, "lower", "a bound in expectation"),
        "lower, 95 %": NamedBound(
            finite[0], 0.0, "lower", "holds with 95 % probability"
        ),
        "bridge": NamedBound(bridge, bridge_se, "estimate", "consistent, no bound"),
        "upper, 95 %": NamedBound(
            finite[1], 0.0, "upper", "holds with 95 % probability if chains are exact"
        ),
        name_u: NamedBound(upper, upper_se, "upper", "a bound in expectation, if so"),
        "EUBO of q": NamedBound(
            float(eubo.mean()), eubo_se, "upper", "a bound in expectation, if so"
        ),
    }
    return EvidenceBounds(
        lower=lower,
        upper=upper,
        lower_se=lower_se,
        upper_se=upper_se,
        estimate=bridge,
        gap=upper - lower,
        ess=draws.ess,
        khat=max(khats),
        reliable=not reason,
        reason=reason or CERTIFIED + (CAPPED if setup.is_capped else ""),
        method="importance",
        quantity=quantity,
        table=table,
    )


CAPPED = f"; the precision that was asked for needs more than {MAX_DRAWS} draws"
CERTIFIED = (
    "the upper side is certified against the modes that chains from the fit and "
    "from the prior reach"
)


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
