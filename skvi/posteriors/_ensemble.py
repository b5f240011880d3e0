"""Posteriors of networks: ensembles, and noise on the weights of a layer."""

from collections.abc import Sequence
from numbers import Integral
from typing import Self

import torch

from skvi.base import Layout, NormalForm
from skvi.base._component import JointDensity
from skvi.posteriors._mixture import Mixture
from skvi.posteriors._normal import (
    FullRankNormal,
    LowRankNormal,
    MeanFieldNormal,
    NormalPosterior,
)
from skvi.posteriors.base import Family, Posterior
from skvi.utils._tensors import CPU
from skvi.utils._validation import Interval, StrOptions

#: Families of the members of mixtures.
BASES: dict[str, type[Family]] = {
    "mean_field": MeanFieldNormal,
    "low_rank": LowRankNormal,
    "full_rank": FullRankNormal,
}


class Ensemble(Family):
    r"""Mixture of posteriors that are trained in parallel, each from its own start.

    .. math:: q(\theta) = \frac{1}{M} \sum_{m=1}^M q_m(\theta)

    If a posterior has many modes, like that of a neural network, every member finds one
    of them, and predictions average over all: intervals widen where the members
    disagree, which a single member cannot represent.

    Parameters
    ----------
    base : {"mean_field", "low_rank", "full_rank"} or Family, default="mean_field"
        Family of the members.
    n_members : int, default=8
        M.

    Notes
    -----
    Every member is trained as it would be alone: the mean of the objective over the
    members is minimized, and reported as `objective_value_`. Parameters that the target
    learns besides the posterior, such as the scale of the noise, are shared, and follow
    the mean of the members' gradients. There is therefore a single target, and the mean
    of the members' ELBOs is a bound of one log evidence; with separate scales each
    member would bound a different one.

    The ELBO of the mixture lies above that mean by the mutual information between
    theta and the index of the member, which is between 0 (members that are equal) and
    log M (members that do not overlap):

    .. math:: \mathrm{ELBO}(q) = \frac{1}{M} \sum_m \mathrm{ELBO}(q_m) + I(\theta; m)

    `lower_bound_` estimates it from draws. Members have equal weights, which is robust
    in prediction. The weights that maximize the bound of members that do not overlap
    are proportional to exp(ELBO of the member): a difference of a few nats, less than
    the noise between two starts, would leave a single member.

    Draws are stratified: of S of them S / M, rounded up or down, are of each member, in
    random order, so that means over draws have less noise and no bias.

    Linear models, whose posterior has a single mode, do not benefit. For networks it
    helps where there are no rows: in a gap of a sine the log density of new rows rises
    by .5 nats a row with the defaults and by 1.4 with two layers, among the rows of six
    sets by less than two standard errors (``benchmarks/bench_ensembles.py``;
    2026-11-25, 1 core, x86_64).

    References
    ----------
    Lakshminarayanan, Pritzel and Blundell (2017), *Simple and scalable predictive
    uncertainty estimation using deep ensembles*.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import Layout
    >>> from skvi.posteriors import Ensemble
    >>> posterior = Ensemble(n_members=3).build(Layout({"coef": (1, 2)}))
    >>> posterior.params.shape  # 2 means and 2 standard deviations each
    torch.Size([12])
    >>> draw = posterior.draw(6, torch.Generator().manual_seed(0))
    >>> sorted(draw.component.tolist())
    [0, 0, 1, 1, 2, 2]
    """

    _parameter_constraints: dict = {
        "base": [StrOptions(set(BASES)), Family],
        "n_members": [Interval(Integral, 1, None, closed="left")],
    }

    def __init__(self, base: str | Family = "mean_field", n_members: int = 8) -> None:
        self.base = base
        self.n_members = n_members

    def _family(self) -> Family:
        return BASES[self.base]() if isinstance(self.base, str) else self.base

    def build(
        self, layout: Layout, generator: torch.Generator | None = None
    ) -> Posterior:
        """Build the members, each at a start of its family; see `Family.build`."""
        self.validate()
        family = self._family()
        family.validate()
        members = [family.build(layout, generator) for _ in range(self.n_members)]
        return _EnsemblePosterior(members)

    def check_size(self, n_params: int) -> None:
        """Apply the check of the family of the members."""
        self.validate()
        self._family().check_size(n_params)


class _EnsemblePosterior(Mixture):
    """Equal weights; members are components, trained one by one."""

    @property
    def components(self) -> tuple[Posterior, ...]:
        return self.members

    def weighted(
        self, members: Sequence[Posterior], log_weights: torch.Tensor
    ) -> Posterior:
        """Mixture of these members with these weights, which are not learned."""
        return _EnsemblePosterior(members, log_weights)

    def with_components(self, components: Sequence[Posterior]) -> Self:
        return self.with_members(components)

    def near(self, normal: NormalForm) -> Self:
        """All members near the normal; `with_components` makes them different."""
        return self.with_members([m.near(normal) for m in self.members])

    def real_part(self) -> Posterior:
        return _EnsemblePosterior([m.real_part() for m in self.members])

    def refine(self, target: JointDensity, generator: torch.Generator) -> Posterior:
        """Refine every member; see `Posterior.refine`."""
        members = self.members
        refined = [m.refine(target, generator) for m in members]
        pairs = zip(refined, members, strict=True)
        if all(found is member for found, member in pairs):
            return self
        return _EnsemblePosterior(refined)

    @property
    def n_stored(self) -> int | None:  # type: ignore[override]
        """Samples of all members, if they are stored."""
        counts = [member.n_stored or 0 for member in self._members]
        return sum(counts) or None

    @property
    def unrefined(self) -> Posterior:
        if self.n_stored is None:
            return self
        return _EnsemblePosterior([m.unrefined for m in self.members])


