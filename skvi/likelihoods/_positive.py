"""Positive targets with a mean of exp(f): Gamma, lognormal and inverse Gaussian."""

import math
from typing import Any

import numpy as np
import torch
from scipy.optimize.elementwise import find_root
from scipy.special import gammaincinv

from skvi.expectations._rules import Expectations
from skvi.likelihoods._dispersed import LOGS, DispersedLikelihood
from skvi.likelihoods._log_mean import LogMeanLikelihood, VarianceTerms, safe_exp
from skvi.utils._tensors import LOG_2PI, randn

# Half of how far a logarithm may be from that of the mean, beside a variance.
BEYOND = 10.0
# Nodes of the integral for a Bessel function, and nats at which it ends.
N_NODES, EMPTY = 128, 40.0
# How much finer steps in f are for terms that curve twice as fast.
N_FINER = 3
SMALLEST = torch.finfo(torch.float64).tiny

#: Of a log density in f: constant, slope, and pairs (c, k) of terms -c exp(k f).
Terms = tuple[
    torch.Tensor, torch.Tensor | float, tuple[tuple[torch.Tensor, float], ...]
]


class ExponentialTermsLikelihood(DispersedLikelihood, LogMeanLikelihood):
    """Base class: a log density that is a sum of exponentials of f.

    A subclass implements `_terms(y)`, of positive y.
    """

    def _terms(self, y: torch.Tensor) -> Terms:
        raise NotImplementedError

    def _start(self, y: torch.Tensor) -> float:
        """Squared coefficient of variation, whatever the weights are."""
        y = y.unique()
        mean, variance = float(y.mean()), float(y.var(correction=0))
        return variance / mean**2 if mean > 0 else 1.0

    def log_prob(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Log density, (S, n): minus infinity of impossible y."""
        f = f[..., 0]
        constant, slope, terms = self._terms(y)
        value = constant + slope * f - sum(c * safe_exp(k * f, k) for c, k in terms)
        return value.where(y > 0, -math.inf)

    def log_prob_derivatives(self, f: torch.Tensor, y: torch.Tensor) -> Expectations:
        """Closed form; see `Likelihood.log_prob_derivatives`."""
        g, (_, slope, terms) = f[..., 0], self._terms(y)
        each = [(k, c * safe_exp(k * g, k)) for c, k in terms]
        first = slope - _sum([k * e for k, e in each])
        return self.log_prob(f, y), first, -_sum([k * k * e for k, e in each])

    def expected_log_loss(
        self,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        refine: int = 1,
    ) -> Expectations:
        """Closed form: E exp(k f) = exp(k m + k^2 v / 2)."""
        constant, slope, terms = self._terms(y)
        half = 0.5 * std_or_cov.square()
        each = [(k, c * safe_exp(k * mean + k * k * half, k)) for c, k in terms]
        value = _sum([e for _, e in each]) - slope * mean - constant
        first = _sum([k * e for k, e in each]) - slope
        return value, first, _sum([k * k * e for k, e in each])

    def _expected_power_integral(
        self, mean: torch.Tensor, std_or_cov: torch.Tensor, c: float, refine: int = 1
    ) -> Expectations:
        """By nodes around the peak; see `Likelihood._expected_power_integral`."""
        log_power = lambda f, _: self.log_power_integral(f, c)
        return self._expected_exp(log_power, mean, std_or_cov, mean, refine)


class SearchedQuantile(ExponentialTermsLikelihood):
    """Base class: quantiles have no closed form."""

    def quantile(self, f: torch.Tensor, level: float | torch.Tensor) -> torch.Tensor:
        """Quantile of y, (S, n), by a search for its logarithm."""
        width, center = self._width(f), f[..., 0]
        found = torch.zeros_like(width)

        def excess(x: np.ndarray, index: np.ndarray) -> np.ndarray:
            found.view(-1)[index] = torch.as_tensor(x).to(found)
            y = (center + found * width).clamp(*LOGS).exp()
            value = self.cdf(f, y) - level
            excess = value.cpu().numpy().ravel()[index]
            # Beside a probability of 0 a quantile may lie below all lengths.
            excess = np.where(x <= -2, np.minimum(excess, 0), excess)
            return np.where(x >= 2, np.maximum(excess, 0), excess)

        ends = np.full(found.numel(), -2.0), np.full(found.numel(), 2.0)
        root = find_root(excess, ends, args=(np.arange(found.numel()),))
        return (center + torch.as_tensor(root.x).to(found).view_as(found) * width).exp()

    def quantile_range(
        self, f: torch.Tensor, level: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Likelihood.quantile_range`: without a search."""
        center, reach = f[..., 0], 2 * self._width(f)
        return (center - reach).clamp(*LOGS).exp(), (center + reach).clamp(*LOGS).exp()

    def _width(self, f: torch.Tensor) -> torch.Tensor:
        """Half of a distance in log y, from its mean, beyond which is next to no y.

        Almost all of it is within factors of its squared coefficient of variation.
        """
        powers = [(c, safe_exp((k - 2) * f[..., 0])) for c, k in self._variance_terms()]
        return torch.log1p(_sum([c * power for c, power in powers])) + BEYOND


def _sum(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(parts).sum(0) if len(parts) > 1 else parts[0]


class GammaLikelihood(ExponentialTermsLikelihood):
    r"""Positive y of a Gamma distribution with log mean f.

    .. math:: p(y|f) = \frac{(r / \mu)^r}{\Gamma(r)} \, y^{r - 1} e^{-r y / \mu},
              \quad \mu = e^f, \; r = 1 / \alpha

    Parameters
    ----------
    dispersion : float, "learn" or "hyperprior", default="learn"
        alpha, the squared coefficient of variation, variance / mean ** 2: 1 is an
        exponential distribution. "learn" finds the value with the largest ELBO (type-II
        maximum likelihood where q is exact). "hyperprior" gives it a
        prior, a posterior, and an evidence that integrates it: for
        `BayesianGammaRegressor`.

    Notes
    -----
    The expected log density under a normal f is a closed form. Powers of a density with
    a dispersion above 1, which is not bounded near 0, may have no integral: robust
    losses then raise an error.

    Examples
    --------
    >>> import torch
    >>> from skvi.likelihoods import GammaLikelihood
    >>> likelihood = GammaLikelihood(1.0)  # exponential
    >>> likelihood.log_prob(torch.zeros(1, 2, 1), torch.tensor([1.0, 2.0]))
    tensor([[-1., -2.]])
    """

    is_log_concave = True

    def __init__(self, dispersion: float | str = "learn") -> None:
        self.dispersion = dispersion

    def _variance_terms(self) -> VarianceTerms:
        """See `LogMeanLikelihood._variance_terms`."""
        return ((self._alpha, 2),)

    def _terms(self, y: torch.Tensor) -> Terms:
        r, y = 1 / self._alpha, y.clamp(min=SMALLEST)
        constant = r * (r * y).log() - torch.lgamma(r) - y.log()
        return constant, -r, ((r * y, -1.0),)

    def cdf(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Probability of less than y, (S, n)."""
        scaled = y.clamp(min=0) / self._alpha * safe_exp(-f[..., 0])
        return torch.special.gammainc(
            torch.zeros_like(scaled) + 1 / self._alpha, scaled
        )

    def quantile(self, f: torch.Tensor, level: float | torch.Tensor) -> torch.Tensor:
        """Quantile of y, (S, n)."""
        r = 1 / self._alpha
        found = gammaincinv(r.cpu().numpy(), _numbers(level).cpu().numpy())
        unit = torch.as_tensor(np.maximum(found, SMALLEST), device=f.device) / r
        return unit * self.mean(f)

    def sample(self, f: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Draw targets, (S, n), of at least the smallest positive float."""
        r = (1 / self._alpha).to(f.device, torch.float64).expand(f.shape[:-1])
        draw = torch._standard_gamma(r, generator=generator) / r * self.mean(f)
        return draw.clamp(min=SMALLEST)

    def log_power_integral(self, f: torch.Tensor, c: float) -> torch.Tensor:
        """Closed form, (S, n); ValueError if the integral is infinite."""
        r = 1 / self._alpha
        shape = c * (r - 1) + 1
        if bool((shape <= 0).any()):
            raise ValueError(
                f"The integral of the power {c} of {self!r} is infinite: the density "
                "is not bounded near 0. Use loss='log', or an order closer to 1."
            )
        value = torch.lgamma(shape) - shape * math.log(c) - c * torch.lgamma(r)
        return value + (c - 1) * (r.log() - f[..., 0])


class LogNormalLikelihood(ExponentialTermsLikelihood):
    """Positive y whose logarithm is normal, with a mean of exp(f).

    The variance is `dispersion`, as in `GammaLikelihood`, times the squared mean, which
    is that of log(y) where it is small: that of log(y) is log(1 + dispersion).
    """

    is_log_concave = True

    def __init__(self, dispersion: float | str = "learn") -> None:
        self.dispersion = dispersion

    _variance_terms = GammaLikelihood._variance_terms

    @property
    def _log_variance(self) -> torch.Tensor:
        return torch.log1p(self._alpha)

    @property
    def tail_curvature(self) -> float | None:  # type: ignore[override]
        """Precision of the logarithm."""
        v = self._log_variance
        return 1 / float(v) if v.ndim == 0 else None

    def _residual(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Deviations of the logarithm from its mean, (S, n)."""
        v = self._log_variance
        return (y.clamp(min=SMALLEST).log() - f[..., 0] + 0.5 * v) / v.sqrt()

    def log_prob(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Log density, (S, n): minus infinity of impossible y."""
        log_unit = y.clamp(min=SMALLEST).log() + 0.5 * self._log_variance.log()
        value = -0.5 * (self._residual(f, y).square() + LOG_2PI) - log_unit
        return value.where(y > 0, -math.inf)

    def log_prob_derivatives(self, f: torch.Tensor, y: torch.Tensor) -> Expectations:
        """Closed form; see `Likelihood.log_prob_derivatives`."""
        std, z = self._log_variance.sqrt(), self._residual(f, y)
        return self.log_prob(f, y), z / std, torch.zeros_like(z) - std**-2

    def expected_log_loss(
        self,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        refine: int = 1,
    ) -> Expectations:
        """Closed form: the log density is quadratic in f."""
        f = mean[..., None]
        value, first, second = self.log_prob_derivatives(f, y)
        return -value - 0.5 * second * std_or_cov.square(), -first, -second

    def cdf(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Probability of less than y, (S, n)."""
        return torch.special.ndtr(self._residual(f, y)).where(y > 0, 0.0)

    def quantile(self, f: torch.Tensor, level: float | torch.Tensor) -> torch.Tensor:
        """Quantile of y, (S, n)."""
        z = torch.special.ndtri(_numbers(level).to(f.device))
        v = self._log_variance
        return torch.exp(f[..., 0] - 0.5 * v + v.sqrt() * z)

    def sample(self, f: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Draw targets, (S, n)."""
        v = self._log_variance.to(f.device)
        z = randn(generator, *f.shape[:-1])
        return torch.exp(f[..., 0] - 0.5 * v + v.sqrt() * z)

    def log_power_integral(self, f: torch.Tensor, c: float) -> torch.Tensor:
        """Closed form, (S, n)."""
        v = self._log_variance
        value = 0.5 * (1 - c) * (LOG_2PI + v.log()) - 0.5 * math.log(c)
        moment = f[..., 0] - 0.5 * v + 0.5 * (1 - c) / c * v
        return value + (1 - c) * moment


class InverseGaussianLikelihood(SearchedQuantile):
    """Positive y of an inverse Gaussian distribution, with a mean of exp(f).

    The variance is ``dispersion * mean ** 3``: the dispersion is in units of 1 / y.
    """

    def __init__(self, dispersion: float | str = "learn") -> None:
        self.dispersion = dispersion

    @property
    def _rate(self) -> torch.Tensor:
        return 1 / self._alpha

    def _variance_terms(self) -> VarianceTerms:
        """See `LogMeanLikelihood._variance_terms`."""
        return ((1 / self._rate, 3),)

    def _terms(self, y: torch.Tensor) -> Terms:
        rate, y = self._rate, y.clamp(min=SMALLEST)
        constant = 0.5 * (rate.log() - LOG_2PI) - 1.5 * y.log() - 0.5 * rate / y
        return constant, 0.0, ((0.5 * rate * y, -2.0), (-rate, -1.0))

    def cdf(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Probability of less than y, (S, n)."""
        mean = safe_exp(f[..., 0])
        y = y.clamp(min=SMALLEST)
        root, ratio = (self._rate / y).sqrt(), y / mean
        z = root * (ratio - 1)
        # Of two exponentials whose logs cancel where the rate is above the mean.
        scaled = torch.special.erfcx(root * (ratio + 1) / math.sqrt(2))
        second = 0.5 * scaled * torch.exp(-0.5 * z.square())
        return (torch.special.ndtr(z) + second).clamp(max=1.0)

    def sample(self, f: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Draw targets, (S, n), by a normal and a choice (Michael et al. 1976)."""
        mean = self.mean(f)
        w = randn(generator, *mean.shape).square() * mean / (2 * self._rate)
        smaller = 1 / (1 + w + (w * (w + 2)).sqrt())
        u = torch.rand(
            mean.shape, generator=generator, dtype=torch.float64, device=mean.device
        )
        return mean * smaller.where(u * (1 + smaller) < 1, 1 / smaller)

    def _expected_exp(
        self, log_function: Any, mean: Any, std_or_cov: Any, y: Any, refine: int
    ) -> Expectations:
        """With finer steps: exponentials of -2 f, and no single peak."""
        given = log_function, mean, std_or_cov, y
        return super()._expected_exp(*given, N_FINER * refine)

    def log_power_integral(self, f: torch.Tensor, c: float) -> torch.Tensor:
        """By an integral for a Bessel function, to about 1e-12, (S, n)."""
        f, order = f[..., 0], 1 - 1.5 * c
        z = c * self._rate * torch.exp(-f)
        value = 0.5 * c * (self._rate.log() - LOG_2PI) + order * f
        return value + math.log(2) + _log_scaled_bessel(order, z)


def _numbers(level: float | torch.Tensor) -> torch.Tensor:
    """A level, or one for each row, to 16 digits."""
    return torch.as_tensor(level, dtype=torch.float64)


def _log_scaled_bessel(order: float, z: torch.Tensor) -> torch.Tensor:
    """Log of exp(z) K(z), the modified Bessel function of the second kind."""
    with torch.no_grad():
        end = torch.acosh(1 + EMPTY / z)
        end = torch.acosh(1 + (EMPTY + 1.2 * abs(order) * end) / z)
    t = torch.linspace(-1, 1, N_NODES, dtype=torch.float64, device=z.device)
    t = t.reshape(-1, *[1] * z.ndim) * end
    # cosh(t) - 1, without cancellation.
    terms = order * t - 2 * z * (0.5 * t).sinh().square()
    return torch.logsumexp(terms, 0) + (end / (N_NODES - 1)).log()
