"""Independent posteriors of blocks, discrete ones among them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Self

import torch

from skvi.base import Draw, Layout, NormalForm
from skvi.base._draw import Side
from skvi.exceptions import IncompatibleComponentsError
from skvi.posteriors._normal import FullRankNormal
from skvi.posteriors._semi_implicit import Beta, Gamma, check_bijection
from skvi.posteriors.base import Family, Posterior
from skvi.utils._tensors import CPU, rand, randn


class Categorical(Family):
    """Independent probabilities of the values of discrete parameters.

    A Bernoulli distribution where there are two values: one number for each value of
    each parameter. For blocks with the bijection "integer".

    Examples
    --------
    >>> import torch
    >>> from skvi.base import Layout
    >>> from skvi.posteriors._product import Categorical
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


# Families by the bijections of their blocks; others are normal.
DEFAULTS: dict[str, type[Family]] = {
    "exp": Gamma,
    "sigmoid": Beta,
    "integer": Categorical,
}


class Product(Family):
    """Independent posteriors of the blocks of the parameter vector.

    Parameters
    ----------
    blocks : dict, default=None
        Family of a block by its name, or of several blocks together by their names
        in a tuple, or in a string with commas between them. Each block that is not
        named gets its own family: `FullRankNormal`, or `Gamma` if the block is
        positive, `Beta` in the unit interval, `Categorical` if it is discrete. None
        names no block.

    Notes
    -----
    The log density is the sum over blocks, in unconstrained coordinates: those of
    positive blocks are logarithms. `as_normal` is None even if every part is normal.

    Gradients of the ELBO follow the paths of draws, but for discrete blocks. There the
    expectation over each coordinate is a sum over its values, given the draws of all
    others: the score-function gradient, Rao-Blackwellized by coordinate.

    References
    ----------
    Titsias and Lazaro-Gredilla (2015), *Local expectation gradients for black box
    variational inference*.

    Examples
    --------
    >>> from skvi.base import Layout
    >>> from skvi.posteriors import MeanFieldNormal
    >>> from skvi.posteriors import Product
    >>> layout = Layout({"coef": (1, 3), "precision": (1,)}, {"precision": "exp"})
    >>> Product({"coef": MeanFieldNormal()}).build(layout).params.shape
    torch.Size([8])
    """

    _parameter_constraints: dict = {"blocks": [dict, None]}

    def __init__(self, blocks: dict | None = None) -> None:
        self.blocks = blocks

    def build(
        self, layout: Layout, generator: torch.Generator | None = None
    ) -> Posterior:
        """Build the posterior, each part at its own start; see `Family.build`."""
        self.validate()
        parts = [
            (names, family.build(layout.only(*names), generator))
            for names, family in self._families(layout)
        ]
        if any(part.refinement is not None for _, part in parts):
            raise IncompatibleComponentsError(
                "RefinedNormal()",
                f"one normal of all parameters; got {self!r}, with separate parts",
                "it alone, in a regression with given noise_scale and prior",
            )
        return _ProductPosterior(layout, parts)

    def check_size(self, n_params: int) -> None:
        """Do nothing: the parts are checked when they are built."""

    def _families(self, layout: Layout) -> list[tuple[tuple[str, ...], Family]]:
        given = {_as_names(key): family for key, family in (self.blocks or {}).items()}
        named = [name for names in given for name in names]
        unknown = sorted(set(named) - set(layout))
        if unknown or len(set(named)) < len(named):
            raise IncompatibleComponentsError(
                "Product(blocks)",
                f"blocks of {sorted(layout)}, each at most once; got {sorted(named)}",
                "these names, or leave blocks out",
            )
        wrong = [f for f in given.values() if not isinstance(f, Family)]
        if wrong:
            raise ValueError(f"blocks must hold families. Got {wrong[0]!r}.")
        free = [name for name in layout if name not in named]
        defaults = {
            (name,): DEFAULTS.get(layout[name].bijection, FullRankNormal)()
            for name in free
        }
        pairs = [*given.items(), *defaults.items()]
        for names, family in pairs:
            family.check_size(layout.only(*names).size)
        return pairs


def _as_names(key: str | Iterable[str]) -> tuple[str, ...]:
    if isinstance(key, str):
        return tuple(name.strip() for name in key.split(","))
    return tuple(key)


