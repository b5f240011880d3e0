"""Bounds for a posterior averaged over a symmetry group.

With an invariant joint density p and ``s(theta) = mean over g in G of q(g theta)``,
draws of q can replace draws of s in averages of ``p / s``, which is invariant. The sum
over G factorizes for a factorized q and one hidden layer: it is the permanent of the
matrix of densities of units at each other's positions, times the rest.
"""

import math

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from skvi.base import NormalForm
from skvi.evidence._estimates import forward_bound, reverse_bound
from skvi.evidence._named import NamedBound
from skvi.evidence._table import EXPECTED, K_OF_Q, upper_exists, upper_row
from skvi.posteriors import Posterior
from skvi.predictors import Symmetry
from skvi.sampling import Chains
from skvi.targets import Target
from skvi.utils._device import CPU
from skvi.utils._log_space import LOG_2PI

__all__ = ["log_permanent", "symmetrized_log_prob", "symmetrized_rows"]

# Permanents of more units are bounded, not computed.
MAX_EXACT = 10
N_DRAWS, N_CHAIN_DRAWS = 1024, 64
# Tolerance in nats of the log joint density of equivalent parameters.
ROUNDING = 1e-6


@torch.no_grad()
def symmetrized_rows(
    target: Target, posterior: Posterior, chains: Chains, generator: torch.Generator
) -> dict[str, NamedBound]:
    """Rows of the table for the posterior averaged over the group, below and above.

    Parameters
    ----------
    target : Target
    posterior : Posterior
        The fitted one, q.
    chains : Chains
        Posterior draws.
    generator : torch.Generator

    Returns
    -------
    dict of str to NamedBound
        Empty if there is no symmetry, if the prior is not invariant, and if the sum
        over the group is not known: q is not factorized, or there is more than one
        hidden layer.
    """
    normal, symmetry = posterior.as_normal(), target.symmetry
    if symmetry is None or normal is None or not normal.is_diagonal:
        return {}
    theta = posterior.draw(N_DRAWS, generator).theta.double()
    if len(symmetry.units) > 1 or not _is_invariant(target, symmetry, theta, generator):
        return {}
    log_weights = target.log_joint_batched(theta)
    log_weights = log_weights - symmetrized_log_prob(normal, symmetry, theta)[1]
    thin = max(1, chains.theta.shape[1] // N_CHAIN_DRAWS)
    kept, value = chains.theta[:, ::thin], chains.log_joint[:, ::thin]
    low = symmetrized_log_prob(normal, symmetry, kept.flatten(0, 1))[0]
    reverse = value - low.reshape(value.shape)
    k = min(K_OF_Q, reverse.shape[1])
    exists = upper_exists(target)
    elbo, iw = forward_bound(log_weights, 1), forward_bound(log_weights, K_OF_Q)
    return {
        "ELBO of symmetrized q": NamedBound(*elbo, "lower", EXPECTED),
        "IW-ELBO of symmetrized q": NamedBound(*iw, "lower", EXPECTED, k=K_OF_Q),
        "IW-EUBO of symmetrized q": upper_row(reverse_bound(reverse, k), exists, k),
        "EUBO of symmetrized q": upper_row(reverse_bound(reverse, 1), exists),
    }


def _is_invariant(
    target: Target, symmetry: Symmetry, theta: torch.Tensor, generator: torch.Generator
) -> bool:
    """Whether prior and likelihood are invariant."""
    some = theta[:4]
    moved = symmetry.transform(some, generator)
    gap = target.log_joint(some) - target.log_joint(moved)
    scale = target.log_joint(some).abs().clamp(min=1.0)
    return bool((gap.abs() <= ROUNDING * scale).all())


def symmetrized_log_prob(
    normal: NormalForm, symmetry: Symmetry, theta: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log of the mean of a normal over the group, at draws, from below and above.

    Parameters
    ----------
    normal : NormalForm
        Factorized.
    symmetry : Symmetry
        Symmetry of one hidden layer.
    theta : Tensor of shape (S, P)

    Returns
    -------
    low, high : Tensor of shape (S,)
        Equal for up to 10 units. For more units `low` uses only the best assignment of
        units, which aligns the draw with q, and `high` the smaller product of sums over
        rows or columns.
    """
    (units,) = symmetry.units
    is_rest = torch.ones(normal.size, dtype=torch.bool, device=CPU)
    is_rest[units.flatten()] = False
    mean, std = normal.mean, normal.scale
    rest = _log_normal(theta[:, is_rest], mean[is_rest], std[is_rest]).sum(1)
    u, m, s = theta[:, units][:, :, None], mean[units], std[units]
    terms = _log_normal(u, m, s).sum(3)
    if symmetry.flips:
        terms = torch.logaddexp(terms, _log_normal(-u, m, s).sum(3))
    rest = rest - symmetry.log_order
    if len(units) <= MAX_EXACT:
        exact = rest + log_permanent(terms)
        return exact, exact
    high = torch.minimum(terms.logsumexp(2).sum(1), terms.logsumexp(1).sum(1))
    return rest + _best_assignment(terms), rest + high


def _log_normal(x: torch.Tensor, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    return -0.5 * ((x - mean) / std).square() - std.log() - 0.5 * LOG_2PI


def _best_assignment(terms: torch.Tensor) -> torch.Tensor:
    """Largest sum of one entry of each row and column, (S,)."""
    values = np.nan_to_num(terms.numpy(), neginf=-1e300)
    best = [v[linear_sum_assignment(v, maximize=True)].sum() for v in values]
    return torch.tensor(best, dtype=terms.dtype, device=CPU)


def log_permanent(terms: torch.Tensor) -> torch.Tensor:
    """Log permanents of matrices of positive numbers, whose logs are given.

    Parameters
    ----------
    terms : Tensor of shape (S, H, H)

    Returns
    -------
    Tensor of shape (S,)
        By sums over sets of columns: H 2^H terms, none of which cancel.

    Examples
    --------
    >>> import torch
    >>> from skvi.evidence._symmetrized import log_permanent
    >>> terms = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]).log()
    >>> round(float(log_permanent(terms).exp()), 4)  # 1 * 4 + 2 * 3
    10.0
    """
    n = terms.shape[1]
    found = terms.new_full((len(terms), 2**n), -math.inf)
    found[:, 0] = 0.0
    sets = torch.arange(2**n, device=CPU)
    members = (sets[:, None] >> torch.arange(n, device=CPU)) & 1
    sizes = members.sum(1)
    for row in range(n):
        chosen = sets[sizes == row + 1]
        columns = members[chosen].nonzero()[:, 1].reshape(len(chosen), row + 1)
        without = chosen[:, None] - (1 << columns)
        found[:, chosen] = (found[:, without] + terms[:, row, columns]).logsumexp(2)
    return found[:, -1]
