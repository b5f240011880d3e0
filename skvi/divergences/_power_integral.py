"""The power integral of two normals, from which most divergences follow."""

import math

import torch

from skvi.base import NormalForm
from skvi.divergences._linalg import factorise, mix

__all__ = ["log_power_integral"]


def log_power_integral(
    q: NormalForm, pi: NormalForm, a: float, b: float
) -> torch.Tensor:
    r"""Log of the integral of q^a pi^b for two normals.

    Parameters
    ----------
    q, pi : NormalForm
        Over the same P parameters.
    a, b : float
        Powers of any sign.

    Returns
    -------
    Tensor
        A scalar in nats; ``inf`` where the integral diverges, which is where
        ``a / cov(q) + b / cov(pi)`` is not positive definite.

    Notes
    -----
    With ``M = a cov(pi) + b cov(q)`` the inverse of ``a/cov(q) + b/cov(pi)`` is
    ``cov(pi) M^-1 cov(q)``, so that only M is factorised.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import NormalForm
    >>> from skvi.divergences import log_power_integral
    >>> unit = NormalForm(torch.zeros(1), torch.ones(1))
    >>> round(float(log_power_integral(unit, unit, 2.0, 0.0)), 4)
    -1.2655
    """
    factor = factorise(mix(a, pi, b, q))
    if factor is None:
        return torch.full((), math.inf, dtype=q.mean.dtype)
    mixed = NormalForm(q.mean, factor)
    deviation = mixed.whiten((q.mean - pi.mean)[None]).square().sum()
    log_dets = (1 - a) * q.half_log_det + (1 - b) * pi.half_log_det
    constant = 0.5 * (1 - a - b) * len(q.mean) * math.log(2 * math.pi)
    return constant + log_dets - mixed.half_log_det - 0.5 * a * b * deviation
