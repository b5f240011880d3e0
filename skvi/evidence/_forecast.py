"""What would take minutes, said before it begins."""

import math
import time

import torch

from skvi.base import NormalForm
from skvi.evidence._clock import Clock
from skvi.evidence._importance import MIN_ITER
from skvi.evidence._proposals import N_CHAINS, N_WARMUP
from skvi.posteriors import Posterior
from skvi.sampling import draw_weighted
from skvi.solvers import fit_proposal_normal
from skvi.targets import Target

__all__ = ["TOO_LONG", "why_certainly_too_long", "why_no_time", "why_too_long"]

# Coefficients times rows from which chains take minutes, where nothing else will do:
# they need some 100,000 gradients.
MAX_WORK = 1.2e6
# Variance of the logs of weights beyond which no proposal is near, and draws behind it:
# 1,000 sparse rows of 1,300 features under N(0, 1) have 3.7, and take minutes.
FAR, N_DRAWS = 1.0, 256
# Steps from a fit, of any quality, to that variance within a factor of 2, and the
# variance that is then beyond doubt.
N_ROUGH, DOUBTLESS = 3, 10.0


@torch.no_grad()
def why_certainly_too_long(
    target: Target, posterior: Posterior, generator: torch.Generator
) -> str:
    """`why_too_long` after few steps, where a proposal takes long to fit, too.

    That starts twice where a prior may hide a mode. A few steps from the fit show that
    no normal comes near, if none does by far.

    Parameters
    ----------
    target : Target
    posterior : Posterior
        The fitted one.
    generator : torch.Generator

    Returns
    -------
    str
    """
    if not _is_large(target) or target.reference.is_log_concave:
        return ""
    start = posterior.components[0].as_normal()
    if start is None:
        return ""
    rough = fit_proposal_normal(target, N_ROUGH, start)
    if rough is None:
        return ""
    return why_too_long(target, rough, generator, DOUBTLESS)


@torch.no_grad()
def why_too_long(
    target: Target,
    normal: NormalForm,
    generator: torch.Generator,
    far: float = FAR,
    n_runs: int = 1,
) -> str:
    """Say why bounds of a linear model would take minutes, if so; else nothing.

    Parameters
    ----------
    target : Target
    normal : NormalForm
        Near the posterior.
    generator : torch.Generator
    far : float, default=1.0
        Variance of the logs of weights from which no normal is near.
    n_runs : int, default=1
        How often it would be done.

    Returns
    -------
    str
        It names the prior, and what to do.
    """
    if not _is_large(target, n_runs) or _is_near(target, normal, generator, far):
        return ""
    is_normal = target.reference.as_normal() is not None
    prior = "a normal prior" if is_normal else "this prior"
    return TOO_LONG.format(target.layout.size, target.cost_per_draw, prior)


@torch.no_grad()
def why_no_time(
    target: Target,
    normal: NormalForm,
    generator: torch.Generator,
    clock: Clock,
    per_fit: float,
    n_runs: int,
) -> str:
    """Say why a large sum over scales cannot end in time, if so; else nothing.

    A term that has begun cannot be left at once: its proposal is fitted in one piece.

    Parameters
    ----------
    target : Target
        At a likely scale.
    normal : NormalForm
        Near its posterior.
    generator : torch.Generator
    clock : Clock
    per_fit : float
        Seconds that the normal took.
    n_runs : int
        Terms of the sum.

    Returns
    -------
    str
        It names the prior, and what to do.
    """
    left = clock.left()
    if left is None or not _is_large(target, n_runs):
        return ""
    seconds = per_fit
    if not _is_near(target, normal, generator, FAR):
        seconds += (N_WARMUP + MIN_ITER) * _seconds_of_move(target, normal, generator)
    if n_runs * seconds <= left:
        return ""
    size, needed = target.layout.size, math.ceil(n_runs * seconds)
    return NO_TIME.format(size, target.cost_per_draw, n_runs, needed, left)


def _is_near(
    target: Target, normal: NormalForm, generator: torch.Generator, far: float
) -> bool:
    log_weights = draw_weighted(target, normal, N_DRAWS, generator).log_weights
    return float(log_weights.var()) <= far


def _seconds_of_move(
    target: Target, normal: NormalForm, generator: torch.Generator
) -> float:
    """Of all chains, by one gradient: at least what a move takes."""
    density, unit = target.whitened(normal), normal.mean
    shape = N_CHAINS, len(unit)
    position = torch.randn(
        shape, generator=generator, dtype=unit.dtype, device=unit.device
    )
    density.slope(position)  # the first one may prepare more
    begin = time.monotonic()
    density.slope(position)
    return time.monotonic() - begin


def _is_large(target: Target, n_runs: int = 1) -> bool:
    work = n_runs * target.layout.size * target.cost_per_draw
    return target.has_design and work > MAX_WORK


TOO_LONG = (
    "{:,} coefficients and {:,} rows, and under {} their posterior is far from every "
    "normal: chains would take minutes; keep fewer features, chosen without looking at "
    "y, give the prior a smaller scale, or give max_seconds to try nevertheless"
)

NO_TIME = (
    "{:,} coefficients and {:,} rows under a prior of an unknown scale: the integral "
    "over it has about {} terms, which take {:,} seconds or more, and max_seconds "
    "leaves {:.1f}; what helps: a known scale, such as prior=Normal(scale=1.0), fewer "
    "features, chosen without looking at y, or more seconds"
)
