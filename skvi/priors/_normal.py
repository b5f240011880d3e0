"""Normal priors."""

import math

import torch

from skvi.base import Layout, NormalForm
from skvi.priors._half_cauchy import HalfCauchy, log_density, scale_nodes
from skvi.priors._scales import LEARN_ROWS, POSITIVE, scaled
from skvi.priors.base import BuiltPrior, Prior
from skvi.utils._log_space import LOG_2PI
from skvi.utils._random import rand, randn
from skvi.utils._validation import StrOptions

__all__ = ["Normal"]

# Least sum of squares of coefficients with an unknown scale: at 0 their density has no
# bound. Scales of draws are at most so large that squares are finite.
LEAST_SQUARES, LARGEST_SCALE = 1e-280, 1e140


class Normal(Prior):
    """Independent N(0, scale^2) on every coefficient.

    Parameters
    ----------
    scale : float, "learn", "learn_rows" or HalfCauchy, default=1.0
        Standard deviation, in units of the block's natural size (`Block.scale`). 1
        suits standardized features. "learn" finds the value with the largest ELBO
        (empirical Bayes; type-II maximum likelihood if q is exact): one scale for all
        coefficients, or one for each entry of a mapping of priors. "learn_rows" learns
        one for each row of a block: for the first layer of a network one for each
        feature, so that irrelevant ones are switched off (automatic relevance
        determination; MacKay, 1996). Under a `HalfCauchy` hyperprior it is unknown, and
        is integrated out: it has a distribution of its own beside the posterior of the
        coefficients, and the evidence integrates over it.

    Examples
    --------
    >>> from skvi.priors import Normal
    >>> Normal(scale=2.5)
    Normal(scale=2.5)
    """

    _parameter_constraints: dict = {
        "scale": [*POSITIVE, StrOptions({"learn", LEARN_ROWS}), HalfCauchy]
    }

    def __init__(self, scale: float | str | HalfCauchy = 1.0) -> None:
        self.scale = scale

    def build(self, layout: Layout) -> BuiltPrior:
        """Build the prior over every coordinate of a layout."""
        self.validate()
        if isinstance(self.scale, HalfCauchy):
            self.scale.validate()
            return _BuiltMixture(float(self.scale.scale) * layout.natural_scales())
        return scaled(layout, self.scale, _BuiltNormal)


class _BuiltNormal(BuiltPrior):
    has_expected_log_prob = True
    has_log_prob_terms = True

    def __init__(self, scale: torch.Tensor) -> None:
        self.scale = scale

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        return self.as_normal().log_prob(theta)

    def log_prob_terms(self, theta: torch.Tensor) -> torch.Tensor:
        return self.as_normal().log_prob_terms(theta)

    def log_prob_gradient(self, theta: torch.Tensor) -> torch.Tensor:
        return -theta / self.scale.square()

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        return self.scale * randn(generator, n_draws, len(self.scale))

    def as_normal(self) -> NormalForm:
        return NormalForm(torch.zeros_like(self.scale), self.scale)

    def marginal(self, where: torch.Tensor) -> BuiltPrior:
        return _BuiltNormal(self.scale[where])

    def expected_log_prob(self, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
        second_moment = (mean.square() + std.square()) / self.scale.square()
        return -0.5 * second_moment - torch.log(self.scale * math.sqrt(2 * math.pi))


class _BuiltMixture(BuiltPrior):
    """Normal coefficients of one half-Cauchy scale, which is integrated out."""

    has_expected_log_prob = True
    n_unknown_scales = 1

    def __init__(self, scale: torch.Tensor) -> None:
        self.scale = scale

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        return self._log_density((theta / self.scale).square().sum(-1))

    def log_prob_gradient(self, theta: torch.Tensor) -> torch.Tensor:
        squares = (theta / self.scale).square().sum(-1).clamp(min=LEAST_SQUARES)
        precisions, weights = self._precisions(squares)
        expected = (weights * precisions).sum(-1, keepdim=True)
        return -expected * theta / self.scale.square()

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        shared = torch.tan(0.5 * math.pi * rand(generator, n_draws, 1))
        noise = randn(generator, n_draws, len(self.scale))
        return self.scale * shared.clamp(max=LARGEST_SCALE) * noise

    def matching_normal(self) -> NormalForm:
        return NormalForm(torch.zeros_like(self.scale), self.scale)

    def tail_precision(self) -> torch.Tensor:
        return torch.zeros_like(self.scale)

    def expected_log_prob(self, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
        """Lower bound of E[log_prob], with a scale independent of the coefficients.

        log_prob is convex in the sum of squares, and taken at its mean: so the ELBO is
        that of a posterior in which coefficients and scale are independent.
        """
        squares = (mean / self.scale).square() + (std / self.scale).square()
        total = self._log_density(squares.sum(-1, keepdim=True))
        return (total / squares.shape[-1]).expand(squares.shape)

    def marginal(self, where: torch.Tensor) -> BuiltPrior:
        return _BuiltMixture(self.scale[where])

    def given_scale(self, scale: float) -> BuiltPrior:
        return _BuiltNormal(scale * self.scale)

    def log_density_of_scale(self, log_scale: torch.Tensor) -> torch.Tensor:
        return log_density(log_scale)

    def scale_weights(self) -> torch.Tensor:
        return self.scale.square().reciprocal()

    def expected_precision(self, squares: torch.Tensor) -> tuple[float, float]:
        precisions, weights = self._precisions(squares.clamp(min=LEAST_SQUARES))
        expected = float(weights @ precisions)
        return expected, float(weights @ (precisions - expected).square())

    def _precisions(self, squares: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Values of 1 / s^2, and how likely they are given sums of squares."""
        precisions, log_weights = scale_nodes(squares, len(self.scale))
        terms = log_weights - 0.5 * squares[..., None] * precisions
        return precisions, torch.softmax(terms, -1)

    def _log_density(self, squares: torch.Tensor) -> torch.Tensor:
        """Log of the mean normal density at sums of squares, of any shape."""
        size, squares = len(self.scale), squares.clamp(min=LEAST_SQUARES)
        precisions, log_weights = scale_nodes(squares.detach(), size)
        terms = log_weights - 0.5 * squares[..., None] * precisions
        constant = 0.5 * size * LOG_2PI + self.scale.log().sum()
        return torch.logsumexp(terms, -1) - constant
