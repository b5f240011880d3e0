"""Noise with a scale, fixed or learned."""

import math
from copy import copy
from numbers import Real
from typing import Any, Self

import torch

from skvi.likelihoods.base import Likelihood
from skvi.utils._rows import RowBuffers, RowPass
from skvi.utils._tensors import CPU, randn
from skvi.utils._validation import Interval, StrOptions


class NoiseLikelihood(Likelihood):
    """Base class: y = f + noise of one shape, with a scale.

    A subclass takes a `noise_scale`, by default "learn", and implements
    `log_power_integral` and the methods whose names begin with "_standard", for noise
    of scale 1. Quadrature over a normal f, which networks do not need, also asks for
    `expected_log_loss` and `_expected_power`. Noise with learned numbers of its
    `shapes` implements `_standard_terms` in place of `_standard_log_prob` and
    `_standard_slope`; and `_location` says of which function of y the output is the
    location.

    Examples
    --------
    >>> from skvi.likelihoods import GaussianLikelihood, NoiseLikelihood
    >>> issubclass(GaussianLikelihood, NoiseLikelihood)
    True
    """

    _parameter_constraints: dict = {
        "noise_scale": [
            Interval(Real, 0, None, closed="neither"),
            StrOptions({"learn"}),
        ]
    }

    is_location = True
    gamma_block = ("noise_precision", -0.5)
    noise_scale: float | str
    #: Positive parameters of the shape, which may be "learn": logs of the lower limit,
    #: of the start and of the upper limit of a fit.
    shapes: dict[str, tuple[float, float, float]] = {}
    #: Scales of rows are between exp(-6) and exp(6) times the level: their inverse
    #: squares are floats of single precision, and a row that is fitted exactly has a
    #: bounded density.
    scale_reach = 6.0
    _bound_scale: torch.Tensor | None = None
    _bound_shapes: tuple[torch.Tensor, ...] = ()

    @property
    def _learned_shapes(self) -> tuple[str, ...]:
        """Names of shape parameters that are to be learned."""
        if self._bound_shapes:
            return ()
        return tuple(name for name in self.shapes if getattr(self, name) == "learn")

    @property
    def learned(self) -> tuple[str, ...]:  # type: ignore[override]
        """The noise scale and parameters of the shape, where they are "learn"."""
        is_learned = self.noise_scale == "learn" and self._bound_scale is None
        return (*["noise_scale"][: is_learned or 0], *self._learned_shapes)

    @property
    def _learned_limits(self) -> list[tuple[float, float] | None]:
        """Those of the shape; see `Likelihood._learned_limits`."""
        names = (self.shapes.get(name) for name in self.learned)
        return [None if ends is None else (ends[0], ends[2]) for ends in names]

    def initial_hyper(self, y: torch.Tensor) -> torch.Tensor:
        """Log of half a robust scale, and shapes; see `Likelihood.initial_hyper`."""
        starts = [self.shapes[name][1] for name in self._learned_shapes]
        shapes = y.new_tensor(starts, dtype=torch.float64)
        if "noise_scale" not in self.learned:
            return shapes
        y, _ = self._location(y)
        # The median distance can be 0 where most targets are equal.
        median = 1.4826 * (y - y.median()).abs().median()
        scale = median if float(median) > 0 else y.std(correction=0)
        scale = scale if float(scale) > 0 else torch.ones_like(scale)
        log_scale = torch.log(0.5 * scale).to(torch.float64).reshape(1)
        return torch.cat([log_scale, shapes])

    def bind(self, hyper: torch.Tensor) -> Any:
        """Return the likelihood whose learned numbers are ``exp(hyper)``."""
        if not self.learned:
            return self
        bound = copy(self)
        if "noise_scale" in self.learned:
            bound._bound_scale = hyper[0].exp()
        if self._learned_shapes:
            bound._bound_shapes = self._log_shapes(hyper)
        return bound

    def _log_shapes(self, hyper: torch.Tensor | None = None) -> tuple[Any, ...]:
        """Logs of the parameters of the shape; learned ones are the last of `hyper`."""
        if self._bound_shapes or not self.shapes:
            return self._bound_shapes
        learned = self._learned_shapes
        if learned and hyper is None:
            raise ValueError(
                f"{type(self).__name__}({learned[0]}='learn') has no value before a "
                "fit binds one; give a number."
            )
        given = {} if hyper is None else dict(zip(self.learned, hyper, strict=True))
        numbers = {name: getattr(self, name) for name in self.shapes}
        return tuple(
            given[name]
            if name in learned
            else torch.tensor(math.log(value), device=CPU).double()
            for name, value in numbers.items()
        )

    def _location(self, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | float]:
        """Function of y around which f is the location, and the log of its derivative.

        Parameters
        ----------
        y : Tensor of shape (n,)

        Returns
        -------
        location : Tensor of shape (n,)
            In units of f; y itself by default.
        log_slope : Tensor of shape (n,) or 0
        """
        return y, 0.0

    def _residual(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Distances from f in units of the scale.

        Parameters
        ----------
        f : Tensor of shape (S, n, K)
        y : Tensor of shape (n,)

        Returns
        -------
        Tensor of shape (S, n)
        """
        return (self._location(y)[0] - f[..., 0]) / self._scale

    def _at_scale(self, scale: torch.Tensor) -> Self:
        """Return the same noise with other scales.

        Parameters
        ----------
        scale : Tensor of shape (S, n)
            In units of y; any shape that broadcasts to it.

        Returns
        -------
        NoiseLikelihood
        """
        bound = copy(self)
        bound._bound_scale = scale
        return bound

    def _at_rows(self, f: torch.Tensor) -> Self:
        """Return the noise of rows, the same for all.

        Parameters
        ----------
        f : Tensor of shape (S, n, K)

        Returns
        -------
        NoiseLikelihood
        """
        return self

    def _standard_terms(
        self, z: torch.Tensor, *log_shapes: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, ...]]:
        """Log density of noise of scale 1, with derivatives.

        Parameters
        ----------
        z : Tensor
        *log_shapes : Tensor
            Logs of the parameters named in `shapes`.

        Returns
        -------
        log_prob, slope : Tensor
            See `_standard_log_prob` and `_standard_slope`.
        for_shapes : tuple of Tensor
            Derivatives of the log density in `log_shapes`.
        """
        return self._standard_log_prob(z), self._standard_slope(z), ()

    def _standard_log_prob(self, z: torch.Tensor) -> torch.Tensor:
        """Log density of noise of scale 1.

        Parameters
        ----------
        z : Tensor

        Returns
        -------
        Tensor
            In nats, elementwise.
        """
        return self._standard_terms(z, *self._log_shapes())[0]

    def _standard_slope(self, z: torch.Tensor) -> torch.Tensor:
        """Minus the derivative of `_standard_log_prob`.

        Parameters
        ----------
        z : Tensor

        Returns
        -------
        Tensor
            In nats per unit of z, elementwise.
        """
        return self._standard_terms(z, *self._log_shapes())[1]

    @property
    def _standard_mean(self) -> float | torch.Tensor:
        """Mean of noise of scale 1; 0 by default."""
        return 0.0

    @property
    def _standard_variance(self) -> float | torch.Tensor:
        """Variance of noise of scale 1; infinity if it has none."""
        raise NotImplementedError

    def _standard_cdf(self, z: torch.Tensor) -> torch.Tensor:
        """Probability that noise of scale 1 is less than z.

        Parameters
        ----------
        z : Tensor

        Returns
        -------
        Tensor
            Elementwise.
        """
        raise NotImplementedError

    def _standard_log_cdf(self, z: torch.Tensor) -> torch.Tensor:
        """Logarithm of `_standard_cdf`.

        Parameters
        ----------
        z : Tensor

        Returns
        -------
        Tensor
            Elementwise.
        """
        return self._standard_cdf(z).log()

    def _standard_tail_moment(self, z: torch.Tensor) -> torch.Tensor:
        """Return ``E[max(e**2 - z**2, 0); e > 0]`` for noise e of scale 1.

        Parameters
        ----------
        z : Tensor
            Positive.

        Returns
        -------
        Tensor
            Elementwise.
        """
        raise NotImplementedError

    def _standard_quantile(self, level: torch.Tensor) -> torch.Tensor:
        """Quantiles of noise of scale 1.

        Parameters
        ----------
        level : Tensor
            Probabilities in (0, 1).

        Returns
        -------
        Tensor
            Elementwise.
        """
        raise NotImplementedError

    @property
    def _scale(self) -> torch.Tensor:
        if self._bound_scale is not None:
            return self._bound_scale
        if self.learned:
            raise ValueError(
                f"{type(self).__name__}(noise_scale='learn') has no value before a fit "
                "binds one; give a number."
            )
        # A scalar on the CPU goes with tensors on any device.
        return torch.tensor(float(self.noise_scale), dtype=torch.float64, device=CPU)

    def log_prob(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Log density, (S, n)."""
        log_slope = self._location(y)[1] - self._scale.log()
        return self._standard_log_prob(self._residual(f, y)) + log_slope

    def _log_prob_slope(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Closed form, (S, n); see `Likelihood._log_prob_slope`."""
        return self._standard_slope(self._residual(f, y)) / self._scale

    @property
    def _length_scale(self) -> float:
        """The scale of the noise."""
        return float(self._scale.detach())

    def mean(self, f: torch.Tensor) -> torch.Tensor:
        """Return f plus the mean of the noise, (S, n)."""
        return f[..., 0] + self._scale * self._standard_mean

    def variance(self, f: torch.Tensor) -> torch.Tensor:
        """Variance of the noise, (S, n)."""
        return torch.zeros_like(f[..., 0]) + self._scale**2 * self._standard_variance

    def cdf(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Probability of less than y, (S, n)."""
        return self._standard_cdf(self._residual(f, y))

    def quantile(self, f: torch.Tensor, level: float | torch.Tensor) -> torch.Tensor:
        """Quantile of y, (S, n); levels may differ between rows, (S, n)."""
        level = torch.as_tensor(level, dtype=torch.float64, device=f.device)
        return f[..., 0] + self._scale * self._standard_quantile(level)

    def _row_pass(self, buffers: RowBuffers) -> RowPass:
        """Closed form; see `Likelihood._row_pass`."""
        return NoisePass(self, buffers)

    def sample(self, f: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Draw targets, (S, n)."""
        f = f[..., 0]
        noise = self._standard_noise(generator, f.shape).to(f.dtype)
        return f + self._scale.to(f.dtype) * noise

    def _standard_noise(
        self, generator: torch.Generator, shape: torch.Size
    ) -> torch.Tensor:
        return randn(generator, *shape)

    def _expected_power_integral(
        self, mean: torch.Tensor, std_or_cov: torch.Tensor, c: float, refine: int = 1
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """A constant: the integral does not depend on f."""
        value = torch.exp(self.log_power_integral(mean[None, :, None], c))[0]
        return value, torch.zeros_like(mean), torch.zeros_like(mean)

    def _expected_escort_power(
        self,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        c: float,
        refine: int = 1,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """A constant times `_expected_density_power`; see `Likelihood`."""
        # The integral does not depend on f; large orders need the sum of logarithms.
        log_norm = self.log_power_integral(mean[None, :, None], c)[0]
        log_factor = -(c - 1) / c * log_norm
        return self._expected_power(mean, std_or_cov, y, c - 1, log_factor, refine)

    def _expected_density_power(
        self,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        c: float,
        refine: int = 1,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Without truncation at any scale; see `Likelihood`."""
        return self._expected_power(
            mean, std_or_cov, y, c, torch.zeros_like(mean), refine
        )

    def _expected_power(
        self,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        c: float,
        log_factor: torch.Tensor,
        refine: int,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Expected ``exp(log_factor) p^c`` and its derivatives."""
        raise NotImplementedError


class NoisePass(RowPass):
    """Minus the log density of location-scale noise, with its slopes.

    Buffers have one column of f, the location, or two: then the second is the log of
    the scale relative to `noise_scale`, bounded as ``reach * tanh(f / reach)``.
    """

    def __init__(
        self, noise: NoiseLikelihood, buffers: RowBuffers, reach: float | None = None
    ) -> None:
        super().__init__()
        self._noise, self._reach = noise, reach
        self._f, self._slope = buffers.f, buffers.slope
        self._level, self._for_level = buffers.hyper, buffers.for_hyper
        # Columns of the learned numbers, of which the scale is the first.
        self._n_scales = len(noise.learned) - len(noise._learned_shapes)
        self._columns = buffers.hyper.movedim(-1, 0)[..., None, None]
        names, learned = list(noise.shapes), noise._learned_shapes
        self._for_shapes = [
            (names.index(name), buffers.for_hyper[:, self._n_scales + k])
            for k, name in enumerate(learned)
        ]
        if not self._n_scales:
            fixed = math.log(float(noise.noise_scale))
            self._level = self._f.new_full((len(self._f), 1), fixed)
            self._for_level = torch.empty_like(self._level)

    def _visit(
        self, y: torch.Tensor, weight: torch.Tensor, count: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        log_scale = self._level[:, :1, None]
        if self._reach is not None:
            share = torch.tanh(self._f[..., 1] / self._reach)
            log_scale = log_scale + self._reach * share
        inverse = torch.exp(-log_scale)
        location, log_slope = self._noise._location(y)
        z = (location - self._f[..., 0]) * inverse
        losses, slope, by_log_scale = self._of_rows(z, log_scale, inverse, weight)
        self._slope[..., 0] = -slope * inverse * weight
        by_log_scale = by_log_scale * weight
        if self._reach is not None:
            self._slope[..., 1] = by_log_scale * (1 - share.square())
        self._for_level[:, 0] = by_log_scale.sum((1, 2))
        return (((losses - log_slope) * weight).sum((1, 2)),)

    def _of_rows(
        self,
        z: torch.Tensor,
        log_scale: torch.Tensor,
        inverse: torch.Tensor,
        weight: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Losses, with derivatives in z and in the log of the scale."""
        logs = self._noise._log_shapes(self._columns)
        log_prob, slope, for_shapes = self._noise._standard_terms(z, *logs)
        for k, out in self._for_shapes:
            torch.sum(for_shapes[k] * -weight, (1, 2), out=out)
        return log_scale - log_prob, slope, 1 - z * slope
