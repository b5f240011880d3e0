"""Successes of several trials."""

from copy import copy
from numbers import Integral

import numpy as np
import torch
from scipy.special import betainc
from torch.nn.functional import softplus

from skvi.expectations._logistic import expect_softplus
from skvi.expectations._rules import Expectations
from skvi.likelihoods.base import Likelihood
from skvi.utils._tensors import CPU
from skvi.utils._validation import Interval


class BinomialLikelihood(Likelihood):
    r"""y successes of m trials with log odds f.

    .. math:: p(y | f) = \binom{m}{y} \sigma(f)^y \, (1 - \sigma(f))^{m - y}

    Targets are numbers of successes, (n,), or have two columns, with the trials of each
    row.

    Parameters
    ----------
    n_trials : int, default=1
        m, where targets have one column.

    Examples
    --------
    >>> import torch
    >>> from skvi.likelihoods._binomial import BinomialLikelihood
    >>> likelihood = BinomialLikelihood(2)
    >>> likelihood.log_prob(torch.zeros(1, 3, 1), torch.arange(3.0)).exp()
    tensor([[0.2500, 0.5000, 0.2500]])
    """

    is_discrete = is_log_concave = True
    tail_curvature = 0.0
    _parameter_constraints: dict = {
        "n_trials": [Interval(Integral, 1, None, closed="left")]
    }
    _of_rows: torch.Tensor | None = None

    def __init__(self, n_trials: int = 1) -> None:
        self.n_trials = n_trials

    def of(self, trials: torch.Tensor) -> "BinomialLikelihood":
        """Return the likelihood of successes in rows with these trials, (n,)."""
        bound = copy(self)
        bound._of_rows = trials
        return bound

    @property
    def trials(self) -> torch.Tensor:
        """Those of rows, (n,), or of all of them."""
        if self._of_rows is not None:
            return self._of_rows
        return torch.tensor(float(self.n_trials), dtype=torch.float64, device=CPU)

    def _split(self, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Successes and trials."""
        if y.ndim == 1:
            return y, self.trials.to(y)
        return y[..., 0], y[..., 1]

    def log_prob(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Log mass, (S, n)."""
        y, m = self._split(y)
        odds = f[..., 0]
        log_p = y * odds - m * softplus(odds, threshold=40)
        return log_p + _log_binomial(m, y).to(log_p.dtype)

    def log_power_integral(self, f: torch.Tensor, c: float) -> torch.Tensor:
        """Log of the sum of p(y)^c over the numbers of successes, (S, n)."""
        counts = torch.arange(self.n_trials + 1.0, dtype=f.dtype, device=f.device)
        parts = [self.log_prob(f, k.expand(f.shape[1])) for k in counts]
        return torch.logsumexp(c * torch.stack(parts), 0)

    def mean(self, f: torch.Tensor) -> torch.Tensor:
        """Mean number of successes, (S, n)."""
        return self.trials.to(f) * torch.sigmoid(f[..., 0])

    def variance(self, f: torch.Tensor) -> torch.Tensor:
        """Variance of the number, (S, n)."""
        return self.mean(f) * torch.sigmoid(-f[..., 0])

    def cdf(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Probability of at most y, (S, n), by the incomplete Beta function."""
        m, k = self.trials.cpu().numpy(), y.cpu().numpy()
        left = np.maximum(m - k, 1e-300)
        below = betainc(left, k + 1, torch.sigmoid(-f[..., 0]).cpu().numpy())
        found = np.where(k < 0, 0.0, np.where(k >= m, 1.0, below))
        return torch.from_numpy(found).to(f.device)

    def sample(self, f: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Draw numbers of successes as floats, (S, n)."""
        p = torch.sigmoid(f[..., 0])
        m = self.trials.to(p).expand(p.shape).contiguous()
        return torch.binomial(m, p, generator=generator)

    def _resolution(self, f: torch.Tensor) -> torch.Tensor:
        """Deviation of the log odds that as many trials determine, at most 1."""
        width = 2 / (4 + self.trials.to(f)).sqrt()
        return width.expand(f.shape[:-1])

    def log_prob_derivatives(self, f: torch.Tensor, y: torch.Tensor) -> Expectations:
        """Closed form; see `Likelihood.log_prob_derivatives`."""
        p, (k, m) = torch.sigmoid(f[..., 0]), self._split(y)
        return self.log_prob(f, y), k - m * p, -m * p * (1 - p)

    def expected_log_loss(
        self,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        refine: int = 1,
    ) -> Expectations:
        """As for a logistic model; see `Likelihood.expected_log_loss`."""
        value, first, second = expect_softplus(mean, std_or_cov, refine)
        y, m = self._split(y)
        return m * value - y * mean - _log_binomial(m, y), m * first - y, m * second


def _log_binomial(m: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, y = m.double(), y.double()
    return torch.lgamma(m + 1) - torch.lgamma(y + 1) - torch.lgamma(m - y + 1)
