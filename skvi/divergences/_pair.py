"""Two normals, taken jointly or coordinate by coordinate."""

import math

import torch

from skvi.base import NormalForm
from skvi.base._protocols import HasNormal
from skvi.divergences._covariance import log1p_ratio, log_det_growth, mixture
from skvi.divergences.base import OrderForm
from skvi.utils._device import CPU
from skvi.utils._log_space import LOG_2PI

# Closer than this to an order that is a limit, differences are replaced by series.
NEAR = 1e-3


class Pair:
    """The quantities of two normals that the closed forms need: scalars.

    With `split`, if both are diagonal, everything has shape (P,), one divergence for
    each coordinate in `size` = 1 dimension.
    """

    def __init__(self, q: NormalForm, pi: NormalForm, split: bool = False) -> None:
        if q.batch_shape or pi.batch_shape:
            raise ValueError(
                "This closed form compares one normal with another, only KL takes many "
                f"at once. Got {tuple(q.batch_shape)} and {tuple(pi.batch_shape)} each."
            )
        self.q, self.pi = _double(q), _double(pi)
        self.split = split and q.is_diagonal and pi.is_diagonal
        self.size = 1 if self.split else q.size
        self.shift = self.q.mean - self.pi.mean

    def reduce(self, values: torch.Tensor) -> torch.Tensor:
        """Sum over coordinates, unless each of them is taken alone."""
        return values if self.split else values.sum()

    def half_log_det(self, normal: NormalForm) -> torch.Tensor:
        """Half the log determinant of a covariance."""
        return normal.scale.log() if self.split else normal.half_log_det

    @property
    def narrowing(self) -> torch.Tensor:
        """Half log determinant of cov(pi), minus that of cov(q)."""
        return self.half_log_det(self.pi) - self.half_log_det(self.q)

    def mix(self, a: float, b: float) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Half log determinant of ``M = a cov(pi) + b cov(q)``, and ``d' M^-1 d``.

        None if M is not positive definite.
        """
        mixed = mixture(a, self.pi, b, self.q)
        if mixed is None:
            return None
        return self.reduce(mixed.half_log_det), self.reduce(mixed.squared(self.shift))

    def growth(self, x: float, base: str = "pi") -> torch.Tensor:
        """``log det(I + x cov(pi)^-1 cov(q)) / x``; q and pi swapped for base "q"."""
        ordered = (self.pi, self.q) if base == "pi" else (self.q, self.pi)
        return self.reduce(log_det_growth(x, *ordered))


def normal_of(prior: HasNormal) -> NormalForm:
    """Normal form of a prior, for closed forms that exist only for normal priors."""
    normal = prior.as_normal()
    if normal is None:
        raise ValueError(
            "There is no closed form for a prior that is not normal: ask "
            "has_closed_form first, and use monte_carlo."
        )
    return normal


def order_form(prior: HasNormal, order: float, rate: float = 0.0) -> OrderForm | None:
    """Form of an order; None near its limits, or if coordinates are dependent."""
    pi = prior.as_normal()
    is_far = min(abs(order), abs(1 - order)) > NEAR
    if pi is None or not (pi.is_diagonal and is_far):
        return None
    return OrderForm(order, pi.mean, pi.variance, rate)


def infinite(pair: Pair) -> torch.Tensor:
    """Value outside the range of an order: its gradients are 0, not missing."""
    return pair.reduce(0.0 * pair.shift) + math.inf


def renyi(pair: Pair, a: float) -> torch.Tensor:
    """J(a, 1-a) / (a (a-1)), without cancellation near the orders 0 and 1.

    The limit 0 is KL(pi || q), the limit 1 KL(q || pi).
    """
    b = 1 - a
    mixed = pair.mix(a, b)
    if mixed is None:
        return infinite(pair)
    log_det, squared = mixed
    if min(abs(a), abs(b)) > NEAR:
        own, prior = pair.half_log_det(pair.q), pair.half_log_det(pair.pi)
        return 0.5 * squared - (b * own + a * prior - log_det) / (a * b)
    near, far, base, sign = (b, a, "pi", 1) if abs(b) <= abs(a) else (a, b, "q", -1)
    # The determinant is that of the base, a power of `far`, and the growth.
    constant = float(log1p_ratio(-near, torch.ones((), device=CPU).double()))
    growth = pair.growth(near / far, base) / far
    return (
        0.5 * squared
        + (sign * pair.narrowing + 0.5 * (growth - pair.size * constant)) / far
    )


def power_parts(
    pair: Pair, b: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """Terms of the β- and γ-divergences of order 1 + b; None if E_q[pi^b] is infinite.

    J(1, b), the log of E_q[pi^b]; (J(1+b, 0) - J(1, b)) / b; and (J(0, 1+b) - J(1, b))
    / b, with their limits at b = 0.
    """
    mixed = pair.mix(1.0, b)
    if mixed is None:
        return None
    growth, squared = pair.growth(b), mixed[1]
    constant = float(log1p_ratio(b, torch.ones((), device=CPU).double()))
    prior = 0.5 * (growth - pair.size * constant + squared)
    prior_log_norm = 0.5 * pair.size * LOG_2PI + pair.half_log_det(pair.pi)
    log_cross = -b * (prior_log_norm + 0.5 * (growth + squared))
    return log_cross, prior + pair.narrowing, prior


def _double(normal: NormalForm) -> NormalForm:
    factor = None if normal.factor is None else normal.factor.double()
    return NormalForm(normal.mean.double(), normal.scale.double(), factor)
