"""What would take minutes, said before it begins."""

import torch

from skvi.base import NormalForm
from skvi.sampling import draw_weighted
from skvi.targets import Target

__all__ = ["TOO_LONG", "why_too_long"]

# Coefficients times rows from which chains take minutes, where nothing else will do:
# they need some 100,000 gradients.
MAX_WORK = 1.2e6
# Variance of the logs of weights beyond which no proposal is near, and draws behind it:
# 1,000 sparse rows of 1,300 features under N(0, 1) have 3.7, and take minutes.
FAR, N_DRAWS = 1.0, 256


@torch.no_grad()
def why_too_long(
    target: Target, normal: NormalForm, generator: torch.Generator, n_runs: int = 1
) -> str:
    """Say why bounds of a linear model would take minutes, if so; else nothing.

    Parameters
    ----------
    target : Target
    normal : NormalForm
        Near the posterior.
    generator : torch.Generator
    n_runs : int, default=1
        How often it would be done.

    Returns
    -------
    str
        It names the prior, and what to do.
    """
    size, n_rows = target.layout.size, target.cost_per_draw
    if not target.has_design or n_runs * size * n_rows <= MAX_WORK:
        return ""
    log_weights = draw_weighted(target, normal, N_DRAWS, generator).log_weights
    if float(log_weights.var()) <= FAR:
        return ""
    is_normal = target.reference.as_normal() is not None
    prior = "a normal prior" if is_normal else "this prior"
    return TOO_LONG.format(size, n_rows, prior)


TOO_LONG = (
    "{:,} coefficients and {:,} rows, and under {} their posterior is far from every "
    "normal: chains would take minutes; keep fewer features, chosen without looking at "
    "y, give the prior a smaller scale, or give max_seconds to try nevertheless"
)
