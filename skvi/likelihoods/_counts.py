"""Counts: sums over y, powers, and the Poisson likelihood."""

import math
from typing import Any

import numpy as np
import torch

from skvi.expectations._logistic import zoom_to_peak
from skvi.expectations._rules import Expectations, SmoothTable
from skvi.likelihoods._log_mean import LogMeanLikelihood, VarianceTerms, safe_exp
from skvi.utils._rows import RowBuffers, RowPass
from skvi.utils._tables import table
from skvi.utils._tensors import LOG_2PI

# Counts below are summed one by one; the rest is an integral over log y.
N_TERMS, N_NODES = 128, 96
# Weights of the three counts below the joint, and of the three above: the sum from N on
# is the integral from N - 1/2, plus multiples of central differences of odd order there
# (Gregory's formula, for midpoints).
JOINT = np.array([1.0, 1.0, 1.0, 0.0, 0.0, 0.0]) + np.array(
    [1 / 24, -17 / 5760, 367 / 967680]
) @ np.array([[0, 0, -1, 1, 0, 0], [0, -1, 3, -3, 1, 0], [-1, 5, -10, 10, -5, 1]])
# Above, single terms are as narrow as the spacing of counts.
MAX_POWER = 16
# Up to this power sums over y are tabulated in f.
TABLE_POWER = 8


