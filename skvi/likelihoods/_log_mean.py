"""Targets with a mean of exp(f)."""

from collections.abc import Callable

import torch

from skvi.expectations._logistic import expect_peaked
from skvi.expectations._rules import Expectations
from skvi.likelihoods.base import Likelihood

# Beyond, means go on growing linearly in f: exp overflows at 709.
MAX_LOG_MEAN = 300.0

#: Coefficients and the powers of the mean that they multiply.
VarianceTerms = tuple[tuple[float | torch.Tensor, float], ...]


class LogMeanLikelihood(Likelihood):
    """Base class: one f, and a mean of exp(f), of which the variance is a function."""

    def _variance_terms(self) -> VarianceTerms:
        """Coefficients and powers of the mean whose products sum to the variance."""
        raise NotImplementedError

    @property
    def _length_scale(self) -> float:
        """Half a unit of the log mean: densities curve more than a logistic."""
        return 0.5

    def mean(self, f: torch.Tensor) -> torch.Tensor:
        """Return exp(f), (S, n)."""
        return safe_exp(f[..., 0])

    def variance(self, f: torch.Tensor) -> torch.Tensor:
        """Sum over powers of the mean, (S, n)."""
        mean = self.mean(f)
        return sum(c * mean**power for c, power in self._variance_terms()) + 0 * mean

    def _resolution(self, f: torch.Tensor) -> torch.Tensor:
        """Coefficient of variation of y, at most `_length_scale`, (S, n)."""
        terms = self._variance_terms()
        squared = sum(c * torch.exp((power - 2) * f[..., 0]) for c, power in terms)
        squared = squared + torch.zeros_like(f[..., 0])
        return squared.clamp(max=self._length_scale**2).sqrt()

    def _expected_exp(
        self,
        log_function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        refine: int,
    ) -> Expectations:
        """By nodes around each row's peak."""
        return expect_peaked(log_function, mean, std_or_cov, y, refine)


def safe_exp(f: torch.Tensor, power: float = 1.0) -> torch.Tensor:
    """Return exp(f), continued by its tangent above 300 so that slopes stay finite.

    That of a mean's power larger than 1 goes on as far, so that it remains larger.
    """
    end = MAX_LOG_MEAN * max(abs(power), 1.0)
    return f.clamp(max=end).exp() * (1 + (f - end).clamp(min=0))
