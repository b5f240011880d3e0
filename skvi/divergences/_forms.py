"""Divergences of two normals: matrices, constants, power integrals, messages."""

import math
from dataclasses import dataclass

import torch

from skvi.base import NormalForm
from skvi.base._component import HasNormal, PosteriorDensity, PriorDensity
from skvi.utils._tensors import LOG_2PI

# Closer than this to an order that is a limit, differences lose digits of float32.
NEAR = 1e-3


@dataclass(frozen=True, eq=False)
class MomentForm:
    """A divergence of factorized normals that is linear in second moments and entropy.

    ``D = sum(precision * (std^2 + (mean - center)^2) / 2 - weight * log(std))
    + constant``

    Parameters
    ----------
    precision, center : Tensor of shape (P,)
    weight : float
    constant : float

    Examples
    --------
    >>> from skvi.base import Layout
    >>> from skvi.divergences import KLDivergence
    >>> from skvi.priors import Normal
    >>> prior = Normal().build(Layout({"coef": (1, 2)}))
    >>> KLDivergence(weight=0.5).moment_form(prior).precision
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """

    precision: torch.Tensor
    center: torch.Tensor
    weight: float
    constant: float


@dataclass(frozen=True, eq=False)
class OrderForm:
    """A divergence of factorized normals composed of Rényi divergences.

    With the Rényi divergence R of every coordinate, in the scaling of
    `RenyiDivergence`, D is the sum of R, or of ``(1 - exp(-rate R)) / rate`` if the
    rate is not 0.

    Parameters
    ----------
    order : float
        Order, not close to 0 or 1.
    center, variance : Tensor of shape (P,)
        Mean and variance of the prior.
    rate : float, default=0.0

    Examples
    --------
    >>> from skvi.base import Layout
    >>> from skvi.divergences import AlphaDivergence
    >>> from skvi.priors import Normal
    >>> prior = Normal().build(Layout({"coef": (1, 2)}))
    >>> AlphaDivergence(0.5).order_form(prior).rate
    0.25
    """

    order: float
    center: torch.Tensor
    variance: torch.Tensor
    rate: float = 0.0


def order_form(prior: HasNormal, order: float, rate: float = 0.0) -> OrderForm | None:
    """Form of an order; None near its limits, or if coordinates are dependent."""
    pi = prior.as_normal()
    is_far = min(abs(order), abs(1 - order)) > NEAR
    if pi is None or not (pi.is_diagonal and is_far):
        return None
    return OrderForm(order, pi.mean, pi.variance, rate)


def precision_of(normal: NormalForm) -> torch.Tensor:
    """Inverse covariance of a normal; (P, P) also where it is of low rank."""
    if normal.is_diagonal:
        return 1 / normal.variance
    if normal.factor is None:
        return torch.cholesky_inverse(normal.scale)
    mean = normal.mean
    identity = torch.eye(len(mean), dtype=mean.dtype, device=mean.device)
    rows = normal.whiten(identity)
    return rows @ rows.T


def mix(a: float, pi: NormalForm, b: float, q: NormalForm) -> torch.Tensor:
    """Return ``a cov(pi) + b cov(q)``."""
    if q.is_diagonal and pi.is_diagonal:
        return a * pi.variance + b * q.variance
    return a * pi.covariance() + b * q.covariance()


def factorize(matrix: torch.Tensor) -> torch.Tensor | None:
    """Lower Cholesky factor (a square root if diagonal), None if there is none."""
    if matrix.ndim == 1:
        return matrix.sqrt() if bool((matrix > 0).all()) else None
    factor, info = torch.linalg.cholesky_ex(matrix)
    return factor if int(info) == 0 else None


def inverse_of(matrix: torch.Tensor) -> torch.Tensor:
    """Inverse of a positive definite matrix, NaN if it is not."""
    if matrix.ndim == 1:
        return 1 / matrix
    factor = factorize(matrix)
    if factor is None:
        return torch.full_like(matrix, math.nan)
    return torch.cholesky_inverse(factor)


