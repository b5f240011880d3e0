"""Evidence under priors with spikes and heavy tails: chains that move scales, too."""

import math
import time
from dataclasses import replace

import torch

from skvi._sampling._diagnostics import disagreement
from skvi._sampling._exchange import LadderDraws, ReplicaExchange
from skvi._sampling._particles import anneal, tune_ladder
from skvi._sampling._state import Report
from skvi.base import NormalForm
from skvi.evidence._agreement import in_parameters, invariants
from skvi.evidence._remedies import name_of_mixture
from skvi.evidence._tempered import TemperedSides, tempered_sides
from skvi.priors._scale_mixture import ScaleMixture
from skvi.targets import Target
from skvi.targets._scale_mixture import ScaleMixtureTarget

__all__ = ["mixture_sides", "why_hopeless"]

# Sweeps of the chains that locate the second path, half of them warm-up, and of a run,
# more for more than MANY scales: correlated coefficients mix slowly. Half as many
# systems as elsewhere run twice as long, because R-hat needs long chains.
N_SYSTEMS, N_EXPLORE, MIN_SWEEPS, MORE_SWEEPS, MANY = 8, 240, 800, 1800, 15
# Standard deviations of the second start, in units of those of the posterior, and
# the fraction of the variances added to the diagonal of its covariance.
WIDER, RIDGE = 1.3, 1e-6
# Fraction of the seconds in which the first chains run.
EXPLORE = 0.2
# With more scales these chains are too short to estimate a covariance.
MAX_SCALES = 100
# Elements that a run may process: somewhat more than a minute.
MAX_WORK = 1e10
# Rungs of a ladder times leapfrog steps, and sweeps besides those of the run.
TYPICAL, OTHER_SWEEPS = 25 * 7, N_EXPLORE + 260


def why_hopeless(mixture: ScaleMixture, cost: int, is_limited: bool = False) -> str:
    """Why such a run would take too long, said before it begins; else "".

    `cost`: elements that one evaluation touches; `is_limited`: there is a time limit.
    """
    n_scales = len(mixture.where)
    n_moves = TYPICAL * N_SYSTEMS * (OTHER_SWEEPS + _least_sweeps(n_scales))
    work = n_moves * (cost + 30 * n_scales)
    prior = name_of_mixture(mixture)
    if n_scales > MAX_SCALES:
        return MANY_SCALES.format(n_scales, prior)
    if is_limited:
        return ""
    if work > MAX_WORK:
        return MANY_ROWS.format(n_scales, cost, prior)
    # With 30 features of breast cancers one of two seeds was reliable, after 32 s.
    if mixture.n_vague > MANY:
        return MANY_VAGUE.format(mixture.n_vague, prior)
    return ""


def _least_sweeps(n_scales: int) -> int:
    return MIN_SWEEPS if n_scales <= MANY else MORE_SWEEPS


@torch.no_grad()
def mixture_sides(
    target: Target,
    lifted: ScaleMixtureTarget,
    generator: torch.Generator,
    n_draws: int | None,
    precision: float | None,
    max_seconds: float | None,
    report: Report,
) -> TemperedSides:
    """Bound log Z by chains of parameters and their scales.

    The chains returned are those of the target's own parameters.
    """
    begin = time.monotonic()
    seconds = math.inf if max_seconds is None else max_seconds
    found = _explore(lifted, generator, begin + EXPLORE * seconds, report)
    left = None
    if max_seconds is not None:
        left = max(seconds - (time.monotonic() - begin), 0.0)
    sides = tempered_sides(
        lifted,
        found.chains.theta[:, -1],
        generator,
        n_draws,
        precision,
        left,
        report,
        _normal_of(found),
        _least_sweeps(len(lifted.where)),
        N_SYSTEMS,
    )
    return _in_parameters(target, lifted, sides)


def _in_parameters(
    target: Target, lifted: ScaleMixtureTarget, sides: TemperedSides
) -> TemperedSides:
    """Sides with chains of a target's own parameters, and their R-hat."""
    below = in_parameters(target, lifted, sides.draws.chains)
    # Scales without information in the data mix slowly, and are no part of the model.
    values = invariants(target, below.theta.flatten(0, 1))
    values = values.reshape(*below.log_joint.shape, -1)
    rhat = max(below.rhat, disagreement(values))
    return replace(sides, draws=replace(sides.draws, chains=below), rhat=rhat)


def _explore(
    lifted: ScaleMixtureTarget,
    generator: torch.Generator,
    deadline: float,
    report: Report,
) -> LadderDraws:
    """Draws from which a better start is made: half resampled, half on their own."""
    pilot = tune_ladder(lifted, lifted.start(), generator, report=report)
    half = N_SYSTEMS // 2
    alone = anneal(pilot.ladder, N_SYSTEMS - half, generator)
    starts = torch.cat([pilot.populations[:, :half], alone], 1).clone()
    sampler = ReplicaExchange(pilot.ladder, starts, generator, report=report)
    sampler.warm_up(N_EXPLORE // 2, deadline)
    return sampler.run(N_EXPLORE // 2, deadline)


def _normal_of(draws: LadderDraws) -> NormalForm:
    """Normal somewhat wider than the draws of the target."""
    theta = draws.chains.theta.flatten(0, 1)
    centered = theta - theta.mean(0)
    covariance = centered.T @ centered / len(theta)
    ridge = RIDGE * torch.diag(covariance.diagonal())
    factor = torch.linalg.cholesky(covariance + ridge)
    return NormalForm(theta.mean(0), WIDER * factor)


OTHERS = "or compare models under prior='normal' or 'laplace'"
MANY_SCALES = (
    "{:,} coefficients have scales of their own under {}, which chains would take far "
    f"more than a minute to explore: keep fewer features, {OTHERS}"
)
MANY_VAGUE = (
    "{} coefficients have vague scales of their own under {}, among which chains agree "
    "too slowly: give the scales a size, as ARD(shape=1.0, rate=1.0) does, or "
    "prior='horseshoe', or give max_seconds, some minutes, to try nevertheless"
)
MANY_ROWS = (
    "{} coefficients with scales of their own and {:,} rows under {}: chains would "
    f"take minutes; give max_seconds to try nevertheless, {OTHERS}"
)
