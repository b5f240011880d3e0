"""The log-uniform prior."""

import math

import torch
from scipy.special import digamma

from skvi.base import Layout
from skvi.exceptions import IncompatibleComponentsError
from skvi.expectations._log_square import ZERO, expected_log
from skvi.priors._scales import BuiltIndependent
from skvi.priors.base import VAGUE_SCALE, BuiltPrior, Prior

__all__ = ["LogUniform"]

# The KL from a normal around 0 is then 0.
CONSTANT = 0.5 * (math.log(math.pi) + 1 - float(digamma(0.5)))

# The density is infinite at 0: below this size it counts as constant.
SMALLEST = 1e-300


class LogUniform(Prior):
    r"""Density proportional to ``1 / abs(theta)``: scale-free sparsity.

    The logarithm of the size of a coefficient is uniform, so that no size is preferred,
    and coefficients that the data do not support shrink to 0.

    Notes
    -----
    It is improper: there is no evidence, no exact posterior, and it cannot be sampled;
    `evidence_bounds` and objectives that compare q with the exact posterior refuse it.
    The divergence to it is defined up to a constant, which is chosen so that ``KL(q ||
    prior)`` is 0, its minimum, for a normal q around 0; it depends on the ratio of mean
    and standard deviation alone. `lower_bound_` is an ELBO up to that constant, and not
    a bound on a log evidence. The posterior standard deviations of coefficients that
    shrink to 0 do so as well: there is an infimum, which the fit approaches within
    `tol`, in up to some 200 steps: ``max_iter=400``. Intercepts get N(0, 10^2).

    References
    ----------
    Kingma, Salimans and Welling (2015), *Variational dropout and the local
    reparameterization trick*; Molchanov, Ashukha and Vetrov (2017), *Variational
    dropout sparsifies deep neural networks*, equation 14 (here exact, there a fit).

    Examples
    --------
    >>> from skvi.priors._log_uniform import LogUniform
    >>> LogUniform()
    LogUniform()
    """

    relative_to = "each"
    intercept_scale = VAGUE_SCALE

    def build(self, layout: Layout) -> BuiltPrior:
        """Build the prior over every coordinate of a layout."""
        self.validate()
        return _BuiltLogUniform(layout.natural_scales())


class _BuiltLogUniform(BuiltIndependent):
    is_proper = False

    def _log_density(self, u: torch.Tensor) -> torch.Tensor:
        return -u.abs().clamp(min=SMALLEST).log() - CONSTANT

    def _slope(self, u: torch.Tensor) -> torch.Tensor:
        return torch.where(u.abs() > SMALLEST, -1 / u, 0.0)

    def _expected(self, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            size = torch.hypot(mean.double(), std.double())
        unit = expected_log(mean / size, std / size, ZERO)
        return -0.5 * unit - size.log() - CONSTANT

    def _draw(self, generator: torch.Generator, *shape: int) -> torch.Tensor:
        raise IncompatibleComponentsError(
            "LogUniform is improper and cannot be sampled. Use "
            "Horseshoe() or StudentT(df=1.0), which are sparse and proper."
        )
