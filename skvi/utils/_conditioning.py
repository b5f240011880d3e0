"""Expected log-sum-exp of normal f, with one dimension in closed form.

Given the other classes, the log odds of one class against all of them are normal up to
a known shift, so that ``log-sum-exp = L + softplus(f_K - L)`` with L that of the others
has a closed form (`mixture_softplus`). K - 2 dimensions remain for nodes.
"""

import torch

from skvi.utils._arrays import exp_, log_, row_chunks
from skvi.utils._expectations import Expectations
from skvi.utils._logistic_mixture import N_SCALES, mixture_softplus
from skvi.utils._normal_points import (
    NODE_ELEMENTS,
    Rules,
    contrasts,
    factorize_rows,
    product_rules,
    quasi_random_rule,
    reduce_covariance,
)

__all__ = ["expect_conditioned"]

# In more than two dimensions: quasi-random points.
MAX_PRODUCT, N_POINTS = 2, 2**10
# In two dimensions wider rows take the rule of this standard deviation.
WIDEST = 6.0


def expect_conditioned(
    mean: torch.Tensor, covariance: torch.Tensor, refine: int = 1
) -> Expectations:
    """Expected log-sum-exp of f ~ N(mean_i, covariance_i), and its derivatives.

    The rule of a row depends on its own covariance only.

    Parameters
    ----------
    mean : Tensor of shape (n, K)
    covariance : Tensor of shape (n, K, K)
    refine : int, default=1
        Multiplies the number of nodes and of the mixture's components.

    Returns
    -------
    value : Tensor of shape (n,)
    first : Tensor of shape (n, K)
        Expected softmax.
    second : Tensor of shape (n, K, K)
        Expected Hessian; rows sum to 0.
    """
    n, k = mean.shape
    order = _widest_last(covariance)
    back = order[:, :, None], order[:, None]  # an exchange undoes itself
    row = torch.arange(n, device=mean.device)[:, None, None]
    mean, n_scales = mean.gather(1, order), refine * N_SCALES
    root = factorize_rows(reduce_covariance(covariance[row, *back]))
    # The last contrast moves the last class against the others.
    variance = k / (k - 1) * root[:, -1, -1].square()
    root = root[:, :, :-1]
    factor = contrasts(k, mean.device) @ root
    value, first = torch.empty_like(mean[:, 0]), torch.empty_like(mean)
    second = torch.empty_like(covariance)
    for rows, nodes, weights in _rules(root, refine):
        width = len(weights) * (k + n_scales)
        for chunk in row_chunks(len(rows), width, NODE_ELEMENTS):
            at = rows[chunk]
            f = factor[at].reshape(len(at) * k, k - 2) @ nodes
            f = f.reshape(len(at), k, -1).add_(mean[at, :, None])
            found = _integrate(f, variance[at, None], weights, n_scales)
            value[at], first[at], second[at] = found
    return value, first.gather(1, order), second[row, *back]


def _widest_last(covariance: torch.Tensor) -> torch.Tensor:
    """Exchange the last class with that of the widest contrast, (n, K).

    The other classes are the least wide then, and nodes are left to them.
    """
    n, k = covariance.shape[:2]
    # Variance of f_j minus the mean over the classes, up to a constant.
    spread = covariance.diagonal(dim1=1, dim2=2) - 2 * covariance.mean(2)
    widest = spread.argmax(1, keepdim=True)
    order = torch.arange(k, device=covariance.device).repeat(n, 1)
    order.scatter_(1, widest, k - 1)
    order[:, -1:] = widest
    return order


def _rules(root: torch.Tensor, refine: int) -> Rules:
    """Rows with the nodes, (K - 2, N), and weights that they take."""
    n, _, dimension = root.shape
    if dimension > MAX_PRODUCT:
        rule = quasi_random_rule(dimension, N_POINTS * refine, root.device)
        return iter([(torch.arange(n, device=root.device), *rule)])
    std = root.new_zeros(n)
    if dimension:
        largest = torch.linalg.eigvalsh(root.mT @ root)[:, -1]
        std = (2 * largest.clamp(min=0)).sqrt()  # of a difference of two f, at most
    if dimension == MAX_PRODUCT:
        std = std.clamp(max=WIDEST)
    return product_rules(std, dimension, refine)


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
    return (ramp + level) @ weights, first, second
