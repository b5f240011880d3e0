"""Information on precisions, and priors that depend on them."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import gammaln

from skvi.base import Layout, NormalForm
from skvi.priors import BuiltPrior, GammaHyperprior
from skvi.priors._hierarchical import MAX_LOG
from skvi.targets._least_squares import LeastSquares
from skvi.utils._device import Movable
from skvi.utils._log_space import LOG_2PI
from skvi.utils._random import log_gamma_density, log_gamma_draws, randn

__all__ = [
    "BuiltHierarchy",
    "ConditionalPrior",
    "ConjugateForm",
    "Precision",
    "UnknownNumber",
]


@dataclass(frozen=True, eq=False)
class Precision(Movable):
    """A precision: fixed, to be learned, or with a hyperprior.

    Parameters
    ----------
    value : Tensor of shape (1,) or (d,)
        Its value, or the start of an iteration.
    hyperprior : GammaHyperprior or None
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
    hyperprior: GammaHyperprior | None = None
    is_learned: bool = False

    @property
    def is_fixed(self) -> bool:
        """Whether there is nothing to infer."""
        return self.hyperprior is None and not self.is_learned


@dataclass(frozen=True, eq=False)
class UnknownNumber:
    """A positive number of a likelihood with a Gamma prior, such as a dispersion.

    Parameters
    ----------
    gamma : GammaHyperprior
    power : float
        Of the number, that gives what the likelihood binds the log of.
    """

    gamma: GammaHyperprior
    power: float

    def log_density(self, log_number: torch.Tensor) -> torch.Tensor:
        """Log density of the logarithm, of any shape."""
        rate = log_number.new_tensor(self.gamma.rate)
        shape = log_number.new_tensor(self.gamma.shape)
        return log_gamma_density(log_number, shape, rate.log())

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
        """Log of the likeliest noise precision at a ratio `u`, if both are unknown.

        At a given ratio the precision is Gamma of fixed shape, but for the intercept.
        """
        rate = 0.5 * self.at_ratio(u)[1]
        for node, x in ((self.noise, 0.0 * u), (self.coef, u)):
            if node.hyperprior is not None:
                rate = rate + node.hyperprior.rate * np.exp(np.minimum(x, 700.0))
        return math.log(self.noise_shape) - np.log(np.maximum(rate, 1e-300))

    @property
    def noise_shape(self) -> float:
        """Shape of the Gamma distribution in `noise_at_ratio`."""
        nodes = (self.noise.hyperprior, self.coef.hyperprior)
        return 0.5 * self.data.n + sum(g.shape for g in nodes if g is not None)

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
        for node, x in ((self.noise, t), (self.coef, s)):
            if node.hyperprior is not None:
                a, b = node.hyperprior.shape, node.hyperprior.rate
                value = value + a * (x + math.log(b)) - b * np.exp(x) - gammaln(a)
        return value


