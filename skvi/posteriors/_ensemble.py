"""Ensembles: mixtures of posteriors that are trained in parallel."""

from collections.abc import Sequence
from numbers import Integral
from typing import Self

import torch

from skvi.base import Layout, NormalForm
from skvi.base._component import JointDensity
from skvi.posteriors._mixture import Mixture
from skvi.posteriors._normal import FullRankNormal, LowRankNormal, MeanFieldNormal
from skvi.posteriors.base import Family, Posterior
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
    >>> from skvi.base import Layout, NormalForm
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
