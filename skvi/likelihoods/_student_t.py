"""Continuous targets with heavy-tailed noise."""

import math
from numbers import Real

import numpy as np
import torch
from scipy.special import stdtr, stdtrit

from skvi.expectations._rules import Expectations
from skvi.likelihoods._noise import NoiseLikelihood
from skvi.utils._validation import TEMPORARY_ELEMENTS, Interval

# Degrees of freedom whose distribution function is a short polynomial.
CLOSED = (2.0, 4.0, 6.0, 8.0, 10.0)

# Deviations of f, in units of `_length_scale`, up to which nodes of f are few.
WIDE = 20.0


class StudentTLikelihood(NoiseLikelihood):
    """y = f + noise, with noise of a Student-t distribution.

    Parameters
    ----------
    df : float, default=4.0
        Degrees of freedom, positive. Small values expect outliers: 4 has a finite
        variance, `df` / (`df` - 2) times the squared scale, and gives the largest
        residuals little influence; infinity would be normal noise.
    noise_scale : float or "learn", default="learn"
        Scale of the noise, in units of y; not its standard deviation. "learn" finds the
        value with the largest ELBO (type-II maximum likelihood where q is exact).

    Notes
    -----
    This is a robust model, whereas robust losses are robust inference: the model
    describes all of the data, outliers included. The log density is not concave in f.

    ``log_power_integral`` of order c exists for ``c (df + 1) > 1``, so for all robust
    losses. Expectations under a normal f use that the distribution is a mixture of
    normals over a Gamma-distributed precision: one integral of closed forms, accurate
    to 1e-10 for every standard deviation.

    Examples
    --------
    >>> import torch
    >>> from skvi.likelihoods import StudentTLikelihood
    >>> cauchy = StudentTLikelihood(df=1.0, noise_scale=1.0)
    >>> cauchy.log_prob(torch.zeros(1, 1, 1), torch.ones(1))
    tensor([[-1.8379]])
    """

    _parameter_constraints: dict = {
        **NoiseLikelihood._parameter_constraints,
        "df": [Interval(Real, 0, None, closed="neither")],
    }
    tail_curvature = 0.0

    def __init__(self, df: float = 4.0, noise_scale: float | str = "learn") -> None:
        self.df = df
        self.noise_scale = noise_scale

    @property
    def _length_scale(self) -> float:
        """A quarter of the distance of the poles: errors of nodes are exp(-24)."""
        return 0.25 * math.sqrt(self.df) * super()._length_scale

    @property
    def _power(self) -> float:
        return (self.df + 1) / 2

    @property
    def _log_norm(self) -> float:
        return 0.5 * math.log(self.df * math.pi) + _lgamma_step(self.df / 2)

    @property
    def _log_peak(self) -> torch.Tensor:
        return -self._log_norm - self._scale.log()

    def _standard_log_prob(self, z: torch.Tensor) -> torch.Tensor:
        """Log density of noise of scale 1, elementwise."""
        return -self._log_norm - self._power * torch.log1p(z.square() / self.df)

    def _standard_slope(self, z: torch.Tensor) -> torch.Tensor:
        """Influence of an observation, which decreases for large z, elementwise."""
        return (self.df + 1) * z / (self.df + z.square())

    @property
    def _standard_variance(self) -> float:
        """Variance of noise of scale 1; infinity if it has none."""
        return self.df / (self.df - 2) if self.df > 2 else math.inf

    def _standard_cdf(self, z: torch.Tensor) -> torch.Tensor:
        """Probability that noise of scale 1 is less than z, elementwise."""
        if self.df in CLOSED:
            return self._standard_log_cdf(z).exp()
        below = stdtr(self.df, z.double().cpu().numpy())
        return torch.from_numpy(np.asarray(below)).to(z.device)

    def _standard_log_cdf(self, z: torch.Tensor) -> torch.Tensor:
        """Without underflow for even `df`; see `NoiseLikelihood._standard_log_cdf`."""
        if self.df not in CLOSED:
            return super()._standard_log_cdf(z)
        # The integral of ((2 - u) u)^(m - 1) up to w = 1 - |z| / sqrt(df + z^2), with
        # m = df / 2, a polynomial in w.
        m, root, size = round(self.df / 2), (self.df + z.square()).sqrt(), z.abs()
        w = self.df / (root * (root + size))
        total = torch.zeros_like(w)
        for k in reversed(range(m)):
            factor = (-1) ** k * math.comb(m - 1, k) * 2.0 ** (m - 1 - k) / (m + k)
            total = total * w + factor
        log_norm = 2 * math.lgamma(m) - math.lgamma(2 * m) + (2 * m - 1) * math.log(2)
        tail = m * w.log() + total.log() - log_norm
        return torch.where(z > 0, torch.log1p(-tail.exp()), tail)

    def _standard_tail_moment(self, z: torch.Tensor) -> torch.Tensor:
        """By a Student-t of ``df - 2``; see `NoiseLikelihood._standard_tail_moment`."""
        df = self.df
        if df <= 2:
            return torch.full_like(z, math.inf)
        wide = StudentTLikelihood(df - 2)._standard_cdf(-z * math.sqrt((df - 2) / df))
        rest = (df + z.square()) * self._standard_cdf(-z)
        return df * (df - 1) / (df - 2) * wide - rest

    def _standard_quantile(self, level: torch.Tensor) -> torch.Tensor:
        """Quantiles of noise of scale 1, elementwise."""
        found = stdtrit(self.df, level.cpu().numpy())
        return torch.from_numpy(np.asarray(found)).to(level.device)

    def log_power_integral(self, f: torch.Tensor, c: float) -> torch.Tensor:
        """Closed form by Gamma functions, (S, n).

        Parameters
        ----------
        f : Tensor of shape (S, n, 1)
        c : float
            Power; ``c (df + 1)`` must exceed 1.

        Returns
        -------
        Tensor of shape (S, n)

        Raises
        ------
        ValueError
            The integral is infinite.
        """
        shape = c * self._power - 0.5
        if shape <= 0:
            raise ValueError(
                f"The integral of the power {c} of {self!r} is infinite: c (df + 1) "
                "must exceed 1. Use a larger power, or a larger df."
            )
        # Integral of (1 + z^2 / df)^(-c (df + 1) / 2): the normalizer of another
        # Student-t.
        log_width = 0.5 * math.log(self.df * math.pi) + _lgamma_step(shape)
        value = c * self._log_peak + log_width + self._scale.log()
        return torch.zeros_like(f[..., 0]) + value

    def log_prob_derivatives(self, f: torch.Tensor, y: torch.Tensor) -> Expectations:
        """Closed form; see `Likelihood.log_prob_derivatives`."""
        z = y - f[..., 0]
        base = self.df * self._scale**2 + z.square()
        first = 2 * self._power * z / base
        second = 2 * self._power * (z.square() - self.df * self._scale**2) / base**2
        return self.log_prob(f, y), first, second

    def _standard_noise(
        self, generator: torch.Generator, shape: torch.Size
    ) -> torch.Tensor:
        normal = super()._standard_noise(generator, shape)
        half = torch.full_like(normal, self.df / 2)
        gamma = torch._standard_gamma(half, generator=generator)
        return normal * (half / gamma.clamp(min=1e-300)).sqrt()

    def expected_log_loss(
        self,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        refine: int = 1,
    ) -> Expectations:
        """Of wide f over the precision; see `Likelihood.expected_log_loss`."""
        if len(mean) and float(std_or_cov.detach().max()) < WIDE * self._length_scale:
            return super().expected_log_loss(mean, std_or_cov, y, refine)
        value, first, second = self._mix(mean, std_or_cov, y, 0.0, refine)
        power = self._power
        return power * value - self._log_peak, power * first, power * second

    def _expected_power(
        self,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        c: float,
        log_factor: torch.Tensor,
        refine: int,
    ) -> Expectations:
        factor = torch.exp(log_factor + c * self._log_peak)
        value, first, second = self._mix(mean, std_or_cov, y, c * self._power, refine)
        return factor * (1 - value), -factor * first, -factor * second

    def _mix(
        self,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        a: float,
        refine: int,
    ) -> Expectations:
        """Expected 1 - (1 + q)^-a, or for a = 0 log(1 + q), q = z^2 / df.

        Both are integrals of 1 - exp(-u q) over u: with the density of a Gamma(a)
        variable, or with exp(-u) / u. E exp(-u q) is a closed form.
        """
        distance, unit = y - mean, self.df * self._scale**2
        size = (distance.square() + std_or_cov.square()) / unit
        largest = max(float(size.detach().max()), 1.0) if len(size) else 1.0
        # The error of a trapezoidal rule is |Gamma(a + 2 pi i / step)| / Gamma(a).
        step = 2 * math.pi / (21 + a) / refine
        low = -(37 + math.log(largest)) / (1 + a) - max(math.lgamma(a + 1), 0.0)
        high = math.log(40 + 3 * a)
        w = torch.arange(low, high, step, dtype=torch.float64, device=mean.device)
        norm = math.lgamma(a) if a > 0 else 0.0
        weights = torch.exp(a * w - w.exp() + math.log(step) - norm)
        u, totals = w.exp(), [torch.zeros_like(mean) for _ in range(3)]
        width = max(1, TEMPORARY_ELEMENTS // max(len(mean), 1))
        for some, weight in zip(u.split(width), weights.split(width), strict=True):
            u_column = some[:, None]
            inflation = 1 + 2 * u_column * std_or_cov.square() / unit
            rate = u_column / (unit * inflation)
            log_mgf = -0.5 * inflation.log() - rate * distance.square()
            slope = 2 * rate * distance
            mgf = log_mgf.exp()
            totals[0] = totals[0] - weight @ torch.expm1(log_mgf)
            totals[1] = totals[1] - weight @ (mgf * slope)
            totals[2] = totals[2] - weight @ (mgf * (slope.square() - 2 * rate))
        return totals[0], totals[1], totals[2]


def _lgamma_step(x: float) -> float:
    """Return log Gamma(x) - log Gamma(x + 1/2)."""
    if x > 1e6:  # lgamma would cancel
        return -0.5 * math.log(x) + 1 / (8 * x)
    return math.lgamma(x) - math.lgamma(x + 0.5)
