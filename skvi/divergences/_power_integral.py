"""The power integral of two normals, from which most divergences follow."""

import math

import torch

from skvi.base import NormalForm
from skvi.divergences._linalg import factorize, mix
from skvi.utils._log_space import LOG_2PI

__all__ = ["in_double", "log_power_integral", "log_power_norm"]


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
    >>> from skvi.divergences._power_integral import log_power_integral
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
