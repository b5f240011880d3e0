"""Quadrature rules, and expectations of smooth functions at their nodes.

A softmax is invariant to adding a constant to all of its K inputs, so that its
expectations are integrals over the K - 1 dimensions of orthonormal contrasts.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from scipy.stats import norm, qmc

from skvi.utils._tables import table
from skvi.utils._tensors import CPU
from skvi.utils._validation import row_chunks

# Largest standard deviation of f for which Gauss-Hermite with this number of nodes is
# exact to 1e-9 for the logistic loss and its first two derivatives (poles at distance
# pi).
_HERMITE = ((3, 0.068), (5, 0.22), (7, 0.37), (9, 0.5), (12, 0.65))
MAX_NODES = 1025
# Up to this number of classes one of few dimensions is integrated in closed form.
FEW = 4
# Largest number of nodes of a product rule, by dimension.
_MAX_TENSOR = {1: 2**11, 2: 2**14, 3: 2**15}
# In more dimensions: quasi-random points.
N_POINTS = 2**11
_RADIUS = 6.4

# Rows, (m,), with the nodes, (D, N), and weights, (N,), that they take.
Rules = Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


def normal_rule(
    std: float, refine: int = 1, device: torch.device = CPU
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return nodes and weights for z ~ N(0, 1), fine enough for f = m + std z.

    std: in lengths over which the slope of the integrand changes. The trapezoidal rule
    for large ones needs nodes in proportion to std, Gauss-Hermite to its square.
    """
    if std == 0 or not math.isfinite(std):
        return hermite_rule(
            1, device
        )  # non-finite values stay non-finite in the result
    for n_nodes, limit in _HERMITE:
        if std <= limit:
            return hermite_rule(n_nodes * refine, device)
    step = 1.1 / math.sqrt(1 + std**2) / refine
    # Steps are rounded down to powers of 2^(1/8): few distinct rules, all cached.
    step = 2.0 ** (math.floor(8 * math.log2(step)) / 8)
    return trapezoid_rule(max(step, 12.8 / (MAX_NODES * refine)), device)


