"""Families with two numbers a parameter, or with a function of noise for them."""

import math
from numbers import Integral
from typing import Self

import torch

from skvi.base import Draw, Layout, NormalForm
from skvi.exceptions import IncompatibleComponentsError
from skvi.posteriors._auxiliary import (
    SHARE,
    AuxiliaryPosterior,
    Regression,
    Settings,
)
from skvi.posteriors.base import Family, Posterior
from skvi.utils._tensors import (
    CPU,
    log_gamma_density,
    log_gamma_draws,
    make_generator,
    randn,
)
from skvi.utils._validation import Interval, StrOptions

# Auxiliary numbers that None stands for at most, and parameters of the model.
MAX_AUXILIARY, MAX_SIZE = 50, 20_000


class _NormalGivenAuxiliary(Family):
    """Base of families whose theta is a factorized normal given noise."""

    _parameter_constraints: dict = {
        "n_auxiliary": [Interval(Integral, 1, None, closed="left"), None],
        "n_hidden": [Interval(Integral, 1, None, closed="left")],
        "whiten": ["boolean"],
    }
    n_auxiliary: int | None
    n_hidden: int
    whiten: bool
    #: Defaults of what a family does not offer.
    n_mixture, proposal, gradient = 0, "learned", "bound"

    def build(
        self, layout: Layout, generator: torch.Generator | None = None
    ) -> Posterior:
        """Build the posterior near N(0, 1), with random units; see `Family.build`."""
        self.validate()
        settings = Settings(
            self.n_auxiliary or min(layout.size, MAX_AUXILIARY),
            self.n_hidden,
            self.n_mixture,
            is_learned=self.proposal == "learned",
            is_unbiased=self.gradient == "unbiased",
            whiten=self.whiten,
        )
        return SemiImplicitPosterior(layout, settings, generator)

    def check_size(self, n_params: int) -> None:
        """Raise above 20,000 parameters; see `Family.check_size`."""
        if n_params > MAX_SIZE:
            raise ValueError(
                f"{self!r} evaluates every draw under several normals over all "
                f"parameters, of which there are {n_params}: more than {MAX_SIZE}. "
                "Use posterior='mean_field', 'low_rank' or 'ensemble'."
            )


class SemiImplicitMixture(_NormalGivenAuxiliary):
    r"""Normals whose moments are functions of noise: a mixture of infinitely many.

    .. math:: q(\theta) = \int N(\theta; m(e), \mathrm{diag}\, s(e)^2)\, N(e; 0, I)\, de

    m and s are linear functions plus a layer of hidden units, and q can be curved,
    skewed and correlated. It has no density, but two bounds of it, from K draws of e:

    .. math::
        \mathcal{L}_K \le \mathrm{ELBO} \le \mathcal{L}^K \text{ in expectation.}

    A fit maximizes the lower one, of which `lower_bound_` is an estimate from new
    draws; that of the upper one is ``diagnostics_["elbo_upper"]``. The distance between
    them is what better `n_mixture` or `proposal` can still show of this q.

    Parameters
    ----------
    n_mixture : int, default=10
        K. The bounds approach each other as it grows; so do time and memory.
    n_auxiliary : int, default=None
        Number of noise variables e. None is one for each parameter, at most 50.
    n_hidden : int, default=30
        Hidden units behind the moments.
    proposal : {"learned", "prior"}, default="learned"
        What the K draws come from. "learned" is a normal given theta, trained with q.
        "prior" is the distribution of e, as in the original method: few of its draws
        lead near theta if there are more than a few parameters.
    gradient : {"bound", "unbiased"}, default="bound"
        "bound" maximizes the lower bound. "unbiased" follows the gradient of the ELBO
        itself, with chains of e given theta that start at the e that generated theta.
        A step takes twice as long. After as many, q is 0.02 nats closer to densities of
        2 and 10 parameters, and `lower_bound_` 0.25 and 0.06 nats lower, since it
        ignores the distance of the bound. Take "bound" unless only draws matter.
    whiten : bool, default=True
        Whether theta given e is factorized in coordinates in which the normal fit that
        q starts from is N(0, I). False keeps the correlations for e to find: the
        coordinates are those of theta, in units of the best factorized normal.

    Notes
    -----
    With draws from r(e | theta), :math:`w_k = q(\theta | e_k) p(e_k) / r(e_k | \theta)`
    and e_0 the one that generated theta,

    .. math::
        \mathcal{L}_K = E \log p(D, \theta) - E \log \frac{1}{K+1} \sum_{k=0}^K w_k,
        \qquad
        \mathcal{L}^K = E \log p(D, \theta) - E \log \frac{1}{K} \sum_{k=1}^K w_k.

    With proposal="prior" the first is the mean ELBO of mixtures of K + 1 factorized
    normals, and thus at most log(K + 1) nats above that of the best factorized normal:
    with whiten=False, K has to grow exponentially in the nats that correlations cost.
    Learned proposals have no such limit.

    "unbiased" is so in the limit of long chains. They begin in their stationary
    distribution, and five choices among ten draws each leave little of their start.

    References
    ----------
    Yin and Zhou (2018), *Semi-implicit variational inference*. Titsias and Ruiz (2019),
    *Unbiased implicit variational inference*. Sobolev and Vetrov (2019), *Importance
    weighted hierarchical variational inference*.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import Layout
    >>> from skvi.posteriors import SemiImplicitMixture
    >>> q = SemiImplicitMixture(n_mixture=5).build(Layout({"coef": (1, 2)}))
    >>> q.draw(3, torch.Generator().manual_seed(0)).side
    'upper'
    """

    _parameter_constraints: dict = {
        **_NormalGivenAuxiliary._parameter_constraints,
        "n_mixture": [Interval(Integral, 1, None, closed="left")],
        "proposal": [StrOptions({"learned", "prior"})],
        "gradient": [StrOptions({"bound", "unbiased"})],
    }

    def __init__(
        self,
        n_mixture: int = 10,
        n_auxiliary: int | None = None,
        n_hidden: int = 30,
        proposal: str = "learned",
        gradient: str = "bound",
        whiten: bool = True,
    ) -> None:
        self.n_mixture = n_mixture
        self.n_auxiliary = n_auxiliary
        self.n_hidden = n_hidden
        self.proposal = proposal
        self.gradient = gradient
        self.whiten = whiten


