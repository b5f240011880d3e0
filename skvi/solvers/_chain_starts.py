"""Starts of Markov chains, overdispersed relative to the posterior."""

import torch

from skvi.base import NormalForm
from skvi.solvers._wide_start import likelihood_normal
from skvi.targets import Target
from skvi.utils._random import randn

__all__ = ["dispersed_starts"]

# Starts from the prior are at most this many standard deviations from its mean.
FARTHEST_START = 10.0
# A normal log density falls by half the squared distance; starts from the prior are
# moved closer while theirs falls by more than this multiple of the square.
STEEPEST_START, MAX_HALVINGS = 2.0, 20
# Inflation of the standard deviations of starts that do not come from the prior.
WIDER = 3.0


def dispersed_starts(
    target: Target, normal: NormalForm, generator: torch.Generator, n_chains: int
) -> torch.Tensor:
    """Starts of chains, (n_chains, P), half of them from a normal near the posterior.

    The others are from the prior; from the normal, wider, for log-concave densities;
    and some at large likelihood, if the prior has a peak that chains do not leave.
    """
    eps = randn(generator, n_chains // 2, normal.size)
    n_rest = n_chains - n_chains // 2
    if target.starts_near_fit or target.is_log_concave:
        # Hyperpriors draw numbers that no chain returns from. Where the density is
        # log-concave there is no other mode, and a prior may be wide without end.
        wide = normal.transform(WIDER * randn(generator, n_rest, normal.size))
        return torch.cat([normal.transform(eps), wide])
    prior = target.reference.sample(n_rest, generator)
    around = target.reference.matching_normal()
    if around is not None:
        # Chains do not return from draws of heavy tails.
        reach = FARTHEST_START * around.variance.sqrt()
        prior = prior.clamp(around.mean - reach, around.mean + reach)
    starts = torch.cat([normal.transform(eps), _drawn_back(target, normal, prior)])
    if target.reference.is_log_concave or target.reference.n_unknown_scales:
        return starts
    likely = likelihood_normal(target)
    if likely is not None:
        third = len(starts[::3])
        starts[::3] = likely.transform(randn(generator, third, likely.n_noise))
    return starts


def _drawn_back(
    target: Target, normal: NormalForm, starts: torch.Tensor
) -> torch.Tensor:
    """Halve distances from the normal's mean if the density falls too steeply.

    No step size that suits the posterior is ever accepted there.
    """
    moved = starts - normal.mean
    top = target.log_joint(normal.mean[None])
    for _ in range(MAX_HALVINGS):
        fall = top - target.log_joint(normal.mean + moved)
        distance = normal.whiten(moved).square().sum(1)
        stays = fall <= STEEPEST_START * (distance + moved.shape[1])
        if stays.all():
            break
        moved = torch.where(stays[:, None], moved, 0.5 * moved)
    return normal.mean + moved
