"""Softmax and log-sum-exp of normal f, with one dimension in closed form.

Given the other classes, the log odds of one class against all of them are normal up to
a known shift, so that ``log-sum-exp = L + softplus(f_K - L)`` with L that of the others
has a closed form (`mixture_softplus`), and so have the probabilities, the logarithm of
each included (`log_mixture_sigmoid`). K - 2 dimensions remain for nodes. With three
classes the integrand has a kink where the other two cross, and is smooth on the scale
of the normal elsewhere: nodes ``z = z_0 + (pi / std) sinh t`` at equal steps of t need
to grow with the logarithm of the standard deviation only.
"""

import math
from collections.abc import Iterator

import torch

from skvi.expectations._logistic import (
    N_SCALES,
    log_mixture_sigmoid,
    mixture_softplus,
)
from skvi.expectations._rules import (
    Expectations,
    contrasts,
    factorize_rows,
    product_rules,
    quasi_random_rule,
    reduce_covariance,
)
from skvi.utils._validation import exp_, log_, row_chunks

# In more than two dimensions: quasi-random points.
MAX_PRODUCT, N_POINTS = 2, 2**10
# In two dimensions wider rows take the rule of this standard deviation.
WIDEST = 6.0
# In one dimension: step of t, that of z in such far from the kink, farthest z, and by
# how many nodes their numbers differ; up to which standard deviation of f Gauss-Hermite
# is cheaper, and for which steps of the last f the kink is not the only place.
STEP, LONG, FARTHEST, N_LINE = 0.4, 1.5, 6.4, 16
NARROW, STEEPEST = 0.65, 1.5
# Arrays of the size of the nodes in `log_mixture_sigmoid`.
N_LOGS = 6


def expect_conditioned(
    mean: torch.Tensor, covariance: torch.Tensor, refine: int = 1
) -> Expectations:
    """Expected log-sum-exp of f ~ N(mean_i, covariance_i), gradient and Hessian.

    The mean is (n, K). The rule of a row depends on its own covariance only.
    """
    order = _widest_last(covariance)
    pairs = _pairs(order)  # an exchange undoes itself
    value, first = torch.empty_like(mean[:, 0]), torch.empty_like(mean)
    second, n_scales = torch.empty_like(covariance), refine * N_SCALES
    exchanged = mean.gather(1, order), covariance[pairs]
    per_node = mean.shape[1] + n_scales
    for at, f, variance, weights in _visit(*exchanged, refine, per_node):
        value[at], first[at], second[at] = _integrate(f, variance, weights, n_scales)
    return value, first.gather(1, order), second[pairs]


def log_expect_conditioned(
    mean: torch.Tensor, covariance: torch.Tensor
) -> torch.Tensor:
    """Log of the expected softmax of f ~ N(mean_i, covariance_i), (n, K).

    To about 1e-6 nats for every width; less accurate for probabilities below 1e-7.
    """
    order, out = _widest_last(covariance), torch.empty_like(mean)
    exchanged = mean.gather(1, order), covariance[_pairs(order)]
    per_node = mean.shape[1] + N_LOGS
    for at, f, variance, weights in _visit(*exchanged, 1, per_node):
        others = torch.logsumexp(f[:, :-1], 1)
        log_last, log_rest = log_mixture_sigmoid(f[:, -1] - others, variance)
        f[:, :-1] += (log_rest - others)[:, None]
        f[:, -1] = log_last
        f += weights.log()[:, None]
        out[at] = torch.logsumexp(f, 2)
    return out.gather(1, order)


def _widest_last(covariance: torch.Tensor) -> torch.Tensor:
    """Exchange the last class with that of the widest contrast, (n, K).

    The other classes are the least wide then, and nodes are left to them.
    """
    n, k = covariance.shape[:2]
    # Variance of f_j minus the mean over the classes, up to a constant.
    variances = covariance.diagonal(dim1=1, dim2=2) - 2 * covariance.mean(2)
    widest = variances.argmax(1, keepdim=True)
    order = torch.arange(k, device=covariance.device).repeat(n, 1)
    order.scatter_(1, widest, k - 1)
    order[:, -1:] = widest
    return order


