"""Runs that would take minutes are refused before they begin."""

import torch

from skvi._sampling._importance import draw_weighted
from skvi.base import NormalForm
from skvi.evidence._remedies import name_of_mixture
from skvi.evidence._tempered import Effort
from skvi.posteriors import Posterior
from skvi.priors._scale_mixture import ScaleMixture
from skvi.solvers._moment_matching import fit_proposal_normal
from skvi.targets import Target
from skvi.targets._lifted import LiftedTarget

__all__ = [
    "TOO_LONG",
    "effort_for",
    "why_certainly_too_long",
    "why_hopeless",
    "why_path_too_long",
    "why_too_long",
]

# Coefficients times rows from which chains take minutes, where nothing else will do:
# they need some 100,000 gradients.
MAX_WORK = 1.2e6
# The same for a path from the prior of a network, which is tuned in one piece: 40 s of
# that alone (2026-11-26, 2 cores, x86_64; 30 s for 75,000), before chains.
MAX_PATH = 1e5
# Variance of the logs of weights beyond which no proposal is near, and draws behind it:
# 1,000 sparse rows of 1,300 features under N(0, 1) have 3.7, and take minutes.
FAR, N_DRAWS = 1.0, 256
# Steps from a fit, of any quality, to that variance within a factor of 2, and the
# variance that is then beyond doubt.
N_ROUGH, DOUBTLESS = 3, 10.0
# Sweeps of chains with scales of coefficients, more for more than MANY scales:
# correlated coefficients mix slowly. With more scales the first chains are too short
# to estimate a covariance.
MIN_SWEEPS, MORE_SWEEPS, MANY, MAX_SCALES = 800, 1800, 15, 100
# Elements that such a run may process: somewhat more than a minute. Rungs of a ladder
# times leapfrog steps, and sweeps besides those of the run.
MAX_ELEMENTS, TYPICAL, OTHER_SWEEPS = 1e10, 25 * 7, 500


def why_path_too_long(target: Target) -> str:
    """Why a path from the prior of a network would take many minutes; else ""."""
    rows, size = target.cost_per_draw, target.layout.size
    if rows * size <= MAX_PATH:
        return ""
    return LONG_PATH.format(size, rows)


@torch.no_grad()
def why_certainly_too_long(
    target: Target, posterior: Posterior, generator: torch.Generator
) -> str:
    """`why_too_long` after few steps, where a proposal takes long to fit, too.

    A few steps from the fit show that no normal comes near, if none does by far.
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
) -> str:
    """Why bounds of a linear model would take minutes, with a remedy; else "".

    No normal is near if the variance of log weights under `normal` exceeds `far`.
    """
    if not _is_large(target) or _is_near(target, normal, generator, far):
        return ""
    is_normal = target.reference.as_normal() is not None
    prior = "a normal prior" if is_normal else "this prior"
    return TOO_LONG.format(target.layout.size, target.cost_per_draw, prior)


def _is_near(
    target: Target, normal: NormalForm, generator: torch.Generator, far: float
) -> bool:
    log_weights = draw_weighted(target, normal, N_DRAWS, generator).log_weights
    return float(log_weights.var()) <= far


def _is_large(target: Target) -> bool:
    is_linear = target.has_design or isinstance(target, LiftedTarget)
    return is_linear and target.layout.size * target.cost_per_draw > MAX_WORK


def effort_for(n_scales: int) -> Effort:
    """How long chains with so many scales of coefficients are."""
    least = MIN_SWEEPS if n_scales <= MANY else MORE_SWEEPS
    return Effort("a wide normal", 8, 240, 200, least)


def why_hopeless(mixture: ScaleMixture, cost: int, is_limited: bool = False) -> str:
    """Why such a run would take too long, said before it begins; else "".

    `cost`: elements that one evaluation touches; `is_limited`: there is a time limit.
    """
    n_scales = len(mixture.where)
    effort = effort_for(n_scales)
    n_moves = TYPICAL * effort.n_systems * (OTHER_SWEEPS + effort.min_sweeps)
    work = n_moves * (cost + 30 * n_scales)
    prior = name_of_mixture(mixture)
    if n_scales > MAX_SCALES:
        return MANY_SCALES.format(n_scales, prior)
    if is_limited:
        return ""
    if work > MAX_ELEMENTS:
        return MANY_ROWS.format(n_scales, cost, prior)
    # With 30 features of breast cancers one of two seeds was reliable, after 32 s.
    if mixture.n_vague > MANY:
        return MANY_VAGUE.format(mixture.n_vague, prior)
    return ""


TOO_LONG = (
    "{:,} coefficients and {:,} rows, and under {} their posterior is far from every "
    "normal: chains would take minutes; keep fewer features, chosen without looking at "
    "y, give the prior a smaller scale, or give max_seconds to try nevertheless"
)
LONG_PATH = (
    "the path from the prior to a posterior of {:,} weights and {:,} rows would take "
    "many minutes: compare networks by lower_bound_, with divergence='kl', keep fewer "
    "hidden units, as hidden_layer_sizes=10 and posterior='mean_field' do, or give "
    "method='tempering' to try nevertheless"
)
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
