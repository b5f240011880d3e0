"""Priors of several blocks, and independent coordinates with scales."""

from bisect import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from itertools import accumulate, chain
from numbers import Real
from typing import Any, cast

import torch

from skvi.base import Layout, NormalForm
from skvi.exceptions import IncompatibleComponentsError
from skvi.priors._posterior import prior_of_posterior
from skvi.priors.base import BuiltPrior, Prior
from skvi.utils._tensors import CPU
from skvi.utils._validation import Interval, StrOptions

# Entries used for blocks of a role without their own entry.
INSTEAD = {"weight": "coef", "affine": "intercept"}


Places = Sequence[slice | torch.Tensor]


class _BuiltBlocks(BuiltPrior):
    """Independent priors on the blocks of a layout, or on groups of its parameters.

    Blocks of the same entry of a mapping share learned hyperparameters. Places are
    slices in ascending order, or positions in any.
    """

    def __init__(
        self, places: Places, priors: list[BuiltPrior], entries: list[str]
    ) -> None:
        self.places, self.priors, self.entries = places, priors, entries
        #: From parameters prior by prior to those of the layout; None if they are.
        self.order = None
        if not all(isinstance(place, slice) for place in places):
            self.order = torch.argsort(torch.cat(self.positions()))
        self._normal: NormalForm | None = None
        self._learns = any(p.learned for p in priors)

    def positions(self) -> list[torch.Tensor]:
        """Where the parameters of each prior are."""
        return [
            torch.arange(place.start, place.stop, device=CPU)
            if isinstance(place, slice)
            else place
            for place in self.places
        ]

    def _join(self, parts: Iterable[torch.Tensor]) -> torch.Tensor:
        """Numbers of all parameters, (..., P), from those of each prior."""
        whole = torch.cat(list(parts), -1)
        return whole if self.order is None else whole[..., self.order]

    def _concatenate(self, forms: list[NormalForm | None]) -> NormalForm | None:
        known = [form for form in forms if form is not None]
        if len(known) < len(forms):
            return None
        mean = self._join(form.mean for form in known)
        if all(form.is_diagonal for form in known):
            return NormalForm(mean, self._join(form.scale for form in known))
        scale = torch.block_diag(*(_as_matrix(form.scale) for form in known))
        if self.order is not None:
            scale = scale[self.order][:, self.order]
            if bool(scale.triu(1).any()):  # columns of the second group come first
                upper = torch.linalg.qr(scale.mT).R
                scale = (upper * upper.diagonal().sign()[:, None]).mT
        return NormalForm(mean, scale)

    def named_scales(self) -> dict[str, int]:
        """Entries whose scales are unknown, and their parts."""
        found: dict[str, int] = {}
        parts = zip(self.entries, self.priors, self._starts, strict=True)
        for entry, prior, start in parts:
            names = prior.named_scales() if prior.paired else {entry: 0}
            if prior.n_unknown_scales:
                found |= {name: start + part for name, part in names.items()}
        return found

    @property
    def _starts(self) -> list[int]:
        """Number of the first part of each prior."""
        sizes = (len(prior.paired) or 1 for prior in self.priors)
        return [0, *accumulate(sizes)][:-1]

    @property
    def paired(self) -> tuple[int, ...]:  # type: ignore[override]
        parts = zip(self.priors, self._starts, strict=True)
        return tuple(start + k for prior, start in parts for k in prior.paired)

    def declared(self, logs: torch.Tensor) -> torch.Tensor:
        sizes = [p.n_unknown_scales for p in self.priors]
        parts = zip(self.priors, logs.split(sizes, -1), strict=True)
        return torch.cat([p.declared(own) for p, own in parts], -1)

    def precisions_at(self, logs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        sizes = [p.n_unknown_scales for p in self.priors]
        pairs = zip(self.priors, logs.split(sizes, -1), strict=True)
        parts, weights = zip(*(p.precisions_at(own) for p, own in pairs), strict=True)
        total = torch.stack(weights).sum(0)
        if all(part.ndim == 2 for part in parts):
            return self._join(parts), total
        size = sum(part.shape[1] for part in parts)
        whole = logs.new_zeros(len(logs), size, size)
        for place, part in zip(self.positions(), parts, strict=True):
            own = part if part.ndim == 3 else torch.diag_embed(part)
            whole[:, place[:, None], place] = own
        return whole, total

    @property
    def log_ratio(self) -> float:  # type: ignore[override]
        return sum(p.log_ratio for p in self.priors)

    def pair_at(self, part: int) -> tuple[Any, int, torch.Tensor]:
        k, own = self._owner(part)
        return self.priors[k], own, self.positions()[k]

    @property
    def _first(self) -> dict[str, BuiltPrior]:
        """The first prior of every entry."""
        found: dict[str, BuiltPrior] = {}
        for entry, prior in zip(self.entries, self.priors, strict=True):
            found.setdefault(entry, prior)
        return found

    @property
    def learned(self) -> tuple[str, ...]:  # type: ignore[override]
        found = [(e, name) for e, p in self._first.items() for name in p.learned]
        if len(found) == 1:
            return (found[0][1],)
        return tuple(_name_in(entry, name) for entry, name in found)

    def initial_hyper(self) -> torch.Tensor:
        return torch.cat([p.initial_hyper() for p in self._first.values()])

    def learned_scales(self) -> torch.Tensor | None:
        starts, n_before = {}, 0
        for entry, prior in self._first.items():
            starts[entry], n_before = n_before, n_before + len(prior.learned)
        parts = []
        for prior, entry in zip(self.priors, self.entries, strict=True):
            own = prior.learned_scales()
            if own is None:
                return None
            parts.append(torch.where(own < 0, own, own + starts[entry]))
        return self._join(parts)

    def bind(self, hyper: torch.Tensor) -> BuiltPrior:
        if not self._learns:
            return self
        sizes = [len(p.learned) for p in self._first.values()]
        own = dict(zip(self._first, hyper.split(sizes), strict=True))
        parts = zip(self.priors, self.entries, strict=True)
        bound = [prior.bind(own[entry]) for prior, entry in parts]
        return _BuiltBlocks(self.places, bound, self.entries)

    @property
    def unknown_scales(self) -> tuple[int, ...]:  # type: ignore[override]
        # Known scales make the whole prior normal only if all others are.
        parts = list(zip(self.priors, self._starts, strict=True))
        if not all(p.n_unknown_scales or p.as_normal() for p, _ in parts):
            return ()
        return tuple(start + k for prior, start in parts for k in prior.unknown_scales)

    def given_scale(self, scale: float, part: int | None = None) -> BuiltPrior:
        (k, own), found = self._owner(part), copy(self)
        found.priors = [*self.priors]
        found.priors[k] = self.priors[k].given_scale(scale, own)
        return found

    def _owner(self, part: int | None) -> tuple[int, int]:
        """The prior that has a part, and its number there."""
        part = self.unknown_scales[0] if part is None else part
        k = bisect(self._starts, part) - 1
        return k, part - self._starts[k]

    def log_density_of_scale(
        self, log_scale: torch.Tensor, part: int | None = None
    ) -> torch.Tensor:
        k, own = self._owner(part)
        return self.priors[k].log_density_of_scale(log_scale, own)

    def marginal(self, where: torch.Tensor) -> BuiltPrior:
        places: list[slice | torch.Tensor] = []
        priors, start = [], 0
        for place, prior in zip(self.positions(), self.priors, strict=True):
            place = place.to(where.device)
            is_kept = torch.isin(place, where)
            priors.append(prior.marginal(is_kept.nonzero()[:, 0]))
            new = torch.searchsorted(where, place[is_kept])
            whole = slice(start, start + len(new))
            places.append(whole if self.order is None else new)
            start += len(new)
        return _BuiltBlocks(places, priors, self.entries)

    def scale_weights(self, part: int | None = None) -> torch.Tensor:
        if part is None:
            return self._join(_scale_weights(p, True) for p in self.priors)
        k, own = self._owner(part)
        every = enumerate(self.priors)
        return self._join(_scale_weights(p, j == k, own) for j, p in every)

    def unit_of_scale(self, part: int | None = None) -> float:
        k, own = self._owner(part)
        return self.priors[k].unit_of_scale(own)

    def expected_precision(self, squares: torch.Tensor) -> tuple[float, float]:
        return self.priors[self._owner(None)[0]].expected_precision(squares)

    @property
    def is_proper(self) -> bool:  # type: ignore[override]
        return all(p.is_proper for p in self.priors)

    @property
    def is_log_concave(self) -> bool:
        return all(p.is_log_concave for p in self.priors)

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        if (normal := self.as_normal()) is not None:
            return normal.log_prob(theta)
        parts = zip(self.places, self.priors, strict=True)
        return torch.stack([p.log_prob(theta[:, s]) for s, p in parts]).sum(0)

    def log_prob_gradient(self, theta: torch.Tensor) -> torch.Tensor:
        parts = zip(self.places, self.priors, strict=True)
        return self._join(p.log_prob_gradient(theta[:, s]) for s, p in parts)

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        return self._join(p.sample(n_draws, generator) for p in self.priors)

    def as_normal(self) -> NormalForm | None:
        if self._normal is None and not (self._learns or self.n_unknown_scales):
            self._normal = self._concatenate([p.as_normal() for p in self.priors])
        return self._normal

    def tail_precision(self) -> torch.Tensor | None:
        parts = [p.tail_precision() for p in self.priors]
        known = [part for part in parts if part is not None]
        return self._join(known) if len(known) == len(parts) else None

    def matching_normal(self) -> NormalForm | None:
        if (normal := self.as_normal()) is not None:
            return normal
        return self._concatenate([p.matching_normal() for p in self.priors])

    @property
    def has_log_prob_terms(self) -> bool:
        return all(p.has_log_prob_terms for p in self.priors)

    def log_prob_terms(self, theta: torch.Tensor) -> torch.Tensor:
        parts = zip(self.places, self.priors, strict=True)
        return self._join(p.log_prob_terms(theta[:, s]) for s, p in parts)

    @property
    def has_expected_log_prob(self) -> bool:
        return all(p.has_expected_log_prob for p in self.priors)

    def expected_log_prob(self, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
        parts = zip(self.places, self.priors, strict=True)
        return self._join(
            p.expected_log_prob(mean[..., s], std[..., s]) for s, p in parts
        )


def _check_shared(entries: list[str], priors: list[BuiltPrior]) -> None:
    """Raise unless blocks of one entry learn equally many scales."""
    first: dict[str, int] = {}
    for entry, prior in zip(entries, priors, strict=True):
        size = len(prior.learned)
        if first.setdefault(entry, size) != size:
            raise IncompatibleComponentsError(
                f"The prior of {entry!r}",
                "blocks with equally many rows, for each of which it learns a scale",
                "a prior for each of them: {'coef_0': Normal('learn_rows'), ...}",
            )


def _name_in(entry: str, name: str) -> str:
    """Name of what the prior of an entry learns: "scale[coef]", or "scale[coef, 0]"."""
    name, _, row = name.partition("[")
    return f"{name}[{entry}, {row}" if row else f"{name}[{entry}]"


def _as_matrix(scale: torch.Tensor) -> torch.Tensor:
    return torch.diag(scale) if scale.ndim == 1 else scale


def _scale_weights(
    prior: BuiltPrior, is_asked: bool, part: int | None = None
) -> torch.Tensor:
    if prior.n_unknown_scales and is_asked:
        return prior.scale_weights(part)
    return torch.zeros_like(cast(NormalForm, prior.matching_normal()).scale)


def build_prior(
    spec: Any, layout: Layout, groups: Mapping[str, Sequence[int]] | None = None
) -> BuiltPrior:
    """Build a prior, or a mapping from block names to priors, over a layout.

    Parameters
    ----------
    spec : Prior, mapping of str to Prior, or Posterior
        A mapping must have a prior for every block of the layout, and use all of its
        entries. An entry is the name of a block; or, for blocks that are not named
        themselves, that of numbered blocks ("coef" of "coef_0", "coef_1", ...), or the
        role of blocks ("intercept", "affine", ...). "coef" is also used for the
        remaining weights, and "intercept" for the remaining affine blocks, which must
        not be shrunk by a sparse prior. Blocks of one entry share what its prior
        learns. A fitted posterior is used directly: what was learned from other data is
        the prior for these.
    layout : Layout
        The layout of theta.
    groups : mapping of str to sequence of int, default=None
        Columns of "coef", by the names of entries that are theirs. Its own entry is
        that of the others, if there are any.

    Returns
    -------
    BuiltPrior
        Over all P parameters; blocks and groups are independent.

    Raises
    ------
    IncompatibleComponentsError
        The mapping names blocks that the layout does not have, or the posterior is over
        another layout.

    Examples
    --------
    >>> from skvi.base import Layout
    >>> from skvi.priors import Laplace, Normal
    >>> from skvi.priors._blocks import build_prior
    >>> layout = Layout({"coef": (1, 2), "intercept": (1,)})
    >>> prior = build_prior({"coef": Laplace(), "intercept": Normal(10.0)}, layout)
    >>> prior.as_normal() is None
    True

    By the roles of blocks, whatever their names are:

    >>> layout = Layout(
    ...     {"conv1.weight": (8, 3), "conv1.bias": (8,)},
    ...     roles={"conv1.bias": "intercept"},
    ... )
    >>> prior = build_prior({"weight": Normal(0.5), "intercept": Normal(10.0)}, layout)
    >>> prior.as_normal().scale[[0, 24]]
    tensor([ 0.5000, 10.0000], dtype=torch.float64)
    """
    if not isinstance(spec, Mapping):
        if isinstance(spec, Prior):
            return spec.build(layout)
        return prior_of_posterior(spec, layout)
    if groups:
        return _build_groups(spec, layout, groups)
    names = {name: _entry_of(name, layout[name].role, spec) for name in layout}
    if set(spec) != set(names.values()):
        raise IncompatibleComponentsError(
            f"A prior of {sorted(spec)}",
            f"the blocks {sorted(layout)}",
            "a dict with exactly one prior for each block",
        )
    blocks = [layout[name] for name in layout]
    priors = [spec[names[name]].build(layout.only(name)) for name in layout]
    entries = [names[name] for name in layout]
    _check_shared(entries, priors)
    return _BuiltBlocks([block.slice for block in blocks], priors, entries)


def _build_groups(
    spec: Mapping[str, Prior], layout: Layout, groups: Mapping[str, Sequence[int]]
) -> BuiltPrior:
    """Priors of the groups, of the other coefficients, and of the other blocks."""
    block, priors = layout["coef"], []
    every = torch.arange(block.size, device=CPU).reshape(block.shape) + block.start
    grouped = [k for columns in groups.values() for k in columns]
    rest = [k for k in range(block.shape[1]) if k not in set(grouped)]
    parts = {"coef": rest, **groups} if rest else groups
    places = [every[:, list(columns)].flatten() for columns in parts.values()]
    for name, columns in parts.items():
        own = Layout({"coef": (block.shape[0], len(columns))}, input_axes={"coef": 1})
        priors.append(spec[name].build(own))
    for name in layout:
        if name != "coef":
            places.append(torch.arange(layout.size, device=CPU)[layout[name].slice])
            priors.append(spec[name].build(layout.only(name)))
    return _BuiltBlocks(places, priors, [*parts, *(n for n in layout if n != "coef")])


def _entry_of(name: str, role: str, spec: Mapping[str, Prior]) -> str:
    """Entry of a mapping that a block belongs to; the block's name if there is none."""
    candidates = (name, name.rpartition("_")[0], role, INSTEAD.get(role, name))
    return next((entry for entry in candidates if entry in spec), name)


POSITIVE = [Interval(Real, 0, None, closed="neither")]
#: Constraint of every parameter `scale`.
SCALE = [*POSITIVE, StrOptions({"learn"})]
#: Value of `scale` with which every row of a block has a learned scale of its own.
LEARN_ROWS = "learn_rows"

Make = Callable[[torch.Tensor], BuiltPrior]


def scaled(layout: Layout, scale: float | str, make: Make) -> BuiltPrior:
    """Build a prior from its scale, a number or learned, in units of the natural sizes.

    `make` maps scales of shape (P,) to a `BuiltPrior`.
    """
    natural = layout.natural_scales()
    if isinstance(scale, str):
        sizes = _row_sizes(layout) if scale == LEARN_ROWS else [layout.size]
        return _LearnedScale(make, natural, sizes)
    return make(float(scale) * natural)


def _row_sizes(layout: Layout) -> list[int]:
    """Number of coordinates of each row of every block."""
    shapes = [(block.shape or (1,), block.size) for block in layout.values()]
    return list(chain(*([size // shape[0]] * shape[0] for shape, size in shapes)))


class BuiltIndependent(BuiltPrior):
    """Coordinates ``scale * u``; a subclass has the density of u, and what follows."""

    has_expected_log_prob = True
    has_log_prob_terms = True
    #: Standard deviation of u, if it exists; otherwise a measure of its width.
    width = 1.0

    def __init__(self, scale: torch.Tensor) -> None:
        self.scale = scale

    def _log_density(self, u: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def _slope(self, u: torch.Tensor) -> torch.Tensor:
        """Derivative of the log density."""
        raise NotImplementedError

    def _expected(self, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
        """Expected log density for a normal u."""
        raise NotImplementedError

    def _draw(self, generator: torch.Generator, *shape: int) -> torch.Tensor:
        raise NotImplementedError

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        return self.log_prob_terms(theta).sum(1)

    def log_prob_terms(self, theta: torch.Tensor) -> torch.Tensor:
        return self._log_density(theta / self.scale) - self.scale.log()

    def log_prob_gradient(self, theta: torch.Tensor) -> torch.Tensor:
        return self._slope(theta / self.scale) / self.scale

    def expected_log_prob(self, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
        return self._expected(mean / self.scale, std / self.scale) - self.scale.log()

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        return self.scale * self._draw(generator, n_draws, len(self.scale))

    def matching_normal(self) -> NormalForm:
        return NormalForm(torch.zeros_like(self.scale), self.width * self.scale)

    def tail_precision(self) -> torch.Tensor:
        return torch.zeros_like(self.scale)

    def marginal(self, where: torch.Tensor) -> BuiltPrior:
        part = copy(self)
        part.scale = self.scale[where]
        return part


class _LearnedScale(BuiltPrior):
    """A prior whose scale, or one per group, is to be chosen by a fit.

    `sizes` are the numbers of successive coordinates that share a scale; `natural`, of
    shape (P,), are their units.
    """

    def __init__(self, make: Make, natural: torch.Tensor, sizes: list[int]) -> None:
        self.make, self.natural, self.n_scales = make, natural, len(sizes)
        numbers = torch.arange(len(sizes), device=CPU)
        self.index = numbers.repeat_interleave(torch.tensor(sizes, device=CPU))

    @property
    def learned(self) -> tuple[str, ...]:  # type: ignore[override]
        """One name, or one for each row."""
        if self.n_scales == 1:
            return ("prior_scale",)
        return tuple(f"prior_scale[{k}]" for k in range(self.n_scales))

    def initial_hyper(self) -> torch.Tensor:
        """Scales 1."""
        return torch.zeros(self.n_scales, dtype=torch.float64, device=CPU)

    def learned_scales(self) -> torch.Tensor | None:
        if self.make(self.natural).as_normal() is None:
            return None
        return self.index.to(CPU)

    @property
    def is_log_concave(self) -> bool:
        return self.make(self.natural).is_log_concave

    def bind(self, hyper: torch.Tensor) -> BuiltPrior:
        factors = hyper.exp().to(self.natural.device)
        return self.make(factors[self.index] * self.natural)

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        raise ValueError(UNBOUND)

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        raise ValueError(UNBOUND)


UNBOUND = (
    "A prior with scale='learn' has no density before a fit sets the scale; give a "
    "number, or use `bind`."
)
