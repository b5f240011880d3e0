"""Mixtures of posteriors: their density, and draws in strata."""

from collections.abc import Sequence
from typing import Self

import torch

from skvi.base import Draw, NormalForm
from skvi.base._draw import Side
from skvi.posteriors.base import Posterior
from skvi.utils._random import rand

__all__ = ["Mixture"]


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
