"""Runs that would take minutes are refused before they begin."""

import torch

from skvi._sampling._importance import draw_weighted
from skvi.base import NormalForm
from skvi.posteriors import Posterior
from skvi.solvers._moment_matching import fit_proposal_normal
from skvi.targets import Target
from skvi.targets._lifted import LiftedTarget

__all__ = [
    "TOO_LONG",
    "why_certainly_too_long",
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
