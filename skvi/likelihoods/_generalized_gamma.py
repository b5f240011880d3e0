"""Positive targets with a generalized Gamma distribution."""

import math
from numbers import Real

import numpy as np
import torch
from scipy.special import gammaincinv

from skvi.likelihoods._noise import NoiseLikelihood
from skvi.utils._validation import Interval, StrOptions

__all__ = ["GeneralizedGammaLikelihood"]

# Beyond, the tangent continues the exponential: the density is far below any float.
LARGEST = 20.0


class GeneralizedGammaLikelihood(NoiseLikelihood):
    r"""Positive y of a generalized Gamma distribution: multiplicative, skewed noise.

    .. math:: y = \exp\big(u (f + s \sqrt{k} \log(g / k))\big),
              \quad g \sim \mathrm{Gamma}(k)

    for noise of scale s, with u = `log_unit` and k = `shape`. The output f is the mode
    of log(y) / u, around which the noise is that of a normal distribution with standard
    deviation s. Special cases are the exponential, Weibull (k = 1), Gamma
    (s u = 1 / sqrt(k)) and, for large k, lognormal distribution. No prediction is
    negative.

    Parameters
    ----------
    shape : float or "learn", default="learn"
        Positive. "learn" searches between .3 and 400.
    noise_scale : float or "learn", default="learn"
        Scale of the noise of log(y) / u. "learn" finds the value with the largest ELBO.
    log_unit : float, default=1.0
        Unit of the output: the difference of logarithms of y that changes it by 1.

    Notes
    -----
    A network for this likelihood takes the standard deviation of log(y) for `log_unit`,
    and its mean for the origin. Expectations under a normal f are not implemented.

    References
    ----------
    Prentice (1974), *A log gamma model and its maximum likelihood estimation*.

    Examples
    --------
    >>> import torch
    >>> from skvi.likelihoods import GeneralizedGammaLikelihood
    >>> likelihood = GeneralizedGammaLikelihood(1.0, noise_scale=1.0)  # exponential
    >>> f = torch.tensor([[[2.0]]]).double().log()
    >>> likelihood.log_prob(f, torch.tensor([1.0])).exp()  # exp(-1 / 2) / 2
    tensor([[0.3033]], dtype=torch.float64)
    >>> likelihood.mean(f)
    tensor([[2.]], dtype=torch.float64)
    """

    _parameter_constraints: dict = {
        **NoiseLikelihood._parameter_constraints,
        "shape": [Interval(Real, 0, None, closed="neither"), StrOptions({"learn"})],
        "log_unit": [Interval(Real, 0, None, closed="neither")],
    }
    has_expectations = False
    is_location = False
    #: The mean is about exp(s^2 u^2 / 2) times the median: with a wider range of s, a
    #: single network of a hundred determined the predicted mean of a row.
    scale_reach = 1.0
    shapes = {"shape": (math.log(0.3), math.log(3.0), math.log(400.0))}

    def __init__(
        self,
        shape: float | str = "learn",
        noise_scale: float | str = "learn",
        log_unit: float = 1.0,
    ) -> None:
        self.shape = shape
        self.noise_scale = noise_scale
        self.log_unit = log_unit

    def _location(self, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logarithm of y in its unit; see `NoiseLikelihood._location`."""
        log_y = y.clamp(min=torch.finfo(torch.float32).tiny).log()
        return log_y / self.log_unit, -log_y - math.log(self.log_unit)

    def log_prob(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Log density, (S, n): minus infinity unless y is positive."""
        return super().log_prob(f, y).where(y > 0, -math.inf)

    def _standard_terms(
        self, z: torch.Tensor, *log_shapes: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, ...]]:
        """Closed form; see `NoiseLikelihood._standard_terms`."""
        k = log_shapes[0].exp()
        x = z / k.sqrt()
        near = x.clamp(max=LARGEST)
        slope = torch.expm1(near)
        growth = slope + (slope + 1) * (x - near)
        log_norm = k * log_shapes[0] - k - 0.5 * log_shapes[0] - torch.lgamma(k)
        value = k * (x - growth)
        for_shape = value + 0.5 * k * x * slope
        for_norm = k * log_shapes[0] - 0.5 - k * torch.digamma(k)
        return log_norm + value, k.sqrt() * slope, (for_shape + for_norm,)

    def _power(self) -> torch.Tensor:
        """Y is exp(u f) (g / k) to this power."""
        return self.log_unit * self._scale * (0.5 * self._log_shapes()[0]).exp()

    def _log_moment(self, f: torch.Tensor, order: int) -> torch.Tensor:
        """Log of the mean of y to a power, (S, n)."""
        k, power = self._log_shapes()[0].exp(), order * self._power()
        gain = torch.lgamma(k + power) - torch.lgamma(k) - power * k.log()
        return order * self.log_unit * f[..., 0] + gain

    def mean(self, f: torch.Tensor) -> torch.Tensor:
        """Mean of y, (S, n)."""
        return self._log_moment(f, 1).exp()

    def variance(self, f: torch.Tensor) -> torch.Tensor:
        """Variance of y, (S, n)."""
        first = self._log_moment(f, 1)
        excess = self._log_moment(f, 2) - 2 * first
        return (2 * first).exp() * torch.expm1(excess)

    def cdf(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Probability of less than y, (S, n)."""
        return super().cdf(f, y).where(y > 0, 0.0)

    def quantile(self, f: torch.Tensor, level: float | torch.Tensor) -> torch.Tensor:
        """Quantile of y, (S, n)."""
        return (self.log_unit * super().quantile(f, level)).exp()

    def sample(self, f: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Draw targets, (S, n)."""
        return (self.log_unit * super().sample(f, generator)).exp()

    def _standard_cdf(self, z: torch.Tensor) -> torch.Tensor:
        """Probability that noise of scale 1 is less than z, elementwise."""
        k = self._log_shapes()[0].exp()
        g = k * (z.double() / k.sqrt()).exp()
        return torch.special.gammainc(k.to(g), g)

    def _standard_quantile(self, level: torch.Tensor) -> torch.Tensor:
        """Quantiles of noise of scale 1, elementwise."""
        k = self._log_shapes()[0].exp()
        g = gammaincinv(k.cpu().numpy(), level.cpu().numpy())
        return k.sqrt() * (torch.from_numpy(np.asarray(g)).to(level) / k).log()

    def log_power_integral(self, f: torch.Tensor, c: float) -> torch.Tensor:
        """Closed form, (S, n); ValueError if the integral is infinite."""
        log_k = self._log_shapes()[0]
        k, unit = log_k.exp(), self.log_unit * self._scale
        gamma = c * k + (1 - c) * self._power()
        if bool((gamma <= 0).any()):
            raise ValueError(
                f"The integral of the power {c} of {self!r} is infinite: the density "
                "is not bounded near 0. Use loss='log', or an order closer to 1."
            )
        log_norm = k * log_k - 0.5 * log_k - torch.lgamma(k)
        value = torch.lgamma(gamma) - gamma * (c * k).log() + 0.5 * log_k
        value = value + c * log_norm + (1 - c) * unit.log()
        return value + (1 - c) * self.log_unit * f[..., 0]

    def _standard_noise(
        self, generator: torch.Generator, shape: torch.Size
    ) -> torch.Tensor:
        k = self._log_shapes()[0].exp()
        like = torch.zeros(shape, dtype=torch.float64, device=generator.device)
        gamma = torch._standard_gamma(like + k, generator=generator)
        return k.sqrt() * (gamma / k).clamp(min=1e-300).log()
