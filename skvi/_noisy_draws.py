"""Predictions of continuous targets from draws of the parameters, by the likelihood."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from skvi._draws import Draws
from skvi.base._units import Units
from skvi.likelihoods import Likelihood
from skvi.utils._log_space import log_mean_exp
from skvi.utils._mixture import mixture_quantiles

__all__ = ["NoisyDraws"]


@dataclass(frozen=True, eq=False)
class NoisyDraws(Draws):
    """Draws with the noise of `likelihood`, whose scale is in the units of the fit.

    Targets have one or several columns.
    """

    likelihood: Likelihood
    units: Units

    def _scale(self) -> torch.Tensor:
        return _double(self.units.y_scale, self.theta.device)

    def _in_units(self, values: torch.Tensor) -> torch.Tensor:
        mean = _double(self.units.y_mean, self.theta.device)
        return values * self._scale() + mean

    def functions(self, f: torch.Tensor) -> torch.Tensor:
        """Values of the functions in units of y, (n_draws, rows) or with K columns."""
        return self._in_units(self.likelihood.mean(f))

    def means(self, X: Any) -> np.ndarray:
        """Values of all functions, (n_samples, n_draws), or (n_samples, K, n_draws)."""
        return self.by_rows(X, lambda f: self.functions(f).movedim(0, -1))

    def stds(self, X: Any) -> np.ndarray:
        """Standard deviations of the noise, in the shape of `means`."""

        def of_block(f: torch.Tensor) -> torch.Tensor:
            return (self._scale() * self.likelihood.variance(f).sqrt()).movedim(0, -1)

        return self.by_rows(X, of_block)

    def moments(self, X: Any) -> np.ndarray:
        """Mean and standard deviation of a new observation, (n_samples, 2, ...)."""

        def of_block(f: torch.Tensor) -> torch.Tensor:
            noise = self.likelihood.variance(f).mean(0)
            f = self.likelihood.mean(f)
            mean = f.mean(0)
            # In the units of the fit a large origin of y does not round it. Nine times
            # as fast as `var`.
            variance = (f - mean).square_().sum(0) / (len(f) - 1)
            std = (variance + noise).sqrt() * self._scale()
            return torch.stack([self._in_units(mean), std], 1)

        return self.by_rows(X, of_block)

    def quantiles(self, X: Any, levels: np.ndarray) -> np.ndarray:
        """Quantiles of a new observation, (n_samples, n_levels, ...)."""

        def of_block(f: torch.Tensor) -> torch.Tensor:
            columns = [
                mixture_quantiles(likelihood, own, levels)
                for likelihood, own in self.likelihood.by_target(f)
            ]
            shape = len(columns[0]), len(levels), *np.shape(self.units.y_scale)
            return self._in_units(torch.stack(columns, -1).reshape(shape))

        return self.by_rows(X, of_block)

    def log_density(self, X: Any, y: np.ndarray) -> np.ndarray:
        """Log density of observations, (n_samples,), in nats."""
        y = y.reshape(len(y), *np.shape(self.units.y_scale))
        y = (y - self.units.y_mean) / self.units.y_scale
        log_unit = float(np.log(self.units.y_scale).sum())

        def of_block(f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return log_mean_exp(self.likelihood.log_prob(f, y), 0) - log_unit

        return self.by_rows(X, of_block, y)

    def observations(self, X: Any, generator: torch.Generator) -> np.ndarray:
        """One new observation of each function, (n_samples, ..., n_draws)."""

        def of_block(f: torch.Tensor) -> torch.Tensor:
            drawn = self.likelihood.sample(f, generator)
            return self._in_units(drawn).movedim(0, -1)

        return self.by_rows(X, of_block)


def _double(value: float | np.ndarray, device: torch.device) -> torch.Tensor:
    """A number of any size to 16 digits; torch makes single precision of floats."""
    return torch.as_tensor(value, dtype=torch.float64, device=device)