class HierarchicalVariational(_NormalGivenAuxiliary):
    r"""Normals whose moments are functions of noise, with a learned reverse model.

    As `SemiImplicitMixture`, with the auxiliary-variable bound, K = 0: one term, and no
    mixture.

    .. math::
        \mathrm{ELBO} \ge E \log p(D, \theta) - E \log \frac{q(\theta | e)\, p(e)}{r(e
        | \theta)}

    The distance is the mean of :math:`KL(q(e | \theta) \| r(e | \theta))`. It is the
    cheapest bound. ``diagnostics_["elbo_upper"]`` is an estimate of the upper one,
    :math:`\mathcal{L}^K` of `SemiImplicitMixture`, with ten draws from r.

    Parameters
    ----------
    n_auxiliary : int, default=None
        As of `SemiImplicitMixture`.
    n_hidden : int, default=30
        As of `SemiImplicitMixture`, also behind the moments of r.
    whiten : bool, default=True
        As of `SemiImplicitMixture`.

    References
    ----------
    Ranganath, Tran and Blei (2016), *Hierarchical variational models*. Agakov and
    Barber (2004), *An auxiliary variational method*.

    Examples
    --------
    >>> from skvi.posteriors import HierarchicalVariational
    >>> HierarchicalVariational(n_hidden=20)
    HierarchicalVariational(n_hidden=20)
    """

    def __init__(
        self,
        n_auxiliary: int | None = None,
        n_hidden: int = 30,
        whiten: bool = True,
    ) -> None:
        self.n_auxiliary = n_auxiliary
        self.n_hidden = n_hidden
        self.whiten = whiten


