"""Posteriors of discrete parameters, and draws that sum over their values."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from skvi.base import Draw, Layout
from skvi.posteriors._pairs import check_bijection
from skvi.posteriors.base import Family, Posterior
from skvi.utils._device import CPU
from skvi.utils._random import rand, randn

__all__ = ["Categorical", "CategoricalPosterior", "vary"]


class Categorical(Family):
    """Independent probabilities of the values of discrete parameters.

    A Bernoulli distribution where there are two values: one number for each value of
    each parameter. For blocks with the bijection "integer".

    Examples
    --------
    >>> import torch
    >>> from skvi.base import Layout
    >>> from skvi.posteriors._categorical import Categorical
    >>> layout = Layout({"k": (2,)}, {"k": "integer"}, limits={"k": (0, 3)})
    >>> posterior = Categorical().build(layout)
    >>> posterior.log_prob(torch.tensor([[0.0, 3.0]]).double()).exp()
    tensor([0.0625], dtype=torch.float64)
    """

    def build(
        self, layout: Layout, generator: torch.Generator | None = None
    ) -> Posterior:
        """Build it, at random probabilities with a generator; see `Family.build`."""
        # Exchangeable values, such as labels of a mixture, would stay equal.
        check_bijection("Categorical", layout, "integer", "boolean")
        posterior = CategoricalPosterior(layout)
        if generator is None:
            return posterior
        return posterior.at(randn(generator, len(posterior.params)))


class _Neighbors(NamedTuple):
    """Draws that differ from a given one in one coordinate.

    Numbers of the given draws, theta, and q of the value that differs.
    """

    source: torch.Tensor
    theta: torch.Tensor
    probability: torch.Tensor


class CategoricalPosterior(Posterior):
    """Variational parameters: logits of all values, coordinate by coordinate."""

    has_full_path = False
    has_log_prob_terms = True

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.low, high = layout.limits()
        counts = (high - self.low).long() + 1
        #: Whether a coordinate has so many values, (P, K).
        every = torch.arange(int(counts.max()), device=CPU)
        self.has_value = every < counts[:, None]
        self.params = torch.zeros(int(counts.sum()), dtype=torch.float64, device=CPU)

    def log_probs(self, params: torch.Tensor | None = None) -> torch.Tensor:
        """Log probabilities of all values, (P, K); -inf where there is none."""
        params = self.params if params is None else params
        logits = params.new_full(self.has_value.shape, -torch.inf)
        return torch.log_softmax(logits.masked_scatter(self.has_value, params), 1)

    def probabilities(self) -> dict[str, torch.Tensor]:
        """Probabilities of the values of every block, each ``(*shape, K)``."""
        table, found = self.log_probs().detach().exp(), {}
        for name, block in self.layout.items():
            n_values = int(block.limits[1] - block.limits[0]) + 1
            found[name] = table[block.slice, :n_values].reshape(*block.shape, n_values)
        return found

    def draw(self, n_draws: int, generator: torch.Generator) -> Draw:
        """Draw values, which have no gradient; log q has one."""
        ends = self.log_probs().detach().exp().cumsum(1)[:, :-1]
        uniform = rand(generator, n_draws, len(ends), 1)
        theta = (uniform > ends).sum(2).clamp(max=self._last) + self.low
        theta = theta.to(self.params.dtype)
        return Draw(theta, self.log_prob(theta), self.side)

    @property
    def _last(self) -> torch.Tensor:
        return self.has_value.sum(1) - 1

    def draw_strata(self, n_draws: int, generator: torch.Generator) -> Draw:
        """Draw, and sum over the values of each coordinate; see `vary`."""
        return vary([self], [self.draw(n_draws, generator)])[0]

    def log_prob(
        self, theta: torch.Tensor, params: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self.log_prob_terms(theta, params).sum(1)

    def log_prob_terms(
        self, theta: torch.Tensor, params: torch.Tensor | None = None
    ) -> torch.Tensor:
        value = (theta - self.low).round().long()
        known = (value + self.low == theta) & (value >= 0) & (value <= self._last)
        table = self.log_probs(params).expand(len(theta), -1, -1)
        found = table.gather(2, torch.where(known, value, 0)[..., None])[..., 0]
        return torch.where(known, found, -torch.inf)

    def neighbors(self, theta: torch.Tensor) -> _Neighbors:
        """All draws that differ from given ones in one coordinate."""
        coordinate, value = self.has_value.nonzero().T
        values = (value + self.low[coordinate]).to(theta.dtype)
        source, cell = (theta[:, coordinate] != values).nonzero().T
        theta = theta[source]
        theta.scatter_(1, coordinate[cell][:, None], values[cell][:, None])
        return _Neighbors(source, theta, self.log_probs()[self.has_value].exp()[cell])


def vary(parts: Sequence[Posterior], draws: Sequence[Draw]) -> list[Draw]:
    """Independent draws of parts, and all that differ in one discrete coordinate.

    Weights are such that a mean over the draws is that over all coordinates i of
    ``E_q[f given the others]``, summed over the values of i, and that its gradient in
    the probabilities of i is that of this sum.
    """
    found = {
        c: part.neighbors(draw.theta)
        for c, (part, draw) in enumerate(zip(parts, draws, strict=True))
        if isinstance(part, CategoricalPosterior)
    }
    if not found:
        return list(draws)
    n_draws, device = len(draws[0]), draws[0].theta.device
    source = torch.cat(
        [torch.arange(n_draws, device=device), *(f.source for f in found.values())]
    )
    terms = [parts[c].log_prob_terms(draws[c].theta) for c in found]
    given = torch.cat(terms, 1).exp()
    p = torch.cat([given.sum(1), *(f.probability for f in found.values())])
    weight = p.detach() / given.shape[1] + (p - p.detach())
    varied, start = [draw.take(source) for draw in draws], n_draws
    for c, other in found.items():
        theta = varied[c].theta
        theta[start : start + len(other.source)] = other.theta
        varied[c] = Draw(theta, parts[c].log_prob(theta))
        start += len(other.source)
    first = next(iter(found))
    weight = weight * (len(source) / n_draws)
    varied[first] = replace(varied[first], weight=weight)
    return varied
