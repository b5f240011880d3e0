"""Normal variables that add up to theta, and what a normal q says about them.

Coordinates are those in which the prior of theta is N(0, I): the variances sum to 1.
The sum of the variables so far is b, and s the variance of those that are left.
"""

from typing import NamedTuple

import torch

from skvi.base import NormalForm
from skvi.utils._log_space import LOG_2PI

__all__ = ["Auxiliary", "auxiliaries", "kl_divergence", "log_standard"]


class Auxiliary(NamedTuple):
    """One of the variables: its prior variance, and s before and after it."""

    variance: float
    before: float
    after: float

    def marginal(self, q: NormalForm, b: torch.Tensor) -> NormalForm:
        """Its distribution under q (A3), each coordinate by itself."""
        slope = self.variance / self.before
        own = self.after * slope
        variance = own + (slope * q.scale).square()
        return NormalForm((q.mean - b) * slope, variance.sqrt())

    def condition(self, q: NormalForm, b: torch.Tensor, a: torch.Tensor) -> NormalForm:
        """Distribution of theta under q, given that the variable is a (A5)."""
        r = q.scale.square()
        rest = self.before * self.after
        norm = self.variance * r + rest
        mean = (self.before * a + self.variance * b) * r + rest * q.mean
        return NormalForm(mean / norm, q.scale * (rest / norm).sqrt())

    def log_prior(self, a: torch.Tensor) -> torch.Tensor:
        """Log density of the variable before the data, (M,)."""
        scale = torch.full_like(a, self.variance**0.5)
        return NormalForm(torch.zeros_like(a), scale).log_prob(a)


def auxiliaries(n_auxiliary: int, ratio: float) -> list[Auxiliary]:
    """Variables that each take a share of the variance left; the last takes it all."""
    found, left = [], 1.0
    for _ in range(n_auxiliary - 1):
        found.append(Auxiliary(ratio * left, left, (1 - ratio) * left))
        left = found[-1].after
    return [*found, Auxiliary(left, left, 0.0)]


def kl_divergence(q: NormalForm, mean: torch.Tensor, variance: float) -> torch.Tensor:
    """KL from factorized normals to N(mean, variance I), (M,)."""
    r = q.scale.square() / variance
    distance = (q.mean - mean).square() / variance
    return 0.5 * (r + distance - 1 - r.log()).sum(-1)


def log_standard(u: torch.Tensor) -> torch.Tensor:
    """Log density of N(0, I), (...)."""
    return -0.5 * (u.square() + LOG_2PI).sum(-1)
