"""Noise whose scale depends on the features."""

from copy import copy
from typing import Any

import torch

from skvi.likelihoods._gaussian import GaussianLikelihood
from skvi.likelihoods._noise import NoiseLikelihood, NoisePass
from skvi.likelihoods.base import Likelihood
from skvi.utils._row_pass import RowBuffers, RowPass

__all__ = ["HeteroscedasticLikelihood"]


class HeteroscedasticLikelihood(Likelihood):
    """y = f_0 + noise, and a second column of f is the log of the noise's scale.

    The scale is ``noise_scale * exp(g)`` with ``g = 6 tanh(f_1 / 6)``, or with 1 in
    place of 6 for noise of logarithms, which is f_1 up to rounding near 0: where f_1 is
    0, as its prior expects, the noise is that of `noise` alone, and `noise_scale` is
    its level, fixed or learned.

    Parameters
    ----------
    noise : GaussianLikelihood, StudentTLikelihood or None, default=None
        Shape of the noise and level of its scale. None is ``GaussianLikelihood()``.

    Notes
    -----
    The scale lies within a factor of 400 of its level, so that the densities of exactly
    fitted rows are bounded.

    References
    ----------
    Nix and Weigend (1994), *Estimating the mean and variance of the target
    probability distribution*.

    Examples
    --------
    >>> import torch
    >>> from skvi.likelihoods import GaussianLikelihood, HeteroscedasticLikelihood
    >>> likelihood = HeteroscedasticLikelihood(GaussianLikelihood(0.5))
    >>> f = torch.tensor([[[0.0, 0.0], [0.0, 1.0]]])
    >>> likelihood.variance(f).sqrt()
    tensor([[0.5000, 1.3468]])
    """

    _parameter_constraints: dict = {"noise": [NoiseLikelihood, None]}
    has_expectations = False
    n_outputs = 2
    scale_outputs = noise_outputs = (1,)

    def __init__(self, noise: NoiseLikelihood | None = None) -> None:
        self.noise = noise

    @property
    def level(self) -> NoiseLikelihood:
        """Shape of the noise, and level of its scale."""
        return GaussianLikelihood() if self.noise is None else self.noise

    @property
    def learned(self) -> tuple[str, ...]:  # type: ignore[override]
        """The level of the noise, where it is "learn"."""
        return self.level.learned

    @property
    def is_normal(self) -> bool:  # type: ignore[override]
        """Whether y is normal given f."""
        return self.level.is_normal

    @property
    def _learned_limits(self) -> list[tuple[float, float] | None]:
        """Those of the level; see `Likelihood._learned_limits`."""
        return self.level._learned_limits

    def initial_hyper(self, y: torch.Tensor) -> torch.Tensor:
        """That of constant noise; see `Likelihood.initial_hyper`."""
        return self.level.initial_hyper(y)

    def bind(self, hyper: torch.Tensor) -> Any:
        """Return the likelihood whose level is ``exp(hyper)``."""
        if not self.learned:
            return self
        bound = copy(self)
        bound.noise = self.level.bind(hyper)
        return bound

    @property
    def _length_scale(self) -> float:
        """The level of the noise."""
        return self.level._length_scale

    def _at_rows(self, f: torch.Tensor) -> NoiseLikelihood:
        """Noise with the scales of rows.

        Parameters
        ----------
        f : Tensor of shape (S, n, 2)

        Returns
        -------
        NoiseLikelihood
            With scales of shape (S, n).
        """
        reach = self.level.scale_reach
        ratio = torch.exp(reach * torch.tanh(f[..., 1] / reach))
        return self.level._at_scale(self.level._scale * ratio)

    def log_prob(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Log density, (S, n)."""
        return self._at_rows(f).log_prob(f, y)

    def log_power_integral(self, f: torch.Tensor, c: float) -> torch.Tensor:
        """That of the noise at the scale of each row, (S, n)."""
        return self._at_rows(f).log_power_integral(f, c)

    def mean(self, f: torch.Tensor) -> torch.Tensor:
        """First column of f, plus the mean of the noise, (S, n)."""
        return self._at_rows(f).mean(f)

    def variance(self, f: torch.Tensor) -> torch.Tensor:
        """Variance of the noise of each row, (S, n)."""
        return self._at_rows(f).variance(f)

    def cdf(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Probability of less than y, (S, n)."""
        return self._at_rows(f).cdf(f, y)

    def quantile(self, f: torch.Tensor, level: float | torch.Tensor) -> torch.Tensor:
        """Quantile of y, (S, n)."""
        return self._at_rows(f).quantile(f, level)

    def sample(self, f: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Draw targets, (S, n)."""
        return self._at_rows(f).sample(f, generator)

    def _log_prob_slope(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Closed form; see `Likelihood._log_prob_slope`."""
        noise = self._at_rows(f)
        z = noise._residual(f, y)
        slope = noise._standard_slope(z)
        inside = 1 - torch.tanh(f[..., 1] / self.level.scale_reach).square()
        return torch.stack([slope / noise._scale, (z * slope - 1) * inside], -1)

    def _row_pass(self, buffers: RowBuffers) -> RowPass:
        """Closed form; see `Likelihood._row_pass`."""
        return NoisePass(self.level, buffers, self.level.scale_reach)
