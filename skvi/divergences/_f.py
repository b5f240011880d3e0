"""f-divergences of any generator, from draws."""

import math
from collections.abc import Callable

import torch

from skvi.base._component import PosteriorDensity, PriorDensity
from skvi.divergences._forms import (
    DEGENERATE_BELOW,
    draw_logs,
    missed_message,
    noise_message,
)
from skvi.divergences.base import Divergence
from skvi.exceptions import IncompatibleComponentsError
from skvi.utils._tensors import CPU
from skvi.utils._validation import StrOptions


def _jensen_shannon(r: torch.Tensor) -> torch.Tensor:
    softplus = torch.nn.functional.softplus
    return math.log(2) - 0.5 * (softplus(-r) + torch.exp(-r) * softplus(r))


# f(t) / t of r = log t. A multiple of t - 1 may be added to f: its mean is zero. It is
# chosen so that no term exp(-r), of large variance for a narrow q, is left.
IN_LOG_SPACE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "hellinger": lambda r: -2 * torch.expm1(-r / 2),
    "jensen_shannon": _jensen_shannon,
    "total_variation": lambda r: torch.relu(-torch.expm1(-r)),
    "chi2": torch.expm1,
}


class FDivergence(Divergence):
    r"""f-divergence of a convex function f with f(1) = 0, from draws of q.

    .. math:: D_f(q \| \pi) = E_\pi[f(q / \pi)]
              = E_q\left[ \frac{\pi}{q} f\left(\frac{q}{\pi}\right) \right]

    This is the convention of Csiszár: q is in the numerator, so that
    ``t log t`` is KL(q || prior) and ``-log t`` is KL(prior || q).

    Parameters
    ----------
    generator : callable or str
        f, convex with f(1) = 0: a function of a positive tensor t = q/pi, elementwise
        and differentiable by torch. Or one by name, evaluated in log space:
        "hellinger" (``(sqrt t - 1)^2``), "jensen_shannon"
        (``(t log t - (t+1) log((t+1)/2)) / 2``), "total_variation" (``|t-1| / 2``),
        "chi2" (``(t-1)^2``).

    Notes
    -----
    The estimate from S draws is unbiased. It is always that of the joint form in all P
    dimensions, also for normals. For ratios q/pi above exp(350) or below exp(-350)
    (exp(40) in single precision) f is continued linearly in the log ratio.

    Most f-divergences are bounded, by ``f(0) + lim f(t)/t``: nothing then keeps the
    posterior of many parameters from collapsing to a point mass. A fit that ends there
    warns. Unbounded ones can have infinite variance: "chi2" if q is wider than the
    prior, ``-log t`` if it is narrower.

    References
    ----------
    Csiszár (1967), *Information-type measures of difference of probability
    distributions*.

    Examples
    --------
    >>> import torch
    >>> from skvi.divergences import FDivergence
    >>> log_q, log_prior = torch.tensor([1.0, 2.0]), torch.tensor([0.0, 2.0])
    >>> kl = FDivergence(lambda t: t * t.log())
    >>> round(float(kl.monte_carlo(log_q, log_prior)), 6)
    0.5
    """

    _parameter_constraints: dict = {
        "generator": [callable, StrOptions(set(IN_LOG_SPACE))]
    }

    def __init__(self, generator: Callable[[torch.Tensor], torch.Tensor] | str) -> None:
        self.generator = generator

    def check_regularizer(self) -> None:
        """Refuse functions that are not convex with f(1) = 0."""
        self.validate()
        at = [1.0, 0.05, 0.5, 0.9, 1.1, 2.0, 20.0]
        t = torch.tensor(at, dtype=torch.float64, device=CPU)
        one, *rest = self._weighted(t.log()) * t
        # Above a tangent at 1: the smallest slope that suffices.
        slopes = torch.stack(rest) / (t[1:] - 1)
        convex = bool((slopes.diff() >= -1e-9).all())
        if abs(float(one)) > 1e-9 or not convex:
            raise IncompatibleComponentsError(
                repr(self),
                f"f that is convex with f(1) = 0; got {float(one):.3g} there, and "
                f"slopes from 1 of {slopes.tolist()} for t = {t[1:].tolist()}",
                "f - f(1), or the other sign",
            )

    def monte_carlo(self, log_q: torch.Tensor, log_prior: torch.Tensor) -> torch.Tensor:
        """Mean of f(q/pi) pi/q: unbiased."""
        return self._weighted(log_q - log_prior).mean()

    def score_factor(
        self, log_q: torch.Tensor, log_prior: torch.Tensor
    ) -> torch.Tensor:
        """That of g = f(q/pi) pi/q, (S,), in nats; see `Divergence.score_factor`."""
        with torch.enable_grad():
            ratio = (log_q - log_prior).detach().requires_grad_()
            value = self._weighted(ratio)
            (slope,) = torch.autograd.grad(value.sum(), ratio)
        return value.detach() + slope

    def collapse(
        self,
        posterior: PosteriorDensity,
        prior: PriorDensity,
        generator: torch.Generator,
    ) -> str:
        """Warn also if draws cannot resolve it; see `Divergence.collapse`."""
        finite = self._finite_ends()
        if all(finite):
            return super().collapse(posterior, prior, generator)
        log_q, log_prior = draw_logs(posterior, prior, generator)
        with torch.enable_grad():
            ratio = (log_q - log_prior).requires_grad_()
            (slope,) = torch.autograd.grad(self._weighted(ratio).mean(), ratio)
        # Weights pi/q have mean one: any deficit has been missed by the draws.
        found = float(torch.exp(log_prior - log_q).mean())
        if not finite[0] and found < DEGENERATE_BELOW:
            return missed_message(self, found)
        return noise_message(self, slope.abs().log())

    def _finite_ends(self) -> tuple[bool, bool]:
        """Whether f(0) is finite, and whether the slope of f at infinity is."""
        with torch.no_grad():
            at = [-300.0, -150.0, 150.0, 300.0]
            r = torch.tensor(at, dtype=torch.float64, device=CPU)
            low, lower, high, higher = self._weighted(r) * r.clamp(max=0).exp()
        gaps = (
            (low - lower).abs() / (1 + low.abs()),
            (high - higher).abs() / (1 + high.abs()),
        )
        return float(gaps[0]) < 1e-3, float(gaps[1]) < 1e-3

    def _weighted(self, ratio: torch.Tensor) -> torch.Tensor:
        """f(t) / t at t = exp(ratio)."""
        edge = 350.0 if ratio.dtype == torch.float64 else 40.0
        inside = ratio.clamp(-edge, edge)
        if bool((inside == ratio).all()):
            return self._at(ratio)
        with torch.enable_grad():
            ends = inside.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self._at(ends).sum(), ends)
        return self._at(inside) + slope * (ratio - inside)

    def _at(self, ratio: torch.Tensor) -> torch.Tensor:
        if isinstance(self.generator, str):
            return IN_LOG_SPACE[self.generator](ratio)
        return torch.exp(-ratio) * self.generator(ratio.exp())
