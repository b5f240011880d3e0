"""Mixtures of posteriors: densities, strata of draws, scales of a prior."""

import math
from collections.abc import Sequence
from typing import Self, cast

import torch

from skvi.base import Draw, Layout, NormalForm
from skvi.base._component import JointDensity
from skvi.base._draw import Side
from skvi.posteriors._bordered import BorderedForm
from skvi.posteriors._normal import FullRankNormal, MeanFieldNormal
from skvi.posteriors.base import Posterior
from skvi.utils._tensors import rand


class Mixture(Posterior):
    r"""Mixture of posteriors of one family.

    .. math:: q(\theta) = \sum_k w_k q_k(\theta)

    Variational parameters: those of the members, then the logs of the weights, which
    need not be normalized; without these the weights are equal.
    """

    def __init__(
        self, members: Sequence[Posterior], log_weights: torch.Tensor | None = None
    ) -> None:
        self.layout = members[0].layout
        # Stored without their parameters, to avoid a copy.
        self._members = tuple(member.at(member.params[:0]) for member in members)
        self.has_full_path = log_weights is None
        params = [member.params for member in members]
        if log_weights is not None:
            params.append(log_weights)
        self.params = torch.cat(params)

    @property
    def side(self) -> Side:  # type: ignore[override]
        """The side of the members if that is "exact" or "upper", else "none".

        On average over its draws, log q of a member is above that of the mixture.
        """
        side = self._members[0].side
        return side if side in ("exact", "upper") else "none"

    @property
    def members(self) -> tuple[Posterior, ...]:
        """The posteriors that are mixed."""
        return self._split(self.params)[0]

    @property
    def log_weights(self) -> torch.Tensor:
        """Logs of their weights, (K,), normalized."""
        return self._split(self.params)[1]

    def _split(
        self, params: torch.Tensor
    ) -> tuple[tuple[Posterior, ...], torch.Tensor]:
        n_members = len(self._members)
        weights = params.new_zeros(n_members)
        if not self.has_full_path:
            params, weights = params[:-n_members], params[-n_members:]
        rows = params.reshape(n_members, -1)
        members = (m.at(row) for m, row in zip(self._members, rows, strict=True))
        return tuple(members), torch.log_softmax(weights, 0)

    def normals(self) -> list[NormalForm]:
        """The members as normals.

        Returns
        -------
        list of NormalForm
            Detached; fewer than there are members if not all are normal.
        """
        found = (member.as_normal() for member in self.members)
        return [normal for normal in found if normal is not None]

    def with_members(self, members: Sequence[Posterior]) -> Self:
        """The mixture with other members, weights as they are.

        Parameters
        ----------
        members : sequence of Posterior
            As many as `members`, of the same families.

        Returns
        -------
        Mixture
        """
        parts = [member.params for member in members]
        count = sum(len(part) for part in parts)
        return self.at(torch.cat([*parts, self.params[count:]]))

    def draw(self, n_draws: int, generator: torch.Generator) -> Draw:
        """Draw members by their weights, then theta; see `Posterior.draw`."""
        # Systematic sampling: numbers of draws are right up to one, orders random.
        ends = self.log_weights.detach().double().exp().cumsum(0)[:-1].contiguous()
        steps = torch.arange(n_draws, device=ends.device)
        places = (rand(generator, 1) + steps) / n_draws
        component = torch.searchsorted(ends, places)
        order = torch.argsort(rand(generator, n_draws))
        return self._draw(component[order], generator)

    def draw_strata(self, n_draws: int, generator: torch.Generator) -> Draw:
        """Draw equally often from every member; see `Posterior.draw_strata`."""
        n_members = len(self._members)
        n_all = -(-n_draws // n_members) * n_members
        # Random order: draws can be paired with those of another mixture.
        component = torch.argsort(rand(generator, n_all)) % n_members
        weight = n_members * self.log_weights.exp()[component]
        return self._draw(component, generator, weight)

    def _draw(
        self,
        component: torch.Tensor,
        generator: torch.Generator,
        weight: torch.Tensor | None = None,
    ) -> Draw:
        """Draw from members by number."""
        members = self.members
        counts = component.bincount(minlength=len(members)).tolist()
        pairs = zip(members, counts, strict=True)
        drawn = [member.draw(count, generator) for member, count in pairs if count]
        order = torch.argsort(torch.argsort(component, stable=True))
        theta = torch.cat([draw.theta for draw in drawn])[order]
        # That of the member may be the only one known: the ELBO is then their mean.
        log_q = torch.cat([draw.log_q for draw in drawn])[order]
        log_q = self.log_prob(theta) if self.side == "exact" else log_q
        return Draw(theta, log_q, self.side, component=component, weight=weight)

    def log_prob(
        self, theta: torch.Tensor, params: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Log density of the mixture; see `Posterior.log_prob`."""
        members, log_weights = self._split(self.params if params is None else params)
        logs = torch.stack([member.log_prob(theta) for member in members])
        return torch.logsumexp(logs + log_weights[:, None], 0)


# Fewest effective draws that can tell weights.
MIN_EFFECTIVE = 400


class MixtureOverScales(Mixture):
    r"""Posterior under a prior of unknown scale: a mixture over nodes of its logarithm.

    .. math:: q(\theta) = \sum_k w_k q_k(\theta)

    Variational parameters: those of the components, then the log weights.

    Parameters
    ----------
    nodes : sequence of Posterior
        The posterior at each scale, all of one family.
    log_weights : sequence of float
        Logs of the probabilities of the scales.
    log_scales : sequence of float, or of several for each node, or None
        One in ascending order; None under a known scale, with nodes of a number of the
        likelihood.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import Layout, NormalForm
    >>> from skvi.posteriors import MeanFieldNormal
    >>> from skvi.posteriors._mixture import MixtureOverScales
    >>> base = MeanFieldNormal().build(Layout({"coef": (1, 1)}))
    >>> one = torch.ones(1).double()
    >>> nodes = [base.near(NormalForm(m * one, one)) for m in (0.0, 1.0)]
    >>> q = MixtureOverScales(nodes, [-0.6931471805599453] * 2, [-1.0, 1.0])
    >>> float(q.draw(10_000, torch.Generator().manual_seed(0)).theta.mean())
    0.5
    """

    def __init__(
        self,
        nodes: Sequence[Posterior],
        log_weights: Sequence[float],
        log_scales: Sequence[float] | Sequence[Sequence[float]] | None,
    ) -> None:
        like = nodes[0].params.new_tensor
        super().__init__(nodes, like(list(log_weights)))
        self.units = nodes[0].units
        self.log_scales = None if log_scales is None else like(list(log_scales))

    @property
    def nodes(self) -> tuple[Posterior, ...]:
        """The posterior at each scale."""
        return self.members

    def places(self) -> torch.Tensor:
        """Logs of the unknown numbers at the nodes.

        Returns
        -------
        Tensor of shape (K, m)
            The scales that are unknown, then positive parameters of the likelihood.
        """
        z = []
        if self.log_scales is not None:
            z += list(self.log_scales.reshape(len(self._members), -1).T)
        # Normals begin with their means.
        count = len(self._members)
        rows = self.params.detach()[:-count].reshape(count, -1)
        z += list(rows[:, _n_real(self.layout) : self.layout.size].T)
        return torch.stack(z, 1)

    def real_part(self) -> Posterior:
        """Without positive parameters: the normal with the moments of the mixture."""
        size = _n_real(self.layout)
        if size == self.layout.size:
            return self
        names = [n for n in self.layout if n not in self.layout.positive]
        layout = self.layout.only(*names)
        normal = leading(cast(NormalForm, self.as_prior().as_normal()), size)
        family = FullRankNormal() if normal.scale.ndim == 2 else MeanFieldNormal()
        return family.build(layout).near(normal)

    @property
    def likeliest(self) -> Posterior:
        """The node with the largest weight."""
        return self.nodes[int(self.log_weights.argmax())]

    def in_family(self, posterior: Posterior) -> "MixtureOverScales":
        """The mixture with nodes of another family.

        Parameters
        ----------
        posterior : Posterior
            Of the family.

        Returns
        -------
        MixtureOverScales
        """
        nodes = [posterior.near(normal) for normal in self.normals()]
        log_weights = self.log_weights.detach().tolist()
        z = None if self.log_scales is None else self.log_scales.tolist()
        return MixtureOverScales(nodes, log_weights, z)

    def as_prior(self) -> Posterior:
        """The member of the family of the nodes that has the mixture's moments.

        Returns
        -------
        Posterior
        """
        weights, normals = self.log_weights.detach().exp(), self.normals()
        means = torch.stack([normal.mean for normal in normals])
        mean = weights @ means
        moved = weights.sqrt()[:, None] * (means - mean)
        near = normals[int(weights.argmax())]
        if near.scale.ndim == 2:
            # In units of one of them, in which no sum is singular.
            parts = zip(weights.sqrt(), normals, strict=True)
            roots = torch.cat([w * normal.scale for w, normal in parts] + [moved.T], 1)
            white = torch.linalg.solve_triangular(near.scale, roots, upper=False)
            root = near.scale @ torch.linalg.cholesky(white @ white.T)
            return self.likeliest.near(NormalForm(mean, root))
        variances = torch.stack([normal.variance for normal in normals])
        variance = weights @ variances + moved.square().sum(0)
        ratio = (variance / near.variance).sqrt()
        if isinstance(near, BorderedForm):
            return self.likeliest.near(near.stretched(mean, ratio))
        factor = None if near.factor is None else ratio[:, None] * near.factor
        return self.likeliest.near(NormalForm(mean, ratio * near.scale, factor))

    def weighed(self, target: JointDensity, n_draws: int) -> "MixtureOverScales":
        """The mixture with weights by draws of the nodes, if these can tell them.

        ``w_k E_q_k[p / q]``: a step of the EM algorithm to the least KL(p || q).

        Parameters
        ----------
        target : Target
            Of p, at any unknown scale.
        n_draws : int
            Of every node.

        Returns
        -------
        MixtureOverScales
        """
        generator = torch.Generator(self.params.device).manual_seed(0)
        theta = torch.cat([node.draw(n_draws, generator).theta for node in self.nodes])
        ratio = target.log_joint(theta) - self.log_prob(theta)
        log_w = self.log_weights[:, None] + ratio.view(-1, n_draws)
        log_ess = 2 * log_w.logsumexp((0, 1)) - (2 * log_w).logsumexp((0, 1))
        if not log_ess > math.log(MIN_EFFECTIVE):
            return self
        found = log_w.logsumexp(1).log_softmax(0).tolist()
        z = None if self.log_scales is None else self.log_scales.tolist()
        return MixtureOverScales(self.nodes, found, z)

    def refine(self, target: JointDensity, generator: torch.Generator) -> Posterior:
        """Refine the normal of `as_prior`; see `Posterior.refine`."""
        if self.likeliest.refinement is None:
            return self
        return self.as_prior().refine(target, generator)


def _n_real(layout: Layout) -> int:
    """Parameters before the positive ones, which come last."""
    return layout.size - sum(layout[name].size for name in layout.positive)


def leading(normal: NormalForm, size: int) -> NormalForm:
    """Normal of the first parameters."""
    if normal.size == size:
        return normal
    if isinstance(normal, BorderedForm):
        return normal.leading()
    if normal.scale.ndim == 1:
        return NormalForm(normal.mean[:size], normal.scale[:size])
    return NormalForm(normal.mean[:size], normal.scale[:size, :size])


def beside(normal: NormalForm, mean: float, std: float) -> NormalForm:
    """A normal joined with an independent one of a number."""
    like = normal.mean.new_tensor
    if isinstance(normal, BorderedForm):
        return normal.joined(like([mean]), like([std]))
    center = torch.cat([normal.mean, like([mean])])
    if normal.scale.ndim == 1:
        return NormalForm(center, torch.cat([normal.scale, like([std])]))
    return NormalForm(center, torch.block_diag(normal.scale, like([[std]])))
