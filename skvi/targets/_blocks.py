"""Sums over rows, which are all that a solver needs, wherever the rows are."""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn, Self

import torch

from skvi.base import NormalForm
from skvi.base._rows import Rows
from skvi.exceptions import IncompatibleComponentsError
from skvi.targets._least_squares import Triangle
from skvi.targets._rows import stacked_terms
from skvi.utils._blocks import Blocks
from skvi.utils._tensors import CPU, Movable
from skvi.utils._validation import row_chunks

if TYPE_CHECKING:
    from skvi.targets._supervised import SupervisedTarget

# Elements of a block whose rows are standardized at once.
PASS_ELEMENTS = 2**21


@dataclass(frozen=True, eq=False)
class RowSums:
    """Sums over rows in memory at K normals: losses, and derivatives in theta.

    Of derivatives in f, (K, n) and (K, n), or (K, n, C) and (K, n, C, C).
    """

    target: "SupervisedTarget"
    value: torch.Tensor  # (K,)
    slope: torch.Tensor
    curvature: torch.Tensor

    def some(self, which: torch.Tensor) -> "RowSums":
        """Those at some of the normals."""
        parts = (part[which] for part in (self.value, self.slope, self.curvature))
        return RowSums(self.target, *parts)

    def gradient(self) -> torch.Tensor:
        """Gradients, (K, P)."""
        return self.target.predictor.pull_back_draws(self.target.X, self.slope)

    def gram(self) -> torch.Tensor:
        """Curvatures, (K, P, P)."""
        return torch.stack([self._gram(h) for h in self.curvature])

    def convex(self, gram: torch.Tensor) -> torch.Tensor:
        """Curvatures without concave losses of rows; `gram` itself without any."""
        out = gram
        for k, h in enumerate(self.curvature):
            if (own := convex_part(self.target, h)) is not h:
                out = gram.clone() if out is gram else out
                out[k] = self._gram(own)
        return out

    def clipped(self, k: int) -> torch.Tensor | None:
        """Convex curvature, (P, P), where rounding has spoiled it; None if unknown."""
        h = self.curvature[k]
        return None if h.ndim == 1 else self._gram(clip_eigenvalues(h))

    def _gram(self, h: torch.Tensor) -> torch.Tensor:
        return self.target.predictor.gram(self.target.X, h)


