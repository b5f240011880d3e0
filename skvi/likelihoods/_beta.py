"""Rates between 0 and 1."""

import numpy as np
import torch
from scipy.special import betainc, betaincinv
from torch.nn.functional import logsigmoid

from skvi.expectations._rules import Expectations
from skvi.likelihoods._dispersed import LOGS, DispersedLikelihood

SMALLEST, LARGEST = torch.finfo(torch.float64).tiny, 1 - 2.0**-53


class BetaLikelihood(DispersedLikelihood):
    r"""Rates in (0, 1), of a Beta distribution with log odds f of the mean.

    .. math:: p(y|f) = \frac{y^{a - 1} (1 - y)^{b - 1}}{B(a, b)},
              \quad a = \mu / \alpha, \; b = (1 - \mu) / \alpha, \;
              \mu = \frac{1}{1 + e^{-f}}

    Parameters
    ----------
    dispersion : float, "learn" or "hyperprior", default="learn"
        alpha, the inverse of what is known as the precision, a + b: the variance is
        mean * (1 - mean) * alpha / (1 + alpha). "learn" finds the value with the
        largest ELBO (type-II maximum likelihood where q is exact). "hyperprior" gives
        it a prior, a posterior, and an evidence that integrates it: for
        `BayesianBetaRegressor`.

    Notes
    -----
    Expectations under a normal f are quadrature. The density is not bounded where a or
    b are below 1, as they are for extreme f: its powers then may have no integral, and
    robust losses raise an error.

    Examples
    --------
    >>> import torch
    >>> from skvi.likelihoods import BetaLikelihood
    >>> likelihood = BetaLikelihood(0.5)  # uniform
    >>> likelihood.log_prob(torch.zeros(1, 2, 1), torch.tensor([0.1, 0.9])).exp()
    tensor([[1., 1.]], dtype=torch.float64)
    """

    def __init__(self, dispersion: float | str = "learn") -> None:
        self.dispersion = dispersion

    def _start(self, y: torch.Tensor) -> float:
        """By the variance of y around its mean, whatever the weights are."""
        y = y.unique()
        mean, variance = float(y.mean()), float(y.var(correction=0))
        ratio = variance / max(mean * (1 - mean), SMALLEST)
        return ratio / (1 - ratio) if ratio < 1 else 0.0

    def _shapes(self, f: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logs of a and b, (S, n)."""
        f, log_alpha = f[..., 0].double(), self._alpha.log()
        return logsigmoid(f) - log_alpha, logsigmoid(-f) - log_alpha

    def mean(self, f: torch.Tensor) -> torch.Tensor:
        """Inverse logit of f, (S, n)."""
        return torch.sigmoid(f[..., 0])

    def variance(self, f: torch.Tensor) -> torch.Tensor:
        """Mean times its complement, times alpha / (1 + alpha), (S, n)."""
        share = self._alpha / (1 + self._alpha)
        return share * torch.sigmoid(f[..., 0]) * torch.sigmoid(-f[..., 0])

    def _resolution(self, f: torch.Tensor) -> torch.Tensor:
        """Deviation of y in f, at most `_length_scale`, (S, n)."""
        slope = torch.sigmoid(f[..., 0]) * torch.sigmoid(-f[..., 0])
        share = self._alpha / (1 + self._alpha)
        ratio = (share / slope.clamp(min=SMALLEST)).sqrt()
        return ratio.clamp(max=self._length_scale)

    def log_prob(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Log density, (S, n): minus infinity unless y is between 0 and 1."""
        log_a, log_b = self._shapes(f)
        return self._log_density(log_a, log_b, y).where((y > 0) & (y < 1), -torch.inf)

    def _log_density(
        self, log_a: torch.Tensor, log_b: torch.Tensor, y: torch.Tensor
    ) -> torch.Tensor:
        inside = y.clamp(SMALLEST, LARGEST).double()
        a, b = log_a.exp(), log_b.exp()
        rest = (a - 1) * inside.log() + (b - 1) * torch.log1p(-inside)
        return rest - _log_beta(log_a, log_b) + 0 * self._alpha

    def log_prob_derivatives(self, f: torch.Tensor, y: torch.Tensor) -> Expectations:
        """Closed form, without cancellation for extreme f; see `Likelihood`."""
        log_a, log_b = self._shapes(f)
        a, b, mean = log_a.exp(), log_b.exp(), self.mean(f).double()
        inside = y.clamp(SMALLEST, LARGEST).double()
        # x psi(x) = x psi(x + 1) - 1, and x^2 psi'(x) = x^2 psi'(x + 1) + 1.
        left, right = (x * torch.digamma(x + 1) - 1 for x in (a, b))
        log_odds = inside.log() - torch.log1p(-inside)
        first = (1 - mean) * (a * log_odds - left) + mean * right
        spread = [x.square() * torch.polygamma(1, x + 1) + 1 for x in (a, b)]
        second = (1 - 2 * mean) * first
        second = second - (1 - mean) ** 2 * spread[0] - mean**2 * spread[1]
        return self._log_density(log_a, log_b, y), first, second

    def cdf(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Probability of less than y, (S, n)."""
        shapes = (x.clamp(*LOGS).exp().cpu().numpy() for x in self._shapes(f))
        found = betainc(*shapes, y.clamp(0, 1).double().cpu().numpy())
        return torch.from_numpy(np.asarray(found)).to(f.device)

    def quantile(self, f: torch.Tensor, level: float | torch.Tensor) -> torch.Tensor:
        """Quantile of y, (S, n)."""
        shapes = (x.clamp(*LOGS).exp().cpu().numpy() for x in self._shapes(f))
        found = betaincinv(
            *shapes, torch.as_tensor(level, dtype=torch.float64).cpu().numpy()
        )
        return torch.from_numpy(np.clip(found, SMALLEST, LARGEST)).to(f.device)

    def sample(self, f: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Draw targets, (S, n), by the ratio of two Gamma variables."""
        logs = [self._log_gamma(x, generator) for x in self._shapes(f)]
        return torch.sigmoid(logs[0] - logs[1]).clamp(SMALLEST, LARGEST)

    def _log_gamma(
        self, log_shape: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor:
        """Logs of Gamma variables, also of small shapes: G(a + 1) U^(1 / a)."""
        shape = log_shape.exp()
        u = torch.rand(
            shape.shape, generator=generator, dtype=shape.dtype, device=shape.device
        )
        gamma = torch._standard_gamma(shape + 1, generator=generator)
        return gamma.log() + torch.log1p(-u) / shape.clamp(min=SMALLEST)

    def log_power_integral(self, f: torch.Tensor, c: float) -> torch.Tensor:
        """Closed form, (S, n); ValueError if the integral is infinite."""
        log_a, log_b = self._shapes(f)
        powers = [c * (x.exp() - 1) + 1 for x in (log_a, log_b)]
        if any(bool((x <= 0).any()) for x in powers):
            raise ValueError(
                f"The integral of the power {c} of {self!r} is infinite: the density "
                "is not bounded near 0 or 1. Use loss='log'."
            )
        return _log_beta(powers[0].log(), powers[1].log()) - c * _log_beta(log_a, log_b)


def _log_beta(log_a: torch.Tensor, log_b: torch.Tensor) -> torch.Tensor:
    """Log of the Beta function, also where a or b are 0 to rounding."""
    a, b = log_a.exp(), log_b.exp()
    parts = torch.lgamma(a + 1) + torch.lgamma(b + 1) - torch.lgamma(a + b)
    return parts - log_a - log_b