class SemiImplicitPosterior(AuxiliaryPosterior):
    """Normals of u with moments that are a regression on e; so is r, if learned."""

    def __init__(
        self,
        layout: Layout,
        settings: Settings,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(layout, settings)
        generator = make_generator(0) if generator is None else generator
        size, n_aux, n_hidden = layout.size, settings.n_auxiliary, settings.n_hidden
        self._forward = Regression(n_aux, n_hidden, size)
        self._reverse = Regression(size, n_hidden, n_aux)
        self.n_forward = self._forward.n_params
        # Orthonormal columns: u is near N(0, I), and the reverse is known.
        loading = torch.linalg.qr(randn(generator, max(size, n_aux), n_aux))[0]
        loading = SHARE**0.5 * loading[:size]
        start = 0.5 * math.log1p(-SHARE)
        parts = [self._forward.start(loading, start, generator)]
        if settings.is_learned:
            parts.append(self._reverse.start(loading.T, start, generator))
        self.params = torch.cat(parts)

    def conditional(self, e: torch.Tensor, params: torch.Tensor) -> NormalForm:
        return self._forward(params[: self.n_forward], e)

    def proposal(self, u: torch.Tensor, params: torch.Tensor) -> NormalForm:
        if self.settings.is_learned:
            return self._reverse(params[self.n_forward :], u)
        mean = u.new_zeros(len(u), self.settings.n_auxiliary)
        return NormalForm(mean, torch.ones_like(mean))


class Gamma(Family):
    """Independent Gamma distributions of positive parameters: 2 P numbers.

    A draw is the logarithm of the positive parameter, and densities are those of the
    logarithm, including the Jacobian. For blocks with the bijection "exp", such as
    precisions.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import Layout
    >>> from skvi.posteriors import Gamma
    >>> layout = Layout({"precision": (1,)}, {"precision": "exp"})
    >>> posterior = Gamma().build(layout)  # Gamma(1, 1)
    >>> posterior.log_prob(torch.zeros(1, 1).double())
    tensor([-1.], dtype=torch.float64)
    """

    def build(
        self, layout: Layout, generator: torch.Generator | None = None
    ) -> Posterior:
        """Build the posterior at Gamma(1, 1); see `Family.build`."""
        check_bijection("Gamma", layout, "exp", "positive")
        return _GammaPosterior(layout)


class Beta(Family):
    """Independent Beta distributions of parameters between 0 and 1: 2 P numbers.

    A draw is the log odds of the parameter, and densities are those of the log odds,
    including the Jacobian. For blocks with the bijection "sigmoid", such as
    probabilities.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import Layout
    >>> from skvi.posteriors import Beta
    >>> layout = Layout({"share": (1,)}, {"share": "sigmoid"})
    >>> posterior = Beta().build(layout)  # Beta(1, 1)
    >>> posterior.log_prob(torch.zeros(1, 1).double()).exp()
    tensor([0.2500], dtype=torch.float64)
    """

    def build(
        self, layout: Layout, generator: torch.Generator | None = None
    ) -> Posterior:
        """Build the posterior at Beta(1, 1); see `Family.build`."""
        check_bijection("Beta", layout, "sigmoid", "unit_interval")
        return _BetaPosterior(layout)


def check_bijection(family: str, layout: Layout, bijection: str, support: str) -> None:
    """Raise if a block does not have the bijection that a family is for."""
    wrong = [name for name in layout if layout[name].bijection != bijection]
    if wrong:
        raise IncompatibleComponentsError(
            f"{family}()",
            f"blocks with support {support!r} (bijection {bijection!r}), which {wrong} "
            "do not have",
            "a normal family for them, or another support",
        )


class _Pairs(Posterior):
    """Variational parameters: the logs of the first numbers, then of the second."""

    has_log_prob_terms = True

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.params = torch.zeros(2 * layout.size, dtype=torch.float64, device=CPU)

    def _pair(self, params: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
        params = self.params if params is None else params
        return params.exp().split(self.layout.size)

    def _near_pair(self, first: torch.Tensor, second: torch.Tensor) -> Self:
        return self.at(torch.cat([first, second]).log().to(self.params))

    def draw(self, n_draws: int, generator: torch.Generator) -> Draw:
        first, second = (x.expand(n_draws, -1) for x in self._pair())
        draws = self._draws(first, second, generator).to(self.params.dtype)
        return Draw(draws, self.log_prob(draws), self.side)

    @staticmethod
    def _draws(
        first: torch.Tensor, second: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor:
        raise NotImplementedError

    def log_prob(
        self, theta: torch.Tensor, params: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self.log_prob_terms(theta, params).sum(1)


class _GammaPosterior(_Pairs):
    """Variational parameters: log shapes, log rates."""

    def near(self, normal: NormalForm) -> Self:
        """With its mean and nearly its variance: trigamma is 1/a + 1/(2 a^2)."""
        variance = normal.variance
        shape = (1 + (1 + 2 * variance).sqrt()) / (2 * variance)
        return self._near_pair(shape, (torch.digamma(shape) - normal.mean).exp())

    @staticmethod
    def _draws(
        first: torch.Tensor, second: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor:
        return log_gamma_draws(first, generator) - second.log()

    def log_prob_terms(
        self, theta: torch.Tensor, params: torch.Tensor | None = None
    ) -> torch.Tensor:
        shape, rate = self._pair(params)
        return log_gamma_density(theta, shape, rate.log())


class _BetaPosterior(_Pairs):
    """Variational parameters: the logs of both counts."""

    def near(self, normal: NormalForm) -> Self:
        """With nearly its moments of log odds, of large counts a and b.

        Their mean is log(a / b), and their variance 1/a + 1/b.
        """
        odds, variance = normal.mean.exp(), normal.variance
        return self._near_pair((1 + odds) / variance, (1 + 1 / odds) / variance)

    @staticmethod
    def _draws(
        first: torch.Tensor, second: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor:
        return log_gamma_draws(first, generator) - log_gamma_draws(second, generator)

    def log_prob_terms(
        self, theta: torch.Tensor, params: torch.Tensor | None = None
    ) -> torch.Tensor:
        a, b = self._pair(params)
        norm = torch.lgamma(a + b) - torch.lgamma(a) - torch.lgamma(b)
        log_odds = torch.nn.functional.logsigmoid
        return norm + a * log_odds(theta) + b * log_odds(-theta)
