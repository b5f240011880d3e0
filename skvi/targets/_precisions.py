"""Information on precisions, and priors that depend on them."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from skvi.base import Layout
from skvi.priors import BuiltPrior, GammaHyperprior, HalfCauchy
from skvi.targets._least_squares import LeastSquares
from skvi.utils._device import CPU, Movable
from skvi.utils._log_space import LOG_2PI

__all__ = [
    "BuiltHierarchy",
    "ConjugateForm",
    "Hyperprior",
    "Precision",
    "ScaleDensity",
    "UnknownNumber",
    "exponent",
]

#: Of one number: what gives `log_density` and `draw_log` of its logarithm.
Hyperprior = GammaHyperprior | HalfCauchy

# Steps to the likeliest noise, distances of differences of its hyperpriors, the least
# slope of the logarithm of what lowers it, and a log precision at which only the tails
# of hyperpriors matter.
N_NEWTON, CLOSE, LEAST_GROWTH, SMALL, LARGEST = 2, 1e-3, 0.1, -200.0, 600.0


@dataclass(frozen=True, eq=False)
class Precision(Movable):
    """A precision: fixed, to be learned, or with a hyperprior.

    Parameters
    ----------
    value : Tensor of shape (1,) or (d,)
        Its value, or the start of an iteration.
    hyperprior : GammaHyperprior, HalfCauchy, ScaleDensity or None
    is_learned : bool, default=False
        Whether it is a point estimate that maximizes the ELBO.

    Examples
    --------
    >>> import torch
    >>> from skvi.targets._precisions import Precision
    >>> Precision(torch.ones(1)).is_fixed
    True
    """

    value: torch.Tensor
    hyperprior: "Hyperprior | ScaleDensity | None" = None
    is_learned: bool = False

    @property
    def is_fixed(self) -> bool:
        """Whether there is nothing to infer."""
        return self.hyperprior is None and not self.is_learned

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """Log density of the log of an inferred precision; 0 of others."""
        if self.hyperprior is None:
            return np.zeros_like(x)
        values: np.ndarray = self.hyperprior.log_density(torch.from_numpy(x)).numpy()
        return values

    def log_prob(self, coef: torch.Tensor) -> torch.Tensor:
        """Log density of normals with this precision, (S, d), integrated over it."""
        if isinstance(self.hyperprior, ScaleDensity):
            return self.hyperprior.prior.log_prob(coef)
        log = self.value.log()
        return 0.5 * (log - LOG_2PI - log.exp() * coef.square()).sum(1)

    @property
    def exponent(self) -> float:
        """Power of a small precision that its density has, times its measure."""
        return 0.0 if self.hyperprior is None else exponent(self.hyperprior)


@dataclass(frozen=True, eq=False)
class ScaleDensity(Movable):
    """Density of the log precision of coefficients that have one unknown scale.

    `prior` is theirs; `log_unit` is the log of the precision at a scale of 1.
    """

    prior: BuiltPrior
    log_unit: float = 0.0

    def log_density(self, log_precision: torch.Tensor) -> torch.Tensor:
        """Log density, of any shape: the log of the scale is half of it."""
        log_scale = 0.5 * (self.log_unit - log_precision)
        values = self.prior.log_density_of_scale(log_scale)
        return values - math.log(2.0)


def exponent(hyperprior: "Hyperprior | ScaleDensity") -> float:
    """Power of a small number that its density has, times its measure."""
    ends = torch.tensor([SMALL, SMALL + 1.0], dtype=torch.float64, device=CPU)
    low, high = hyperprior.log_density(ends)
    return float(high - low)


@dataclass(frozen=True, eq=False)
class UnknownNumber:
    """A positive number of a likelihood with a prior, such as a dispersion.

    Parameters
    ----------
    hyperprior : GammaHyperprior or HalfCauchy
    power : float
        Of the number, that gives what the likelihood binds the log of.
    """

    hyperprior: Hyperprior
    power: float

    def log_density(self, log_number: torch.Tensor) -> torch.Tensor:
        """Log density of the logarithm, of any shape."""
        return self.hyperprior.log_density(log_number)

    def bind(self, likelihood: Any, log_number: torch.Tensor) -> Any:
        """The likelihood with this number; see `Likelihood.bind`."""
        return likelihood.bind(self.power * log_number)


@dataclass(frozen=True, eq=False)
class ConjugateForm(Movable):
    """A linear model with normal noise and normal coefficients, given precisions."""

    data: LeastSquares
    noise: Precision
    coef: Precision
    intercept: float | None  # its prior precision
    constant: float  # added to the log joint density

    def at_ratio(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Half the log determinant, and least squares with ridge ``exp(u)``.

        u is the log ratio of the precisions of coefficients and noise. The determinant
        is that of the posterior precision in units of the prior's.
        """
        log_e = self.data.values.log().numpy()
        z = self.data.solution.numpy()
        # In units of the smaller of both precisions nothing overflows.
        excess, least = log_e - u[..., None], np.minimum(log_e, u[..., None])
        small = np.exp(-np.abs(excess))
        half_log_det = 0.5 * (np.maximum(excess, 0.0) + np.log1p(small)).sum(-1)
        return half_log_det, self.data.residual + np.exp(least) / (1 + small) @ (z * z)

    def noise_at_ratio(self, u: np.ndarray) -> np.ndarray:
        """Log of about the likeliest noise precision at a ratio `u`.

        Where the slope of the log density is zero: what raises the precision equals
        what lowers it, but for the intercept, which is left out. By Newton's method in
        logarithms, which finds it in one step under Gamma distributions.
        """
        half, rate = 0.5 * self.data.n, 0.5 * self.at_ratio(u)[1].clip(1e-300)
        raises = half + self.most_raised
        t = math.log(raises) - np.log(rate)
        for _ in range(N_NEWTON):
            t = t.clip(max=LARGEST)
            near = np.stack([t - CLOSE, t, t + CLOSE])
            low, middle, high = self.noise.log_density(near) + self.coef.log_density(
                near + u
            )
            slope = (high - low) / (2 * CLOSE)
            lowers = rate * np.exp(t) + self.most_raised - slope
            growth = rate * np.exp(t) - (high - 2 * middle + low) / CLOSE**2
            lowers = lowers.clip(1e-300)
            t = t - np.log(lowers / raises) / (growth / lowers).clip(LEAST_GROWTH)
        return t.clip(max=LARGEST)

    @cached_property
    def most_raised(self) -> float:
        """Largest slope of the log densities of both hyperpriors."""
        return self.noise.exponent + self.coef.exponent

    def log_evidence(
        self, t: np.ndarray, s: np.ndarray, ratio: np.ndarray | None = None
    ) -> np.ndarray:
        """Log p(D | precisions) in nats, with one precision for all coefficients.

        t, s: logs of those of noise and coefficients; `ratio`: s - t with more digits.
        """
        half_log_det, squares = self.at_ratio(s - t if ratio is None else ratio)
        alpha = np.exp(t)
        value = 0.5 * (self.data.n * (t - LOG_2PI) - alpha * squares) - half_log_det
        return value + self.constant + self.log_intercept(alpha)

    def log_intercept(self, alpha: np.ndarray) -> np.ndarray:
        """Part of the log evidence due to the intercept, at noise precisions."""
        if self.intercept is None:
            return np.zeros_like(alpha)
        n, prior, mean = self.data.n, self.intercept, self.data.mean
        total = alpha * n + prior
        return 0.5 * (np.log(prior / total) - mean**2 * alpha * n * prior / total)

    def log_density(
        self, t: np.ndarray, s: np.ndarray, ratio: np.ndarray | None = None
    ) -> np.ndarray:
        """Log density of the data and of the logs of inferred precisions, in nats."""
        value = self.log_evidence(t, s, ratio)
        return value + self.noise.log_density(t) + self.coef.log_density(s)


