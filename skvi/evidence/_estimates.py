"""Estimates of log Z from log weights of both sides, with their errors.

Forward weights come from independent draws of a proposal, reverse weights from
posterior draws: ``lw = log p(D, theta) - log r(theta)`` in both cases.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from scipy.special import stdtrit

from skvi._sampling._chains import Chains
from skvi._sampling._importance import disagreement
from skvi.base._component import Density
from skvi.targets import SupervisedTarget, Target
from skvi.utils._tensors import log_mean_exp

#: Independent chains, and minimum number of blocks of draws, behind errors.
N_GROUPS = 64
# Probability of the quantiles by which errors of fewer chains are inflated.
RARE = 0.99


class Estimate(NamedTuple):
    """A value and its standard error."""

    value: float
    se: float


def block_size(relative_variance: float, n_draws: int) -> int:
    """Draws per importance-weighted estimate, K.

    The bias of log mean exp is ``v / (2K)``, the standard error over all draws ``sqrt(v
    / n)``. K makes the bias twice the error: a bound of log Z with probability 97.7 %.
    """
    best, most = math.sqrt(max(relative_variance, 0.0) * n_draws) / 4, n_draws // 64
    return max(1, int(best) if best < most else most)


def forward_bound(log_weights: torch.Tensor, k: int) -> Estimate:
    """IW-ELBO: mean over blocks of K draws, and its standard error."""
    blocks = log_weights[: len(log_weights) // k * k].reshape(-1, k)
    values = log_mean_exp(blocks)
    error = float(values.std()) / math.sqrt(len(values))
    return Estimate(float(values.mean()), error)


def missing_distance(signed: torch.Tensor, k: int, error: float) -> float:
    """Nats that a bound of blocks of K draws is short of two errors from log Z.

    1 / n is added for small weights that n draws have not shown. `signed` are log
    weights, or for the upper side their negatives.
    """
    signed = signed.flatten()
    blocks = log_mean_exp(signed[: len(signed) // k * k].reshape(-1, k))
    bias = float(log_mean_exp(signed) - blocks.mean())
    unseen = 1 / len(signed)
    return max(2 * error + unseen - bias, 0.0)


def reverse_bound(log_weights: torch.Tensor, k: int) -> Estimate:
    """IW-EUBO: mean over blocks of K posterior draws, and its standard error.

    A block consists of equally spaced draws of one of the chains, (n_chains, n_iter).
    The error of fewer than 64 chains is inflated, so that quantiles for 64 hold.
    """
    n_chains, n_iter = log_weights.shape
    k = max(1, min(k, n_iter))
    n_blocks = n_iter // k
    blocks = log_weights[:, : n_blocks * k].reshape(n_chains, k, n_blocks)
    values = -log_mean_exp(-blocks, 1).mean(1)
    error = float(values.std()) / math.sqrt(n_chains)
    if 1 < n_chains < N_GROUPS:
        error *= float(stdtrit(n_chains - 1, RARE) / stdtrit(N_GROUPS - 1, RARE))
    return Estimate(float(values.mean()), error)


def finite_sample_bounds(
    forward: torch.Tensor, reverse: torch.Tensor, level: float, n_blocks: int = 64
) -> tuple[float, float]:
    """One-sided bounds that hold with probability `level` at any sample size.

    By Markov's inequality the smallest of R independent blocks exceeds log Z + b with
    probability at most ``exp(-R b)``; the upper side needs exact posterior draws.
    """
    penalty = -math.log(1 - level)
    size = len(forward) // n_blocks
    lower = log_mean_exp(forward[: size * n_blocks].reshape(n_blocks, size)).min()
    upper = -log_mean_exp(-reverse).min()
    return float(lower) - penalty / n_blocks, float(upper) + penalty / len(reverse)


def bridge_estimate(
    forward: torch.Tensor, reverse: torch.Tensor, n_effective: float
) -> Estimate:
    """Optimal bridge estimate of log Z (Meng and Wong 1996, eq. 4.1), not a bound.

    Log weights of draws of the proposal, and of the posterior, refer to one proposal.
    Consistent; the error is asymptotic (delta method).
    """
    n_forward = len(forward)
    log_ratio = math.log(n_effective / n_forward)
    flat = reverse.reshape(-1)
    estimate = float(log_mean_exp(forward))
    for _ in range(200):
        shift = log_ratio - estimate
        # Fractions of each draw that are due to the posterior and to the proposal.
        one, other = torch.zeros_like(forward), torch.zeros_like(flat)
        top = log_mean_exp(forward - torch.logaddexp(forward + shift, one), 0)
        bottom = log_mean_exp(-torch.logaddexp(flat + shift, other), 0)
        new = float(top - bottom)
        if abs(new - estimate) < 1e-10:
            break
        estimate = new
    a = torch.sigmoid(forward + shift)
    b = torch.sigmoid(-(flat + shift))
    variance = a.var() / a.mean() ** 2 / n_forward
    variance = variance + b.var() / b.mean() ** 2 / n_effective
    return Estimate(estimate, float(variance.sqrt()))


def weights_of_chains(chains: Chains, density: Density) -> torch.Tensor:
    """Log weights of a density at posterior draws, (n_chains, n_iterations)."""
    log_density = density.log_prob(chains.theta.flatten(0, 1))
    return chains.log_joint - log_density.reshape(chains.log_joint.shape)


def width_so_far(forward: torch.Tensor, chains: Chains, above: Density) -> str:
    """Say how far apart the sides are, roughly, for a line of progress."""
    reverse = weights_of_chains(chains, above).flatten()
    width = -log_mean_exp(-reverse) - log_mean_exp(forward)
    return f"draws of chains, the sides {abs(float(width)):.2g} nats apart so far"


def jackknife(
    bound: Callable[[torch.Tensor], torch.Tensor],
    log_weights: torch.Tensor,
    n_blocks: int = 32,
) -> Estimate:
    """A function of log weights, and its block jackknife standard error."""
    blocks = log_weights[: len(log_weights) // n_blocks * n_blocks]
    blocks = blocks.reshape(n_blocks, -1)
    kept = [torch.cat([blocks[:i], blocks[i + 1 :]]) for i in range(n_blocks)]
    values = torch.stack([bound(part.reshape(-1)) for part in kept])
    error = math.sqrt(n_blocks - 1) * float(values.std(correction=0))
    return Estimate(float(bound(log_weights)), error)


DEFAULT_PRECISION = 0.03
MIN_DRAWS = 2**12
# Requested precision in nats from which few draws suffice.
LOOSE, FEW_DRAWS = 0.1, 2**9
#: Weights are nearly constant if none exceeds this multiple of their mean.
NEARLY_CONSTANT = 2.0


@dataclass(frozen=True, eq=False)
class Sides:
    """Log weights for the lower and the upper bound."""

    method: str
    forward: torch.Tensor  # (S,), of independent draws
    reverse: torch.Tensor  # of posterior draws, (n_chains, n_iterations)
    bridge: torch.Tensor  # those under the proposal of the forward draws
    k_below: int  # draws per block of the lower bound
    k_above: int  # and of the upper bound
    chains: Chains  # the posterior draws
    error: float  # target standard error, in nats
    is_cut: bool = False  # by the clock, before the planned draws
    is_block_larger: bool = False  # `k_below` may exceed `block_size`


def error_of(precision: float | None) -> float:
    """Target standard error: the bias is two of it, and the noise two more."""
    return (DEFAULT_PRECISION if precision is None else precision) / 4


def is_loose(precision: float | None) -> bool:
    """Whether the requested precision is so low that pilot runs may be short, too."""
    return precision is not None and precision >= LOOSE


def n_draws_for(
    variance: float, precision: float | None, limit: int, least: int = MIN_DRAWS
) -> int:
    """Draws that a relative variance of weights needs."""
    if is_loose(precision):
        least = min(least, FEW_DRAWS)
    return int(min(max(variance / error_of(precision) ** 2, least), limit))


# Number of rows whose fitted values are compared, and of iterations of each chain.
N_ROWS, N_ITER = 16, 400


@torch.no_grad()
def in_parameters(target: Target, lifted: Any, chains: Chains) -> Chains:
    """Chains of a target's own parameters, without the scales they ran with."""
    theta = lifted.theta(chains.theta.flatten(0, 1))
    log_joint = target.log_joint_batched(theta).reshape(chains.log_joint.shape)
    theta = theta.reshape(*log_joint.shape, -1)
    return Chains(theta, log_joint, chains.acceptance)


def invariant_rhat(target: Target, chains: Chains) -> float:
    """Largest split-R-hat over quantities that are equal for equivalent networks.

    These are the log joint density, the log prior density, the fitted values of 16
    rows, and without a symmetry the parameters themselves: chains in permutation-
    symmetric modes disagree about these.
    """
    thin = max(1, chains.theta.shape[1] // N_ITER)
    theta = chains.theta[:, thin - 1 :: thin]
    found = invariants(target, theta.flatten(0, 1))
    values = found.reshape(*theta.shape[:2], -1)
    log_joint = chains.log_joint[:, thin - 1 :: thin, None]
    return disagreement(torch.cat([log_joint, values], 2))


@torch.no_grad()
def invariants(target: Target, theta: torch.Tensor) -> torch.Tensor:
    """Log density of the prior, fitted values, and what else is unique, (S, m)."""
    found = [target.reference.log_prob(theta)[:, None]]
    if isinstance(target, SupervisedTarget) and target.noise_hyperprior is None:
        every = max(1, target.n_rows // N_ROWS)
        X = target.X[::every][:N_ROWS]
        f = target.predictor.forward(theta, X)
        found.append(f.flatten(1).double())
    if target.symmetry is None:
        found.append(theta)
    return torch.cat(found, 1)
