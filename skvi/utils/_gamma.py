"""Gamma distributions in log coordinates."""

import torch

from skvi.utils._random import rand


def log_gamma_draws(shape: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Logs of Gamma(shape, 1) draws, differentiable, in float64.

    ``log G(a) = log G(a + 1) + log(U) / a`` does not underflow for small shapes.
    """
    draws = torch._standard_gamma(shape.double() + 1, generator)
    uniform = rand(generator, *shape.shape).clamp(min=1e-300)
    return draws.log() + uniform.log() / shape


def log_gamma_density(
    t: torch.Tensor, shape: torch.Tensor, log_rate: torch.Tensor
) -> torch.Tensor:
    """Log density of ``t = log g`` for g ~ Gamma(shape, rate), elementwise."""
    norm = shape * log_rate - torch.lgamma(shape)
    return norm + shape * t - torch.exp(t + log_rate)
