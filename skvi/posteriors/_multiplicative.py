"""Multiplicative flows, and normal variables that add up to theta.

Coordinates are those in which the prior of theta is N(0, I): the variances sum to 1.
The sum of the variables so far is b, and s the variance of those that are left.
"""

import math
from numbers import Integral
from typing import NamedTuple

import torch

from skvi.base import Layout, NormalForm
from skvi.exceptions import IncompatibleComponentsError
from skvi.posteriors._auxiliary import (
    SHARE,
    AuxiliaryPosterior,
    Regression,
    Settings,
)
from skvi.posteriors._flow import FlowPosterior, InverseAutoregressive
from skvi.posteriors.base import Family, Posterior
from skvi.utils._tensors import CPU, LOG_2PI, make_generator
from skvi.utils._validation import Interval

# Steps of the flow and of r, in those of means: their sums over units move faster.
NETWORK_SHARE = 0.1


class MultiplicativeFlow(Family):
    r"""Normal weights whose means are multiplied by a flow, one number for each input.

    .. math:: q(W) = \int \prod_{ij} N(w_{ij}; z_i \mu_{ij}, \sigma_{ij}^2)\, q(z)\, dz

    for the weights from inputs i to units j of all dense layers of a network, or the
    coefficients of a linear model; other parameters are independent normals. z is noise
    through one inverse autoregressive flow for all layers, so that weights of a unit,
    of different units and of different layers depend on each other. There are few z,
    and the flow stays small where one over all weights would be too large.

    The density of W is an integral. A fit maximizes a lower bound of the ELBO, of which
    `lower_bound_` is an estimate, with a learned reverse model r:

    .. math::
        \mathrm{ELBO} \ge E \log p(D, W) - E \log \frac{q(W | z)\, q(z)}{r(z | W)}

    ``diagnostics_["elbo_upper"]`` is an estimate of an upper bound of the ELBO, as of
    `HierarchicalVariational`.

    Parameters
    ----------
    n_layers : int, default=2
        Layers of the flow.
    n_hidden : int, default=50
        Hidden units in each of them, and of r.

    Notes
    -----
    q(W | z) depends on W by one number for each z, the estimate of z by weighted least
    squares. r is the exact normal distribution of z given these, for a flow that is
    the identity, with a learned correction that is a function of all of them. The start
    is a factorized normal fit, with a little noise in z.

    References
    ----------
    Louizos and Welling (2017), *Multiplicative normalizing flows for variational
    Bayesian neural networks*. Their flow is made of masked couplings, for each layer
    its own, and their r of another one.

    Examples
    --------
    >>> from skvi.posteriors import MultiplicativeFlow
    >>> from skvi.predictors import MLPPredictor
    >>> layout = MLPPredictor(3, 1, hidden_layer_sizes=(4,)).layout
    >>> q = MultiplicativeFlow().build(layout)
    >>> q.side, q.settings.n_auxiliary  # 3 inputs of the first layer, 4 of the second
    ('upper', 7)
    """

    _parameter_constraints: dict = {
        "n_layers": [Interval(Integral, 1, None, closed="left")],
        "n_hidden": [Interval(Integral, 1, None, closed="left")],
    }

    def __init__(self, n_layers: int = 2, n_hidden: int = 50) -> None:
        self.n_layers, self.n_hidden = n_layers, n_hidden

    def build(
        self, layout: Layout, generator: torch.Generator | None = None
    ) -> Posterior:
        """Build the posterior near N(0, 1), with random units; see `Family.build`."""
        self.validate()
        generator = make_generator(0) if generator is None else generator
        return _MultiplicativePosterior(layout, self.n_layers, self.n_hidden, generator)