class CountLikelihood(LogMeanLikelihood):
    """Base class: y in {0, 1, 2, ...}, one f, and a mean of exp(f).

    A subclass must implement `_log_mass(f, y)`, which continues the mass to real y.
    """

    is_discrete = True

    def _log_mass(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def _largest(self, f: torch.Tensor, c: float) -> torch.Tensor:
        """Largest y that can matter for the sum of p^c."""
        return N_TERMS + 200 * (1 + safe_exp(f)) * (1 + 1 / c)

    def _table_key(self) -> tuple | None:
        """Parameters of the sums over y; None if they are being learned."""
        return ()

    def log_prob(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Log mass, (S, n); extended to y that are not counts by the Gamma function."""
        return self._log_mass(f[..., 0], y)

    def _variance_terms(self) -> VarianceTerms:
        """See `Likelihood._variance_terms`."""
        return ((1.0, 1),)

    def log_power_integral(self, f: torch.Tensor, c: float) -> torch.Tensor:
        """Log of the sum of p(y)^c over all counts, (S, n).

        Exact to about 1e-9 for c from 0.5 to 3, rates up to exp(30).

        Parameters
        ----------
        f : Tensor of shape (S, n, 1)
        c : float
            Power, positive, at most 16.

        Returns
        -------
        Tensor of shape (S, n)

        Raises
        ------
        ValueError
            The power is larger.
        """
        if c > MAX_POWER:
            raise ValueError(
                f"Powers of {self!r} are summed up to order {MAX_POWER}; got {c}. Use "
                "a smaller order of the loss."
            )
        key = self._table_key()
        if key is None or c > TABLE_POWER:
            return self._log_power_sum(f[..., 0], c)
        kind: Any = type(self)
        return _table(kind, key, float(c), f.device)(f[..., 0])

    def _log_power_sum(self, f: torch.Tensor, c: float) -> torch.Tensor:
        """Sum below 128, and an integral above with corrections by differences."""
        shape = [-1] + [1] * f.ndim
        counts = torch.arange(N_TERMS + 3, dtype=f.dtype, device=f.device)
        terms = c * self._log_mass(f, counts.reshape(shape))
        weights = torch.ones_like(counts)
        weights[-6:] = weights.new_tensor(JOINT)
        top = terms.amax(0).detach()
        # Where the mass is steep at the joint its weights, of any sign, are negligible.
        head = (torch.exp(terms - top) * weights.reshape(shape)).sum(0)
        head = head.clamp(min=1e-300).log() + top

        def log_tail(v: torch.Tensor) -> torch.Tensor:
            return c * self._log_mass(f, v.exp()) + v

        low = torch.full_like(f, math.log(N_TERMS - 0.5)).detach()
        low, high = zoom_to_peak(log_tail, low, self._largest(f, c).log().detach())
        nodes, line_weights = _legendre(f.device)
        v = low + (high - low) * nodes.reshape(shape)
        tail = log_tail(v) + (line_weights.reshape(shape) * (high - low)).log()
        return torch.logsumexp(torch.cat([head[None], tail]), 0)


@table(maxsize=16)
def _table(kind: Any, key: tuple, c: float, device: torch.device) -> SmoothTable:
    """Log sum of p^c as a function of f: flat on the left, linear on the right."""
    likelihood = kind(*key)
    step = min(0.08, 0.16 / c)
    low = -25 / min(c, 1.0)
    return SmoothTable(
        lambda f: likelihood._log_power_sum(f, c), low, 30.0, step, device
    )


@table(maxsize=4)
def _legendre(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    nodes, weights = np.polynomial.legendre.leggauss(N_NODES)
    both = torch.from_numpy(np.stack([nodes + 1, weights]) / 2).to(device)
    return both[0], both[1]


# Above this rate, per unit of the power, sums over y take the first two terms of
# their expansion: the next one is near 1e-10, and rounding worse.
LARGE_RATE = 1e4


class PoissonLikelihood(CountLikelihood):
    r"""Counts y with log rate f: :math:`p(y|f) = \exp(y f - e^f) / y!`.

    Notes
    -----
    An exposure t_i (time, area, persons at risk) enters as a log offset: f is then
    the log rate per unit plus log t_i. The log mass is extended to y that are not
    counts, such as rates, by ``lgamma(y + 1)``; it is then not a normalized density.

    The expected log mass under a normal f is a closed form,
    ``y m - exp(m + v / 2) - log y!``. Expected powers are integrated to about 1e-9
    for every standard deviation of f up to 80. Powers summed over y, which robust
    losses need, take 128 terms and an integral, and are tabulated in f.

    Examples
    --------
    >>> import torch
    >>> from skvi.likelihoods import PoissonLikelihood
    >>> PoissonLikelihood().log_prob(torch.zeros(1, 2, 1), torch.tensor([0.0, 2.0]))
    tensor([[-1.0000, -1.6931]])
    """

    is_log_concave = True

    def cdf(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Probability of at most y, (S, n)."""
        rate = self.mean(f)
        return torch.special.gammaincc((y + 1).expand_as(rate), rate)

    def _row_pass(self, buffers: RowBuffers) -> RowPass:
        """Closed form; see `Likelihood._row_pass`."""
        return _PoissonPass(buffers)

    def _log_mass(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return y * f - safe_exp(f) - torch.lgamma(y + 1)

    def _log_power_sum(self, f: torch.Tensor, c: float) -> torch.Tensor:
        large = f > math.log(LARGE_RATE * max(c, 1 / c))
        exact = super()._log_power_sum(torch.where(large, 0.0, f), c)
        # The integral of a normal of variance exp(f), and the first correction.
        leading = 0.5 * (1 - c) * (LOG_2PI + f) - 0.5 * math.log(c)
        return torch.where(
            large, leading + (c - 1 / c) / 24 * torch.exp(-f.clamp(min=0)), exact
        )

    def sample(self, f: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Draw counts as floats, (S, n)."""
        return torch.poisson(self.mean(f), generator=generator)

    def _log_prob_slope(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Residual y - exp(f), (S, n)."""
        return y - self.mean(f)

    def log_prob_derivatives(self, f: torch.Tensor, y: torch.Tensor) -> Expectations:
        """Closed form; see `Likelihood.log_prob_derivatives`."""
        rate = self.mean(f)
        return self.log_prob(f, y), y - rate, -rate

    def expected_log_loss(
        self,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        refine: int = 1,
    ) -> Expectations:
        """Closed form: E exp(f) = exp(m + v / 2)."""
        rate = safe_exp(mean + 0.5 * std_or_cov.square())
        return rate - y * mean + torch.lgamma(y + 1), rate - y, rate


class _PoissonPass(RowPass):
    def __init__(self, buffers: RowBuffers) -> None:
        super().__init__()
        self._f, self._slope = buffers.f.squeeze(3), buffers.slope.squeeze(3)

    def _visit(
        self, y: torch.Tensor, weight: torch.Tensor, count: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        rate = safe_exp(self._f)
        torch.mul(rate - y, weight, out=self._slope)
        losses = rate - y * self._f + torch.lgamma(y + 1)
        return ((losses * weight).sum((1, 2)),)
