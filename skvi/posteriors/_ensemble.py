"""Mixtures of posteriors that are trained independently, from different starts."""

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Self

import torch

from skvi.base import Draw, Layout, NormalForm
from skvi.base._draw import Side
from skvi.base._gamma_form import GammaForm
from skvi.base._protocols import JointDensity
from skvi.posteriors._low_rank import LowRankNormal
from skvi.posteriors._normal import FullRankNormal, MeanFieldNormal
from skvi.posteriors.base import Family, Posterior
from skvi.utils._log_space import log_mean_exp
from skvi.utils._random import rand
from skvi.utils._validation import Interval, StrOptions

__all__ = ["Ensemble"]

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

    Draws are stratified: in every run of M of them each member occurs once, in random
    order, so that means over draws have less noise and no bias.

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


def draw_components(
    parts: Sequence[Posterior], component: torch.Tensor, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw theta, with its log density in its own part, from the parts by number."""
    counts = component.bincount(minlength=len(parts)).tolist()
    pairs = zip(parts, counts, strict=True)
    drawn = [part.draw(count, generator) for part, count in pairs if count]
    order = torch.argsort(torch.argsort(component, stable=True))
    theta, log_q = zip(*((draw.theta, draw.log_q) for draw in drawn), strict=True)
    return torch.cat(theta)[order], torch.cat(log_q)[order]


class _EnsemblePosterior(Posterior):
    """Variational parameters: those of the members, concatenated."""

    def __init__(self, members: Sequence[Posterior]) -> None:
        self.layout = members[0].layout
        # Stored without their parameters, to avoid a copy.
        self._members = tuple(member.at(member.params[:0]) for member in members)
        self.params = torch.cat([member.params for member in members])

    @property
    def side(self) -> Side:  # type: ignore[override]
        """The side of the members if that is "exact" or "upper", else "none".

        On average over its draws, log q of a member is above that of the mixture.
        """
        side = self._members[0].side
        return side if side in ("exact", "upper") else "none"

    @property
    def components(self) -> tuple[Posterior, ...]:
        return self._at(self.params)

    def _at(self, params: torch.Tensor) -> tuple[Posterior, ...]:
        rows = params.reshape(len(self._members), -1)
        return tuple(m.at(row) for m, row in zip(self._members, rows, strict=True))

    def with_components(self, components: Sequence[Posterior]) -> Self:
        return self.at(torch.cat([component.params for component in components]))

    def draw(self, n_draws: int, generator: torch.Generator) -> Draw:
        """Draw equally often (up to one) from every member; see `Posterior.draw`."""
        component = self._assign(n_draws, generator)
        # That of the member may be the only one known: the ELBO is then their mean.
        theta, log_q = draw_components(self.components, component, generator)
        log_q = self.log_prob(theta) if self.side == "exact" else log_q
        return Draw(theta, log_q, self.side, component=component)

    def _assign(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        """Members of the draws: random permutations of all, one after the other."""
        n_members = len(self._members)
        keys = rand(generator, math.ceil(n_draws / n_members), n_members)
        return torch.argsort(keys, 1).reshape(-1)[:n_draws]

    def log_prob(
        self, theta: torch.Tensor, params: torch.Tensor | None = None
    ) -> torch.Tensor:
        members = self._at(self.params if params is None else params)
        logs = torch.stack([member.log_prob(theta) for member in members])
        return log_mean_exp(logs, 0)

    def near(self, normal: NormalForm) -> Self:
        """All members near the normal; `with_components` makes them different."""
        return self.with_components([c.near(normal) for c in self.components])

    def near_gamma(self, gamma: GammaForm) -> Self:
        return self.with_components([c.near_gamma(gamma) for c in self.components])

    def real_part(self) -> Posterior:
        return _EnsemblePosterior([c.real_part() for c in self.components])

    def refine(self, target: JointDensity, generator: torch.Generator) -> Posterior:
        """Refine every member; see `Posterior.refine`."""
        components = self.components
        refined = [c.refine(target, generator) for c in components]
        pairs = zip(refined, components, strict=True)
        if all(found is component for found, component in pairs):
            return self
        return _EnsemblePosterior(refined)