class _MultiplicativePosterior(AuxiliaryPosterior):
    """Parameters: shifts of means, log scales, log widths of z, the flow's, and r's.

    The last two are changes from a random start. z is 1 + width flow(e). Widths are in
    units of the relative deviation of a row of weights in the normal of the start, 1 /
    |mean / scale|.
    """

    def __init__(
        self, layout: Layout, n_layers: int, n_hidden: int, generator: torch.Generator
    ) -> None:
        self._input, n_inputs = _inputs(layout)
        super().__init__(layout, Settings(n_inputs, n_hidden, 0, True, False, False))
        size = (n_inputs, n_layers, n_hidden)
        self._flow = FlowPosterior(
            Layout({"noise": (n_inputs,)}),
            lambda: InverseAutoregressive(*size),
            generator,
        )
        self._reverse = Regression(n_inputs, n_hidden, n_inputs)
        zero = torch.zeros(layout.size, dtype=torch.float64, device=CPU)
        linear = zero.new_zeros(n_inputs, n_inputs)
        networks = self._flow.params, self._reverse.start(linear, 0.0, generator)
        self._start = torch.cat(networks)
        width = zero.new_full((n_inputs,), 0.5 * math.log(SHARE))
        self._sizes = [*map(len, (zero, zero, width, *networks))]
        self.n_forward = sum(self._sizes[:-1])
        self.params = torch.cat([zero, zero, width, torch.zeros_like(self._start)])

    def conditional(self, e: torch.Tensor, params: torch.Tensor) -> NormalForm:
        shift, log_scale, width, flow, _ = self._split(params)
        bent, _ = self._flow.transform("forward", e.reshape(-1, e.shape[-1]), flow)
        excess = width * bent.reshape(e.shape)  # z - 1
        padded = torch.nn.functional.pad(excess, [0, 1])
        mean = shift + padded.index_select(-1, self._input) * self._ratio(shift)
        return NormalForm(mean, log_scale.exp().expand_as(mean))

    def proposal(self, u: torch.Tensor, params: torch.Tensor) -> NormalForm:
        """The normal of e given u if the flow were the identity, corrected."""
        shift, log_scale, width, _, reverse = self._split(params)
        weight = self._ratio(shift) * (-2 * log_scale).exp()
        precision = 1 + width.square() * self._sums(weight * self._ratio(shift))
        mean = width * self._sums(weight * (u - shift)) / precision
        scale = precision.rsqrt()
        more = self._reverse(reverse, mean)
        return NormalForm(mean + scale * more.mean, scale * more.scale)

    def _split(self, params: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Shifts, log scales, widths of z, and parameters of the flow and of r."""
        shift, log_scale, log_width, *changes = params.split(self._sizes)
        at_start = 1 + self._sums(self._ratio(torch.zeros_like(shift)).square())
        networks = self._start.to(params) + NETWORK_SHARE * torch.cat(changes)
        width = log_width.exp() * at_start.rsqrt()
        return shift, log_scale, width, *networks.split(self._sizes[3:])

    def _ratio(self, shift: torch.Tensor) -> torch.Tensor:
        """Means of weights, in units of u."""
        return (self.anchor.mean / self.anchor.scale).to(shift) + shift

    def _sums(self, values: torch.Tensor) -> torch.Tensor:
        """Sums over the weights of each input, (..., A)."""
        n_inputs = self.settings.n_auxiliary
        zeros = values.new_zeros(*values.shape[:-1], n_inputs + 1)
        return zeros.index_add(-1, self._input, values)[..., :n_inputs]


def _inputs(layout: Layout) -> tuple[torch.Tensor, int]:
    """Number of the input of each weight, and of all inputs, which others have."""
    index = torch.zeros(layout.size, dtype=torch.long, device=CPU)
    is_weight, count = torch.zeros_like(index, dtype=torch.bool), 0
    for block in layout.values():
        if block.input_axis is not None:
            n_inputs = block.shape[block.input_axis]
            own = torch.arange(count, count + n_inputs, device=CPU)
            shape = [1] * len(block.shape)
            shape[block.input_axis] = n_inputs
            index[block.slice] = own.reshape(shape).expand(block.shape).reshape(-1)
            is_weight[block.slice] = True
            count += n_inputs
    if not count:
        raise IncompatibleComponentsError(
            "posterior='multiplicative_flow'",
            f"dense layers, whose inputs it multiplies; got {layout}",
            "posterior='hierarchical_variational' or 'flow'",
        )
    return torch.where(is_weight, index, count), count


class Auxiliary(NamedTuple):
    """One of the variables: its prior variance, and s before and after it."""

    variance: float
    before: float
    after: float

    def marginal(self, q: NormalForm, b: torch.Tensor) -> NormalForm:
        """Its distribution under q (A3), each coordinate by itself."""
        slope = self.variance / self.before
        own = self.after * slope
        variance = own + (slope * q.scale).square()
        return NormalForm((q.mean - b) * slope, variance.sqrt())

    def condition(self, q: NormalForm, b: torch.Tensor, a: torch.Tensor) -> NormalForm:
        """Distribution of theta under q, given that the variable is a (A5)."""
        r = q.scale.square()
        rest = self.before * self.after
        norm = self.variance * r + rest
        mean = (self.before * a + self.variance * b) * r + rest * q.mean
        return NormalForm(mean / norm, q.scale * (rest / norm).sqrt())

    def log_prior(self, a: torch.Tensor) -> torch.Tensor:
        """Log density of the variable before the data, (M,)."""
        scale = torch.full_like(a, self.variance**0.5)
        return NormalForm(torch.zeros_like(a), scale).log_prob(a)


def auxiliaries(n_auxiliary: int, ratio: float) -> list[Auxiliary]:
    """Variables that each take a share of the variance left; the last takes it all."""
    found, left = [], 1.0
    for _ in range(n_auxiliary - 1):
        found.append(Auxiliary(ratio * left, left, (1 - ratio) * left))
        left = found[-1].after
    return [*found, Auxiliary(left, left, 0.0)]


def kl_divergence(q: NormalForm, mean: torch.Tensor, variance: float) -> torch.Tensor:
    """KL from factorized normals to N(mean, variance I), (M,)."""
    r = q.scale.square() / variance
    distance = (q.mean - mean).square() / variance
    return 0.5 * (r + distance - 1 - r.log()).sum(-1)


def log_standard(u: torch.Tensor) -> torch.Tensor:
    """Log density of N(0, I), (...)."""
    return -0.5 * (u.square() + LOG_2PI).sum(-1)
