"""Base class of the β- and the γ-divergence."""

import math

import torch

from skvi.base import NormalForm
from skvi.base._protocols import PosteriorDensity, PriorDensity
from skvi.divergences._kl import KL
from skvi.divergences._nodes import fits_nodes, log_integrals, log_power_norm
from skvi.divergences.base import Divergence
from skvi.utils._log_space import LOG_2PI, log_mean_exp

# Draws of the prior for the term without q, and elements at most.
PRIOR_DRAWS, PRIOR_ELEMENTS = 1000, 2**17


class PowerDivergence(Divergence):
    """Composed of the integrals of q^order, pi^order and q pi^(order - 1)."""

    @property
    def _order(self) -> float:
        raise NotImplementedError

    @property
    def _b(self) -> float:
        return self._order - 1

    @property
    def max_variance_ratio(self) -> float:
        """For orders below 1; see `Divergence.max_variance_ratio`."""
        return 1 / (1 - self._order) if self._order < 1 else math.inf

    def has_closed_form(self, prior: PriorDensity) -> bool:
        """Whether the prior is normal."""
        return prior.as_normal() is not None

    def has_nodes(self, q: NormalForm, prior: PriorDensity) -> bool:
        """For proper priors with independent coordinates."""
        return fits_nodes(q, prior)

    def _at_nodes(self, q: NormalForm, prior: PriorDensity) -> torch.Tensor:
        """Value without a closed form, of the joint formula."""
        if self._b == 0:
            return KL().closed_form(q, prior)
        return self._from_logs(*self._log_integrals(q, prior))

    def _log_integrals(
        self, q: NormalForm, prior: PriorDensity
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logs of the integrals of q^order, q pi^(order - 1) and pi^order."""
        a = self._order
        own = (1 - a) * (q.half_log_det + 0.5 * q.size * LOG_2PI)
        cross = log_integrals(q, prior, 1.0, self._b).sum()
        norm = log_power_norm(prior, a)
        return own - 0.5 * q.size * math.log(a), cross, norm

    def _from_logs(
        self, log_own: torch.Tensor, log_cross: torch.Tensor, log_norm: torch.Tensor
    ) -> torch.Tensor:
        """The divergence from the logs of its integrals."""
        raise NotImplementedError

    def monte_carlo(self, log_q: torch.Tensor, log_prior: torch.Tensor) -> torch.Tensor:
        """Means of powers, of the joint form; the class says how they are biased."""
        # The integral of pi^order does not depend on q: it adds no gradient and no
        # noise.
        ratio = (self._order * log_prior - log_q).detach()
        return self._from_means(log_q, log_prior, log_mean_exp(ratio))

    def estimate(
        self,
        posterior: PosteriorDensity,
        prior: PriorDensity,
        log_q: torch.Tensor,
        log_prior: torch.Tensor,
        generator: torch.Generator,
    ) -> torch.Tensor:
        """Estimate with draws of the prior too; see `Divergence.estimate`."""
        if self._b == 0:
            return (log_q - log_prior).mean()
        size = min(PRIOR_DRAWS, PRIOR_ELEMENTS // posterior.layout.size)
        with torch.no_grad():
            theta = prior.sample(max(size, len(log_q)), generator)
            log_norm = log_mean_exp(self._b * prior.log_prob(theta))
        return self._from_means(log_q, log_prior, log_norm)

    def _from_means(
        self, log_q: torch.Tensor, log_prior: torch.Tensor, log_norm: torch.Tensor
    ) -> torch.Tensor:
        """Estimate from draws of q and the log of the integral of pi^order."""
        raise NotImplementedError


def exp_gap(log_base: torch.Tensor, b: float, t: torch.Tensor) -> torch.Tensor:
    """``exp(log_base) (exp(b t) - 1) / b``, and its limit at b = 0.

    Neither a product of zero and infinity nor a difference of nearly equal numbers.
    """
    if b == 0:
        return log_base.exp() * t
    small = (b * t).abs() < 1
    near = log_base.exp() * torch.expm1(b * torch.where(small, t, 0.0)) / b
    far = (torch.exp(log_base + b * torch.where(small, 0.0, t)) - log_base.exp()) / b
    return torch.where(small, near, far)