# Standard deviation of weights of mean 0, in units of the natural scale of the layer:
# with none at all the density is a point mass there, and the divergence infinite.
FLOOR = 1e-3
# Smallest ratio of a variance to the squared mean.
MIN_RATIO = 1e-8


class GaussianDropout(Family):
    r"""Dropout with normal noise, whose rate is learned for every layer.

    Every weight has a mean m and, as in Gaussian dropout, a standard deviation
    proportional to it:

    .. math:: q(w) = N(m, \alpha m^2 + (10^{-3} s)^2)

    with one :math:`\alpha` for each block of weights and its natural scale s. It
    is the noise of dropout with the rate ``p = alpha / (1 + alpha)``, which multiplies
    weights by numbers of mean 1 and variance ``p / (1 - p)``. Other blocks, such as
    intercepts, have a standard deviation for each number. So there are about P numbers
    to learn, half of those of `MeanFieldNormal`, and the rates need no validation set.

    Attributes of what it builds: ``rates``, a dict with the rate of each block.

    Notes
    -----
    q is a normal with a density, so that the divergence from a normal prior is in
    closed form, the ELBO is a bound, and evidence bounds hold. None of that is true of
    dropout by zeros (Gal and Ghahramani 2016), whose posterior has no density. With a
    mixture of two normals for each unit it has one; its rate then learns to drop
    nothing, as the page of claims shows. The floor :math:`10^{-3} s` matters only for
    weights next to 0. Noise is drawn for weights, not for inputs, so that the weights
    of a unit are independent.

    Mean-field normals are more flexible, and do better: weights that the data do not
    inform keep the width of the prior, whereas here weights close to 0 are necessarily
    narrow, which costs many nats. With 20 units the ELBO of dropout was lower by 74
    nats on a wave in 150 rows, 191 on friedman1 (300 rows, test R^2 0.70 instead of
    0.92) and 59 on diabetes data.

    References
    ----------
    Kingma, Salimans and Welling (2015), *Variational dropout and the local
    reparameterization trick*, section 3.2; Hron, Matthews and Ghahramani (2018),
    *Variational Bayesian dropout: pitfalls and fixes*, on what goes wrong with
    improper priors and without densities.

    Examples
    --------
    >>> from skvi.posteriors._ensemble import GaussianDropout
    >>> from skvi.predictors import MLPPredictor
    >>> layout = MLPPredictor(3, 1, hidden_layer_sizes=(4,)).layout
    >>> posterior = GaussianDropout().build(layout)
    >>> posterior.params.shape  # 21 means, 5 deviations of intercepts, 2 rates
    torch.Size([28])
    >>> list(posterior.rates)
    ['coef_0', 'coef_1']
    """

    def build(
        self, layout: Layout, generator: torch.Generator | None = None
    ) -> Posterior:
        """Build the posterior at mean 0; see `Family.build`."""
        return _DropoutPosterior(layout)


class _DropoutPosterior(NormalPosterior):
    """Variational parameters: means, log deviations of other blocks, log alphas."""

    is_diagonal = True

    def __init__(self, layout: Layout) -> None:
        self.names = [
            name
            for name, block in layout.items()
            if block.role == "weight" and name not in layout.positive
        ]
        self.floor = (FLOOR * layout.natural_scales()).square()
        others = [name for name in layout if name not in self.names]
        self.others = layout.positions(others)
        self.weights = layout.positions(self.names)
        layers = range(len(self.names))
        index = [i for i in layers for _ in range(layout[self.names[i]].size)]
        self.layer = torch.tensor(index, dtype=torch.long, device=CPU)
        super().__init__(layout)

    @property
    def rates(self) -> dict[str, float]:
        """Dropout rates of the blocks of weights."""
        ratios = self._split(self.params.detach())[2].exp().tolist()
        pairs = zip(self.names, ratios, strict=True)
        return {name: ratio / (1 + ratio) for name, ratio in pairs}

    def _split(self, params: torch.Tensor) -> tuple[torch.Tensor, ...]:
        sizes = [self.layout.size, len(self.others), len(self.names)]
        return params.split(sizes)

    def normal(self, params: torch.Tensor | None = None) -> NormalForm:
        params = self.params if params is None else params
        mean, log_std, log_ratio = self._split(params)
        device = mean.device
        weights, floor = self.weights.to(device), self.floor.to(mean)
        ratio = log_ratio.exp()[self.layer.to(device)]
        variance = ratio * mean[weights].square() + floor[weights]
        scale = torch.empty_like(mean)
        scale = scale.index_put((weights,), variance.sqrt())
        scale = scale.index_put((self.others.to(device),), log_std.exp())
        return NormalForm(mean, scale)

    def _params_of(self, normal: NormalForm) -> torch.Tensor:
        """The same means, and in each block of weights the same mean variance."""
        device = normal.mean.device
        weights, layer = self.weights.to(device), self.layer.to(device)
        variance, floor = normal.variance, self.floor.to(normal.mean)
        zeros = variance.new_zeros(len(self.names))
        own = (variance - floor)[weights]
        above = zeros.index_add(0, layer, own)
        squares = zeros.index_add(0, layer, normal.mean[weights].square())
        tiny = torch.finfo(squares.dtype).tiny
        ratio = (above / squares.clamp(min=tiny)).clamp(MIN_RATIO, 1 / MIN_RATIO)
        log_std = 0.5 * variance[self.others.to(device)].log()
        return torch.cat([normal.mean, log_std, ratio.log()])
