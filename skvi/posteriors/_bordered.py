"""Normals whose precision is a diagonal with a border, and sparse.

With D of the parameters that are alone, E beside it and K of the border, ``S = K - E'
D^-1 E`` is all that is factorized: of crossed factors D is the largest one, and E has
an element for each pair of labels that have a row in common.
"""

from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from scipy import sparse

from skvi.base import Layout, NormalForm
from skvi.posteriors._normal import NormalPosterior
from skvi.posteriors.base import Family, Posterior
from skvi.utils._tensors import CPU

# Deviation of a border's own part, of that given all others: a factor has all the rest.
OWN = 1e-4


@dataclass(frozen=True, eq=False)
class Pattern:
    """Places of the elements of D, E and the lower triangle of K.

    `alone` and `border` are positions among the parameters; `edge`, (2, e), rows and
    columns of E in ascending order, and `corner`, (2, c), those of K.
    """

    alone: np.ndarray
    border: np.ndarray
    edge: np.ndarray
    corner: np.ndarray

    @classmethod
    def plain(cls, size: int, border: np.ndarray) -> "Pattern":
        """That of a diagonal."""
        each = np.arange(len(border))
        alone = np.setdiff1d(np.arange(size), border)
        return cls(alone, border, np.zeros((2, 0), int), np.stack([each, each]))

    @cached_property
    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """The parameters of each element."""
        (a, b), (c, d), own = self.edge, self.corner, self.alone
        first = np.concatenate([own, own[a], self.border[c]])
        return first, np.concatenate([own, self.border[b], self.border[d]])

    @cached_property
    def diagonal(self) -> np.ndarray:
        """The element of each parameter with itself."""
        first, second = self.pairs
        places = np.flatnonzero(first == second)
        return places[np.argsort(first[places])]

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.searchsorted(self.edge[0], np.arange(len(self.alone) + 1))

    def split(self, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Elements of D, E and K, of all of them, (..., L, 1)."""
        sizes = [len(self.alone), self.edge.shape[1], self.corner.shape[1]]
        return values[..., 0].split(sizes, -1)

    def beside(self, values: torch.Tensor) -> Any:
        """E, (m, p): sparse, or dense where it has no zeros."""
        shape = len(self.alone), len(self.border)
        if values.numel() == shape[0] * shape[1]:
            return values.numpy().reshape(shape)
        return sparse.csr_array((values.numpy(), self.edge[1], self._starts), shape)

    def square(self, values: torch.Tensor) -> torch.Tensor:
        """K, (p, p)."""
        out = values.new_zeros(len(self.border), len(self.border))
        low, high = self.corner
        out[low, high] = out[high, low] = values
        return out


class BorderedForm(NormalForm):
    """A normal by its precision at a pattern, (L, 1), that is factorized on demand."""

    def __init__(
        self,
        mean: torch.Tensor,
        precision: torch.Tensor,
        pattern: Pattern,
        rows: Any = None,
    ) -> None:
        given = {"mean": mean, "precision": precision, "pattern": pattern}
        vars(self).update(given, rows=rows)

    precision: torch.Tensor
    pattern: Pattern
    is_diagonal = False

    @cached_property
    def parts(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """D, the elements of ``D^-1 E``, and the Cholesky factor of S; or NaN."""
        own, edge, corner = self.pattern.split(self.precision)
        ratio = edge / own[self.pattern.edge[0]]
        beside = self.pattern.beside
        product = beside(edge).T @ beside(ratio)
        product = product.toarray() if sparse.issparse(product) else product
        inner = self.pattern.square(corner) - torch.from_numpy(product)
        factor, info = torch.linalg.cholesky_ex(inner)
        if int(info):
            rounding = 4 * len(inner) * torch.finfo(inner.dtype).eps
            inner.diagonal().mul_(1 + rounding)
            factor, info = torch.linalg.cholesky_ex(inner)
        return own, ratio, factor if int(info) == 0 else factor * torch.nan

    @cached_property
    def at_pattern(self) -> torch.Tensor:
        """Covariances at the pattern, (L,)."""
        own, ratio, factor = self.parts
        (rows, columns), (low, high) = self.pattern.edge, self.pattern.corner
        within = torch.cholesky_inverse(factor)
        beside = self.pattern.beside(ratio) @ within.numpy()
        edge = -torch.from_numpy(beside[rows, columns])
        variance = 1 / own
        variance.index_add_(0, torch.from_numpy(rows), -ratio * edge)
        return torch.cat([variance, edge, within[low, high]])

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
    def scale(self) -> torch.Tensor:  # type: ignore[override]
        """Beside a dense factor, as of other normals."""
        own, _, factor = self.parts
        out = torch.empty_like(self.mean)
        out[self.pattern.alone] = own.rsqrt()
        out[self.pattern.border] = OWN * factor.square().sum(1).rsqrt()
        return out

    @property
    def factor(self) -> torch.Tensor:  # type: ignore[override]
        """Dense, (P, p): for what knows no other normals."""
        _, ratio, factor = self.parts
        identity = torch.eye(len(factor), dtype=factor.dtype, device=CPU)
        root = torch.linalg.solve_triangular(factor.mT, identity, upper=True)
        out = factor.new_empty(self.size, len(root))
        out[self.pattern.alone] = -torch.from_numpy(
            self.pattern.beside(ratio) @ root.numpy()
        )
        out[self.pattern.border] = root
        return out

    def _beside(self, b: torch.Tensor) -> torch.Tensor:
        """``D^-1 E b`` of each row."""
        ratio = self.pattern.beside(self.parts[1])
        return torch.from_numpy(np.ascontiguousarray((ratio @ b.numpy().T).T))

    def whiten(self, deviation: torch.Tensor) -> torch.Tensor:
        (own, _, factor), out = self.parts, torch.empty_like(deviation)
        alone, border = self.pattern.alone, self.pattern.border
        b = deviation[..., border]
        out[..., alone] = own.sqrt() * (deviation[..., alone] + self._beside(b))
        out[..., border] = b @ factor
        return out

    def squared_distance(self, deviation: torch.Tensor) -> torch.Tensor:
        return self.whiten(deviation).square().sum(-1)

    def transform(self, eps: torch.Tensor) -> torch.Tensor:
        (own, _, factor), out = self.parts, torch.empty_like(eps)
        alone, border = self.pattern.alone, self.pattern.border
        b = eps[..., border].reshape(-1, len(border))
        b = torch.linalg.solve_triangular(factor, b, upper=False, left=False)
        b = b.reshape(*eps.shape[:-1], -1)
        out[..., border] = b
        out[..., alone] = own.rsqrt() * eps[..., alone] - self._beside(b)
        return self.mean + out

    def solve(self, right: torch.Tensor) -> torch.Tensor:
        """Covariance times one right side, (P,)."""
        (own, ratio, factor), out = self.parts, torch.empty_like(right)
        alone, border = self.pattern.alone, self.pattern.border
        back = self.pattern.beside(ratio).T @ right[alone].numpy()
        inner = right[border] - torch.from_numpy(back)
        b = torch.cholesky_solve(inner[:, None], factor)[:, 0]
        out[border], out[alone] = b, right[alone] / own - self._beside(b)
        return out

    def variances_of(self, X: Any) -> torch.Tensor | None:
        return None if self.rows is None else self.rows.variances(self, X)

    def stretched(self, mean: torch.Tensor, ratio: torch.Tensor) -> "BorderedForm":
        first, second = self.pattern.pairs
        moved = self.precision[:, 0] / (ratio[first] * ratio[second])
        return BorderedForm(mean, moved[:, None], self.pattern)

    def leading(self, size: int) -> "BorderedForm":
        """Normal of the first parameters; the others are independent."""
        keep = int((self.pattern.alone < size).sum())
        return self._with(self.mean[:size], keep, self.mean[:0])

    def joined(self, mean: torch.Tensor, std: torch.Tensor) -> "BorderedForm":
        """With an independent parameter that comes last."""
        center = torch.cat([self.mean, mean])
        return self._with(center, len(self.pattern.alone), std**-2)

    def _with(
        self, mean: torch.Tensor, keep: int, more: torch.Tensor
    ) -> "BorderedForm":
        """With some of the diagonal and more of it, and what is known already."""
        alone, known = self.pattern.alone, vars(self)
        last = np.arange(len(mean) - len(more), len(mean))
        pattern = replace(self.pattern, alone=np.append(alone[:keep], last))

        def changed(values: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
            return torch.cat([values[:keep], own, values[len(alone) :]])

        found = BorderedForm(mean, changed(self.precision, more[:, None]), pattern)
        if "parts" in known:
            own, *rest = self.parts
            vars(found)["parts"] = changed(own, more), *rest
        if "at_pattern" in known:
            vars(found)["at_pattern"] = changed(self.at_pattern, 1 / more)
        return found


class BorderedForms(NormalForm):
    """A batch of them."""

    def __init__(self, members: list[BorderedForm]) -> None:
        mean = torch.stack([member.mean for member in members])
        vars(self).update(members=members, mean=mean)

    members: list[BorderedForm]

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

    def __init__(self, layout: Layout, border: np.ndarray) -> None:
        self.border = torch.from_numpy(border)
        self.pattern, self._known = Pattern.plain(layout.size, border), None
        super().__init__(layout)

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
        plain = Pattern.plain(self.layout.size, self.border.numpy())
        other.pattern, other._known = plain, None
        if isinstance(normal, BorderedForm):
            other.pattern, other._known = normal.pattern, copy(normal)
            vars(other._known).update(rows=None)
        return other.at(other._params_of(normal))

    def _params_of(self, normal: NormalForm) -> torch.Tensor:
        if isinstance(normal, BorderedForm):
            return torch.cat([normal.mean, normal.precision[:, 0]])
        first = self.pattern.pairs[0]
        return torch.cat([normal.mean, 1 / normal.variance[first]])
