"""Collapse to a point mass: when a fit with a bounded divergence has no optimum."""

from typing import Any

import torch

# Weight of the entropy, relative to KL, below which a posterior has collapsed: it is
# then more than ten times too narrow.
COLLAPSED_BELOW = 0.01
N_DRAWS = 1000


def collapse_message(divergence: Any, weight: torch.Tensor, why: str) -> str:
    """Say that a bounded divergence no longer holds a posterior open.

    Parameters
    ----------
    divergence : Divergence
    weight : Tensor
        -dD / d(log width of q), relative to that of KL; of each coordinate where
        each has its own divergence.
    why : str
        What lets it happen.

    Returns
    -------
    str
        Empty while all weights are above 0.01.
    """
    lowest, size = float(weight.min()), weight.numel()
    if not lowest < COLLAPSED_BELOW:
        return ""
    where = ""
    if size > 1:
        where = f" in {int((weight < COLLAPSED_BELOW).sum())} of {size} coordinates"
    remedy = "divergence='renyi', 'gamma' or 'kl'"
    if size == 1:
        remedy += (
            ", or divergence='alpha' with posterior='mean_field' and a normal prior, "
            "which is applied per coordinate"
        )
    return (
        f"the posterior collapsed towards a point mass{where}: {divergence!r} is "
        f"bounded ({why}), and has {lowest:.1g} of the force of KL left to keep it "
        f"from narrowing; its standard deviations mean nothing. Use {remedy}"
    )


@torch.no_grad()
def draw_logs(
    posterior: Any, prior: Any, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log densities of posterior and prior at draws of the posterior, (S,)."""
    theta, log_q = posterior.rsample_with_log_prob(N_DRAWS, generator)
    return log_q.double(), prior.log_prob(theta).double()
