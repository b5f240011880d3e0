"""Rows' free energies, ``-log E[exp(-alpha loss)] / alpha``, in log space."""

import math
from copy import copy
from typing import Any

import torch

from skvi.expectations._rules import node_groups, normal_rule
from skvi.expectations._smooth import Expectations, row_derivatives
from skvi.utils._log_space import log_mean_exp

__all__ = ["FreeEnergy", "with_free_energy"]

# Steps toward the center of the integrand, which need not be exact.
CENTER_STEPS = 12


class FreeEnergy:
    """A loss under ``-log E_q[exp(-alpha loss)] / alpha``, alpha > 0, instead of E_q.

    The limit at alpha = 0 is E_q, which differs by less than the range of the loss.
    """

    #: exp(-loss) is not a likelihood, and must not be used as one.
    is_log_loss = False

    def __init__(self, loss: Any, alpha: float) -> None:
        self.loss, self.alpha = loss, alpha

    def reduce(
        self, losses: torch.Tensor, log_ratio: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Estimate from draws (S, n): nats per row, (n,), biased upwards by O(1/S).

        `log_ratio` (S,) is added to minus the loss of every row.
        """
        if log_ratio is not None:
            losses = losses - log_ratio[:, None]
        return -log_mean_exp(-self.alpha * losses, 0) / self.alpha

    def expected(
        self,
        likelihood: Any,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        refine: int = 1,
    ) -> Expectations:
        """Free energy under a normal f_i, and its derivatives, without noise.

        The third value is twice the derivative in the *variance*, ``second + alpha
        first^2``: only for expectations is that the second derivative in the mean.
        """
        if not bool(std_or_cov.any()):
            return self.loss.expected(likelihood, mean, std_or_cov, y, refine)
        if mean.ndim == 2:
            return self._vector(likelihood, mean, std_or_cov, y, refine)
        reach = likelihood._length_scale / math.sqrt(max(self.alpha, 1.0))
        nodes, weights = normal_rule(
            float(std_or_cov.max()) / reach, refine, std_or_cov.device
        )
        shift = self._center(likelihood, mean, std_or_cov, y)
        f = mean + std_or_cov * (nodes[:, None] + shift)
        # The normal density around its own mean, at nodes that are spaced elsewhere.
        tilt = -nodes[:, None] * shift - 0.5 * shift.square()
        gain, first, second = self._derivatives(likelihood, f[..., None], y)
        w, value = self._weigh(weights.log()[:, None] + tilt, gain)
        second = second + self.alpha * first.square()
        return value, -(w * first).sum(0), -(w * second).sum(0)

    def _vector(
        self,
        likelihood: Any,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        refine: int,
    ) -> Expectations:
        value, first = torch.empty_like(mean[:, 0]), torch.empty_like(mean)
        second = torch.empty_like(std_or_cov)
        for rows, factor, nodes, weights in node_groups(std_or_cov, refine):
            f = (mean[rows, :, None] + factor @ nodes).permute(2, 0, 1)
            gain, slope, curvature = self._derivatives(likelihood, f, y[rows])
            w, value[rows] = self._weigh(weights.log()[:, None], gain)
            curvature = curvature + self.alpha * slope[..., None] * slope[..., None, :]
            first[rows] = -(w[..., None] * slope).sum(0)
            second[rows] = -(w[..., None, None] * curvature).sum(0)
        return value, first, second

    def _derivatives(
        self, likelihood: Any, f: torch.Tensor, y: torch.Tensor
    ) -> Expectations:
        """Minus the loss, with its first and second derivative in f."""
        if self.loss.is_log_loss:
            return likelihood.log_prob_derivatives(f, y)
        return row_derivatives(lambda g: -self.loss(likelihood, g, y), f)

    def _weigh(
        self, log_weights: torch.Tensor, gain: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Normalized weights of the nodes, and the free energy."""
        terms = log_weights + self.alpha * gain
        total = torch.logsumexp(terms, 0)
        return torch.exp(terms - total), -total / self.alpha

    def _center(
        self,
        likelihood: Any,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
    ) -> torch.Tensor:
        """Mode of the integrand, in standard deviations from the mean.

        It is far out in a badly misclassified row. By safeguarded Newton steps.
        """
        shift = torch.zeros_like(mean)
        low, high = shift, shift
        for step in range(CENTER_STEPS):
            f = (mean + std_or_cov * shift)[None, :, None]
            _, first, second = self._derivatives(likelihood, f, y)
            gradient = self.alpha * std_or_cov * first[0]
            if step == 0:
                if float(gradient.abs().max()) < 0.5:
                    return shift
                low, high = gradient.clamp(max=0), gradient.clamp(min=0)
            excess = gradient - shift
            low = torch.where(excess > 0, shift, low)
            high = torch.where(excess < 0, shift, high)
            curvature = (self.alpha * std_or_cov.square() * -second[0]).clamp(min=0)
            newton = shift + excess / (1 + curvature)
            inside = (newton > low) & (newton < high)
            shift = torch.where(inside, newton, 0.5 * (low + high))
        return shift


def with_free_energy(target: Any, alpha: float) -> Any:
    """Copy of a supervised target whose expected loss is a sum of free energies.

    In `expected_loss` without draws and in `expected_loss_terms`: for solvers that need
    only these, on the same data.
    """
    found = copy(target)
    found.loss = FreeEnergy(target.loss, alpha)
    return found
