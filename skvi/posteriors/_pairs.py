"""Gamma and Beta posteriors: two positive numbers for each parameter."""

from typing import Self

import torch

from skvi.base import Draw, Layout, NormalForm
from skvi.exceptions import IncompatibleComponentsError
from skvi.posteriors.base import Family, Posterior
from skvi.utils._device import CPU
from skvi.utils._random import log_gamma_density, log_gamma_draws

__all__ = ["Beta", "Gamma"]


class Gamma(Family):
    """Independent Gamma distributions of positive parameters: 2 P numbers.

    A draw is the logarithm of the positive parameter, and densities are those of the
    logarithm, including the Jacobian. For blocks with the bijection "exp", such as
    precisions.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import Layout
    >>> from skvi.posteriors import Gamma
    >>> layout = Layout({"precision": (1,)}, {"precision": "exp"})
    >>> posterior = Gamma().build(layout)  # Gamma(1, 1)
    >>> posterior.log_prob(torch.zeros(1, 1).double())
    tensor([-1.], dtype=torch.float64)
    """

    def build(
        self, layout: Layout, generator: torch.Generator | None = None
    ) -> Posterior:
        """Build the posterior at Gamma(1, 1); see `Family.build`."""
        check_bijection("Gamma", layout, "exp", "positive")
        return _GammaPosterior(layout)


class Beta(Family):
    """Independent Beta distributions of parameters between 0 and 1: 2 P numbers.

    A draw is the log odds of the parameter, and densities are those of the log odds,
    including the Jacobian. For blocks with the bijection "sigmoid", such as
    probabilities.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import Layout
    >>> from skvi.posteriors import Beta
    >>> layout = Layout({"share": (1,)}, {"share": "sigmoid"})
    >>> posterior = Beta().build(layout)  # Beta(1, 1)
    >>> posterior.log_prob(torch.zeros(1, 1).double()).exp()
    tensor([0.2500], dtype=torch.float64)
    """

    def build(
        self, layout: Layout, generator: torch.Generator | None = None
    ) -> Posterior:
        """Build the posterior at Beta(1, 1); see `Family.build`."""
        check_bijection("Beta", layout, "sigmoid", "unit_interval")
        return _BetaPosterior(layout)


def check_bijection(family: str, layout: Layout, bijection: str, support: str) -> None:
    """Raise if a block does not have the bijection that a family is for."""
    wrong = [name for name in layout if layout[name].bijection != bijection]
    if wrong:
        raise IncompatibleComponentsError(
            f"{family} is for blocks with support {support!r} (bijection "
            f"{bijection!r}), which {wrong} do not have. Use a normal family for them, "
            "or change the support."
        )


class _Pairs(Posterior):
    """Variational parameters: the logs of the first numbers, then of the second."""

    has_log_prob_terms = True

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.params = torch.zeros(2 * layout.size, dtype=torch.float64, device=CPU)

    def _pair(self, params: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
        params = self.params if params is None else params
        return params.exp().split(self.layout.size)

    def _near_pair(self, first: torch.Tensor, second: torch.Tensor) -> Self:
        return self.at(torch.cat([first, second]).log().to(self.params))

    def draw(self, n_draws: int, generator: torch.Generator) -> Draw:
        first, second = (x.expand(n_draws, -1) for x in self._pair())
        draws = self._draws(first, second, generator).to(self.params.dtype)
        return Draw(draws, self.log_prob(draws), self.side)

    @staticmethod
    def _draws(
        first: torch.Tensor, second: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor:
        raise NotImplementedError

    def log_prob(
        self, theta: torch.Tensor, params: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self.log_prob_terms(theta, params).sum(1)


class _GammaPosterior(_Pairs):
    """Variational parameters: log shapes, log rates."""

    def near(self, normal: NormalForm) -> Self:
        """With its mean and nearly its variance: trigamma is 1/a + 1/(2 a^2)."""
        variance = normal.variance
        shape = (1 + (1 + 2 * variance).sqrt()) / (2 * variance)
        return self._near_pair(shape, (torch.digamma(shape) - normal.mean).exp())

    @staticmethod
    def _draws(
        first: torch.Tensor, second: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor:
        return log_gamma_draws(first, generator) - second.log()

    def log_prob_terms(
        self, theta: torch.Tensor, params: torch.Tensor | None = None
    ) -> torch.Tensor:
        shape, rate = self._pair(params)
        return log_gamma_density(theta, shape, rate.log())


class _BetaPosterior(_Pairs):
    """Variational parameters: the logs of both counts."""

    def near(self, normal: NormalForm) -> Self:
        """With nearly its moments of log odds, of large counts a and b.

        Their mean is log(a / b), and their variance 1/a + 1/b.
        """
        odds, variance = normal.mean.exp(), normal.variance
        return self._near_pair((1 + odds) / variance, (1 + 1 / odds) / variance)

    @staticmethod
    def _draws(
        first: torch.Tensor, second: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor:
        return log_gamma_draws(first, generator) - log_gamma_draws(second, generator)

    def log_prob_terms(
        self, theta: torch.Tensor, params: torch.Tensor | None = None
    ) -> torch.Tensor:
        a, b = self._pair(params)
        norm = torch.lgamma(a + b) - torch.lgamma(a) - torch.lgamma(b)
        log_odds = torch.nn.functional.logsigmoid
        return norm + a * log_odds(theta) + b * log_odds(-theta)
