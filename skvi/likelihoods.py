"""Likelihoods: p(y | f), where f is what the predictor returns.

Values are in nats and per row; nothing is averaged.
"""

import math
from numbers import Real
from typing import Any

import torch
from torch.nn.functional import logsigmoid, softplus

from skvi.base import Component
from skvi.utils._derivatives import scalar_derivatives
from skvi.utils._quadrature import (
    expect_sigmoid_power,
    expect_softplus,
    normal_rule,
)
from skvi.utils._random import rand, randn
from skvi.utils._validation import Interval

__all__ = ["BernoulliLikelihood", "GaussianLikelihood", "Likelihood"]

Expectations = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Likelihood(Component):
    """Base class of likelihoods.

    A subclass owes `log_prob`, `log_power_integral`, `mean` and `sample`. The
    derivatives and expectations below follow from `log_prob`; a subclass may
    replace them by closed forms.

    Examples
    --------
    >>> from skvi.likelihoods import BernoulliLikelihood, Likelihood
    >>> issubclass(BernoulliLikelihood, Likelihood)
    True
    """

    n_outputs = 1

    @property
    def length_scale(self) -> float:
        """Distance in f over which the log density bends: it spaces the nodes."""
        return 1.0

    def log_prob(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Log density or mass of each target.

        Parameters
        ----------
        f : Tensor of shape (S, n, K)
        y : Tensor of shape (n,)

        Returns
        -------
        Tensor of shape (S, n)
            In nats per row, with all constants.
        """
        raise NotImplementedError

    def log_power_integral(self, f: torch.Tensor, c: float) -> torch.Tensor:
        """Log of the integral (for discrete y the sum) of p(y | f)^c over y.

        Parameters
        ----------
        f : Tensor of shape (S, n, K)
        c : float
            Power, positive.

        Returns
        -------
        Tensor of shape (S, n)
            0 for c = 1. Other powers of a density have units of y to the 1 - c.
        """
        raise NotImplementedError

    def mean(self, f: torch.Tensor) -> torch.Tensor:
        """Mean of y given f.

        Parameters
        ----------
        f : Tensor of shape (S, n, K)

        Returns
        -------
        Tensor of shape (S, n)
            In units of y; for labels 0 and 1 the probability of 1.
        """
        raise NotImplementedError

    def sample(self, f: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Draw y given f.

        Parameters
        ----------
        f : Tensor of shape (S, n, K)
        generator : torch.Generator

        Returns
        -------
        Tensor of shape (S, n)
            One independent draw for each row and each f.
        """
        raise NotImplementedError

    def log_prob_derivatives(self, f: torch.Tensor, y: torch.Tensor) -> Expectations:
        """Log density with its first and second derivative in a scalar f.

        Parameters
        ----------
        f : Tensor of shape (S, n, 1)
        y : Tensor of shape (n,)

        Returns
        -------
        value, first, second : Tensor of shape (S, n)
            In nats per row, and per unit and squared unit of f.
        """
        return scalar_derivatives(lambda g: self.log_prob(g, y), f)

    def log_prob_slope(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """First derivative of the log density in a scalar f.

        Parameters
        ----------
        f : Tensor of shape (S, n, 1)
        y : Tensor of shape (n,)

        Returns
        -------
        Tensor of shape (S, n)
            In nats per unit of f.
        """
        return self.log_prob_derivatives(f, y)[1]

    def expected_log_prob(
        self, mean: torch.Tensor, std: torch.Tensor, y: torch.Tensor, refine: int = 1
    ) -> Expectations:
        """Expected log density, and its derivatives, under f_i ~ N(mean_i, std_i^2).

        Parameters
        ----------
        mean, std : Tensor of shape (n,)
        y : Tensor of shape (n,)
        refine : int, default=1
            Multiplies the number of quadrature nodes, to verify a result.

        Returns
        -------
        value, first, second : Tensor of shape (n,)
            Expectation of log p(y | f), in nats per row, and of its first and
            second derivative in f, without Monte Carlo noise. The latter two are
            also the derivative of the value in the mean, and twice the one in the
            variance.
        """
        return expect_under_normal(
            lambda f: self.log_prob_derivatives(f, y),
            mean,
            std,
            self.length_scale,
            refine,
        )

    def expected_power(
        self,
        mean: torch.Tensor,
        std: torch.Tensor,
        y: torch.Tensor,
        c: float,
        refine: int = 1,
    ) -> Expectations:
        """Expected p(y | f)^c, and its derivatives, under f_i ~ N(mean_i, std_i^2).

        Parameters
        ----------
        mean, std : Tensor of shape (n,)
        y : Tensor of shape (n,)
        c : float
            Power, positive.
        refine : int, default=1
            Multiplies the number of quadrature nodes.

        Returns
        -------
        value, first, second : Tensor of shape (n,)
            As in `expected_log_prob`.
        """
        return expect_under_normal(
            lambda f: scalar_derivatives(
                lambda g: torch.exp(c * self.log_prob(g, y)), f
            ),
            mean,
            std,
            self.length_scale,
            refine,
        )

    def expected_power_integral(
        self, mean: torch.Tensor, std: torch.Tensor, c: float, refine: int = 1
    ) -> Expectations:
        """Expected integral of p(y | f)^c over y, and its derivatives.

        Parameters
        ----------
        mean, std : Tensor of shape (n,)
        c : float
            Power, positive.
        refine : int, default=1
            Multiplies the number of quadrature nodes.

        Returns
        -------
        value, first, second : Tensor of shape (n,)
            As in `expected_log_prob`.
        """
        return expect_under_normal(
            lambda f: scalar_derivatives(
                lambda g: torch.exp(self.log_power_integral(g, c)), f
            ),
            mean,
            std,
            self.length_scale,
            refine,
        )


def expect_under_normal(
    derivatives: Any,
    mean: torch.Tensor,
    std: torch.Tensor,
    length_scale: float,
    refine: int,
) -> Expectations:
    """Integrate (value, first, second) of f over f_i ~ N(mean_i, std_i^2)."""
    nodes, weights = normal_rule(float(std.max()) / length_scale, refine)
    f = torch.addcmul(mean, nodes[:, None], std)
    value, first, second = derivatives(f[..., None])
    return weights @ value, weights @ first, weights @ second


class BernoulliLikelihood(Likelihood):
    """y in {0, 1} with log odds f.

    Notes
    -----
    Exact at every scale: expectations under a normal f hold to about 1e-7 nat
    per row for every spread of f.

    Examples
    --------
    >>> import torch
    >>> from skvi.likelihoods import BernoulliLikelihood
    >>> BernoulliLikelihood().log_prob(torch.zeros(1, 2, 1), torch.tensor([0.0, 1.0]))
    tensor([[-0.6931, -0.6931]])
    """

    def log_prob(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Log mass, (S, n)."""
        return logsigmoid(f[..., 0] * (2 * y - 1))

    def log_power_integral(self, f: torch.Tensor, c: float) -> torch.Tensor:
        """Log of p(0)^c + p(1)^c, (S, n)."""
        # p(1)^c (1 + exp(-c f)); logaddexp has no finite second derivative far out.
        f = f[..., 0]
        return softplus(-c * f, threshold=40) - c * softplus(-f, threshold=40)

    def mean(self, f: torch.Tensor) -> torch.Tensor:
        """Probability of y = 1, (S, n)."""
        return torch.sigmoid(f[..., 0])

    def sample(self, f: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Draw labels 0.0 or 1.0, (S, n)."""
        p = self.mean(f)
        return (rand(generator, *p.shape) < p).to(p.dtype)

    def log_prob_slope(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Residual y - p(1), (S, n)."""
        return y - torch.sigmoid(f[..., 0])

    def log_prob_derivatives(self, f: torch.Tensor, y: torch.Tensor) -> Expectations:
        """Closed form; see `Likelihood.log_prob_derivatives`."""
        sign = 2 * y - 1
        f = f[..., 0] * sign
        p = torch.sigmoid(-f)
        return logsigmoid(f), sign * p, p.square() - p

    def expected_log_prob(
        self, mean: torch.Tensor, std: torch.Tensor, y: torch.Tensor, refine: int = 1
    ) -> Expectations:
        """Two rules, for narrow and wide rows; see `Likelihood.expected_log_prob`."""
        sign = 1 - 2 * y
        value, first, second = expect_softplus(mean * sign, std, refine)
        return -value, -(first * sign), -second

    def expected_power(
        self,
        mean: torch.Tensor,
        std: torch.Tensor,
        y: torch.Tensor,
        c: float,
        refine: int = 1,
    ) -> Expectations:
        """Two rules, for narrow and wide rows; see `Likelihood.expected_power`."""
        sign = 2 * y - 1
        value, first, second = expect_sigmoid_power(mean * sign, std, c, refine)
        return value, first * sign, second

    def expected_power_integral(
        self, mean: torch.Tensor, std: torch.Tensor, c: float, refine: int = 1
    ) -> Expectations:
        """Sum of `expected_power` over both labels."""
        one = self.expected_power(mean, std, torch.ones_like(mean), c, refine)
        zero = self.expected_power(mean, std, torch.zeros_like(mean), c, refine)
        return one[0] + zero[0], one[1] + zero[1], one[2] + zero[2]


class GaussianLikelihood(Likelihood):
    """y = f + noise, with normal noise.

    Parameters
    ----------
    noise_scale : float, default=1.0
        Standard deviation of the noise, in units of y.

    Examples
    --------
    >>> import torch
    >>> from skvi.likelihoods import GaussianLikelihood
    >>> GaussianLikelihood(2.0).log_prob(torch.zeros(1, 1, 1), torch.zeros(1))
    tensor([[-1.6121]])
    """

    _parameter_constraints: dict = {
        "noise_scale": [Interval(Real, 0, None, closed="neither")]
    }

    def __init__(self, noise_scale: float = 1.0) -> None:
        self.noise_scale = noise_scale

    @property
    def length_scale(self) -> float:
        """The scale of the noise."""
        return float(self.noise_scale)

    def log_prob(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Log density, (S, n)."""
        z = (y - f[..., 0]) / self.noise_scale
        return -0.5 * z.square() - math.log(self.noise_scale * math.sqrt(2 * math.pi))

    def log_power_integral(self, f: torch.Tensor, c: float) -> torch.Tensor:
        """Return (1 - c)/2 log(2 pi s^2) - log(c)/2 for every row, (S, n)."""
        log_norm = math.log(2 * math.pi * self.noise_scale**2)
        return torch.full_like(f[..., 0], 0.5 * (1 - c) * log_norm - 0.5 * math.log(c))

    def mean(self, f: torch.Tensor) -> torch.Tensor:
        """Return f itself, (S, n)."""
        return f[..., 0]

    def log_prob_slope(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Residual over the noise variance, (S, n)."""
        return (y - f[..., 0]) / self.noise_scale**2

    def sample(self, f: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Draw targets, (S, n)."""
        f = f[..., 0]
        return f + self.noise_scale * randn(generator, *f.shape).to(f.dtype)

    def expected_log_prob(
        self, mean: torch.Tensor, std: torch.Tensor, y: torch.Tensor, refine: int = 1
    ) -> Expectations:
        """Closed form; see `Likelihood.expected_log_prob`."""
        precision = self.noise_scale**-2
        value = self.log_prob(mean[None, :, None], y)[0]
        first = (y - mean) * precision
        second = torch.full_like(mean, -precision)
        return value - 0.5 * precision * std.square(), first, second

    def expected_power(
        self,
        mean: torch.Tensor,
        std: torch.Tensor,
        y: torch.Tensor,
        c: float,
        refine: int = 1,
    ) -> Expectations:
        """Closed form; see `Likelihood.expected_power`."""
        variance = self.noise_scale**2 + c * std.square()
        log_norm = 0.5 * math.log(self.noise_scale**2) - 0.5 * variance.log()
        log_norm = log_norm - 0.5 * c * math.log(2 * math.pi * self.noise_scale**2)
        z = y - mean
        value = torch.exp(log_norm - 0.5 * c * z.square() / variance)
        first = value * c * z / variance
        second = value * (c / variance) * (c * z.square() / variance - 1)
        return value, first, second

    def expected_power_integral(
        self, mean: torch.Tensor, std: torch.Tensor, c: float, refine: int = 1
    ) -> Expectations:
        """A constant: the integral does not depend on f."""
        value = torch.exp(self.log_power_integral(mean[None, :, None], c))[0]
        return value, torch.zeros_like(mean), torch.zeros_like(mean)
