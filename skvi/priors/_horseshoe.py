"""The horseshoe prior."""

import math

import torch

from skvi.base import Layout
from skvi.expectations._log_square import (
    HORSESHOE,
    expected_log,
    log_scaled_e1,
    log_scaled_e1_slope,
)
from skvi.priors._scales import SCALE, BuiltIndependent, scaled
from skvi.priors.base import BuiltPrior, Prior
from skvi.utils._random import rand, randn

__all__ = ["Horseshoe"]


class Horseshoe(Prior):
    r"""Normal with a half-Cauchy scale for each coefficient: sparse, heavy-tailed.

    ``theta_j ~ N(0, (scale * lambda_j)^2)`` with ``lambda_j`` half-Cauchy. The local
    scales are integrated out:

    .. math:: \pi(\theta) = \frac{e^t E_1(t)}{s \sqrt{2 \pi^3}},
              \qquad t = \frac{\theta^2}{2 s^2}

    It has an infinite peak at 0, which shrinks small coefficients strongly, and Cauchy
    tails, which leave large ones almost unshrunk.

    Parameters
    ----------
    scale : float or "learn", default=1.0
        The global scale s, in units of the block's natural size (`Block.scale`).
        Small values favor few nonzero coefficients. "learn" as in `Normal`.

    Notes
    -----
    ``exp(t) E1(t)`` is a Stieltjes function, so that its logarithm is a mixture of
    ``-log(t + x)`` over x with the density ``exp(x) / (x (pi^2 + Ei(x)^2))``;
    ``E[log prior]`` under a normal posterior is therefore a one-dimensional
    integral, computed to about 1e-11 nats without draws. The density is not
    log-concave: an ELBO can have more than one optimum.

    References
    ----------
    Carvalho, Polson and Scott (2010), *The horseshoe estimator for sparse signals*,
    theorem 1 and its appendix.

    Examples
    --------
    >>> from skvi.priors import Horseshoe
    >>> Horseshoe(scale=0.1)
    Horseshoe(scale=0.1)
    """

    _parameter_constraints: dict = {"scale": SCALE}

    def __init__(self, scale: float | str = 1.0) -> None:
        self.scale = scale

    def build(self, layout: Layout) -> BuiltPrior:
        """Build the prior over every coordinate of a layout."""
        self.validate()
        return scaled(layout, self.scale, _BuiltHorseshoe)


class _BuiltHorseshoe(BuiltIndependent):
    constant = -0.5 * math.log(2 * math.pi**3)

    def _log_density(self, u: torch.Tensor) -> torch.Tensor:
        return self.constant + log_scaled_e1(0.5 * u.square())

    def _slope(self, u: torch.Tensor) -> torch.Tensor:
        return log_scaled_e1_slope(0.5 * u.square()) * u

    def _expected(self, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
        root = math.sqrt(2)
        return self.constant - expected_log(mean / root, std / root, HORSESHOE)

    def _draw(self, generator: torch.Generator, *shape: int) -> torch.Tensor:
        local = torch.tan(0.5 * math.pi * rand(generator, *shape))
        return local * randn(generator, *shape)