def apply(matrix: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """Matrix times vector."""
    return matrix * vector if matrix.ndim == 1 else matrix @ vector


def subtract(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Difference of two matrices, full if one of them is."""
    if a.ndim == b.ndim:
        return a - b
    return torch.diag(a) - b if a.ndim == 1 else a - torch.diag(b)


def squared_outer(u: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """``u u'``, or its diagonal where the matrix beside it is diagonal."""
    return u.square() if matrix.ndim == 1 else torch.outer(u, u)


# Weight of the entropy, relative to KL, below which a posterior has collapsed: it is
# then more than ten times too narrow.
COLLAPSED_BELOW = 0.01
N_DRAWS = 1000
# Fraction of effective draws below which an estimate depends on draws not made.
DEGENERATE_BELOW = 0.1
# Ratio of deviations, of posterior and prior, that is more than noise of a fit.
WIDE = 1.5


def collapse_message(divergence: object, weight: torch.Tensor, why: str) -> str:
    """Say that a bounded divergence no longer keeps a posterior from collapsing.

    `weight` is -dD / d(log width of q) relative to that of KL, a number or one per
    coordinate. Empty while all are above 0.01. `why` says why the divergence allows it.
    """
    lowest, size = float(weight.min()), weight.numel()
    if not lowest < COLLAPSED_BELOW:
        return ""
    where = ""
    if size > 1:
        where = f" in {int((weight < COLLAPSED_BELOW).sum())} of {size} coordinates"
    remedy = "divergence='renyi', 'gamma' or 'kl'"
    if size == 1:
        remedy += (
            ", or divergence='alpha' with posterior='mean_field' and a normal prior, "
            "which is applied per coordinate"
        )
    return (
        f"the posterior collapsed toward a point mass{where}: {divergence!r} is "
        f"bounded ({why}), and has {lowest:.1g} of the gradient of KL left to keep it "
        f"from narrowing; its standard deviations are meaningless. Use {remedy}"
    )


def width_message(
    divergence: object, posterior: PosteriorDensity, prior: PriorDensity | None
) -> str:
    """Say that a weak divergence left a posterior wider than its prior.

    Under KL data only narrow the posterior, where the loss is convex. Empty if no
    deviation is larger by a half, or one of the two is not normal.
    """
    own = posterior.as_normal()
    given = None if prior is None else prior.as_normal()
    if own is None or given is None:
        return ""
    ratio = (own.variance[: given.size] / given.variance).sqrt()
    n_wide = int((ratio > WIDE).sum())
    if not n_wide:
        return ""
    remedy = "divergence='kl', or an order nearer to 1"
    if not own.is_diagonal:
        remedy += ", or posterior='mean_field'"
    return (
        f"the posterior is wider than its prior in {n_wide} of {len(ratio)} "
        f"coordinates, up to {float(ratio.max()):.2g} times: {divergence!r} hardly "
        "penalizes wide posteriors, the less the more parameters there are. Use "
        f"{remedy}"
    )


def noise_message(divergence: object, log_weights: torch.Tensor) -> str:
    """Say that draws of q cannot resolve a divergence.

    `log_weights`, (S,) or (S, G) for G independent estimates, weight draws in the
    gradient. Empty if the fraction of effective draws is above 0.1.
    """
    weights = torch.softmax(log_weights, 0)
    fraction = 1 / (len(weights) * float(weights.square().sum(0).max()))
    return "" if fraction > DEGENERATE_BELOW else missed_message(divergence, fraction)


def missed_message(divergence: object, fraction: float) -> str:
    """Say that draws of q miss what the divergence depends on."""
    return (
        f"{divergence!r} is estimated from draws of the posterior, which miss what it "
        f"depends on (fraction of effective draws {fraction:.1g}), so that the fit "
        "cannot be trusted. Use divergence='kl', or a normal prior and a divergence "
        "with a closed form"
    )


@torch.no_grad()
def draw_logs(
    posterior: PosteriorDensity, prior: PriorDensity, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log densities of posterior and prior at draws of the posterior, (S,)."""
    draw = posterior.draw(N_DRAWS, generator)
    theta, log_q = draw.theta, draw.log_q
    return log_q.double(), prior.log_prob(theta).double()


def log_power_integral(
    q: NormalForm, pi: NormalForm, a: float, b: float, split: bool = False
) -> torch.Tensor:
    r"""Log of the integral of q^a pi^b for two normals of any shape, in nats.

    With `split` one for each coordinate if both are factorized, (P,), else a scalar;
    ``inf`` where ``a / cov(q) + b / cov(pi)`` is not positive definite. With
    ``M = a cov(pi) + b cov(q)`` the inverse of that matrix is ``cov(pi) M^-1 cov(q)``,
    so that only M is factorized: in O(P r^2) for normals of rank r.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import NormalForm
    >>> from skvi.divergences._forms import log_power_integral
    >>> unit = NormalForm(torch.zeros(1), torch.ones(1))
    >>> round(float(log_power_integral(unit, unit, 2.0, 0.0)), 4)
    -1.2655
    """
    if q.batch_shape or pi.batch_shape:
        raise ValueError(
            "This closed form compares one normal with another, only KL takes many "
            f"at once. Got {tuple(q.batch_shape)} and {tuple(pi.batch_shape)} each."
        )
    q, pi = in_double(q), in_double(pi)
    is_diagonal = q.is_diagonal and pi.is_diagonal
    if 0 in (a, b):
        return log_power_norm(pi if a == 0 else q, a + b, split and is_diagonal)
    shift = q.mean - pi.mean
    parts = _parts_of_mixture(a, pi, b, q, shift)
    if parts is None:  # with a gradient, which is 0
        infinite = 0.0 * shift + math.inf
        return infinite if split and is_diagonal else infinite.sum()
    value = (1 - a) * _half_log_det(q, is_diagonal) - parts[0] - 0.5 * a * b * parts[1]
    value = value + (1 - b) * _half_log_det(pi, is_diagonal)
    value = value + 0.5 * (1 - a - b) * (1 if is_diagonal else q.size) * LOG_2PI
    return value.sum() if is_diagonal and not split else value


def log_power_norm(normal: NormalForm, c: float, split: bool = False) -> torch.Tensor:
    """Log of the integral of the power c of a normal, for each coordinate or once."""
    if c <= 0:
        return 0.0 * (normal.mean if split else normal.mean.sum()) + math.inf
    constant = (1 - c) * 0.5 * LOG_2PI - 0.5 * math.log(c)
    size = 1 if split else normal.size
    return (1 - c) * _half_log_det(normal, split) + size * constant


def _half_log_det(normal: NormalForm, split: bool) -> torch.Tensor:
    return normal.scale.log() if split else normal.half_log_det


def _parts_of_mixture(
    a: float, pi: NormalForm, b: float, q: NormalForm, shift: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Half log determinant of ``M = a cov(pi) + b cov(q)``, and ``d' M^-1 d``.

    For each coordinate if M is diagonal; None if it is not positive definite.
    """
    if q.scale.ndim == 2 or pi.scale.ndim == 2:
        factor = factorize(mix(a, pi, b, q))
        if factor is None:
            return None
        whole = NormalForm(shift, factor)
        return whole.half_log_det, whole.squared_distance(shift[None])[0]
    diagonal = a * pi.scale.square() + b * q.scale.square()
    factors = [(w, n.factor) for w, n in ((a, pi), (b, q)) if n.factor is not None]
    if factors:
        return _low_rank_parts(diagonal, factors, shift)
    if not bool((diagonal > 0).all()):
        return None
    return 0.5 * diagonal.log(), shift.square() / diagonal


def _low_rank_parts(
    diagonal: torch.Tensor,
    factors: list[tuple[float, torch.Tensor]],
    shift: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """D + F S F' with S the signs of the weights, by the determinant lemma.

    Positive definite (Haynsworth's additivity of inertia) if the negative values of D
    and the positive eigenvalues of ``S + F' D^-1 F`` are together as many as the
    positive signs.
    """
    columns = torch.cat([abs(w) ** 0.5 * f for w, f in factors], 1)
    signs = torch.cat(
        [f.new_full(f.shape[1:], math.copysign(1, w)) for w, f in factors]
    )
    if bool((diagonal == 0).any()):
        return None
    scaled = columns / diagonal[:, None]
    capacity = torch.diag(signs) + columns.T @ scaled
    above = int((torch.linalg.eigvalsh(capacity.detach()) > 0).sum())
    if int((diagonal < 0).sum()) + above != int((signs > 0).sum()):
        return None
    shared = shift @ scaled
    inner = shared @ torch.linalg.solve(capacity, shared)
    log_det = diagonal.abs().log().sum() + torch.linalg.slogdet(capacity).logabsdet
    return 0.5 * log_det, (shift.square() / diagonal).sum() - inner


def in_double(normal: NormalForm) -> NormalForm:
    """Normal in double precision, as determinants need."""
    factor = None if normal.factor is None else normal.factor.double()
    return NormalForm(normal.mean.double(), normal.scale.double(), factor)