class _ProductPosterior(Posterior):
    """Variational parameters: those of the parts, concatenated."""

    def __init__(
        self, layout: Layout, parts: list[tuple[tuple[str, ...], Posterior]]
    ) -> None:
        self.layout, self.names = layout, [names for names, _ in parts]
        self._parts = [part for _, part in parts]
        self.sizes = [len(part.params) for part in self._parts]
        self.params = torch.cat([part.params for part in self._parts])

    @property
    def side(self) -> Side:  # type: ignore[override]
        """The common side of all parts that are not exact; "none" if they differ."""
        sides = {part.side for part in self._parts} - {"exact"}
        return "exact" if not sides else sides.pop() if len(sides) == 1 else "none"

    @property
    def has_full_path(self) -> bool:  # type: ignore[override]
        """Whether all parts have."""
        return all(part.has_full_path for part in self._parts)

    @property
    def has_log_prob_terms(self) -> bool:  # type: ignore[override]
        """Whether there are several parts, or the one has."""
        return len(self._parts) > 1 or self._parts[0].has_log_prob_terms

    @property
    def least_draws(self) -> int:  # type: ignore[override]
        """The most that a part needs."""
        return max(part.least_draws for part in self._parts)

    def _bound(self, params: torch.Tensor | None = None) -> list[Posterior]:
        """Parts at these variational parameters."""
        params = self.params if params is None else params
        pairs = zip(self._parts, params.split(self.sizes), strict=True)
        return [part.at(values) for part, values in pairs]

    @property
    def parts(self) -> Mapping[tuple[str, ...], Posterior]:
        return dict(zip(self.names, self._bound(), strict=True))

    def with_parts(self, parts: Mapping[tuple[str, ...], Posterior]) -> Self:
        pieces = [parts.get(names, part) for names, part in self.parts.items()]
        params = [piece.params.to(self.params.dtype) for piece in pieces]
        other = self.at(torch.cat(params))
        other._parts = pieces  # they are more than their parameters
        return other

    def marginal(self, layout: Layout) -> "_ProductPosterior":
        """Posterior of the parts that belong to the blocks of a layout."""
        pairs = [pair for pair in self.parts.items() if pair[0][0] in layout]
        return _ProductPosterior(layout, pairs)

    def real_part(self) -> Posterior:
        """Part of the blocks that are not positive; normal if all of them are."""
        names = [name for name in self.layout if name not in self.layout.positive]
        part = self.part(names[0])
        if part.layout.keys() == set(names):
            return part
        layout = self.layout.only(*names)
        forms = [self.part(name).as_normal() for name in names]
        roots = [torch.linalg.cholesky(f.covariance()) for f in forms if f is not None]
        if len(roots) < len(names) or sum(map(len, roots)) != layout.size:
            return self.marginal(layout)
        mean = torch.cat([form.mean for form in forms if form is not None])
        joint = NormalForm(mean, torch.block_diag(*roots))
        return FullRankNormal().build(layout).near(joint)

    def near(self, normal: NormalForm) -> Self:
        pairs = zip(self.parts.items(), self._columns(), strict=True)
        return self.with_parts(
            {names: part.near(normal.marginal(c)) for (names, part), c in pairs}
        )

    def _columns(self) -> list[torch.Tensor]:
        """Positions in theta of the parameters of every part."""
        device = self.params.device
        return [self.layout.positions(names).to(device) for names in self.names]

    def draw(self, n_draws: int, generator: torch.Generator) -> Draw:
        draws = [part.draw(n_draws, generator) for part in self._bound()]
        return self._joined(draws, self.side)

    def draw_strata(self, n_draws: int, generator: torch.Generator) -> Draw:
        """Draw as many from every part; see `Posterior.draw_strata`."""
        parts = self._bound()
        draws = [
            part.draw(n_draws, generator)
            if isinstance(part, CategoricalPosterior)
            else part.draw_strata(n_draws, generator)
            for part in parts
        ]
        most = max(map(len, draws))
        if min(map(len, draws)) < most:
            return self.draw_strata(most, generator)
        return self._joined(vary(parts, draws), self.side)

    def draw_below(self, n_draws: int, generator: torch.Generator) -> Draw | None:
        found = [
            part.draw(n_draws, generator)
            if part.side == "exact"
            else part.draw_below(n_draws, generator)
            for part in self._bound()
        ]
        draws = [draw for draw in found if draw is not None]
        is_known = self.side == "upper" and len(draws) == len(found)
        return self._joined(draws, "lower") if is_known else None

    def _joined(self, draws: list[Draw], side: Side) -> Draw:
        order = torch.argsort(torch.cat(self._columns()))
        theta = torch.cat([draw.theta for draw in draws], 1)[:, order]
        log_q = torch.stack([draw.log_q for draw in draws]).sum(0)
        weights = [draw.weight for draw in draws if draw.weight is not None]
        weight = torch.stack(weights).prod(0) if weights else None
        return Draw(theta, log_q, side, parts=tuple(draws), weight=weight)

    def log_q(self, draw: Draw, params: torch.Tensor | None = None) -> torch.Tensor:
        """Sum over the parts, each given its own part of the draw."""
        pairs = zip(self._bound(params), draw.parts, strict=True)
        return torch.stack([part.log_q(own) for part, own in pairs]).sum(0)

    def log_prob(
        self, theta: torch.Tensor, params: torch.Tensor | None = None
    ) -> torch.Tensor:
        parts = zip(self._columns(), self._bound(params), strict=True)
        return torch.stack([part.log_prob(theta[:, c]) for c, part in parts]).sum(0)

    def log_prob_terms(
        self, theta: torch.Tensor, params: torch.Tensor | None = None
    ) -> torch.Tensor:
        pairs = zip(self._columns(), self._bound(params), strict=True)
        terms = [
            part.log_prob_terms(theta[:, c])
            if part.has_log_prob_terms
            else part.log_prob(theta[:, c])[:, None]
            for c, part in pairs
        ]
        return torch.cat(terms, 1)

    def groups(self) -> torch.Tensor:
        """Those of the parts, one for each that has no terms."""
        found, n_groups = torch.empty_like(torch.cat(self._columns())), 0
        for c, part in zip(self._columns(), self._parts, strict=True):
            found[c] = n_groups + part.groups() * part.has_log_prob_terms
            n_groups = int(found[c].max()) + 1
        return found
