"""Shared by the likelihoods of counts: sums over y, and expectations of powers."""

import math
from typing import Any

import numpy as np
import torch

from skvi.expectations._peaked import expect_peaked, zoom_to_peak
from skvi.expectations._smooth import Expectations, SmoothTable
from skvi.likelihoods.base import Likelihood
from skvi.utils._tables import table

# Counts below are summed one by one; the rest is an integral over log y.
N_TERMS, N_NODES = 128, 96
# Above, single terms are as narrow as the spacing of counts.
MAX_POWER = 16
# Up to this power sums over y are tabulated in f.
TABLE_POWER = 8
# Beyond, rates go on growing linearly in f: exp overflows at 709.
MAX_LOG_RATE = 300.0


class CountLikelihood(Likelihood):
    """Base class: y in {0, 1, 2, ...}, one f, and a mean of exp(f).

    A subclass must implement `_log_mass(f, y)`, which continues the mass to real y, and
    `_mass_slopes(f, y)`, its first five derivatives in y.
    """

    is_discrete = True

    @property
    def length_scale(self) -> float:
        """Half a unit of the log rate: sums over y curve more than a logistic."""
        return 0.5

    def _log_mass(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def _mass_slopes(self, f: torch.Tensor, y: torch.Tensor) -> tuple:
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

    def mean(self, f: torch.Tensor) -> torch.Tensor:
        """Rate exp(f), (S, n)."""
        return safe_exp(f[..., 0])

    @property
    def overdispersion(self) -> torch.Tensor | float:
        """Excess of the variance over the mean, in units of the squared mean."""
        return 0.0

    def variance(self, f: torch.Tensor) -> torch.Tensor:
        """Mean plus overdispersion times its square, (S, n)."""
        mean = self.mean(f)
        return mean + self.overdispersion * mean.square()

    def resolution(self, f: torch.Tensor) -> torch.Tensor:
        """Coefficient of variation of y, at most `length_scale`, (S, n)."""
        squared = self.overdispersion + torch.exp(-f[..., 0])
        return squared.clamp(max=self.length_scale**2).sqrt()

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
        """Sum below 128, and an integral with Euler-Maclaurin corrections above."""
        shape = [-1] + [1] * f.ndim
        first = torch.arange(N_TERMS + 1, dtype=f.dtype, device=f.device)
        first = first.reshape(shape)
        terms = c * self._log_mass(f, first)
        n = first[-1]
        share = _end_share([c * slope for slope in self._mass_slopes(f, n)])
        terms = torch.cat([terms[:-1], (terms[-1] + share.log())[None]])

        def log_tail(v: torch.Tensor) -> torch.Tensor:
            return c * self._log_mass(f, v.exp()) + v

        low = torch.full_like(f, math.log(N_TERMS)).detach()
        low, high = zoom_to_peak(log_tail, low, self._largest(f, c).log().detach())
        nodes, weights = _legendre(f.device)
        v = low + (high - low) * nodes.reshape(shape)
        tail = log_tail(v) + (weights.reshape(shape) * (high - low)).log()
        return torch.logsumexp(torch.cat([terms, tail]), 0)

    def expected_power(
        self,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        c: float,
        refine: int = 1,
    ) -> Expectations:
        """By nodes around each row's peak; see `Likelihood.expected_power`."""
        return expect_peaked(
            lambda f, t: c * self.log_prob(f, t), mean, std_or_cov, y, refine
        )

    def expected_escort_power(
        self,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        c: float,
        refine: int = 1,
    ) -> Expectations:
        """By nodes around the peaks; see `Likelihood.expected_escort_power`."""
        return expect_peaked(
            lambda f, t: self.log_escort_power(f, t, c), mean, std_or_cov, y, refine
        )


def _end_share(slopes: list[torch.Tensor]) -> torch.Tensor:
    """Relative correction at the joint: Euler-Maclaurin with five derivatives.

    The derivatives of exp(l), over exp(l), are Bell polynomials of those of l.
    """
    a, b, c, d, e = slopes
    third = a**3 + 3 * a * b + c
    fifth = a**5 + 10 * a**3 * b + 15 * a * b**2 + 10 * (a**2 + b) * c + 5 * a * d + e
    share = 0.5 - a / 12 + third / 720 - fifth / 30240
    # Where the mass is steep at the joint it is negligible there.
    return torch.where(a.abs() < 2, share, 0.5)


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


def safe_exp(f: torch.Tensor) -> torch.Tensor:
    """Return exp(f), continued by its tangent above 300 so that slopes stay finite."""
    return f.clamp(max=MAX_LOG_RATE).exp() * (1 + (f - MAX_LOG_RATE).clamp(min=0))
