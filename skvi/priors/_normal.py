"""Normal priors, of a scale that is fixed, learned or unknown."""

import math
from collections.abc import Mapping, Sequence
from copy import copy
from numbers import Real
from typing import Any

import numpy as np
import torch
from scipy.special import erfcx

from skvi.base import Layout, NormalForm
from skvi.base._component import Component
from skvi.exceptions import IncompatibleComponentsError
from skvi.priors._blocks import LEARN_ROWS, POSITIVE, BuiltIndependent, scaled
from skvi.priors.base import BuiltPrior, GammaHyperprior, Prior
from skvi.utils._tensors import LOG_2PI, rand, randn
from skvi.utils._validation import StrOptions

# Least sum of squares of coefficients with an unknown scale: at 0 their density has no
# bound. Scales of draws are at most so large that squares are finite.
LEAST_SQUARES, LARGEST_SCALE = 1e-280, 1e140
# Scale, in units of the median, below which that of noise is not expected.
LEAST_NOISE = 1e-6
# Integral over a log scale: its least number of nodes; their reach from the top, in
# widths of the integrand; the exponent at which its tail ends; the largest step.
N_NODES, REACH, TAIL, LONGEST = 161, 10.0, 37.0, 0.15


class HalfCauchy(Component):
    r"""Hyperprior of one scale for all coefficients, which the data determine.

    .. math:: p(s) = \frac{2}{\pi \, c \, (1 + s^2 / c^2)}, \qquad s > 0

    with median c. It is weak: a scale a thousand times larger or smaller than c costs
    about seven nats, so that even a little information about the size of the
    coefficients outweighs it. And it is proper: there is an evidence, and the scale
    remains finite if the data do not limit it, as with separable classes.

    Parameters
    ----------
    scale : float, default=1.0
        c, in units of the block's natural size (`Block.scale`). In linear models it is
        relative to the columns: c is the median for features whose standard deviations
        have the root mean square 1, and the fit does not depend on their common unit.

    References
    ----------
    Gelman (2006), *Prior distributions for variance parameters in hierarchical
    models*. Polson and Scott (2012), *On the half-Cauchy prior for a global scale
    parameter*.

    Examples
    --------
    >>> from skvi.priors import HalfCauchy, Normal
    >>> Normal(scale=HalfCauchy())
    Normal(scale=HalfCauchy())
    """

    _parameter_constraints: dict = {"scale": POSITIVE}

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def log_density(self, log_precision: torch.Tensor) -> torch.Tensor:
        """Log density of the log of a noise precision, if this is the noise's scale.

        Times ``exp(-(LEAST_NOISE c / s)^2)``, and normalized: where all rows are fitted
        exactly, the posterior would be improper without it.

        Parameters
        ----------
        log_precision : Tensor of any shape

        Returns
        -------
        Tensor of the same shape
            In nats, with the Jacobian of the logarithm.
        """
        log_scale = -0.5 * log_precision - math.log(self.scale)
        floor = LEAST_NOISE**2 * torch.exp((-2 * log_scale).clamp(max=700.0))
        return log_density(log_scale) - floor - math.log(2 * erfcx(LEAST_NOISE))

    def draw_log(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        """Draws of the log of the precision.

        Parameters
        ----------
        n_draws : int
        generator : torch.Generator

        Returns
        -------
        Tensor of shape (n_draws, 1)
        """
        scale = torch.tan(0.5 * math.pi * rand(generator, n_draws, 1))
        return -2 * (scale.clamp(LEAST_NOISE, LARGEST_SCALE) * self.scale).log()


class Normal(Prior):
    """Independent N(loc, scale^2) on every coefficient.

    Parameters
    ----------
    scale : float, "learn", "learn_rows", HalfCauchy, GammaHyperprior, array-like or \
dict, default=1.0
        Standard deviation, in units of the block's natural size (`Block.scale`). 1
        suits standardized features. "learn" finds the value with the largest ELBO
        (empirical Bayes; type-II maximum likelihood if q is exact): one scale for all
        coefficients, or one for each entry of a mapping of priors. "learn_rows" learns
        one for each row of a block: for the first layer of a network one for each
        feature, so that irrelevant ones are switched off (automatic relevance
        determination; MacKay, 1996). Under a `HalfCauchy` hyperprior, or a
        `GammaHyperprior` of the precision, it is unknown, and is integrated out: it has
        a distribution of its own beside the posterior of the coefficients, and the
        evidence integrates over it. In linear models also one number for each feature,
        of shape (n_features,), or (n_outputs, n_features); or a mapping from names of
        features, where the others have 1.
    loc : float, array-like or dict, default=0.0
        Mean, likewise; beside a scale that is given. Others in a mapping have 0.

    Examples
    --------
    >>> from skvi.linear_model import BayesianLogisticRegression
    >>> from skvi.priors import Normal
    >>> Normal(scale=2.5)
    Normal(scale=2.5)
    >>> prior = Normal(scale={"x1": 0.1}, loc={"x1": 2.0})
    >>> model = BayesianLogisticRegression(prior=prior)
    >>> model = model.fit([[0, 1], [1, 0], [2, 3], [3, 1]], [0, 0, 1, 1])
    >>> round(float(model.coef_[0, 1]), 1)
    2.0
    """

    _parameter_constraints: dict = {
        "scale": [
            *POSITIVE,
            StrOptions({"learn", LEARN_ROWS}),
            HalfCauchy,
            GammaHyperprior,
            "array-like",
            dict,
        ],
        "loc": [Real, "array-like", dict],
    }

    def __init__(self, scale: Any = 1.0, loc: Any = 0.0) -> None:
        self.scale = scale
        self.loc = loc

    loc: Any = 0.0  # of subclasses that do not set it

    @property
    def relative_to(self) -> str | None:
        """None where the prior has the units of the features; see `Prior`."""
        return "all" if isinstance(self.scale, (str, HalfCauchy)) else None

    @property
    def is_given(self) -> bool:
        """Whether the scale is neither learned nor unknown."""
        return not isinstance(self.scale, (str, HalfCauchy, GammaHyperprior))

    @property
    def has_names(self) -> bool:
        """Whether it has values by names of features; see `in_order`."""
        return isinstance(self.scale, Mapping) or isinstance(self.loc, Mapping)

    def in_order(self, names: Sequence[str]) -> "Normal":
        """The prior with arrays in place of mappings.

        Parameters
        ----------
        names : sequence of str
            Of the features.

        Returns
        -------
        Normal

        Raises
        ------
        ValueError
            A mapping has keys that are no names.
        """
        return Normal(
            _in_order(self.scale, names, 1.0), _in_order(self.loc, names, 0.0)
        )

    def build(self, layout: Layout) -> BuiltPrior:
        """Build the prior over every coordinate of a layout."""
        self.validate()
        if self.is_given:
            scale, loc = _each(self.scale, layout), _each(self.loc, layout)
            if not bool((scale > 0).all()):
                raise ValueError(f"Scales must be positive. Got {self!r}.")
            return _BuiltNormal(scale * layout.natural_scales(), loc)
        if not isinstance(self.loc, Real) or self.loc != 0:
            raise IncompatibleComponentsError(
                repr(self),
                "a scale that is a number, beside its mean",
                "a number as scale, or no loc",
            )
        if not isinstance(self.scale, str):
            self.scale.validate()
        if isinstance(self.scale, HalfCauchy):
            return _BuiltHalfCauchy(float(self.scale.scale) * layout.natural_scales())
        if isinstance(self.scale, GammaHyperprior):
            return _BuiltGamma(layout.natural_scales(), self.scale)
        return scaled(layout, self.scale, _BuiltNormal)


def _in_order(values: Any, names: Sequence[str], otherwise: float) -> Any:
    """Values of a mapping in the order of the names."""
    if not isinstance(values, Mapping):
        return values
    if unknown := [name for name in values if name not in names]:
        raise ValueError(
            f"The prior has values for {unknown}, which are no columns of X: these are "
            f"{list(names)}."
        )
    return np.array([float(values.get(name, otherwise)) for name in names])


def _each(values: Any, layout: Layout) -> torch.Tensor:
    """Numbers of the coordinates, (P,), from one for all or one for each feature."""
    if isinstance(values, Real):
        return torch.from_numpy(np.full(layout.size, float(values)))
    if isinstance(values, Mapping) or list(layout) != ["coef"]:
        raise IncompatibleComponentsError(
            f"A prior with a number for each feature, {values!r},",
            f"the coefficients of a linear model; got {layout}",
            "one number, or a dict of priors",
        )
    own, shape = np.asarray(values, dtype=np.float64), layout["coef"].shape
    if own.ndim == 0 or own.shape != shape[-own.ndim :] or not np.isfinite(own).all():
        raise ValueError(
            f"The prior needs a finite number for each of {shape[-1]} features. Got "
            f"{values!r}."
        )
    return torch.from_numpy(np.broadcast_to(own, shape).flatten())


class _BuiltNormal(BuiltIndependent):
    def __init__(self, scale: torch.Tensor, loc: torch.Tensor | None = None) -> None:
        super().__init__(scale)
        self.loc = torch.zeros_like(scale) if loc is None else loc

    def _log_density(self, u: torch.Tensor) -> torch.Tensor:
        return -0.5 * (u.square() + LOG_2PI)

    def _slope(self, u: torch.Tensor) -> torch.Tensor:
        return -u

    def _expected(self, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
        return -0.5 * (mean.square() + std.square() + LOG_2PI)

    def _draw(self, generator: torch.Generator, *shape: int) -> torch.Tensor:
        return randn(generator, *shape)

    def as_normal(self) -> NormalForm:
        return self.matching_normal()

    def matching_normal(self) -> NormalForm:
        return NormalForm(self.loc, self.scale)

    def log_prob_terms(self, theta: torch.Tensor) -> torch.Tensor:
        return super().log_prob_terms(theta - self.loc)

    def log_prob_gradient(self, theta: torch.Tensor) -> torch.Tensor:
        return super().log_prob_gradient(theta - self.loc)

    def expected_log_prob(self, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
        return super().expected_log_prob(mean - self.loc, std)

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        return self.loc + super().sample(n_draws, generator)

    def marginal(self, where: torch.Tensor) -> BuiltPrior:
        return _BuiltNormal(self.scale[where], self.loc[where])

    def tail_precision(self) -> torch.Tensor:
        return self.scale.square().reciprocal()


class BuiltUnknownScale(BuiltPrior):
    """Normal coefficients of one unknown scale, which is integrated out.

    A subclass has the density of the scale, `log_density_of_scale`, and of the
    coefficients, `_log_density`, by their weighted sum of squares.
    """

    has_expected_log_prob = True
    unknown_scales = (0,)

    def __init__(self, scale: torch.Tensor) -> None:
        self.scale = scale

    def _log_density(self, squares: torch.Tensor) -> torch.Tensor:
        """Log of the mean normal density at sums of squares, of any shape."""
        raise NotImplementedError

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        return self._log_density((theta / self.scale).square().sum(-1))

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
        part = copy(self)
        part.scale = self.scale[where]
        return part

    def given_scale(self, scale: float, part: int | None = None) -> BuiltPrior:
        return _BuiltNormal(scale * self.scale)

    def precisions_at(self, logs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        log_det = self.scale.log().sum() + len(self.scale) * logs[:, 0]
        weights = self.log_density_of_scale(logs[:, 0]) - log_det
        return (self.scale * logs.exp()) ** -2, weights

    def scale_weights(self, part: int | None = None) -> torch.Tensor:
        return self.scale.square().reciprocal()


class _BuiltHalfCauchy(BuiltUnknownScale):
    """A half-Cauchy scale: sums over nodes of it."""

    def log_prob_gradient(self, theta: torch.Tensor) -> torch.Tensor:
        squares = (theta / self.scale).square().sum(-1).clamp(min=LEAST_SQUARES)
        precisions, weights = self._precisions(squares)
        expected = (weights * precisions).sum(-1, keepdim=True)
        return -expected * theta / self.scale.square()

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        shared = torch.tan(0.5 * math.pi * rand(generator, n_draws, 1))
        noise = randn(generator, n_draws, len(self.scale))
        return self.scale * shared.clamp(max=LARGEST_SCALE) * noise

    def log_density_of_scale(
        self, log_scale: torch.Tensor, part: int | None = None
    ) -> torch.Tensor:
        return log_density(log_scale)

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
        size, squares = len(self.scale), squares.clamp(min=LEAST_SQUARES)
        precisions, log_weights = scale_nodes(squares.detach(), size)
        terms = log_weights - 0.5 * squares[..., None] * precisions
        constant = 0.5 * size * LOG_2PI + self.scale.log().sum()
        return torch.logsumexp(terms, -1) - constant


class _BuiltGamma(BuiltUnknownScale):
    """A scale whose precision has a Gamma density: a multivariate Student-t."""

    def __init__(self, scale: torch.Tensor, hyperprior: GammaHyperprior) -> None:
        super().__init__(scale)
        self.hyperprior = hyperprior
        self.shape, self.rate = float(hyperprior.shape), float(hyperprior.rate)

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
        width = torch.exp(-0.5 * self.hyperprior.draw_log(n_draws, generator))
        return self.scale * width * randn(generator, n_draws, len(self.scale))

    def log_density_of_scale(
        self, log_scale: torch.Tensor, part: int | None = None
    ) -> torch.Tensor:
        # The log of the precision is -2 log s.
        return math.log(2.0) + self.hyperprior.log_density(-2 * log_scale)

    def expected_precision(self, squares: torch.Tensor) -> tuple[float, float]:
        shape = self.shape + 0.5 * len(self.scale)
        rate = self.rate + 0.5 * float(squares)
        return shape / rate, shape / rate**2


def log_density(log_scale: torch.Tensor) -> torch.Tensor:
    """Log density of the log of a half-Cauchy scale of median 1: 1 / (pi cosh)."""
    away = log_scale.abs()
    return math.log(2 / math.pi) - away - torch.log1p(torch.exp(-2 * away))


def scale_nodes(squares: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Values of 1 / s^2 and log weights, (..., n_nodes), to integrate over a scale s.

    ``sum(exp(log_weights - squares * precisions / 2))`` is the integral of the
    half-Cauchy density of s (median 1) times ``s^-size exp(-squares / (2 s^2))``.
    """
    # Steps of log s are equal, around the top of the integrand, which falls
    # exponentially: the trapezoidal rule is exact but for rounding. Above a top that is
    # far below the median it falls slowly up to that; for one coefficient it is flat.
    half = 0.5 * (squares - (size - 1))
    root = torch.sqrt(half.square() + (size + 1) * squares)
    # s^2 at the top is a root of a quadratic equation; without cancellation.
    top = torch.where(half > 0, (half + root) / (size + 1), squares / (root - half))
    width = (2 * size + 1) ** -0.5
    log_top, reach = 0.5 * top.log(), REACH * width
    low = torch.full_like(top, -reach)
    if size == 1:
        low = torch.minimum(low, 0.5 * (0.5 * squares / TAIL).log() - log_top)
    high = TAIL / (size + 1) - log_top.clamp(max=0)
    high = high.clamp(reach, max(reach, TAIL / (size - 1)) if size > 1 else None)
    widest = float((high - low).max())
    # Squares that are not finite have none, and leave a density that is not.
    n_steps = math.ceil(widest / LONGEST) if math.isfinite(widest) else 0
    n_nodes = max(N_NODES, n_steps + 1)
    line = torch.linspace(0, 1, n_nodes, dtype=torch.float64, device=squares.device)
    log_scale = (log_top + low)[..., None] + (high - low)[..., None] * line
    log_step = ((high - low) / (n_nodes - 1)).log()[..., None]
    log_weights = log_step + log_density(log_scale) - size * log_scale
    return torch.exp(-2 * log_scale), log_weights
