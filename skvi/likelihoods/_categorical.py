"""Two classes, and any number of classes."""

from collections.abc import Iterator
from numbers import Integral
from typing import NamedTuple

import torch
from torch.nn.functional import logsigmoid, softplus

from skvi.expectations._logistic import expect_sigmoid_power, expect_softplus
from skvi.expectations._rules import Expectations
from skvi.expectations._softmax import expect_logsumexp, softmax_nodes
from skvi.likelihoods.base import Likelihood
from skvi.utils._rows import RowBuffers, RowPass
from skvi.utils._tensors import rand
from skvi.utils._validation import Interval


class _ClassLikelihood(Likelihood):
    """Probabilities proportional to exp(f): their powers are probabilities at c f."""

    is_discrete = is_log_concave = True
    tail_curvature = 0.0

    def _expected_escort_power(
        self,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        c: float,
        refine: int = 1,
    ) -> Expectations:
        wider = (c if mean.ndim == 1 else c**2) * std_or_cov
        parts = c * mean, wider, y, (c - 1) / c, refine
        value, first, second = self._expected_density_power(*parts)
        return value, c * first, c**2 * second


class CategoricalLikelihood(_ClassLikelihood):
    r"""y in {0, ..., K - 1}, coded as floats, with :math:`p \propto \exp(f)`.

    The K columns of f are symmetric: no class is the reference. Adding a constant to
    all of them changes nothing. Two symmetric columns whose priors have scale s are
    equivalent to the single column of log odds of `BernoulliLikelihood`, with scale
    ``sqrt(2) * s``.

    Parameters
    ----------
    n_classes : int
        K, at least 2.

    Notes
    -----
    Expectations under a normal f are integrals over the K - 1 dimensions of orthonormal
    contrasts. Given the other classes, the log loss has a closed form in the last one;
    for up to three classes a rule over the others follows their covariance, accurate
    to about 1e-7 nat per row. Independent f (a factorized posterior) are integrated
    through ``max_k (f_k + Gumbel noise)``, whose mean is that of log-sum-exp plus
    Euler's constant: accurate to about 3e-7 nat per row for every variance. With four
    and more classes a full covariance is split into a diagonal that reproduces the
    variances of the differences to the most probable class, integrated in the same way,
    and a remainder. A small remainder enters through two terms of a series (errors near
    1e-6 nat per row on ten classes of digits), with derivatives of the first; rows
    whose second term exceeds 1e-2 nat take 1024 quasi-random points for all classes but
    one (of four classes, 1e-4 nat and a product rule).
    Errors of such rows, with dense random covariances of ten classes, were up to 6e-4
    nat where f has a standard deviation of 0.7, 2e-3 at 1.2 and 0.01 at 3. Powers use
    2048 quasi-random points. ``refine=2`` measures these errors, the series by its
    third term.

    Examples
    --------
    >>> import torch
    >>> from skvi.likelihoods._categorical import CategoricalLikelihood
    >>> likelihood = CategoricalLikelihood(3)
    >>> likelihood.log_prob(torch.zeros(1, 2, 3), torch.tensor([0.0, 2.0]))
    tensor([[-1.0986, -1.0986]])
    """

    has_contrasts = True

    _parameter_constraints: dict = {
        "n_classes": [Interval(Integral, 2, None, closed="left")]
    }

    def __init__(self, n_classes: int) -> None:
        self.n_classes = n_classes

    @property
    def n_outputs(self) -> int:  # type: ignore[override]
        """K: one column of f for each class."""
        return self.n_classes

    @property
    def row_error(self) -> float | None:  # type: ignore[override]
        """Known for up to three classes; see `Likelihood`."""
        return 1e-8 if self.n_classes <= 3 else None

    def log_prob(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Log mass, (S, n)."""
        own = f.gather(2, _codes(y).expand(len(f), -1)[..., None])[..., 0]
        return own - torch.logsumexp(f, 2)

    def log_power_integral(self, f: torch.Tensor, c: float) -> torch.Tensor:
        """Log of the sum of p(y)^c over the classes, (S, n)."""
        return torch.logsumexp(c * f, 2) - c * torch.logsumexp(f, 2)

    def mean(self, f: torch.Tensor) -> torch.Tensor:
        """Class probabilities, (S, n, K): the mean of y in one-hot code."""
        return torch.softmax(f.mT, 1).mT  # across rows: several times faster

    def sample(self, f: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Draw class codes as floats, (S, n)."""
        cdf = self.mean(f).cumsum(2)
        u = rand(generator, *f.shape[:2], 1) * cdf[..., -1:]
        return (u >= cdf).sum(2).clamp(max=self.n_classes - 1).to(f.dtype)

    def _log_prob_slope(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Residual: one-hot y minus the class probabilities, (S, n, K)."""
        return _one_hot(y, self.n_classes, f.dtype) - self.mean(f)

    def _row_pass(self, buffers: RowBuffers) -> RowPass:
        """Closed form; see `Likelihood._row_pass`."""
        return _CategoricalPass(self.n_classes, buffers)

    def log_prob_derivatives(self, f: torch.Tensor, y: torch.Tensor) -> Expectations:
        """Closed form; see `Likelihood.log_prob_derivatives`."""
        p = self.mean(f)
        first = _one_hot(y, self.n_classes, f.dtype) - p
        second = p[..., None] * p[..., None, :] - torch.diag_embed(p)
        return self.log_prob(f, y), first, second

    def expected_log_loss(
        self,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        refine: int = 1,
    ) -> Expectations:
        """Rules for few and many classes; see `Likelihood.expected_log_loss`."""
        if not bool(std_or_cov.any()):
            value, first, second = self.log_prob_derivatives(mean[None], y)
            return -value[0], -first[0], -second[0]
        value, p, hessian = expect_logsumexp(mean, std_or_cov, refine)
        own = mean.gather(1, _codes(y)[:, None])[:, 0]
        return value - own, p - _one_hot(y, self.n_classes, mean.dtype), hessian

    def _expected_density_power(
        self,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        c: float,
        refine: int = 1,
    ) -> Expectations:
        """Weighted products of softmax values; see `Likelihood`."""
        out, own = _Sums(mean), _one_hot(y, self.n_classes, mean.dtype)
        for node in _visit(mean, std_or_cov, y, refine):
            weights = torch.exp(c * node.log_own) * node.weights
            out.value[node.rows] = weights.sum(1)
            out.add(node.rows, node.p, weights)
        value = out.value[:, None]
        # u = p_y^c: u' = c u (e_y - p) and u'' = c^2 u (e_y - p)(e_y - p)' - c u J.
        first = c * (value * own - out.p)
        cross = own[:, :, None] * out.p[:, None, :]
        square = torch.diag_embed(value * own) - cross - cross.mT + out.pp
        second = c**2 * square - c * (torch.diag_embed(out.p) - out.pp)
        return out.value, first, second

    def _expected_power_integral(
        self, mean: torch.Tensor, std_or_cov: torch.Tensor, c: float, refine: int = 1
    ) -> Expectations:
        """Sum of `_expected_density_power` over the classes, in one pass over nodes."""
        out, powers = _Sums(mean), torch.empty_like(mean)
        cross = torch.empty_like(std_or_cov)
        for node in _visit(mean, std_or_cov, None, refine):
            # Every p_k^c is at most 1, and their sum is at least K^(1 - c).
            each = node.p.pow(c) * node.weights
            powers[node.rows] = each.sum(2)
            cross[node.rows] = each @ node.p.mT
            out.add(node.rows, node.p, each.sum(1))
        value = powers.sum(1)
        square = torch.diag_embed(powers) - cross - cross.mT + out.pp
        second = c**2 * square - c * (torch.diag_embed(out.p) - out.pp)
        return value, c * (powers - out.p), second


class _CategoricalPass(RowPass):
    def __init__(self, n_classes: int, buffers: RowBuffers) -> None:
        super().__init__()
        self._n_classes, self._f, self._slope = n_classes, buffers.f, buffers.slope

    def _visit(
        self, y: torch.Tensor, weight: torch.Tensor, count: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        weight = weight[..., None]
        own = _one_hot(y, self._n_classes, weight.dtype).mul_(weight)
        log_p = torch.log_softmax(self._f, 3)
        value = (log_p * own).sum((1, 2, 3)).neg_()
        torch.addcmul(own.neg_(), log_p.exp_(), weight, out=self._slope)
        return (value,)


class _Node(NamedTuple):
    """Some rows at all their nodes: weights (N,), p (m, K, N), the rest (m, N)."""

    rows: torch.Tensor
    weights: torch.Tensor
    p: torch.Tensor
    log_norm: torch.Tensor
    log_own: torch.Tensor


def _visit(
    mean: torch.Tensor, std_or_cov: torch.Tensor, y: torch.Tensor | None, refine: int
) -> Iterator[_Node]:
    codes = None if y is None else _codes(y)
    for rows, f, weights in softmax_nodes(mean, std_or_cov, refine):
        top = f.amax(1, keepdim=True)
        f -= top
        own = f[:, 0]
        if codes is not None:
            at = codes[rows][:, None, None].expand(-1, 1, f.shape[2])
            own = f.gather(1, at)[:, 0]
        p = f.exp_()
        total = p.sum(1, keepdim=True)
        p /= total
        log_total = total[:, 0].log_()
        yield _Node(rows, weights, p, log_total + top[:, 0], own - log_total)


class _Sums:
    """Weighted sums over nodes, of 1, p and p p', for every row."""

    def __init__(self, mean: torch.Tensor) -> None:
        n, k = mean.shape
        self.value, self.p = torch.empty_like(mean[:, 0]), torch.empty_like(mean)
        self.pp = mean.new_empty(n, k, k)

    def add(self, rows: torch.Tensor, p: torch.Tensor, weights: torch.Tensor) -> None:
        """Take over some rows, with weights (N,) or (m, N)."""
        weighted = p * (weights if weights.ndim == 1 else weights[:, None])
        self.p[rows] = weighted.sum(2)
        self.pp[rows] = weighted @ p.mT


def _codes(y: torch.Tensor) -> torch.Tensor:
    return y.to(torch.int64)


def _one_hot(y: torch.Tensor, n_classes: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.nn.functional.one_hot(_codes(y), n_classes).to(dtype)


class BernoulliLikelihood(_ClassLikelihood):
    """y in {0, 1} with log odds f.

    Notes
    -----
    Accurate at every scale: expectations under a normal f have errors of about 1e-7 nat
    per row for every standard deviation of f.

    Examples
    --------
    >>> import torch
    >>> from skvi.likelihoods import BernoulliLikelihood
    >>> BernoulliLikelihood().log_prob(torch.zeros(1, 2, 1), torch.tensor([0.0, 1.0]))
    tensor([[-0.6931, -0.6931]])
    """

    def log_prob(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Log mass, (S, n)."""
        return logsigmoid(f[..., 0] * (2 * y - 1))

    def log_power_integral(self, f: torch.Tensor, c: float) -> torch.Tensor:
        """Log of p(0)^c + p(1)^c, (S, n)."""
        # p(1)^c (1 + exp(-c f)); logaddexp has no finite second derivative far out.
        f = f[..., 0]
        return softplus(-c * f, threshold=40) - c * softplus(-f, threshold=40)

    def mean(self, f: torch.Tensor) -> torch.Tensor:
        """Probability of y = 1, (S, n)."""
        return torch.sigmoid(f[..., 0])

    def sample(self, f: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Draw labels 0.0 or 1.0, (S, n)."""
        p = self.mean(f)
        return (rand(generator, *p.shape) < p).to(p.dtype)

    def _log_prob_slope(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Residual y - p(1), (S, n)."""
        return y - torch.sigmoid(f[..., 0])

    def _row_pass(self, buffers: RowBuffers) -> RowPass:
        """Closed form; see `Likelihood._row_pass`."""
        return _BernoulliPass(buffers)

    def log_prob_derivatives(self, f: torch.Tensor, y: torch.Tensor) -> Expectations:
        """Closed form; see `Likelihood.log_prob_derivatives`."""
        sign = 2 * y - 1
        f = f[..., 0] * sign
        p = torch.sigmoid(-f)
        return logsigmoid(f), sign * p, p.square() - p

    def expected_log_loss(
        self,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        refine: int = 1,
    ) -> Expectations:
        """Two rules, for narrow and wide rows; see `Likelihood.expected_log_loss`."""
        value, first, second = expect_softplus(mean, std_or_cov, refine)
        return torch.addcmul(value, y, mean, value=-1), first - y, second

    def _expected_density_power(
        self,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        c: float,
        refine: int = 1,
    ) -> Expectations:
        """Two rules, for narrow and wide rows; see `Likelihood`."""
        sign = 2 * y - 1
        value, first, second = expect_sigmoid_power(mean * sign, std_or_cov, c, refine)
        return value, first * sign, second

    def _expected_power_integral(
        self, mean: torch.Tensor, std_or_cov: torch.Tensor, c: float, refine: int = 1
    ) -> Expectations:
        """Sum of `_expected_density_power` over both labels."""
        one = self._expected_density_power(
            mean, std_or_cov, torch.ones_like(mean), c, refine
        )
        zero = self._expected_density_power(
            mean, std_or_cov, torch.zeros_like(mean), c, refine
        )
        return one[0] + zero[0], one[1] + zero[1], one[2] + zero[2]


class _BernoulliPass(RowPass):
    def __init__(self, buffers: RowBuffers) -> None:
        super().__init__()
        self._f, self._slope = buffers.f.squeeze(3), buffers.slope.squeeze(3)
        # Converting Python numbers takes longer than products of small tensors.
        numbers = self._f.new_tensor([1.0, -2.0], dtype=torch.float64)
        self._one, self._minus_two = numbers

    def _visit(
        self, y: torch.Tensor, weight: torch.Tensor, count: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        sign = torch.addcmul(self._one, y, self._minus_two)
        wrong = self._f * sign
        torch.mul(torch.sigmoid(wrong), sign * weight, out=self._slope)
        return (softplus(wrong, threshold=40).mul_(weight).sum((1, 2)),)
