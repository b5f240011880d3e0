"""Overdispersed counts."""

import numpy as np
import torch
from scipy.special import betainc, expit
from torch.nn.functional import softplus

from skvi.expectations._logistic import expect_softplus
from skvi.expectations._rules import Expectations
from skvi.likelihoods._counts import CountLikelihood
from skvi.likelihoods._dispersed import DispersedLikelihood
from skvi.likelihoods._log_mean import VarianceTerms
from skvi.utils._validation import weighted_sum

# Above, the difference of two log Gamma functions needs Stirling's series.
LARGE = 1e4
# Dispersion below which rates of less than a million are Poisson to three digits.
LEAST = 1e-9
# Smallest dispersion from which a fit starts.
MIN_START = 0.05


class NegativeBinomialLikelihood(DispersedLikelihood, CountLikelihood):
    r"""Counts with log mean f and variance :math:`\mu + \alpha \mu^2`.

    .. math:: p(y|f) = \frac{\Gamma(y + r)}{\Gamma(r) \, y!}
              \Big(\frac{r}{r + \mu}\Big)^r \Big(\frac{\mu}{r + \mu}\Big)^y,
              \quad \mu = e^f, \; r = 1 / \alpha

    Parameters
    ----------
    dispersion : float, "learn" or "hyperprior", default=1.0
        alpha, the squared coefficient of variation of the Gamma-distributed rates of
        which this is a mixture of Poisson distributions; 0 would be Poisson, 1 is
        geometric. "learn" finds the value with the largest ELBO (type-II maximum
        likelihood where q is exact). "hyperprior" gives it an exponential prior of mean
        1, a posterior, and an evidence that integrates it: for
        `BayesianPoissonRegressor`.

    Notes
    -----
    Known as NB2. The expected log mass under a normal f is that of a logistic model
    and exact for every standard deviation of f; expected powers are integrated to about
    1e-9 for standard deviations up to 80.

    Examples
    --------
    >>> import torch
    >>> from skvi.likelihoods import NegativeBinomialLikelihood
    >>> likelihood = NegativeBinomialLikelihood(1.0)
    >>> likelihood.log_prob(torch.zeros(1, 2, 1), torch.tensor([0.0, 2.0]))
    tensor([[-0.6931, -2.0794]])
    """

    is_log_concave = True
    tail_curvature = 0.0
    gamma_block = ("dispersion", 1.0)
    _least = LEAST
    #: Meaning and remedy of a learned hyperparameter at its lower limit.
    floor_remedy = (
        "the counts are not more dispersed than a Poisson distribution; use "
        "PoissonLikelihood, or fix dispersion"
    )

    def __init__(self, dispersion: float | str = 1.0) -> None:
        self.dispersion = dispersion

    def _start(self, y: torch.Tensor) -> float:
        """Squared coefficient of variation, but for that of Poisson counts."""
        mean, variance = float(y.mean()), float(y.var(correction=0))
        # Zeros alone say nothing: the mean of the hyperprior.
        return max((variance - mean) / mean**2, MIN_START) if mean > 0 else 1.0

    def _table_key(self) -> tuple | None:
        return None if self._alpha.requires_grad else (float(self._alpha),)

    def _largest(self, f: torch.Tensor, c: float) -> torch.Tensor:
        return super()._largest(f, c) * (1 + self._alpha)

    def _log_mass(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        r, odds = 1 / self._alpha, f + self._alpha.log()
        log_binomial = _log_binomial(y, r)
        return log_binomial - y * _softplus(-odds) - r * _softplus(odds)

    def _total_log_prob(
        self, f: torch.Tensor, y: torch.Tensor, weight: torch.Tensor | None
    ) -> torch.Tensor:
        """Gamma functions of distinct counts only; see `Likelihood._total_log_prob`."""
        if self._alpha.shape[-1:] == y.shape:  # of the rows
            return super()._total_log_prob(f, y, weight)
        r, odds = 1 / self._alpha, f[..., 0] + self._alpha.log()
        rows = weighted_sum(y * odds - (y + r) * _softplus(odds), weight)
        counts, at = y.unique(return_inverse=True)
        weight = torch.ones_like(y) if weight is None else weight
        total = torch.zeros_like(counts).index_add(0, at, weight.to(y.dtype))
        return rows + _log_binomial(counts, r) @ total

    def _variance_terms(self) -> VarianceTerms:
        """See `Likelihood._variance_terms`."""
        return (1.0, 1), (self._alpha, 2)

    def cdf(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Probability of at most y, (S, n), by the incomplete Beta function."""
        odds = (f[..., 0] + self._alpha.log()).cpu().numpy()
        r = (1 / self._alpha).double().cpu().numpy()
        # The smaller of both probabilities keeps its digits.
        below = betainc(r, (y + 1).cpu().numpy(), expit(-odds))
        return torch.from_numpy(np.asarray(below)).to(f.device)

    def sample(self, f: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Draw counts as floats, (S, n): Poisson with Gamma-distributed rates."""
        r = (1 / self._alpha).to(f.device, torch.float64).expand(f.shape[:-1])
        rate = torch._standard_gamma(r, generator=generator) / r * self.mean(f)
        return torch.poisson(rate, generator=generator).to(f.dtype)

    def log_prob_derivatives(self, f: torch.Tensor, y: torch.Tensor) -> Expectations:
        """Closed form; see `Likelihood.log_prob_derivatives`."""
        r, odds = 1 / self._alpha, f[..., 0] + self._alpha.log()
        p = torch.sigmoid(odds)
        return self.log_prob(f, y), y - (y + r) * p, -(y + r) * p * (1 - p)

    def expected_log_loss(
        self,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        refine: int = 1,
    ) -> Expectations:
        """As for a logistic model: two rules; see `Likelihood.expected_log_loss`."""
        r, log_alpha = 1 / self._alpha, self._alpha.log()
        found = expect_softplus(mean + log_alpha, std_or_cov, refine)
        constant = _log_binomial(y, r)
        value = (y + r) * found[0] - y * (mean + log_alpha) - constant
        return value, (y + r) * found[1] - y, (y + r) * found[2]


def _softplus(x: torch.Tensor) -> torch.Tensor:
    return softplus(x, threshold=40)


def _log_binomial(y: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    """Return log Gamma(y + r) - log Gamma(r) - log y!, also for large r."""
    small = torch.where(r > LARGE, 1.0, r)
    plain = _lgamma_difference(y, small) - torch.lgamma(small)
    big = torch.where(r > LARGE, r, LARGE)
    series = (big + y - 0.5) * torch.log1p(y / big) + y * (big.log() - 1)
    series = series + 1 / (12 * (big + y)) - 1 / (12 * big) - torch.lgamma(y + 1)
    return torch.where(r > LARGE, series, plain)


def _lgamma_difference(y: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    """Return log Gamma(y + r) - log Gamma(y + 1), without cancellation for large y."""
    large = (y > LARGE) & (y > 10 * r)
    plain = torch.lgamma(torch.where(large, 1.0, y) + r)
    plain = plain - torch.lgamma(torch.where(large, 1.0, y) + 1)
    z = torch.where(large, y, LARGE) + 1
    series = (z + r - 1.5) * torch.log1p((r - 1) / z) + (r - 1) * (z.log() - 1)
    series = series + 1 / (12 * (z + r - 1)) - 1 / (12 * z)
    return torch.where(large, series, plain)
