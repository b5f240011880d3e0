"""Continuous targets that were rounded: probabilities of intervals."""

import math
from copy import copy
from numbers import Real
from operator import attrgetter
from typing import Any

import torch

from skvi.exceptions import IncompatibleComponentsError
from skvi.likelihoods._gaussian import GaussianLikelihood, HeteroscedasticLikelihood
from skvi.likelihoods._noise import NoiseLikelihood, NoisePass
from skvi.likelihoods.base import Likelihood
from skvi.utils._rows import RowBuffers, RowPass
from skvi.utils._validation import Interval, StrOptions

# Values on each side whose probabilities are summed for moments.
NEIGHBORS = 5
# Size of logs of distribution functions in the tails.
LARGE_LOG = 100.0


class RoundedLikelihood(Likelihood):
    r"""y = f + noise, rounded to a grid: the probability of :math:`y \pm` half a step.

    .. math:: p(y|f) = \frac{1}{2h} \Big[F\Big(\frac{y + h - f}{s}\Big)
              - F\Big(\frac{y - h - f}{s}\Big)\Big], \quad h = \text{step} / 2

    for noise of scale s with the distribution function F: the mean density over the
    interval, which is comparable with densities of other likelihoods, and for integers
    (step 1) the probability itself. A density of integers can grow without limit by
    narrow noise around them; this one is at most 1 / step.

    Parameters
    ----------
    noise : NoiseLikelihood, HeteroscedasticLikelihood or None, default=None
        Symmetric noise before y is rounded. None is ``GaussianLikelihood()``.
    step : float or "auto", default="auto"
        Distance of neighboring values. A network with "auto" takes the largest one that
        all of its targets have in common.
    origin : float, default=0.0
        One of the values; with ``step="auto"`` it is found, too.

    Notes
    -----
    `mean` and `variance` are those of the rounded number: sums over the nearest values,
    and integrals over the others. For noise wider than a step they are f and the
    variance of the noise plus ``step**2 / 12``.

    Examples
    --------
    >>> import torch
    >>> from skvi.likelihoods import GaussianLikelihood, RoundedLikelihood
    >>> likelihood = RoundedLikelihood(GaussianLikelihood(0.5), step=1.0)
    >>> likelihood.log_prob(torch.zeros(1, 1, 1), torch.arange(3)).exp()
    tensor([[0.6827, 0.1573, 0.0013]])
    """

    _parameter_constraints: dict = {
        "noise": [NoiseLikelihood, HeteroscedasticLikelihood, None],
        "step": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
        "origin": [Real],
    }
    has_expectations = False

    def __init__(
        self,
        noise: NoiseLikelihood | HeteroscedasticLikelihood | None = None,
        step: float | str = "auto",
        origin: float = 0.0,
    ) -> None:
        self.noise = noise
        self.step = step
        self.origin = origin

    @property
    def smooth(self) -> Any:
        """The likelihood of y before it is rounded."""
        return GaussianLikelihood() if self.noise is None else self.noise

    @property
    def _step(self) -> float:
        if isinstance(self.step, str):
            raise ValueError(f"{self!r} has no step before a fit finds one; give it.")
        return float(self.step)

    # As of the noise.
    n_outputs: Any = property(attrgetter("smooth.n_outputs"))
    scale_outputs: Any = property(attrgetter("smooth.scale_outputs"))
    noise_outputs: Any = property(attrgetter("smooth.noise_outputs"))
    learned: Any = property(attrgetter("smooth.learned"))

    def initial_hyper(self, y: torch.Tensor) -> torch.Tensor:
        """That of the noise; see `Likelihood.initial_hyper`."""
        return self.smooth.initial_hyper(y)

    def bind(self, hyper: torch.Tensor) -> Any:
        """Return the likelihood whose noise has the scale ``exp(hyper)``."""
        if not self.learned:
            return self
        bound = copy(self)
        bound.noise = self.smooth.bind(hyper)
        return bound

    @property
    def _length_scale(self) -> float:
        """The scale of the noise, or half a step."""
        return max(self.smooth._length_scale, self._step / 2)

    def log_prob(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Log of the mean density of the interval, (S, n); differentiable once."""
        noise = self.smooth._at_rows(f)
        # Noise is symmetric; its lower tail has all digits.
        middle = -(y - f[..., 0]).abs() / noise._scale
        half = (self._step / 2 / noise._scale) + torch.zeros_like(middle)
        with torch.no_grad():
            value, for_middle, for_half = _probability(noise, middle, half)
        # Zero, with the derivatives in both.
        slopes = for_middle * (middle - middle.detach())
        slopes = slopes + for_half * (half - half.detach())
        return value + slopes - math.log(self._step)

    def _row_pass(self, buffers: RowBuffers) -> RowPass:
        """Closed form; see `Likelihood._row_pass`."""
        smooth, reach = self.smooth, None
        if isinstance(smooth, HeteroscedasticLikelihood):
            smooth, reach = smooth.level, smooth.level.scale_reach
        return _RoundedPass(smooth, buffers, reach, self._step)

    def log_power_integral(self, f: torch.Tensor, c: float) -> torch.Tensor:
        """Refuse robust losses."""
        raise IncompatibleComponentsError(
            repr(self),
            "loss='log': others need sums of powers of its probabilities",
            "RoundedLikelihood(StudentTLikelihood()) for outliers",
        )

    def mean(self, f: torch.Tensor) -> torch.Tensor:
        """Mean of the rounded number, (S, n)."""
        nearest, first, _ = self._moments(f)
        return nearest + self._step * first

    def variance(self, f: torch.Tensor) -> torch.Tensor:
        """Variance of the rounded number, (S, n)."""
        _, first, second = self._moments(f)
        return self._step**2 * (second - first.square())

    def _moments(self, f: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Value next to f; first two moments of the distance from it, in steps.

        Sums of tails over the neighbors, and the midpoint rule for all others.
        """
        noise, nearest = self.smooth._at_rows(f), self.rounded(f[..., 0])
        scale, shift = noise._scale / self._step, (f[..., 0] - nearest) / self._step

        def tail(x: torch.Tensor) -> torch.Tensor:
            return noise._standard_cdf(-x / scale)

        last = NEIGHBORS / scale + torch.zeros_like(shift)
        beyond, density = (
            noise._standard_cdf(-last),
            noise._standard_log_prob(last).exp(),
        )
        slope = noise._standard_slope(last) * density / scale.square()
        first = 2 * shift * beyond - slope * shift * (1 / 12 - shift.square() / 3)
        second = (beyond - last * density) / 6 + 4 * shift.square() * beyond
        for z in (last - shift / scale, last + shift / scale):
            second = second + scale.square() * noise._standard_tail_moment(z)
        for k in range(NEIGHBORS):
            near, far = tail(k + 0.5 - shift), tail(k + 0.5 + shift)
            first = first + (near - far)
            second = second + (2 * k + 1) * (near + far)
        return nearest, first, second

    def cdf(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Probability of at most y, a value of the grid, (S, n)."""
        return self.smooth.cdf(f, y + self._step / 2)

    def rounded(self, y: torch.Tensor) -> torch.Tensor:
        """Nearest values of the grid.

        Parameters
        ----------
        y : Tensor

        Returns
        -------
        Tensor
            Of the same shape.
        """
        return self.origin + self._step * torch.round((y - self.origin) / self._step)

    def sample(self, f: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Draw targets, (S, n)."""
        return self.rounded(self.smooth.sample(f, generator))


def _probability(
    noise: NoiseLikelihood, middle: torch.Tensor, half: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log probability of an interval, and its derivatives in the middle and the width.

    Of a narrow one that of the midpoint rule, where the difference of distribution
    functions has no digits left.
    """
    low, high = middle - half, middle + half
    value = noise._standard_log_cdf(high)
    below = noise._standard_log_cdf(low) - value
    # Both errors, LARGE_LOG * eps / -below and below^2 / 24, are about equal there.
    eps = torch.finfo(below.dtype).eps
    is_narrow = below > -((24 * LARGE_LOG * eps) ** (1 / 3))
    value = value + torch.log(-torch.expm1(below))
    at_ends = (torch.exp(noise._standard_log_prob(end) - value) for end in (low, high))
    for_low, for_high = at_ends
    density = noise._standard_log_prob(middle) + torch.log(2 * half)
    slope = -noise._standard_slope(middle)
    return (
        torch.where(is_narrow, density, value),
        torch.where(is_narrow, slope, for_high - for_low),
        torch.where(is_narrow, 1 / half, for_high + for_low),
    )


class _RoundedPass(NoisePass):
    def __init__(
        self,
        noise: NoiseLikelihood,
        buffers: RowBuffers,
        reach: float | None,
        step: float,
    ) -> None:
        super().__init__(noise, buffers, reach)
        self._half_step, self._log_step = step / 2, math.log(step)

    def _of_rows(
        self,
        z: torch.Tensor,
        log_scale: torch.Tensor,
        inverse: torch.Tensor,
        weight: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        middle, half = -z.abs(), self._half_step * inverse
        value, slope, for_half = _probability(self._noise, middle, half)
        of_scale = slope * middle + for_half * half
        return self._log_step - value, z.sign() * slope, of_scale
