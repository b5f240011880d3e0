"""Families that are normal given noise: its moments are functions of it."""

import math
from numbers import Integral

import torch

from skvi.base import Layout, NormalForm
from skvi.posteriors._auxiliary import (
    SHARE,
    AuxiliaryPosterior,
    Regression,
    Settings,
)
from skvi.posteriors.base import Family, Posterior
from skvi.utils._random import make_generator, randn
from skvi.utils._validation import Interval, StrOptions

__all__ = ["HierarchicalVariational", "SemiImplicitMixture"]

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
        itself, with Hamiltonian chains of e given theta that start at the e that
        generated theta; it takes several times as long. What it ignores, the distance
        of the lower bound, can grow on the way: with more than a few parameters
        `lower_bound_` is higher under "bound".
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
    distribution, and five transitions of five steps leave little of their start where
    r is close to the distribution of e given theta.

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
    cheapest bound, and the only one that no upper bound accompanies.

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