@table(maxsize=64)
def hermite_rule(
    n_nodes: int, device: torch.device = CPU
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gauss-Hermite nodes and weights for a standard normal."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
    weights = weights / weights.sum()
    return torch.from_numpy(nodes).to(device), torch.from_numpy(weights).to(device)


@table(maxsize=64)
def trapezoid_rule(
    step: float, device: torch.device = CPU
) -> tuple[torch.Tensor, torch.Tensor]:
    """Trapezoidal nodes on [-6.4, 6.4] and weights for a standard normal."""
    half = math.ceil(6.4 / step)
    nodes = torch.arange(-half, half + 1, dtype=torch.float64, device=device) * step
    weights = torch.exp(-0.5 * nodes.square())
    return nodes, weights / weights.sum()


@table(maxsize=64)
def contrasts(n_outputs: int, device: torch.device = CPU) -> torch.Tensor:
    """Orthonormal basis, (K, K - 1), of the vectors that sum to zero."""
    shape = n_outputs, n_outputs - 1
    basis = torch.zeros(shape, dtype=torch.float64, device=device)
    for k in range(1, n_outputs):
        basis[:k, k - 1], basis[k, k - 1] = 1.0, -float(k)
    return basis / basis.norm(dim=0)


def reduce_covariance(covariance: torch.Tensor) -> torch.Tensor:
    """Covariance of the contrasts, (n, K - 1, K - 1), from that of f, (n, K, K)."""
    basis = contrasts(covariance.shape[-1], covariance.device)
    return basis.T @ covariance @ basis


def factorize_rows(matrices: torch.Tensor) -> torch.Tensor:
    """Lower Cholesky factors of positive semi-definite matrices, (n, D, D)."""
    size = matrices.diagonal(dim1=1, dim2=2).mean(1)
    identity = torch.eye(
        matrices.shape[1], dtype=matrices.dtype, device=matrices.device
    )
    # Rounding can make a singular matrix slightly indefinite; 0 gets a factor too.
    for jitter in (1e-15, 1e-13, 1e-11, 1e-9):
        shift = (jitter * size + 1e-290)[:, None, None] * identity
        factor, info = torch.linalg.cholesky_ex(matrices + shift)
        if not bool(info.any()):
            return factor
    return torch.full_like(matrices, math.nan)


def _contrast_std(reduced: torch.Tensor) -> torch.Tensor:
    """Largest standard deviation of a difference of two logits, or a bound on it."""
    # Logits differ by at most sqrt(2) times a contrast.
    return (2 * torch.linalg.eigvalsh(reduced)[:, -1].clamp(min=0)).sqrt()


def node_groups(
    covariance: torch.Tensor, refine: int = 1
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield rows, factors, (m, K, D), nodes, (D, N), and weights for f ~ N(0, cov_i).

    f is ``factor @ nodes``. Product rules in up to three dimensions, quasi-random
    points above; a row's rule depends on its own covariance only.
    """
    reduced = reduce_covariance(covariance)
    dimension = reduced.shape[1]
    factor = contrasts(covariance.shape[1], covariance.device)
    factor = factor @ factorize_rows(reduced)
    for rows, nodes, weights in _rules(reduced, refine):
        width = len(weights) * (dimension + 1)
        for chunk in row_chunks(len(rows), width):
            part = rows[chunk]
            yield part, factor[part], nodes, weights


def _rules(reduced: torch.Tensor, refine: int) -> Rules:
    dimension = reduced.shape[1]
    if dimension in _MAX_TENSOR:
        yield from product_rules(_contrast_std(reduced), dimension, refine)
        return
    is_wide = reduced.diagonal(dim1=1, dim2=2).sum(1) > 0
    for wide in is_wide.unique().tolist():
        rows, n_points = (is_wide == wide).nonzero()[:, 0], N_POINTS * refine
        if wide:
            yield rows, *quasi_random_rule(dimension, n_points, reduced.device)
        else:
            yield rows, *_one_node(dimension, reduced.device)


def product_rules(std: torch.Tensor, dimension: int, refine: int = 1) -> Rules:
    """Yield rows, (m,), with nodes, (D, N), and weights fine enough for their std.

    The std bounds that of every difference of two logits.
    """
    levels = _level(std)
    if dimension == 1:  # half as many rules, since nodes take less time than groups
        levels += levels % 2
    for level in levels.unique().tolist():
        rows = (levels == level).nonzero()[:, 0]
        if level == 0:
            yield rows, *_one_node(dimension, std.device)
        else:
            yield rows, *tensor_rule(dimension, level, refine, std.device)


def _one_node(
    dimension: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    nodes, weights = hermite_rule(1, device)
    return nodes.expand(dimension, 1), weights


def _level(std: torch.Tensor) -> torch.Tensor:
    """Index of the rule: 0 without variance, Gauss-Hermite rules, then half octaves."""
    edges = std.new_tensor([limit for _, limit in _HERMITE])
    low = torch.bucketize(std, edges) + 1
    octaves = torch.ceil(2 * torch.log2(std.clamp(min=1e-9) / edges[-1]))
    level = low + octaves.clamp(min=1, max=20).to(torch.int64) - 1
    return torch.where(std > 1e-100, level, 0)


@table(maxsize=64)
def tensor_rule(
    dimension: int, level: int, refine: int = 1, device: torch.device = CPU
) -> tuple[torch.Tensor, torch.Tensor]:
    """Product of one-dimensional rules; see `node_groups`."""
    more = refine ** (1 / dimension)  # along each axis
    if level <= len(_HERMITE):
        line, w = hermite_rule(math.ceil(_HERMITE[level - 1][0] * more), device)
    else:
        std = _HERMITE[-1][1] * 2 ** ((level - len(_HERMITE)) / 2)
        step = 1.3 / math.sqrt(1 + std**2)
        most = _MAX_TENSOR[dimension] ** (1 / dimension)
        half = math.ceil(_RADIUS / max(step, 2 * _RADIUS / most) * more)
        line = torch.arange(-half, half + 1, dtype=torch.float64, device=device)
        line = line * (_RADIUS / half)
        w = torch.exp(-0.5 * line.square())
    nodes = torch.cartesian_prod(*[line] * dimension).reshape(-1, dimension)
    weights = torch.cartesian_prod(*[w / w.sum()] * dimension).reshape(-1, dimension)
    weights = weights.prod(1)
    keep = nodes.square().sum(1) <= _RADIUS**2 if level > len(_HERMITE) else weights > 0
    nodes, weights = nodes[keep], weights[keep]
    return nodes.T.contiguous(), weights / weights.sum()


@table(maxsize=16)
def quasi_random_rule(
    dimension: int, n_points: int, device: torch.device = CPU
) -> tuple[torch.Tensor, torch.Tensor]:
    """Antithetic scrambled Sobol points, (D, N), of exact covariance, and weights.

    With a fixed seed. N is a power of 2 and at least 2 D: fewer pairs cannot span D.
    """
    while n_points < 2 * dimension:
        n_points *= 2
    sobol = qmc.Sobol(dimension, scramble=True, rng=np.random.default_rng(0))
    u = np.clip(sobol.random(n_points // 2), 1e-12, 1 - 1e-12)
    z = torch.from_numpy(norm.ppf(u))
    # With as many pairs as dimensions z'z is too ill-conditioned for a Cholesky factor.
    basis, root = torch.linalg.qr(z)
    half = basis * root.diagonal().sign() * math.sqrt(n_points / 2)
    nodes = torch.cat([half, -half]).T.contiguous().to(device)
    return nodes, nodes.new_full((n_points,), 1 / n_points)


Expectations = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

# Grid points of a table evaluated at once.
CHUNK = 512


def row_derivatives(
    function: Any, f: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Differentiate a row-wise function of f, (S, n, K) -> (S, n), twice.

    The derivatives have shapes (S, n) for K = 1, else (S, n, K) and (S, n, K, K).
    """
    if f.shape[-1] == 1:
        return scalar_derivatives(function, f)
    return vector_derivatives(function, f)


def scalar_derivatives(
    function: Any, f: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Differentiate an elementwise function of f, (S, n, 1) -> (S, n), twice."""
    with torch.inference_mode(False), torch.enable_grad():
        f = f.detach().clone().requires_grad_()
        value = function(f)
        first = _derivative(value, f)
        second = _derivative(first, f)
    return value.detach(), first[..., 0].detach(), second[..., 0].detach()


def vector_derivatives(
    function: Any, f: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Value, gradient and Hessian of a row-wise function, (S, n, K) -> (S, n)."""
    with torch.inference_mode(False), torch.enable_grad():
        f = f.detach().clone().requires_grad_()
        value = function(f)
        first = _derivative(value, f)
        columns = [_derivative(first[..., k], f) for k in range(f.shape[-1])]
    return value.detach(), first.detach(), torch.stack(columns, -1).detach()


def _derivative(value: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
    """Derivative of a sum of separate values, zero if it does not depend on f."""
    if not value.requires_grad:
        return torch.zeros_like(f)
    (gradient,) = torch.autograd.grad(
        value.sum(), f, create_graph=True, allow_unused=True
    )
    return torch.zeros_like(f) if gradient is None else gradient


def expect_derivatives(
    derivatives: Callable[[torch.Tensor, torch.Tensor], Expectations],
    mean: torch.Tensor,
    std_or_cov: torch.Tensor,
    y: torch.Tensor,
    length_scale: float = 1.0,
    refine: int = 1,
) -> Expectations:
    """Expected value, gradient and Hessian in f of a function of f and y.

    `derivatives` maps f, (S, n, K), and y, (n,), to them, as `row_derivatives`; slopes
    change over `length_scale`. For K > 1 the function must not change if a constant is
    added to all columns.
    """
    if mean.ndim == 1:
        width = float(std_or_cov.detach().max()) / length_scale
        nodes, weights = normal_rule(width, refine, std_or_cov.device)
        f = torch.addcmul(mean, nodes[:, None], std_or_cov)[..., None]
        parts = derivatives(f, y)
        return weights @ parts[0], weights @ parts[1], weights @ parts[2]
    value, first = torch.empty_like(mean[:, 0]), torch.empty_like(mean)
    second = torch.empty_like(std_or_cov)
    for rows, factor, nodes, weights in node_groups(std_or_cov, refine):
        f = (mean[rows, :, None] + factor @ nodes).permute(2, 0, 1)
        with torch.inference_mode(False):  # derivatives are taken beside it
            own = y[rows]
        out = [torch.tensordot(weights, x, 1) for x in derivatives(f, own)]
        value[rows], first[rows], second[rows] = out
    return value, first, second


def expect_pair(
    derivatives: Callable[[torch.Tensor, torch.Tensor], Expectations],
    mean: torch.Tensor,
    covariance: torch.Tensor,
    y: torch.Tensor,
    length_scale: float = 1.0,
    refine: int = 1,
) -> Expectations:
    """Expectations of a function of two f, (S, n, 2), and its derivatives.

    The first one has `length_scale`, and the second, which may be wider, 1.
    """
    sums = torch.empty_like(mean[:, 0]), torch.empty_like(mean), covariance.clone()
    factor = factorize_rows(covariance)
    own = factor.diagonal(dim1=1, dim2=2).contiguous()
    for rows, x, v in product_rules(own[:, 0] / length_scale, 1, refine):
        for some, z, w in product_rules(own[rows, 1], 1, refine):
            nodes = torch.cat([x.repeat_interleave(len(w), 1), z.repeat(1, len(v))])
            weights = torch.outer(v, w).flatten()
            for chunk in row_chunks(len(some), nodes.numel()):
                part = rows[some[chunk]]
                f = (mean[part, :, None] + factor[part] @ nodes).permute(2, 0, 1)
                with torch.inference_mode(False):  # derivatives are taken beside it
                    at = y[part]
                for total, found in zip(sums, derivatives(f, at), strict=True):
                    total[part] = torch.tensordot(weights, found, 1)
    return sums


class SmoothTable:
    """Quintic Hermite interpolation of an elementwise function, linear outside.

    The error is ``step^6 / 46080`` times the sixth derivative.
    """

    def __init__(
        self,
        function: Callable[[torch.Tensor], torch.Tensor],
        low: float,
        high: float,
        step: float,
        device: torch.device = CPU,
    ) -> None:
        n_steps = max(1, round((high - low) / step))
        grid = torch.linspace(
            low, high, n_steps + 1, dtype=torch.float64, device=device
        )
        self.low, self.step = low, (high - low) / n_steps
        parts = [
            torch.stack(scalar_derivatives(lambda t: function(t[..., 0]), x[:, None]))
            for x in grid.split(CHUNK)
        ]
        value, first, second = torch.cat(parts, 1)
        first, second = first * self.step, second * self.step**2
        a, b, c = value[:-1], first[:-1], second[:-1] / 2
        # Remainders at the right end for the three highest powers.
        p = value[1:] - a - b - c
        q = first[1:] - b - 2 * c
        r = second[1:] - 2 * c
        cubic = 10 * p - 4 * q + r / 2
        quartic = -15 * p + 7 * q - r
        quintic = 6 * p - 3 * q + r / 2
        self.coefs = torch.stack([quintic, quartic, cubic, c, b, a])
        self.n_steps = n_steps
        self.slopes = first[0] / self.step, first[-1] / self.step

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Evaluate, elementwise and differentiably."""
        position = ((x - self.low) / self.step).to(torch.float64)
        inside = position.clamp(0, self.n_steps)
        index = inside.detach().to(torch.int64).clamp(max=self.n_steps - 1)
        t = inside - index
        out = self.coefs[0][index]
        for coef in self.coefs[1:]:
            out = out * t + coef[index]
        outside = (position - inside) * self.step
        slope = torch.where(outside < 0, *self.slopes)
        return (out + slope * outside).to(x.dtype)
