"""Amounts that may be 0: a Poisson number of Gamma-distributed parts."""

import math
from collections.abc import Iterator
from numbers import Real
from typing import cast

import torch

from skvi.likelihoods._log_mean import VarianceTerms, safe_exp
from skvi.likelihoods._positive import SMALLEST, SearchedQuantile, Terms
from skvi.utils._validation import Interval

# Deviations of the number of parts that matter, beside some parts, for densities and
# probabilities, and most terms of a sum over them.
DENSITY, PROBABILITY, N_TERMS = (8.0, 18.0), (6.5, 8.0), 96


class TweedieLikelihood(SearchedQuantile):
    """A sum of Gamma variables, as many as a Poisson count, with a mean of exp(f).

    The variance is ``dispersion * mean ** power``, with `power` between 1 and 2, and 0
    has a probability.
    """

    _parameter_constraints: dict = {
        **SearchedQuantile._parameter_constraints,
        "power": [Interval(Real, 1, 2, closed="neither")],
    }
    is_log_concave = True

    def __init__(self, power: float = 1.5, dispersion: float | str = "learn") -> None:
        self.power = power
        self.dispersion = dispersion

    def _variance_terms(self) -> VarianceTerms:
        """See `LogMeanLikelihood._variance_terms`."""
        return ((self._alpha, self.power),)

    def _has_density(self, y: torch.Tensor) -> torch.Tensor:
        """0 has a probability; see `Likelihood._has_density`."""
        return y > 0

    def _terms(self, y: torch.Tensor) -> Terms:
        p, alpha = self.power, self._alpha
        own = y.clamp(min=0) / (alpha * (p - 1))
        other = torch.ones_like(own) / (alpha * (2 - p))
        return self._constant(y), 0.0, ((own, 1 - p), (other, 2 - p))

    def _constant(self, y: torch.Tensor) -> torch.Tensor:
        """Part of the log density that does not depend on the mean: 0 at y = 0."""
        is_positive = y > 0
        if y.ndim > 1:
            return self._log_sum(y.clamp(min=SMALLEST)).where(is_positive, 0.0)
        found = torch.zeros_like(y + 0 * self._alpha, dtype=torch.float64)
        found[..., is_positive] = self._log_sum(y[is_positive].double())
        return found

    def _log_sum(self, y: torch.Tensor) -> torch.Tensor:
        """Log of the sum over the number j of parts, of positive y, less that of y.

        The logs of its terms are concave in j.
        """
        p, alpha, shape = self.power, self._alpha, self._shape
        log_z = shape * (y / (p - 1)).log() - (1 + shape) * alpha.log()
        log_z = log_z - math.log(2 - p)
        likely = (y ** (2 - p) / (alpha * (2 - p))).detach()

        def log_term(j: torch.Tensor) -> torch.Tensor:
            return j * log_z - torch.lgamma(j + 1) - torch.lgamma(shape * j)

        top = log_term(likely.clamp(min=1.0)).detach()
        numbers, step = _numbers_around(likely, (likely / (1 + shape)).sqrt(), *DENSITY)
        total = sum((log_term(j) - top).exp() for j in numbers)
        return cast(torch.Tensor, total).log() + top + step.log() - y.log()

    @property
    def _shape(self) -> float:
        """That of the Gamma distribution of one part."""
        return (2 - self.power) / (self.power - 1)

    def _rate(self, f: torch.Tensor) -> torch.Tensor:
        """Expected number of parts, (S, n)."""
        p = self.power
        return safe_exp((2 - p) * f[..., 0]) / (self._alpha * (2 - p))

    def _part(self, f: torch.Tensor) -> torch.Tensor:
        """Scale of the Gamma distribution of one part, (S, n)."""
        p = self.power
        return self._alpha * (p - 1) * safe_exp((p - 1) * f[..., 0])

    _cdf_terms = N_TERMS
    #: The value that has a probability.
    value = 0.0

    def mass(self, f: torch.Tensor) -> torch.Tensor:
        """Probability of 0, (S, n)."""
        return torch.exp(-self._rate(f))

    def log_prob(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Log density, or log probability of 0, (S, n)."""
        g, (constant, _, terms) = f[..., 0], self._terms(y)
        value = constant - sum(c * safe_exp(k * g, k) for c, k in terms)
        return value.where(y >= 0, -math.inf)

    def cdf(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Probability of at most y, (S, n)."""
        rate = self._rate(f)
        found, given = self.mass(f), y.clamp(min=0) / self._part(f)
        numbers, step = _numbers_around(rate, rate.sqrt(), *PROBABILITY)
        for j in numbers:
            log_mass = j * rate.log() - rate - torch.lgamma(j + 1)
            below = torch.special.gammainc(self._shape * j, given)
            found = found + step * log_mass.exp() * below
        return found

    def quantile(self, f: torch.Tensor, level: float | torch.Tensor) -> torch.Tensor:
        """Quantile of y, (S, n); 0 where that has a larger probability."""
        return super().quantile(f, level).where(self.mass(f) < level, 0.0)

    def sample(self, f: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Draw targets, (S, n)."""
        number = torch.poisson(self._rate(f), generator=generator)
        gamma = torch._standard_gamma(
            (self._shape * number).clamp(min=SMALLEST), generator=generator
        )
        return (gamma * self._part(f)).clamp(min=SMALLEST).where(number > 0, 0.0)

    def log_power_integral(self, f: torch.Tensor, c: float) -> torch.Tensor:
        """0 for c = 1, (S, n); ValueError for others: they have no common unit."""
        if c != 1:
            raise ValueError(
                f"{self!r} has a probability of 0 and a density of other values, whose "
                "powers have different units. Use loss='log'."
            )
        return torch.zeros_like(f[..., 0])


def _numbers_around(
    middle: torch.Tensor, std: torch.Tensor, deviations: float, more: float
) -> tuple[Iterator[torch.Tensor], torch.Tensor]:
    """Numbers from 1 for sums over nearly normal terms, and their distance.

    Of many numbers every m-th one, times m, is enough.
    """
    with torch.no_grad():
        reach = deviations * std + more
        low = (middle - reach).clamp(min=1.0).floor()
        width = middle + reach - low
        step = (width / N_TERMS).ceil().clamp(min=1.0)
        size = int((width / step).amax().ceil()) if width.numel() else 1
    return (low + step * k for k in range(size + 1)), step
