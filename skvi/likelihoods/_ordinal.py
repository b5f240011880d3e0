"""Ordered classes: intervals between cutpoints of a latent variable."""

from collections.abc import Callable, Iterator
from numbers import Integral

import torch
from torch.nn.functional import logsigmoid, pad
from torch.special import log_ndtr

from skvi.expectations._rules import (
    Expectations,
    factorize_rows,
    hermite_rule,
    product_rules,
    quasi_random_rule,
    row_derivatives,
)
from skvi.likelihoods.base import Likelihood
from skvi.utils._tables import table
from skvi.utils._tensors import CPU, LOG_2PI, rand
from skvi.utils._validation import Interval, StrOptions, row_chunks

# A cutpoint beside the lowest and the highest level; the largest log of a distance, or
# of its inverse, and the smallest difference of two logs.
FAR, LONGEST, LEAST = 1e6, 30.0, 1e-15
# Largest deviations of logs of distances for narrow and for usual rules; nodes of each
# of one or two distances; points for more where those are wider.
NARROW, USUAL = 0.03, 0.5
N_LINE, N_POINTS = (3, 5, 10), 256
# Numbers that are computed at once.
ELEMENTS = 2**20


class OrdinalLikelihood(Likelihood):
    r"""Levels y in {0, ..., K - 1} in their order: a cumulative model.

    .. math:: P(y \le k | f) = F(c_k - f_0), \quad
              c_0 = 0, \; c_k = c_{k-1} + e^{f_k}

    The first column of f is the linear predictor, whose intercept moves all cutpoints;
    the other K - 2 are logs of the distances between cutpoints.

    Parameters
    ----------
    n_levels : int, default=3
        K, at least 2.
    link : {"logit", "probit"}, default="logit"
        Whether F is the logistic or the standard normal distribution function.

    Notes
    -----
    Expectations under a normal f are integrals over the distances, by Gauss-Hermite up
    to four levels, and by a rule of degree 5 or quasi-random points above, and given
    them over the linear predictor, accurate to about 1e-8. Where logs of distances have
    standard deviations of 0.2, errors are up to 1e-6 nat per row with four levels, and
    near 1e-5 with more; ``refine=2`` measures them.

    Examples
    --------
    >>> import torch
    >>> from skvi.likelihoods import OrdinalLikelihood
    >>> f = torch.tensor([[[0.5, 0.0]]])  # cutpoints 0 and 1
    >>> OrdinalLikelihood(3).log_levels(f).exp()
    tensor([[[0.3775, 0.2449, 0.3775]]])
    """

    is_discrete = True
    _parameter_constraints: dict = {
        "n_levels": [Interval(Integral, 2, None, closed="left")],
        "link": [StrOptions({"logit", "probit"})],
    }

    def __init__(self, n_levels: int = 3, link: str = "logit") -> None:
        self.n_levels = n_levels
        self.link = link

    @property
    def n_outputs(self) -> int:  # type: ignore[override]
        """K - 1: the linear predictor, and the distances."""
        return self.n_levels - 1

    # With two levels, which have no distances, all is as of one log odds.

    @property
    def is_log_concave(self) -> bool:  # type: ignore[override]
        """For two levels; in the logs of distances it is not."""
        return self.n_levels == 2

    @property
    def tail_curvature(self) -> float | None:  # type: ignore[override]
        """0 for two levels of a logit model; see `Likelihood`."""
        return 0.0 if self.n_levels == 2 and self.link == "logit" else None

    def log_prob(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Log mass, (S, n)."""
        return self._log_mass(*self._ends(f, y))

    def log_levels(self, f: torch.Tensor) -> torch.Tensor:
        """Log probabilities of all levels.

        Parameters
        ----------
        f : Tensor of shape (S, n, K - 1)

        Returns
        -------
        Tensor of shape (S, n, K)
        """
        cuts = _cutpoints(f) - f[..., :1]
        ends = pad(pad(cuts, (1, 0), value=-FAR), (0, 1), value=FAR)
        return self._log_mass(ends[..., :-1], ends[..., 1:])

    def log_power_integral(self, f: torch.Tensor, c: float) -> torch.Tensor:
        """Log of the sum of p(y)^c over the levels, (S, n)."""
        return torch.logsumexp(c * self.log_levels(f), -1)

    def mean(self, f: torch.Tensor) -> torch.Tensor:
        """Mean number of the level, (S, n)."""
        levels = torch.arange(self.n_levels, dtype=f.dtype, device=f.device)
        return self.log_levels(f).exp() @ levels

    def sample(self, f: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Draw numbers of levels as floats, (S, n)."""
        cdf = self.log_levels(f).exp().cumsum(-1)[..., :-1]
        return (rand(generator, *f.shape[:2], 1) >= cdf).sum(-1).to(f.dtype)

    def _ends(
        self, f: torch.Tensor, y: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Ends of the interval of y, less the linear predictor, (S, n)."""
        cuts, level = _cutpoints(f), y.to(torch.int64).expand(f.shape[:-1])[..., None]
        low, high = (
            cuts.gather(-1, (level - k).clamp(0, self.n_levels - 2))[..., 0] - f[..., 0]
            for k in (1, 0)
        )
        is_last = y == self.n_levels - 1
        return torch.where(y == 0, -FAR, low), torch.where(is_last, FAR, high)

    def _log_mass(self, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        """Log of F(high) - F(low), in the tail that keeps its digits."""
        is_above = low + high > 0
        log_cdf = logsigmoid if self.link == "logit" else log_ndtr
        near = log_cdf(torch.where(is_above, -low, high))
        far = log_cdf(torch.where(is_above, -high, low))
        return near + torch.log(-torch.expm1((far - near).clamp(max=-LEAST)))

    def _density(self, end: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Log of the density of F, and its slope."""
        if self.link == "logit":
            return logsigmoid(end) + logsigmoid(-end), -torch.tanh(0.5 * end)
        return -0.5 * (end.square() + LOG_2PI), -end

    def log_prob_derivatives(self, f: torch.Tensor, y: torch.Tensor) -> Expectations:
        """Closed form; see `Likelihood.log_prob_derivatives`."""
        log_p, first, inner, outer = self._derivatives(f, y)
        if self.n_levels == 2:
            return log_p, first[..., 0], (inner * outer).sum(0)[..., 0]
        found = (inner[..., None] * outer[..., None, :]).sum(0)
        found.diagonal(dim1=-2, dim2=-1)[..., 1:] += first[..., 1:]
        return log_p, first, found

    def _derivatives(
        self, f: torch.Tensor, y: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Log mass, its slopes, (S, n, K - 1), and factors of second derivatives.

        The latter, (2, S, n, K - 1), are those of both ends, and lack the curvature of
        the distances.
        """
        low, high = self._ends(f, y)
        log_p = self._log_mass(low, high)
        by_low, by_high = (self._density(end) for end in (low, high))
        a, b = (torch.exp(part[0] - log_p) for part in (by_low, by_high))
        # Derivatives in both ends, and of both ends in the columns of f.
        second = -a * (a + by_low[1]), b * (by_high[1] - b), a * b
        length = f[..., 1:].clamp(-LONGEST, LONGEST).exp()
        level = torch.arange(1, self.n_levels - 1, device=y.device)
        own = torch.full_like(f[..., :1], -1.0)
        low, high = (
            torch.cat([own, length * (level <= y[:, None] - k)], -1) for k in (1, 0)
        )
        first = b[..., None] * high - a[..., None] * low
        left = second[0][..., None] * low + second[2][..., None] * high
        right = second[1][..., None] * high + second[2][..., None] * low
        return log_p, first, torch.stack([low, high]), torch.stack([left, right])

    # Expectations -----------------------------------------------------------------

    def _nodes(
        self, mean: torch.Tensor, std_or_cov: torch.Tensor, refine: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Yield rows, f at their nodes, (N, m, K - 1), and weights, (N,)."""
        if mean.ndim == 1:
            for rows, z, weights in product_rules(std_or_cov, 1, refine):
                f = mean[rows] + z.T * std_or_cov[rows]
                yield rows, f[..., None], weights
            return
        size = mean.shape[1]
        order = [*range(1, size), 0]
        root = factorize_rows(std_or_cov[:, order][:, :, order])
        most = float(std_or_cov.diagonal(dim1=1, dim2=2)[:, 1:].amax()) ** 0.5
        width = int(most > NARROW) + int(most > USUAL)
        given, w = distance_rule(size - 1, width, refine, mean.device)
        own = root[:, -1, -1].contiguous()
        for rows, z, weights in product_rules(own, 1, refine):
            n_given, n_own = len(w), len(weights)
            both = [given.repeat_interleave(n_own, 1), z.repeat(1, n_given)]
            nodes, weight = torch.cat(both), torch.outer(w, weights).flatten()
            for chunk in row_chunks(len(rows), len(weight) * size**2, ELEMENTS):
                some = rows[chunk]
                f = (root[some] @ nodes).permute(2, 0, 1).roll(1, -1)
                yield some, f + mean[some], weight

    def _expect(
        self,
        function: Callable[[torch.Tensor, torch.Tensor], Expectations],
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        refine: int,
    ) -> Expectations:
        """Expectations of a function of f and y, and of its derivatives."""
        out = mean.new_empty(len(mean)), torch.empty_like(mean)
        sums = *out, torch.empty_like(std_or_cov)
        for rows, f, weights in self._nodes(mean, std_or_cov, refine):
            parts = zip(sums, function(f, y[rows]), strict=True)
            for total, part in parts:
                total[rows] = torch.tensordot(weights, part, 1)
        return sums

    def expected_levels(
        self, mean: torch.Tensor, std_or_cov: torch.Tensor
    ) -> torch.Tensor:
        """Expected probabilities of all levels under a normal f.

        Parameters
        ----------
        mean : Tensor of shape (n,) or (n, K - 1)
        std_or_cov : Tensor of shape (n,) or (n, K - 1, K - 1)

        Returns
        -------
        Tensor of shape (n, K)
        """
        out = mean.new_empty(len(mean), self.n_levels)
        for rows, f, weights in self._nodes(mean, std_or_cov, 1):
            out[rows] = torch.tensordot(weights, self.log_levels(f).exp(), 1)
        return out

    def expected_log_loss(
        self,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        refine: int = 1,
    ) -> Expectations:
        """By nodes; see `Likelihood.expected_log_loss`."""
        if self.n_levels == 2:
            given = mean, std_or_cov, y, refine
            value, first, second = self._expect(self.log_prob_derivatives, *given)
            return -value, -first, -second
        value, first = torch.empty_like(mean[:, 0]), torch.empty_like(mean)
        second = torch.empty_like(std_or_cov)
        for rows, f, weights in self._nodes(mean, std_or_cov, refine):
            log_p, slope, inner, outer = self._derivatives(f, y[rows])
            value[rows] = -(weights @ log_p)
            first[rows] = -torch.tensordot(weights, slope, 1)
            inner = inner * weights[:, None, None]
            left, right = (part.flatten(0, 1).movedim(1, 0) for part in (inner, outer))
            second[rows] = -(left.mT @ right)
        second.diagonal(dim1=1, dim2=2)[:, 1:] += first[:, 1:]
        return value, first, second

    def _expected_exp(
        self,
        log_function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        refine: int,
    ) -> Expectations:
        """By nodes; see `Likelihood._expected_exp`."""

        def function(f: torch.Tensor, y: torch.Tensor) -> Expectations:
            return row_derivatives(lambda g: log_function(g, y).exp(), f)

        return self._expect(function, mean, std_or_cov, y, refine)

    def _expected_power_integral(
        self, mean: torch.Tensor, std_or_cov: torch.Tensor, c: float, refine: int = 1
    ) -> Expectations:
        """By nodes; see `Likelihood._expected_power_integral`."""
        log_function = lambda f, _: self.log_power_integral(f, c)
        y = mean.new_zeros(len(mean))
        return self._expected_exp(log_function, mean, std_or_cov, y, refine)


def _cutpoints(f: torch.Tensor) -> torch.Tensor:
    """Cutpoints, the first of which is 0, (S, n, K - 1)."""
    return pad(f[..., 1:].clamp(-LONGEST, LONGEST).exp().cumsum(-1), (1, 0))


@table(maxsize=32)
def distance_rule(
    size: int, width: int, refine: int, device: torch.device = CPU
) -> tuple[torch.Tensor, torch.Tensor]:
    """Nodes, (D, N), and weights for the standard normal of D distances."""
    if size <= 2 or (refine > 1 and width < 2 and size <= 4):
        # Rules converge fast: a few nodes more measure their errors.
        n_line = N_LINE[width] + 3 * (refine - 1) if size <= 2 else 2 * refine
        line, w = hermite_rule(n_line, device)
        nodes = torch.cartesian_prod(*[line] * size).reshape(-1, size)
        weights = torch.cartesian_prod(*[w] * size).reshape(-1, size).prod(1)
        return nodes.T.contiguous(), weights
    if width == 2 or refine > 1:
        return quasi_random_rule(size, N_POINTS * refine, device)
    unit = torch.eye(size, dtype=torch.float64, device=device)
    if width == 0:  # of degree 3
        nodes = size**0.5 * torch.cat([unit, -unit])
        return nodes.T.contiguous(), nodes.new_full((2 * size,), 0.5 / size)
    # Stroud and Secrest: the origin, points on the axes, and between pairs of them.
    unit *= 3**0.5
    pairs = torch.triu_indices(size, size, 1, device=device)
    first, second = unit[pairs[0]], unit[pairs[1]]
    between = torch.cat([first + second, first - second])
    nodes = torch.cat([0 * unit[:1], unit, -unit, between, -between])
    weights = nodes.new_full((len(nodes),), 1 / 36)
    weights[0] = (size**2 - 7 * size + 18) / 18
    weights[1 : 1 + 2 * size] = (4 - size) / 18
    return nodes.T.contiguous(), weights
