"""The power integral of two normals, from which most divergences follow."""

import torch

from skvi.base import NormalForm
from skvi.divergences._pair import Pair, infinite
from skvi.utils._log_space import LOG_2PI

__all__ = ["log_power_integral"]


def log_power_integral(
    q: NormalForm, pi: NormalForm, a: float, b: float
) -> torch.Tensor:
    r"""Log of the integral of q^a pi^b for two normals.

    Parameters
    ----------
    q, pi : NormalForm
        Over the same P parameters; diagonal, of full or of low rank.
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
    ``cov(pi) M^-1 cov(q)``, so that only M is factorized: in O(P r^2)
    for normals of rank r.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import NormalForm
    >>> from skvi.divergences._power_integral import log_power_integral
    >>> unit = NormalForm(torch.zeros(1), torch.ones(1))
    >>> round(float(log_power_integral(unit, unit, 2.0, 0.0)), 4)
    -1.2655
    """
    pair = Pair(q, pi)
    mixed = pair.mix(a, b)
    if mixed is None:
        return infinite(pair)
    log_dets = (1 - a) * pair.q.half_log_det + (1 - b) * pair.pi.half_log_det
    constant = 0.5 * (1 - a - b) * pair.size * LOG_2PI
    return constant + log_dets - mixed[0] - 0.5 * a * b * mixed[1]
