"""Targets of which one value has a probability of its own, such as zeros."""

from collections.abc import Callable
from copy import copy
from numbers import Real
from operator import attrgetter
from typing import Any

import torch
from torch.nn.functional import logsigmoid

from skvi.expectations._logistic import expect_softplus
from skvi.expectations._rules import Expectations, expect_pair, normal_rule
from skvi.likelihoods._counts import PoissonLikelihood
from skvi.likelihoods._gaussian import GaussianLikelihood
from skvi.likelihoods.base import Likelihood
from skvi.utils._rows import RowBuffers, RowPass
from skvi.utils._tensors import rand
from skvi.utils._validation import Interval, StrOptions

# Least distance of the log of a probability from 0, whose log is finite.
LEAST = 1e-300
# Draws of the rest that may have the value, before others come from their masses.
N_DRAWS, N_VALUES = 50, 1000


class HurdleLikelihood(Likelihood):
    r"""One value has a probability of its own; the rest has another likelihood.

    .. math:: P(y = a) = \sigma(h), \quad
              p(y | y \ne a) = \frac{p_0(y)}{1 - P_0(a)}

    for the last column h of f, the value a = `at`, and the distribution
    :math:`p_0` of `likelihood` given the other columns; :math:`P_0(a)` is 0 for a
    density. Examples are expenses, rain or demand with many zeros.

    Parameters
    ----------
    likelihood : Likelihood or None, default=None
        Distribution of the other values, of numbers or of counts. None leaves the
        choice to a network; alone it is ``GaussianLikelihood()``.
    at : float or "auto", default="auto"
        The value. A network with "auto" takes the most frequent one.

    Notes
    -----
    Log densities refer to the sum of a unit mass at `at` and of the measure of
    `likelihood`: the log of a probability where y is `at`, and of a density elsewhere.
    They are comparable with those of other models with the same atom, but not with
    densities.

    References
    ----------
    Cragg (1971), *Some statistical models for limited dependent variables*.

    Examples
    --------
    >>> import torch
    >>> from skvi.likelihoods import GaussianLikelihood, HurdleLikelihood
    >>> likelihood = HurdleLikelihood(GaussianLikelihood(1.0), at=0.0)
    >>> f = torch.tensor([[[5.0, 0.0]]])  # even odds
    >>> likelihood.mean(f), likelihood.log_prob(f, torch.zeros(1))
    (tensor([[2.5000]]), tensor([[-0.6931]]))
    """

    #: Whether the rest has no such values.
    _excludes = True
    _parameter_constraints: dict = {
        "likelihood": [Likelihood, None],
        "at": [Interval(Real, None, None, closed="neither"), StrOptions({"auto"})],
    }

    def __init__(
        self, likelihood: Likelihood | None = None, at: float | str = "auto"
    ) -> None:
        self.likelihood = likelihood
        self.at = at

    @property
    def rest(self) -> Any:
        """The likelihood of other values."""
        return GaussianLikelihood() if self.likelihood is None else self.likelihood

    @property
    def value(self) -> float:
        """The value with a probability of its own."""
        if isinstance(self.at, str):
            raise ValueError(f"{self!r} has no value before a fit finds one; give it.")
        return float(self.at)

    # As of the rest.
    gamma_block: Any = property(attrgetter("rest.gamma_block"))
    gamma_prior: Any = property(attrgetter("rest.gamma_prior"))
    is_discrete: Any = property(attrgetter("rest.is_discrete"))
    noise_outputs: Any = property(attrgetter("rest.noise_outputs"))
    learned: Any = property(attrgetter("rest.learned"))
    _learned_limits: Any = property(attrgetter("rest._learned_limits"))
    floor_remedy: Any = property(attrgetter("rest.floor_remedy"))
    _length_scale: Any = property(attrgetter("rest._length_scale"))

    @property
    def n_outputs(self) -> int:  # type: ignore[override]
        """Columns of f of the rest, and one."""
        return int(self.rest.n_outputs) + 1

    @property
    def has_expectations(self) -> bool:  # type: ignore[override]
        """With one column of the rest, by nodes of both."""
        return self.n_outputs == 2

    @property
    def is_log_concave(self) -> bool:  # type: ignore[override]
        """As the rest is, or for an exponential family without a value."""
        is_family = isinstance(self.rest, PoissonLikelihood) or not self.is_discrete
        return bool(self.rest.is_log_concave and is_family and self._excludes)

    @property
    def scale_outputs(self) -> tuple[int, ...]:  # type: ignore[override]
        """Those of the rest, and the log odds, which start at 0, too."""
        return (*self.rest.scale_outputs, self.n_outputs - 1)

    def initial_hyper(self, y: torch.Tensor) -> torch.Tensor:
        """That of the rest, of other values; see `Likelihood.initial_hyper`."""
        others = y[~self.is_at(y)]
        found: torch.Tensor = self.rest.initial_hyper(others if len(others) else y + 1)
        return found

    def bind(self, hyper: torch.Tensor) -> Any:
        """Return the likelihood whose rest has these numbers."""
        if not self.learned:
            return self
        bound = copy(self)
        bound.likelihood = self.rest.bind(hyper)
        return bound

    def is_at(self, y: torch.Tensor) -> torch.Tensor:
        """Whether targets have the value, as far as their precision tells.

        Parameters
        ----------
        y : Tensor

        Returns
        -------
        Tensor of bool
            In the shape of y.
        """
        return y == y.new_tensor(self.value)

    def mass(self, f: torch.Tensor) -> torch.Tensor:
        """Probability of the value.

        Parameters
        ----------
        f : Tensor of shape (S, n, K)

        Returns
        -------
        Tensor of shape (S, n)
        """
        return torch.sigmoid(f[..., -1])

    def _has_density(self, y: torch.Tensor) -> torch.Tensor:
        """Not where y has the value; see `Likelihood._has_density`."""
        return ~self.is_at(y)

    def _split(self, f: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return f[..., :-1], f[..., -1]

    def _other(self, y: torch.Tensor) -> torch.Tensor:
        """Targets, with another value in place of the one, for the rest's density."""
        return torch.where(self.is_at(y), self.value + 1, y)

    def _log_rest(self, f: torch.Tensor) -> torch.Tensor:
        """Log of the probability that the rest would not give the value."""
        at = f.new_full(f.shape[1:2], self.value)
        return _log_other(self.rest.log_prob(f, at))

    def _others(self, f: torch.Tensor) -> torch.Tensor:
        """Probability that the rest would not give the value; 1 for a density."""
        return self._log_rest(f).exp() if self.is_discrete else f.new_ones(())

    def log_prob(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Log probability or density, (S, n)."""
        own, odds = self._split(f)
        others = self.rest.log_prob(own, self._other(y)) + logsigmoid(-odds)
        if self.is_discrete:
            others = others - self._log_rest(own)
        return torch.where(self.is_at(y), logsigmoid(odds), others)

    def _log_prob_slope(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Closed form where the rest is a density; see `Likelihood._log_prob_slope`."""
        if self.is_discrete:
            return super()._log_prob_slope(f, y)
        own, odds = self._split(f)
        is_at = self.is_at(y).to(f.dtype)
        slope = self.rest._log_prob_slope(own, self._other(y)).reshape(own.shape)
        for_odds = (is_at - odds.sigmoid())[..., None]
        return torch.cat([slope * (1 - is_at)[:, None], for_odds], -1)

    def _row_pass(self, buffers: RowBuffers) -> RowPass | None:
        """Closed form where the rest is a density; see `Likelihood._row_pass`."""
        if self.is_discrete:
            return None
        f, slope = buffers.f[..., :-1], buffers.slope[..., :-1]
        rest = self.rest._row_pass(buffers._replace(f=f, slope=slope))
        return None if rest is None else _HurdlePass(self, rest, buffers)

    def log_power_integral(self, f: torch.Tensor, c: float) -> torch.Tensor:
        """Sum of the powers of the probability, and of the rest, (S, n)."""
        own, odds = self._split(f)
        others = self.rest.log_power_integral(own, c)
        if self.is_discrete:
            mass = self.rest.log_prob(own, f.new_full(f.shape[1:2], self.value))
            others = others + torch.log1p(-torch.exp(c * mass - others))
            others = others - c * _log_other(mass)
        return torch.logaddexp(c * logsigmoid(odds), others + c * logsigmoid(-odds))

    def log_prob_derivatives(self, f: torch.Tensor, y: torch.Tensor) -> Expectations:
        """Closed form of two columns; see `Likelihood.log_prob_derivatives`."""
        if self.n_outputs != 2:
            return super().log_prob_derivatives(f, y)
        own, odds = self._split(f)
        is_at, p = self.is_at(y).to(f.dtype), torch.sigmoid(odds)
        _, first, second = self.rest.log_prob_derivatives(own, self._other(y))
        if self.is_discrete:  # of 1 - P_0(a)
            at = f.new_full(f.shape[1:2], self.value)
            log_p, slope, curvature = self.rest.log_prob_derivatives(own, at)
            ratio = torch.exp(log_p - _log_other(log_p))
            first = first + ratio * slope
            second = second + ratio * (curvature + (1 + ratio) * slope.square())
        rest = 1 - is_at
        second = torch.stack([rest * second, p.square() - p], -1)
        first = torch.stack([rest * first, is_at - p], -1)
        return self.log_prob(f, y), first, torch.diag_embed(second)

    def expected_log_loss(
        self,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        refine: int = 1,
    ) -> Expectations:
        """A logistic model beside the rest; see `Likelihood.expected_log_loss`."""
        std, is_at = std_or_cov.diagonal(dim1=1, dim2=2).sqrt(), self.is_at(y)
        sign = torch.where(is_at, -1.0, 1.0).to(mean.dtype)
        odds = expect_softplus(sign * mean[:, 1], std[:, 1], refine)
        others = mean[:, 0].contiguous(), std[:, 0].contiguous()
        found = self.rest.expected_log_loss(*others, self._other(y), refine)
        if self._excludes and self.is_discrete:
            found = map(torch.add, found, self._expected_log_rest(*others, refine))
        value, first, second = (torch.where(is_at, 0.0, part) for part in found)
        slopes = torch.stack([first, sign * odds[1]], 1)
        return (
            value + odds[0],
            slopes,
            torch.diag_embed(torch.stack([second, odds[2]], 1)),
        )

    def _expectations(
        self,
        derivatives: Callable[[torch.Tensor, torch.Tensor], Expectations],
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        refine: int = 1,
    ) -> Expectations:
        """By nodes of both columns: no softmax; see `Likelihood._expectations`."""
        given = mean, std_or_cov, y, self._length_scale, refine
        return expect_pair(derivatives, *given)

    def _expected_log_rest(
        self, mean: torch.Tensor, std: torch.Tensor, refine: int
    ) -> Expectations:
        """Expected log of 1 - P_0(a), and derivatives, by nodes."""
        width = float(std.max()) / self._length_scale
        nodes, weights = normal_rule(width, refine, mean.device)
        f = torch.addcmul(mean, nodes[:, None], std)[..., None]
        at = torch.full_like(mean, self.value)
        log_p, slope, curvature = self.rest.log_prob_derivatives(f, at)
        log_rest = _log_other(log_p)
        ratio = torch.exp(log_p - log_rest)
        second = ratio * (curvature + (1 + ratio) * slope.square())
        return weights @ log_rest, -(weights @ (ratio * slope)), -(weights @ second)

    def mean(self, f: torch.Tensor) -> torch.Tensor:
        """Mean of y, (S, n)."""
        own, odds = self._split(f)
        excess = (self.rest.mean(own) - self.value) / self._others(own)
        return self.value + torch.sigmoid(-odds) * excess

    def variance(self, f: torch.Tensor) -> torch.Tensor:
        """Variance of y, (S, n)."""
        own, odds = self._split(f)
        share = torch.sigmoid(-odds) / self._others(own)
        excess = self.rest.mean(own) - self.value
        # Around the value, where a probability adds nothing to the second moment.
        second = self.rest.variance(own) + (1 - share) * excess.square()
        return share * second

    def cdf(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Probability of at most y, (S, n)."""
        own, odds = self._split(f)
        below, others = self.rest.cdf(own, y), self._others(own)
        if self.is_discrete:  # without the mass, by the smaller end for its digits
            least = y.floor() - self.is_at(y).to(y.dtype)
            below = self.rest.cdf(own, least.clamp(min=0)).where(least >= 0, 0.0)
        others = torch.where(y > self.value, 1 - (1 - below) / others, below / others)
        found = torch.sigmoid(-odds) * others.clamp(0, 1)
        return found + torch.sigmoid(odds) * (y >= self.value)

    def quantile(self, f: torch.Tensor, level: float | torch.Tensor) -> torch.Tensor:
        """Quantile of y, (S, n): the value itself at the levels of its jump."""
        own, odds = self._split(f)
        share, at = torch.sigmoid(-odds).double(), f.new_full(f.shape[1:2], self.value)
        below = share * self.rest.cdf(own, at)
        is_below, is_above = level < below, level > below + (1 - share)
        # The level among other values; any where it is not used.
        inner = torch.where(is_below, level, level - (1 - share)) / share
        inner = torch.where(is_below | is_above, inner, 0.5).clamp(1e-300, 1 - 1e-16)
        others = self.rest.quantile(own, inner)
        return torch.where(is_below | is_above, others, self.value)

    def sample(self, f: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Draw targets, (S, n)."""
        own, odds = self._split(f)
        found = self.rest.sample(own, generator)
        for _ in range(N_DRAWS * self.is_discrete):
            if not bool((again := self.is_at(found)).any()):
                break
            found = torch.where(again, self.rest.sample(own, generator), found)
        if self.is_discrete and bool((again := self.is_at(found)).any()):
            found = torch.where(again, self._sample_others(own, generator), found)
        uniform = torch.rand(odds.shape, generator=generator, device=odds.device)
        return torch.where(uniform < torch.sigmoid(odds), self.value, found)

    def _sample_others(
        self, own: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor:
        """Draw other counts by their masses, where the rest hardly has any, (S, n)."""
        log_rest = self._log_rest(own)
        uniform = rand(generator, *own.shape[:2]).double()
        found = torch.full_like(uniform, self.value + 1)
        for k in range(N_VALUES):
            if k == self.value or not bool((uniform >= 0).any()):
                continue
            mass = self.rest.log_prob(own, own.new_full(own.shape[1:2], k)) - log_rest
            is_open, uniform = uniform >= 0, uniform - mass.exp()
            found = torch.where(is_open & (uniform < 0), float(k), found)
        return found


def _log_other(log_p: torch.Tensor) -> torch.Tensor:
    """Log of 1 - p, with its digits where p is nearly 1."""
    return torch.log(-torch.expm1(log_p.clamp(max=-LEAST)))


class _HurdlePass(RowPass):
    """The rest's pass over rows without the value, and that of a logistic model."""

    def __init__(
        self, hurdle: HurdleLikelihood, rest: RowPass, buffers: RowBuffers
    ) -> None:
        super().__init__()
        self._hurdle, self._rest = hurdle, rest
        self._odds, self._for_odds = buffers.f[..., -1], buffers.slope[..., -1]

    def _visit(
        self, y: torch.Tensor, weight: torch.Tensor, count: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        is_at = self._hurdle.is_at(y)
        others = torch.where(is_at, 0.0, weight)
        n_draws = self._odds.shape[1]
        self._rest(self._hurdle._other(y), others, n_draws * others.sum((1, 2)))
        sign = torch.where(is_at, 1.0, -1.0).to(weight.dtype)
        self._for_odds.copy_(-sign * torch.sigmoid(-sign * self._odds) * weight)
        return ((-logsigmoid(sign * self._odds) * weight).sum((1, 2)),)

    def values(self, hyper: torch.Tensor) -> torch.Tensor:
        """With those of the rest; see `RowPass.values`."""
        return super().values(hyper) + self._rest.values(hyper)


class ZeroInflatedLikelihood(HurdleLikelihood):
    r"""Counts with more zeros than their distribution has.

    .. math:: P(y = 0) = \sigma(h) + (1 - \sigma(h)) \, p_0(0), \quad
              P(y) = (1 - \sigma(h)) \, p_0(y)

    for the last column h of f, the log odds of a zero that is not of the distribution
    :math:`p_0` of `likelihood` given the other column.

    Parameters
    ----------
    likelihood : Likelihood or None, default=None
        Distribution of the counts; None is ``PoissonLikelihood()``.

    References
    ----------
    Lambert (1992), *Zero-inflated Poisson regression*.

    Examples
    --------
    >>> import torch
    >>> from skvi.likelihoods import ZeroInflatedLikelihood
    >>> f = torch.zeros(1, 1, 2)  # a rate of 1, even odds
    >>> ZeroInflatedLikelihood().log_prob(f, torch.zeros(1)).exp()
    tensor([[0.6839]])
    """

    _parameter_constraints: dict = {"likelihood": [Likelihood, None]}
    at, _excludes = 0.0, False

    def __init__(self, likelihood: Likelihood | None = None) -> None:
        self.likelihood = likelihood

    @property
    def rest(self) -> Any:
        """The likelihood of counts."""
        return PoissonLikelihood() if self.likelihood is None else self.likelihood

    def log_prob(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Log mass, (S, n)."""
        own, odds = self._split(f)
        counts = self.rest.log_prob(own, y) + logsigmoid(-odds)
        return torch.where(y == 0, torch.logaddexp(logsigmoid(odds), counts), counts)

    def log_prob_derivatives(self, f: torch.Tensor, y: torch.Tensor) -> Expectations:
        """By the probability that a zero is a count; see `Likelihood`."""
        if self.n_outputs != 2:
            return Likelihood.log_prob_derivatives(self, f, y)
        own, odds = self._split(f)
        p = torch.sigmoid(odds)
        log_p, first, second = self.rest.log_prob_derivatives(own, y)
        count = torch.where(y == 0, torch.sigmoid(log_p - odds), 1.0)
        mixed = count * (1 - count)
        between = -mixed * first
        rows = [
            torch.stack([count * second + mixed * first.square(), between], -1),
            torch.stack([between, mixed - p * (1 - p)], -1),
        ]
        slopes = torch.stack([count * first, 1 - count - p], -1)
        return self.log_prob(f, y), slopes, torch.stack(rows, -1)

    def expected_log_loss(
        self,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        refine: int = 1,
    ) -> Expectations:
        """Of zeros by nodes of both columns; see `Likelihood.expected_log_loss`."""
        sums = super().expected_log_loss(mean, std_or_cov, y, refine)
        if len(zeros := (y == 0).nonzero()[:, 0]):
            given = mean[zeros], std_or_cov[zeros], y[zeros], refine
            found = self._expectations(self.log_prob_derivatives, *given)
            for total, part in zip(sums, found, strict=True):
                total[zeros] = -part
        return sums

    def log_power_integral(self, f: torch.Tensor, c: float) -> torch.Tensor:
        """Sum of the powers of the probability of 0, and of others, (S, n)."""
        own, odds = self._split(f)
        zero = f.new_zeros(f.shape[1])
        every = self.rest.log_power_integral(own, c)
        share = torch.exp(c * self.rest.log_prob(own, zero) - every)
        others = every + torch.log1p(-share) + c * logsigmoid(-odds)
        return torch.logaddexp(c * self.log_prob(f, zero), others)

    def mass(self, f: torch.Tensor) -> torch.Tensor:
        """Probability of 0.

        Parameters
        ----------
        f : Tensor of shape (S, n, K)

        Returns
        -------
        Tensor of shape (S, n)
        """
        return self.log_prob(f, f.new_zeros(f.shape[1])).exp()

    def mean(self, f: torch.Tensor) -> torch.Tensor:
        """Mean of y, (S, n)."""
        own, odds = self._split(f)
        return torch.sigmoid(-odds) * self.rest.mean(own)

    def variance(self, f: torch.Tensor) -> torch.Tensor:
        """Variance of y, (S, n)."""
        own, odds = self._split(f)
        second = (
            self.rest.variance(own) + torch.sigmoid(odds) * self.rest.mean(own) ** 2
        )
        return torch.sigmoid(-odds) * second

    def cdf(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Probability of at most y, (S, n)."""
        own, odds = self._split(f)
        below = torch.sigmoid(-odds) * self.rest.cdf(own, y) + torch.sigmoid(odds)
        return torch.where(y < 0, 0.0, below)

    def quantile(self, f: torch.Tensor, level: float | torch.Tensor) -> torch.Tensor:
        """Quantile of y: not of single distributions of counts."""
        raise self._lacks("quantile", "quantiles and intervals")

    def sample(self, f: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Draw counts as floats, (S, n)."""
        own, odds = self._split(f)
        found = self.rest.sample(own, generator)
        uniform = torch.rand(odds.shape, generator=generator, device=odds.device)
        return torch.where(uniform < torch.sigmoid(odds), 0.0, found)