class BuiltHierarchy(BuiltPrior):
    """Prior of the predictor's parameters and of a positive number after them.

    In unconstrained coordinates: that of the number is its logarithm.
    """

    has_expected_log_prob = False

    def __init__(
        self, layout: Layout, prior: BuiltPrior, hyperprior: Hyperprior
    ) -> None:
        self.layout, self.prior, self.hyperprior = layout, prior, hyperprior
        self.learned, self.is_proper = prior.learned, prior.is_proper

    def initial_hyper(self) -> torch.Tensor:
        """Those of the parameters; see `BuiltPrior.initial_hyper`."""
        return self.prior.initial_hyper()

    def bind(self, hyper: torch.Tensor) -> "BuiltHierarchy":
        """Bind these hyperparameters; see `BuiltPrior.bind`."""
        if not self.learned:
            return self
        return BuiltHierarchy(self.layout, self.prior.bind(hyper), self.hyperprior)

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        """Log density of theta, (S,), with the Jacobian of the number."""
        own = self.prior.log_prob(theta[:, :-1])
        return own + self.hyperprior.log_density(theta[:, -1])

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        """Draws of the prior, (S, P); logs of numbers stay within 600 of 0."""
        own = self.prior.sample(n_draws, generator)
        return torch.cat([own, self.hyperprior.draw_log(n_draws, generator)], 1)

    def as_normal(self) -> None:
        """None: it is not normal in theta."""

    def matching_normal(self) -> None:
        """None: it has no such moments."""

    def tail_precision(self) -> None:
        """None: its tails are not of that form."""
