"""Agreement of chains, in quantities that are invariant under symmetries."""

from typing import Any, cast

import torch

from skvi._sampling._chains import Chains
from skvi._sampling._diagnostics import disagreement
from skvi.targets import SupervisedTarget, Target

__all__ = ["in_parameters", "invariant_rhat", "invariants"]

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
    if target.has_pointwise and not target.is_extended:
        supervised = cast(SupervisedTarget, target)
        every = max(1, supervised.n_rows // N_ROWS)
        X = supervised.X[::every][:N_ROWS]
        f = supervised.predictor.forward(theta, X)
        found.append(f.flatten(1).double())
    if target.symmetry is None:
        found.append(theta)
    return torch.cat(found, 1)