@dataclass(frozen=True, eq=False)
class KnownSums(Movable):
    """The same sums, as they come from blocks."""

    value: torch.Tensor
    slope: torch.Tensor  # (K, P)
    curvature: torch.Tensor  # (K, P, P)
    convex_part: torch.Tensor

    @classmethod
    def of(cls, sums: RowSums) -> Self:
        """Add the rows of a block."""
        gram = sums.gram()
        return cls(sums.value, sums.gradient(), gram, sums.convex(gram))

    def __add__(self, other: Self) -> "KnownSums":
        """Add those of other rows."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return KnownSums(*(a + b for a, b in pairs))

    def some(self, which: torch.Tensor) -> "KnownSums":
        """Those at some of the normals."""
        return KnownSums(*(part[which] for part in vars(self).values()))

    def gradient(self) -> torch.Tensor:
        """Gradients, (K, P)."""
        return self.slope

    def gram(self) -> torch.Tensor:
        """Curvatures, (K, P, P)."""
        return self.curvature

    def convex(self, gram: torch.Tensor) -> torch.Tensor:
        """Curvatures without concave losses of rows."""
        return self.convex_part

    def clipped(self, k: int) -> None:
        """Convex curvature where rounding has spoiled it: unknown."""


class BlockRows(Movable):
    """Rows in blocks of dask: only sums over them come back.

    `start` are rows in memory from which a fit starts, with the weight of all of them.
    `read` makes `Rows` of a block, in the units of the fit.
    """

    device, offset = CPU, None

    def __init__(self, blocks: Blocks, read: Callable[..., Rows], start: Rows) -> None:
        self.blocks, self.read, self.start = blocks, read, start
        self.shape, self.total_weight = blocks.shape, blocks.look.moments[0]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.blocks)

    @property
    def X(self) -> Self:
        """Features, of which only the shape is known."""
        return self

    def take(self, index: Any = None) -> NoReturn:
        """Raise IncompatibleComponentsError: no row is here."""
        raise IncompatibleComponentsError(
            "X in blocks of dask",
            "a fit by sums over its rows, and this one asks for the rows themselves",
            "objective='elbo' with a normal posterior and solver='auto', or arrays, as "
            "of X.compute()",
        )

    y = weight = property(take)
    chunks = take

    def total(
        self, function: Callable, targets: Sequence["SupervisedTarget"], *args: Any
    ) -> Any:
        """Sum of a function of targets on rows in memory, and of args, over all."""
        shells = [copy(target) for target in targets]
        for shell in shells:
            shell.rows, shell.constant = None, 0.0
        return self.blocks.total(_on_block, function, self.read, shells, args)


def _on_block(
    function: Callable,
    read: Callable[..., Rows],
    targets: Sequence["SupervisedTarget"],
    args: tuple,
    *block: Any,
) -> Any:
    """What a function gives for a block: the sum over chunks of rows."""
    rows, found = read(*block), None
    targets = [copy(target) for target in targets]  # threads share what is given
    for chunk in row_chunks(len(rows), rows.X.shape[1] + 1, PASS_ELEMENTS):
        part = rows.take(chunk)
        for target in targets:
            target.rows = part
        own = function(targets, *args)
        found = own if found is None else found + own
    return found


def sums_at(
    targets: Sequence["SupervisedTarget"], normal: NormalForm
) -> RowSums | KnownSums:
    """Sums over the rows of targets, which share them, at a batch of K normals."""
    first = targets[0]
    if not isinstance(first.rows, BlockRows):
        return RowSums(first, *stacked_terms(targets, normal))
    found: KnownSums = first.rows.total(_known_sums, targets, normal)
    return replace(found, value=found.value - first.constant)


def _known_sums(targets: Sequence["SupervisedTarget"], normal: NormalForm) -> KnownSums:
    return KnownSums.of(RowSums(targets[0], *stacked_terms(targets, normal)))


def expected_loss_of(
    targets: Sequence["SupervisedTarget"], normal: NormalForm, refine: int
) -> torch.Tensor:
    """Expected loss of a target, in nats."""
    return targets[0].expected_loss_terms(normal, refine)[0]


def total_loss_of(
    targets: Sequence["SupervisedTarget"], theta: torch.Tensor
) -> torch.Tensor:
    """Losses of a target at draws, (S,), in nats."""
    return targets[0]._total_loss(theta, targets[0].rows)


def triangle_of(targets: Sequence["SupervisedTarget"]) -> Triangle:
    """Least squares of a target, as a triangle."""
    rows, has_ones = targets[0].rows, targets[0].predictor.fit_intercept
    return Triangle.of(rows.X, rows.y, rows.weight, has_ones)


def starting(target: "SupervisedTarget") -> "SupervisedTarget":
    """The target of the rows that a fit starts from; itself if they are all."""
    if (rows := target.rows.start) is target.rows:
        return target
    found = copy(target)
    found.rows = rows
    return found


def convex_part(target: "SupervisedTarget", curvature: torch.Tensor) -> torch.Tensor:
    """Clip negative second derivatives in f, or negative eigenvalues, at zero."""
    if curvature.ndim == 1:  # no copy of millions of rows without need
        return curvature if bool(curvature.min() >= 0) else curvature.clamp(min=0)
    if target.loss.is_log_loss and target.likelihood_spec.is_log_concave:
        return curvature
    return clip_eigenvalues(curvature)


def clip_eigenvalues(curvature: torch.Tensor) -> torch.Tensor:
    """Closest positive semi-definite matrices, (n, K, K)."""
    values, vectors = torch.linalg.eigh(curvature)
    return vectors @ (values.clamp(min=0)[..., None] * vectors.mT)
