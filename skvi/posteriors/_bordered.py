"""Normals whose precision is a diagonal with a border, and sparse.

With D of the parameters that are alone, E beside it and K of the border, ``S = K - E'
D^-1 E`` is all that is factorized: of crossed factors D is the largest one, and E has
an element for each pair of labels that have a row in common.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from scipy import sparse

from skvi.base import Layout, NormalForm
from skvi.posteriors._normal import INITIAL_SCALE, NormalPosterior
from skvi.posteriors.base import Family, Posterior
from skvi.utils._tensors import CPU

# Deviation of a border's own part, of that given all others: a factor has all the rest.
OWN = 1e-4
# Share of the elements of E beyond which it is dense.
DENSE = 0.2


@dataclass(frozen=True, eq=False)
class Pattern:
    """Places of the elements of a precision, on and above its diagonal.

    In `order` parameters of the diagonal come first, `m` of them, then the border.
    `first` and `second` are rows and columns of elements in that order.
    """

    order: np.ndarray
    m: int
    first: np.ndarray
    second: np.ndarray

    @classmethod
    def plain(cls, size: int, border: np.ndarray) -> "Pattern":
        """That of a diagonal."""
        alone, each = np.setdiff1d(np.arange(size), border), np.arange(size)
        return cls(np.append(alone, border), len(alone), each, each)

    @cached_property
    def kinds(self) -> list[np.ndarray]:
        """Numbers of the elements of D, E and K."""
        inside = self.second < self.m, self.first >= self.m
        edge = ~(inside[0] | inside[1])
        return [np.flatnonzero(kind) for kind in (inside[0], edge, inside[1])]

    @cached_property
    def beside(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows and columns of the elements of E."""
        some = self.kinds[1]
        return self.first[some], self.second[some] - self.m

    @cached_property
    def inside(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows and columns of the elements of K."""
        some = self.kinds[2]
        return self.first[some] - self.m, self.second[some] - self.m

    @cached_property
    def diagonal(self) -> np.ndarray:
        """The element of each parameter with itself."""
        return np.flatnonzero(self.first == self.second)[np.argsort(self.order)]

    @cached_property
    def grown(self) -> "Pattern":
        """With another parameter on the diagonal, which comes last of all."""
        first, second = (np.append(0, 1 + part) for part in (self.first, self.second))
        return Pattern(
            np.append(len(self.order), self.order), self.m + 1, first, second
        )

    def edge(self, values: torch.Tensor) -> Any:
        """E, (m, p): sparse where few columns meet."""
        shape = self.m, len(self.order) - self.m
        if len(values) < DENSE * shape[0] * shape[1]:
            return sparse.csr_array((values.numpy(), self.beside), shape)
        out = np.zeros(shape)
        out[self.beside] = values
        return out

    def corner(self, values: torch.Tensor) -> torch.Tensor:
        """K, (p, p)."""
        out = values.new_zeros(len(self.order) - self.m, len(self.order) - self.m)
        low, high = self.inside
        out[low, high] = out[high, low] = values
        return out

    def product(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """``E' F`` of two edges, (p, p)."""
        found = self.edge(left).T @ self.edge(right)
        return torch.from_numpy(found.toarray() if sparse.issparse(found) else found)


class BorderedForm(NormalForm):
    """A normal by its precision at a pattern, (L, 1), that is factorized on demand."""

    precision: torch.Tensor
    pattern: Pattern
    alone: np.ndarray
    border: np.ndarray
    is_diagonal = False

    def __init__(
        self,
        mean: torch.Tensor,
        precision: torch.Tensor,
        pattern: Pattern,
        rows: Any = None,
    ) -> None:
        alone, border = np.split(pattern.order, [pattern.m])
        vars(self).update(mean=mean, precision=precision, pattern=pattern, rows=rows)
        vars(self).update(alone=alone, border=border)

    @cached_property
    def parts(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """D, the elements of ``D^-1 E``, and the Cholesky factor of S; or NaN."""
        own, edge, corner = (self.precision[kind, 0] for kind in self.pattern.kinds)
        ratio = edge / own[self.pattern.beside[0]]
        inner = self.pattern.corner(corner) - self.pattern.product(edge, ratio)
        factor, info = torch.linalg.cholesky_ex(inner)
        if int(info):
            inner.diagonal().mul_(1 + 4 * len(inner) * torch.finfo(inner.dtype).eps)
            factor, info = torch.linalg.cholesky_ex(inner)
        return own, ratio, factor if int(info) == 0 else factor * torch.nan

    @cached_property
    def at_pattern(self) -> torch.Tensor:
        """Covariances at the pattern, (L,)."""
        (own, ratio, factor), pattern = self.parts, self.pattern
        diagonal, edge, corner = pattern.kinds
        out = torch.empty_like(self.precision[:, 0])
        within = torch.cholesky_inverse(factor)
        beside = torch.from_numpy(pattern.edge(ratio) @ within.numpy())
        out[edge], out[corner] = -beside[pattern.beside], within[pattern.inside]
        row = torch.from_numpy(pattern.beside[0])
        out[diagonal] = (1 / own).index_add_(0, row, -ratio * out[edge])
        return out

    @property
    def variance(self) -> torch.Tensor:
        return self.at_pattern[self.pattern.diagonal]

    @property
    def half_log_det(self) -> torch.Tensor:
        own, _, factor = self.parts
        return -0.5 * own.log().sum() - factor.diagonal().log().sum()

    @property
    def n_noise(self) -> int:
        return self.size

    @property
    def scale(self) -> torch.Tensor:
        """Beside a dense factor, as of other normals."""
        return self._joined(
            self.parts[0].rsqrt(), OWN * self.parts[2].square().sum(1).rsqrt()
        )

    @property
    def factor(self) -> torch.Tensor:
        """Dense, (P, p): for what knows no other normals."""
        identity = torch.eye(len(self.border), dtype=self.mean.dtype, device=CPU)
        solve = torch.linalg.solve_triangular
        root = solve(self.parts[2].mT, identity, upper=True).mT
        return self._joined(-self._beside(root), root).mT

    def _joined(self, alone: torch.Tensor, border: torch.Tensor) -> torch.Tensor:
        out = alone.new_empty(*border.shape[:-1], self.size)
        out[..., self.alone], out[..., self.border] = alone, border
        return out

    def _beside(self, b: torch.Tensor) -> torch.Tensor:
        """``D^-1 E b`` of each row."""
        ratio = self.pattern.edge(self.parts[1])
        return torch.from_numpy(np.ascontiguousarray((ratio @ b.numpy().T).T))

    def squared_distance(self, deviation: torch.Tensor) -> torch.Tensor:
        return self.whiten(deviation).square().sum(-1)

    def whiten(self, deviation: torch.Tensor) -> torch.Tensor:
        own, _, factor = self.parts
        b = deviation[..., self.border]
        away = deviation[..., self.alone] + self._beside(b)
        return self._joined(own.sqrt() * away, b @ factor)

    def transform(self, eps: torch.Tensor) -> torch.Tensor:
        own, _, factor = self.parts
        b = torch.linalg.solve_triangular(
            factor, eps[:, self.border], upper=False, left=False
        )
        away = own.rsqrt() * eps[:, self.alone] - self._beside(b)
        return self.mean + self._joined(away, b)

    def solve(self, right: torch.Tensor) -> torch.Tensor:
        """Covariance times one right side, (P,)."""
        own, ratio, factor = self.parts
        away = right[self.alone]
        back = torch.from_numpy(self.pattern.edge(ratio).T @ away.numpy())
        b = torch.cholesky_solve((right[self.border] - back)[:, None], factor)[:, 0]
        return self._joined(away / own - self._beside(b), b)

    def stretched(self, mean: torch.Tensor, ratio: torch.Tensor) -> "BorderedForm":
        """With another mean, and deviations times a ratio, (P,)."""
        each = ratio[self.pattern.order]
        moved = self.precision[:, 0] / each[self.pattern.first]
        moved = moved / each[self.pattern.second]
        return BorderedForm(mean, moved[:, None], self.pattern)

    def leading(self) -> "BorderedForm":
        """Without the last parameter, which is independent."""
        if (inner := vars(self).get("inner")) is not None:
            return inner
        rest = Pattern.plain(self.size - 1, self.border)
        p = self.pattern
        rest = replace(rest, first=p.first[1:] - 1, second=p.second[1:] - 1)
        return BorderedForm(self.mean[:-1], self.precision[1:], rest)

    def joined(self, mean: torch.Tensor, std: torch.Tensor) -> "BorderedForm":
        """With an independent parameter that comes last, and what is known already."""
        precision = torch.cat([std[:, None] ** -2, self.precision])
        center = torch.cat([self.mean, mean])
        found = BorderedForm(center, precision, self.pattern.grown)
        own, *rest = self.parts
        own, known = torch.cat([std**-2, own]), torch.cat([std**2, self.at_pattern])
        inner = copy(self)
        vars(inner).update(rows=None)
        vars(found).update(parts=(own, *rest), at_pattern=known, inner=inner)
        return found


class BorderedForms(NormalForm):
    """A batch of them."""

    def __init__(self, members: Sequence[BorderedForm]) -> None:
        mean = torch.stack([member.mean for member in members])
        vars(self).update(members=members, mean=mean)

    members: Sequence[BorderedForm]

    def __getitem__(self, which: Any) -> NormalForm:
        if isinstance(which, int):
            return self.members[which]
        return BorderedForms([self.members[k] for k in which])

    @property
    def variance(self) -> torch.Tensor:
        return torch.stack([member.variance for member in self.members])

    @property
    def half_log_det(self) -> torch.Tensor:
        return torch.stack([member.half_log_det for member in self.members])


class BorderedNormal(Family):
    """A normal whose precision is a diagonal but for a border, and sparse.

    The posterior of the effects of many labels, of which each row has one, beside other
    coefficients: effects depend on each other through these alone.

    Parameters
    ----------
    border : tuple of int
        Positions of the border among the parameters, in ascending order.
    """

    def __init__(self, border: tuple[int, ...] = ()) -> None:
        self.border = border

    def __repr__(self) -> str:
        """Return the width of the border; positions are many."""
        return f"BorderedNormal(<{len(self.border)} parameters>)"

    def build(
        self, layout: Layout, generator: torch.Generator | None = None
    ) -> Posterior:
        """Build the posterior at mean 0; see `Family.build`."""
        return _BorderedPosterior(layout, np.array(self.border, dtype=int))


class _BorderedPosterior(NormalPosterior):
    """Variational parameters: means, and elements of the precision."""

    _known: BorderedForm | None = None

    def __init__(self, layout: Layout, border: np.ndarray) -> None:
        self.layout, self.plain = layout, Pattern.plain(layout.size, border)
        self.border, self.pattern = torch.from_numpy(border), self.plain
        like = torch.ones(layout.size, dtype=torch.float64, device=CPU)
        self.params = torch.cat([0 * like, like / INITIAL_SCALE**2])

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_known": None}

    def normal(self, params: torch.Tensor | None = None) -> NormalForm:
        params, known = self.params if params is None else params, self._known
        if known is not None and torch.equal(self._params_of(known), params):
            return known
        mean, precision = params[: self.layout.size], params[self.layout.size :]
        return BorderedForm(mean, precision[:, None], self.pattern)

    def near(self, normal: NormalForm) -> Self:
        other = copy(self)
        if not isinstance(normal, BorderedForm):
            precision = (1 / normal.variance)[self.plain.order, None]
            normal = BorderedForm(normal.mean, precision, self.plain)
        other.pattern, other._known = normal.pattern, copy(normal)
        vars(other._known).update(rows=None)
        return other.at(self._params_of(normal))

    def _params_of(self, normal: Any) -> torch.Tensor:
        return torch.cat([normal.mean, normal.precision[:, 0]])
