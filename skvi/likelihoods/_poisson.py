"""Counts with equal mean and variance."""

import math

import torch

from skvi.expectations._smooth import Expectations
from skvi.likelihoods._counts import CountLikelihood, safe_exp
from skvi.utils._log_space import LOG_2PI
from skvi.utils._row_pass import RowBuffers, RowPass

__all__ = ["PoissonLikelihood"]

# Above this rate, per unit of the power, sums over y take the first two terms of
# their expansion: the next one is near 1e-10, and rounding worse.
LARGE_RATE = 1e4


class PoissonLikelihood(CountLikelihood):
    r"""Counts y with log rate f: :math:`p(y|f) = \exp(y f - e^f) / y!`.

    Notes
    -----
    An exposure t_i (time, area, persons at risk) enters as a log offset: f is then
    the log rate per unit plus log t_i. The log mass is extended to y that are not
    counts, such as rates, by ``lgamma(y + 1)``; it is then not a normalized density.

    The expected log mass under a normal f is a closed form,
    ``y m - exp(m + v / 2) - log y!``. Expected powers are integrated to about 1e-9
    for every standard deviation of f up to 80. Powers summed over y, which robust
    losses need, take 128 terms and an integral, and are tabulated in f.

    Examples
    --------
    >>> import torch
    >>> from skvi.likelihoods import PoissonLikelihood
    >>> PoissonLikelihood().log_prob(torch.zeros(1, 2, 1), torch.tensor([0.0, 2.0]))
    tensor([[-1.0000, -1.6931]])
    """

    is_log_concave = True

    def cdf(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Probability of at most y, (S, n)."""
        rate = self.mean(f)
        return torch.special.gammaincc((y + 1).expand_as(rate), rate)

    def _row_pass(self, buffers: RowBuffers) -> RowPass:
        """Closed form; see `Likelihood._row_pass`."""
        return _PoissonPass(buffers)

    def _log_mass(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return y * f - safe_exp(f) - torch.lgamma(y + 1)

    def _log_power_sum(self, f: torch.Tensor, c: float) -> torch.Tensor:
        large = f > math.log(LARGE_RATE * max(c, 1 / c))
        exact = super()._log_power_sum(torch.where(large, 0.0, f), c)
        # The integral of a normal of variance exp(f), and the first correction.
        leading = 0.5 * (1 - c) * (LOG_2PI + f) - 0.5 * math.log(c)
        return torch.where(
            large, leading + (c - 1 / c) / 24 * torch.exp(-f.clamp(min=0)), exact
        )

    def sample(self, f: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Draw counts as floats, (S, n)."""
        return torch.poisson(self.mean(f), generator=generator)

    def _log_prob_slope(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Residual y - exp(f), (S, n)."""
        return y - self.mean(f)

    def log_prob_derivatives(self, f: torch.Tensor, y: torch.Tensor) -> Expectations:
        """Closed form; see `Likelihood.log_prob_derivatives`."""
        rate = self.mean(f)
        return self.log_prob(f, y), y - rate, -rate

    def expected_log_loss(
        self,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        refine: int = 1,
    ) -> Expectations:
        """Closed form: E exp(f) = exp(m + v / 2)."""
        rate = safe_exp(mean + 0.5 * std_or_cov.square())
        return rate - y * mean + torch.lgamma(y + 1), rate - y, rate


class _PoissonPass(RowPass):
    def __init__(self, buffers: RowBuffers) -> None:
        super().__init__()
        self._f, self._slope = buffers.f.squeeze(3), buffers.slope.squeeze(3)

    def _visit(
        self, y: torch.Tensor, weight: torch.Tensor, count: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        rate = safe_exp(self._f)
        torch.mul(rate - y, weight, out=self._slope)
        losses = rate - y * self._f + torch.lgamma(y + 1)
        return ((losses * weight).sum((1, 2)),)
