"""Normal priors whose shared precision has a Gamma hyperprior."""

import math

import torch

from skvi.base import Layout
from skvi.priors._normal import BuiltUnknownScale
from skvi.priors._scales import POSITIVE
from skvi.priors.base import VAGUE_SCALE, BuiltPrior, GammaHyperprior, Prior
from skvi.utils._random import randn

__all__ = ["HierarchicalNormal"]


class HierarchicalNormal(Prior):
    """Normal coefficients with one unknown precision, with a Gamma hyperprior.

    ``coef_j ~ N(0, 1 / precision)`` for every coefficient of the block, and
    ``precision ~ Gamma(shape, rate)``: the prior of
    `sklearn.linear_model.BayesianRidge`. `BayesianLinearRegression` infers the
    precision; everywhere else it is integrated out, which leaves a multivariate
    Student-t with ``2 * shape`` degrees of freedom.

    Parameters
    ----------
    shape, rate : float, default=1e-6
        Parameters of the Gamma distribution, with mean ``shape / rate``. The default is
        uninformative, and costs ``-log(shape)`` = 13.8 nats of evidence: to compare
        models, use an informative hyperprior. In linear models it holds for the columns
        as they are; ``prior="hierarchical"`` is relative to the root mean square of
        their standard deviations, so that the fit does not depend on a common unit.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import Layout
    >>> from skvi.priors import HierarchicalNormal
    >>> prior = HierarchicalNormal(shape=1.0, rate=1.0).build(Layout({"coef": (1, 2)}))
    >>> round(float(prior.log_prob(torch.zeros(1, 2))), 4)  # 1 / (2 pi)
    -1.8379
    """

    _parameter_constraints: dict = {"shape": POSITIVE, "rate": POSITIVE}
    relative_to = None
    intercept_scale = VAGUE_SCALE

    def __init__(self, shape: float = 1e-6, rate: float = 1e-6) -> None:
        self.shape = shape
        self.rate = rate

    def build(self, layout: Layout) -> BuiltPrior:
        """Build the prior with the precision integrated out; see `Prior.build`."""
        self.validate()
        scale = layout.natural_scales()
        return _BuiltStudentT(scale, float(self.shape), float(self.rate))


class _BuiltStudentT(BuiltUnknownScale):
    """Multivariate Student-t density."""

    def __init__(self, scale: torch.Tensor, shape: float, rate: float) -> None:
        super().__init__(scale)
        self.shape, self.rate = shape, rate

    def _log_density(self, squares: torch.Tensor) -> torch.Tensor:
        a, b, half_size = self.shape, self.rate, 0.5 * len(self.scale)
        constant = (
            math.lgamma(a + half_size)
            - math.lgamma(a)
            - half_size * math.log(2 * math.pi * b)
        )
        tails = (a + half_size) * torch.log1p(squares / (2 * b))
        return constant - tails - self.scale.log().sum()

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        gamma = GammaHyperprior(self.shape, self.rate)
        width = torch.exp(-0.5 * gamma.draw_log(n_draws, generator))
        return self.scale * width * randn(generator, n_draws, len(self.scale))

    def log_density_of_scale(self, log_scale: torch.Tensor) -> torch.Tensor:
        # The log of the precision is -2 log s.
        gamma = GammaHyperprior(self.shape, self.rate)
        return math.log(2.0) + gamma.log_density(-2 * log_scale)

    def expected_precision(self, squares: torch.Tensor) -> tuple[float, float]:
        shape = self.shape + 0.5 * len(self.scale)
        rate = self.rate + 0.5 * float(squares)
        return shape / rate, shape / rate**2