def _pairs(order: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Index of the elements of covariances in another order of the classes."""
    rows = torch.arange(len(order), device=order.device)
    return rows[:, None, None], order[:, :, None], order[:, None]


def _visit(
    mean: torch.Tensor, covariance: torch.Tensor, refine: int, per_node: int
) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield rows, (m,), f, (m, K, N), variances, (m, 1), and weights, (m or 1, N).

    f at the nodes of all classes but the last, which has a variance given the others.
    """
    k = mean.shape[1]
    root = factorize_rows(reduce_covariance(covariance))
    # The last contrast moves the last class against the others.
    variance = k / (k - 1) * root[:, -1, -1:].square()
    factor = contrasts(k, mean.device) @ root[:, :, :-1]
    for rows, nodes, weights in _rules(mean, variance[:, 0], factor, refine):
        each = weights.shape[1] * per_node
        for chunk in row_chunks(len(rows), each):
            at = rows[chunk]
            own = (
                (nodes, weights)
                if len(weights) == 1
                else (nodes[chunk], weights[chunk])
            )
            f = (factor[at] @ own[0]).add_(mean[at, :, None])
            yield at, f, variance[at], own[1]


# Rows, (m,), with the nodes, (K - 2, N) or (m, 1, N), and weights, (1 or m, N).
Rules = Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


def _rules(
    mean: torch.Tensor, variance: torch.Tensor, factor: torch.Tensor, refine: int
) -> Rules:
    """Each row by the cheapest rule that is fine enough for its covariance."""
    n, _, dimension = factor.shape
    every = torch.arange(n, device=factor.device)
    if dimension > MAX_PRODUCT:
        rule = quasi_random_rule(dimension, N_POINTS * refine, factor.device)
        yield every, rule[0], rule[1][None]
        return
    std = variance.new_zeros(n)
    if dimension:
        largest = torch.linalg.eigvalsh(factor.mT @ factor)[:, -1]
        std = (2 * largest.clamp(min=0)).sqrt()  # of a difference of two f, at most
    rest = every
    if dimension == 1:
        # Given the others the last f has its own width, and that of the softplus.
        slope = (factor[:, -1:] - factor[:, :-1]).abs().amax((1, 2))
        suits = (std > NARROW) & (slope < STEEPEST * (variance + 3).sqrt())
        yield from _by_kink(suits.nonzero()[:, 0], mean, factor, refine)
        rest = (~suits).nonzero()[:, 0]
    std = std[rest] if dimension == 1 else std[rest].clamp(max=WIDEST)
    for rows, nodes, weights in product_rules(std, dimension, refine):
        yield rest[rows], nodes, weights[None]


def _by_kink(
    rows: torch.Tensor, mean: torch.Tensor, factor: torch.Tensor, refine: int
) -> Rules:
    """Nodes of three classes, close together where the first two cross.

    Equal steps of t with ``sinh t = sinh((z - z_0) / LONG) LONG std / pi``.
    """
    slope = (factor[rows, 0] - factor[rows, 1])[:, 0]
    center = (mean[rows, 1] - mean[rows, 0]) / slope
    center = center.clamp(-FARTHEST, FARTHEST)[:, None]
    ratio = ((math.pi / LONG) / slope.abs()).clamp(max=1.0)[:, None]
    low, high = (
        torch.asinh(torch.sinh((end - center) / LONG) / ratio)
        for end in (-FARTHEST, FARTHEST)
    )
    most = 2 * torch.asinh(math.sinh(FARTHEST / LONG) / ratio[:, 0])
    groups = torch.ceil(most / (STEP * N_LINE))
    for count in groups.unique().tolist():
        at = (groups == count).nonzero()[:, 0]
        n_nodes = N_LINE * int(count) * refine
        line = torch.arange(n_nodes, dtype=mean.dtype, device=mean.device) + 0.5
        t = torch.lerp(low[at], high[at], line / n_nodes)
        x = ratio[at] * torch.sinh(t)
        z = LONG * torch.asinh(x) + center[at]
        weights = exp_(-0.5 * z.square()) * torch.cosh(t) / (1 + x.square()).sqrt()
        yield rows[at], z[:, None], weights / weights.sum(1, keepdim=True)


def _integrate(
    f: torch.Tensor, variance: torch.Tensor, weights: torch.Tensor, n_scales: int
) -> Expectations:
    """Sums over nodes, for f at the nodes, (m, K, N), and the last one's variance."""
    m, k, _ = f.shape
    others, last = f[:, :-1], f[:, -1]
    top = others.amax(1, keepdim=True)
    p = exp_(others - top)
    total = p.sum(1, keepdim=True)
    p /= total
    level = log_(total)[:, 0] + top[:, 0]
    ramp, step, bump = mixture_softplus(last - level, variance, n_scales)
    # With s the sigmoid of the log odds: s, s (1 - s) and 1 - s, times weights.
    one, two = step * weights, bump * weights
    rest = weights - one
    first = torch.cat([(p @ rest[..., None])[..., 0], one.sum(1, keepdim=True)], 1)
    second = f.new_zeros(m, k, k)
    second[:, :-1, :-1] = -(p * (rest - two)[:, None]) @ p.mT
    beside = -(p @ two[..., None])[..., 0]
    second[:, -1, :-1] = second[:, :-1, -1] = beside
    second.diagonal(dim1=1, dim2=2).sub_(second.sum(2))
    return ((ramp + level) * weights).sum(1), first, second
