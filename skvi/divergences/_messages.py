"""Messages about a divergence: collapsed posteriors, or too few effective draws."""

import torch

from skvi.base._protocols import PosteriorDensity, PriorDensity

# Weight of the entropy, relative to KL, below which a posterior has collapsed: it is
# then more than ten times too narrow.
COLLAPSED_BELOW = 0.01
N_DRAWS = 1000
# Fraction of effective draws below which an estimate depends on draws not made.
DEGENERATE_BELOW = 0.1
# Ratio of deviations, of posterior and prior, that is more than noise of a fit.
WIDE = 1.5


def collapse_message(divergence: object, weight: torch.Tensor, why: str) -> str:
    """Say that a bounded divergence no longer keeps a posterior from collapsing.

    `weight` is -dD / d(log width of q) relative to that of KL, a number or one per
    coordinate. Empty while all are above 0.01. `why` says why the divergence allows it.
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
        f"the posterior collapsed toward a point mass{where}: {divergence!r} is "
        f"bounded ({why}), and has {lowest:.1g} of the gradient of KL left to keep it "
        f"from narrowing; its standard deviations are meaningless. Use {remedy}"
    )


def width_message(
    divergence: object, posterior: PosteriorDensity, prior: PriorDensity | None
) -> str:
    """Say that a weak divergence left a posterior wider than its prior.

    Under KL data only narrow the posterior, where the loss is convex. Empty if no
    deviation is larger by a half, or one of the two is not normal.
    """
    own = posterior.as_normal()
    given = None if prior is None else prior.as_normal()
    if own is None or given is None:
        return ""
    ratio = (own.variance[: given.size] / given.variance).sqrt()
    n_wide = int((ratio > WIDE).sum())
    if not n_wide:
        return ""
    remedy = "divergence='kl', or an order nearer to 1"
    if not own.is_diagonal:
        remedy += ", or posterior='mean_field'"
    return (
        f"the posterior is wider than its prior in {n_wide} of {len(ratio)} "
        f"coordinates, up to {float(ratio.max()):.2g} times: {divergence!r} hardly "
        "penalizes wide posteriors, the less the more parameters there are. Use "
        f"{remedy}"
    )


def noise_message(divergence: object, log_weights: torch.Tensor) -> str:
    """Say that draws of q cannot resolve a divergence.

    `log_weights`, (S,) or (S, G) for G independent estimates, weight draws in the
    gradient. Empty if the fraction of effective draws is above 0.1.
    """
    weights = torch.softmax(log_weights, 0)
    fraction = 1 / (len(weights) * float(weights.square().sum(0).max()))
    return "" if fraction > DEGENERATE_BELOW else missed_message(divergence, fraction)


def missed_message(divergence: object, fraction: float) -> str:
    """Say that draws of q miss what the divergence depends on."""
    return (
        f"{divergence!r} is estimated from draws of the posterior, which miss what it "
        f"depends on (fraction of effective draws {fraction:.1g}), so that the fit "
        "cannot be trusted. Use divergence='kl', or a normal prior and a divergence "
        "with a closed form"
    )


@torch.no_grad()
def draw_logs(
    posterior: PosteriorDensity, prior: PriorDensity, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log densities of posterior and prior at draws of the posterior, (S,)."""
    draw = posterior.draw(N_DRAWS, generator)
    theta, log_q = draw.theta, draw.log_q
    return log_q.double(), prior.log_prob(theta).double()