class ConditionalPrior(BuiltPrior):
    """Normal coefficients with given scales, (d,), and a prior for the others."""

    def __init__(self, scale: torch.Tensor, rest: BuiltPrior | None) -> None:
        self.coef = NormalForm(torch.zeros_like(scale), scale)
        self.rest, self.d = rest, len(scale)

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        """Log density, (S,)."""
        value = self.coef.log_prob(theta[:, : self.d])
        return (
            value
            if self.rest is None
            else value + self.rest.log_prob(theta[:, self.d :])
        )

    def as_normal(self) -> NormalForm | None:
        """Joint normal, if both parts are normal."""
        return self._join(None if self.rest is None else self.rest.as_normal())

    def matching_normal(self) -> NormalForm | None:
        """Joint normal with matching moments."""
        return self._join(None if self.rest is None else self.rest.matching_normal())

    def _join(self, rest: NormalForm | None) -> NormalForm | None:
        if self.rest is None:
            return self.coef
        if rest is None or not rest.is_diagonal:
            return None
        mean = torch.cat([self.coef.mean, rest.mean])
        return NormalForm(mean, torch.cat([self.coef.scale, rest.scale]))

    @property
    def has_expected_log_prob(self) -> bool:
        """Whether that of the other prior has a closed form."""
        return self.rest is None or self.rest.has_expected_log_prob

    def expected_log_prob(self, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
        """Closed form; see `BuiltPrior.expected_log_prob`."""
        d, scale = self.d, self.coef.scale
        squares = (mean[:d].square() + std[:d].square()) / scale.square()
        value = -0.5 * (squares + LOG_2PI) - scale.log()
        if self.rest is None:
            return value
        return torch.cat([value, self.rest.expected_log_prob(mean[d:], std[d:])])


class BuiltHierarchy(BuiltPrior):
    """Prior of coefficients, intercept and precisions, in unconstrained coordinates.

    `prior` is that of parameters without a hyperprior; they precede the precisions.
    """

    has_expected_log_prob = False

    def __init__(
        self, layout: Layout, prior: Any, gammas: dict[str, GammaHyperprior]
    ) -> None:
        self.layout, self.prior, self.gammas = layout, prior, gammas
        self.learned = () if prior is None else prior.learned
        self.is_proper = prior is None or prior.is_proper
        first = layout["coef"].size if "coef_precision" in gammas else 0
        self.fixed = slice(first, layout[next(iter(gammas))].start)

    def initial_hyper(self) -> torch.Tensor:
        """Those of blocks without hyperprior; see `BuiltPrior.initial_hyper`."""
        if self.prior is None:
            return super().initial_hyper()
        return self.prior.initial_hyper()

    def bind(self, hyper: torch.Tensor) -> "BuiltHierarchy":
        """Bind these hyperparameters; see `BuiltPrior.bind`."""
        if not self.learned:
            return self
        return BuiltHierarchy(self.layout, self.prior.bind(hyper), self.gammas)

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        """Log density of theta, (S,), with the Jacobian of the precisions."""
        total = torch.zeros_like(theta[:, 0])
        if self.prior is not None:
            total = total + self.prior.log_prob(theta[:, self.fixed])
        for name, gamma in self.gammas.items():
            t = theta[:, self.layout[name].slice]
            shape, rate = t.new_tensor([gamma.shape, gamma.rate], dtype=torch.float64)
            total = total + log_gamma_density(t, shape, rate.log()).sum(1)
        if "coef_precision" in self.gammas:
            coef = theta[:, self.layout["coef"].slice]
            t = theta[:, self.layout["coef_precision"].slice]
            squares = torch.exp(t) * coef.square()
            total = total + 0.5 * (t - LOG_2PI - squares).sum(1)
        return total

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        """Draws of the prior, (S, P); logs of precisions stay within 600 of 0."""
        theta = torch.zeros(
            n_draws, self.layout.size, dtype=torch.float64, device=generator.device
        )
        if self.prior is not None:
            theta[:, self.fixed] = self.prior.sample(n_draws, generator)
        for name, gamma in self.gammas.items():
            where = self.layout[name].slice
            shape = torch.full_like(theta[:, where], gamma.shape)
            draws = log_gamma_draws(shape, generator) - math.log(gamma.rate)
            theta[:, where] = draws.clamp(-MAX_LOG, MAX_LOG)
        self._fill_coef(theta, generator)
        return theta

    def _fill_coef(self, theta: torch.Tensor, generator: torch.Generator) -> None:
        """Draw the coefficients given their precisions."""
        if "coef_precision" not in self.gammas:
            return
        t = theta[:, self.layout["coef_precision"].slice]
        where = self.layout["coef"].slice
        shape = theta[:, where].shape
        coef = randn(generator, *shape)
        theta[:, where] = torch.exp(-0.5 * t) * coef

    def as_normal(self) -> None:
        """None: it is not normal in theta."""

    def matching_normal(self) -> None:
        """None: it has no such moments."""

    def tail_precision(self) -> None:
        """None: its tails are not of that form."""
