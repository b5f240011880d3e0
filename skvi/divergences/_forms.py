"""Constants of divergences between factorized normals, for solvers."""

from dataclasses import dataclass

import torch

from skvi.base._protocols import HasNormal

__all__ = ["MomentForm", "OrderForm", "order_form"]

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
