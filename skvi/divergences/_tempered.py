"""Power integrals of a normal posterior and any prior, by draws from a power of q."""

import math

import torch

from skvi.base import NormalForm
from skvi.base._protocols import PosteriorDensity, PriorDensity
from skvi.utils._log_space import LOG_2PI, log_mean_exp
from skvi.utils._random import randn

__all__ = ["log_tempered_integral", "tempered_normal"]

# Draws of a step of training, and numbers that they may take at most.
MAX_DRAWS, MAX_NUMBERS = 128, 2**19


def tempered_normal(posterior: PosteriorDensity, order: float) -> NormalForm | None:
    """Differentiable normal of a posterior; None if no power of it can be drawn."""
    if order <= 0 or posterior.as_normal() is None:
        return None
    return posterior.normal()


def log_tempered_integral(
    q: NormalForm,
    prior: PriorDensity,
    order: float,
    generator: torch.Generator,
    joint: bool = True,
    n_draws: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log of the integral of q^a pi^(1-a), from draws of the normal q^a.

    Returns logs, (G,), for each coordinate unless `joint`, and log weights, (S, G).
    Consistent, its exponential unbiased; draws are held fixed in the gradient.
    """
    factorized = not joint and q.is_diagonal and prior.has_log_prob_terms
    size = q.size
    n_draws = n_draws or max(2, min(MAX_DRAWS, MAX_NUMBERS // size))
    with torch.no_grad():
        eps = randn(generator, n_draws // 2, q.n_noise, dtype=q.mean.dtype)
        half = (q.transform(eps) - q.mean) / math.sqrt(order)
        theta = q.mean + torch.cat([half, -half])
    if factorized:
        log_q, log_pi = q.log_prob_terms(theta), prior.log_prob_terms(theta)
        half_log_det, size = q.scale.log(), 1
    else:
        log_q, log_pi = q.log_prob(theta)[:, None], prior.log_prob(theta)[:, None]
        half_log_det = q.half_log_det[None]
    # The integral of q^a itself.
    log_norm = (1 - order) * (half_log_det + 0.5 * size * LOG_2PI)
    log_norm = log_norm - 0.5 * size * math.log(order)
    # They vary over the width of q as little as the prior does; those of draws of q
    # itself, (pi / q)^(1-a), would be heavy-tailed.
    log_weights = (1 - order) * log_pi.detach()
    value = log_norm + log_mean_exp(log_weights, 0)
    weights = torch.softmax(log_weights, 0)
    # log_norm holds the mean of the gradient of a log q.
    score = (weights - 1 / len(theta)) * order * log_q
    score = (score + (1 - order) * weights * log_pi).sum(0)
    return value + score - score.detach(), log_weights
