"""Natural gradient steps for normal posteriors of linear models, for several at once.

f_i is normal under q, so that every E_q[loss_i] is a one-dimensional integral. With its
derivatives in f_i, one step sets

    precision <- precision + rho (A' diag(E loss'') A + 2 dD/dcov) / c,      (1)
    mean      <- mean - rho (A' diag(E loss'') A + d2D/dmean2)^-1 gradient,  (2)

which for KL is the natural gradient (c = 1). Problems that differ in their prior, or in
a number of their likelihood, take their steps together, since most of the time of a
small one is that of calls. Each accelerates and shortens its own steps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import torch

from skvi.base import NormalForm
from skvi.divergences import Divergence
from skvi.divergences._forms import precision_of
from skvi.solvers._mode import LARGEST, combined
from skvi.solvers._structures import Structure
from skvi.targets import SupervisedTarget
from skvi.targets._blocks import KnownSums, RowSums, sums_at
from skvi.targets._rows import members

# Least fraction of the precision's step where full ones overshoot, and its growth.
LEAST_SHARE, GROWTH = 0.3, 1.1
# Shortest step, as a fraction of the plain one.
SHORTEST = 1e-3


class _Terms(NamedTuple):
    """What the divergence adds to value, gradient and curvatures, (K, ...)."""

    value: torch.Tensor
    gradient: torch.Tensor
    curvature: torch.Tensor
    by_cov: torch.Tensor
    entropy_weight: torch.Tensor


class Place(NamedTuple):
    """A normal, the value there, and the plain steps from there, with their gain."""

    normal: NormalForm
    precision: torch.Tensor
    value: float
    step: torch.Tensor
    move: torch.Tensor
    residual: torch.Tensor  # both steps in units of the normal
    gap: float  # nats that the value may still decrease, by a quadratic model


class _Divergence:
    """The divergence from K priors; KL from normal ones in a closed form for all."""

    def __init__(
        self,
        targets: Sequence[SupervisedTarget],
        divergence: Divergence,
        structure: Structure,
    ) -> None:
        self.structure = structure
        self.priors, self.divergence = [t.prior for t in targets], divergence
        normals = [prior.as_normal() for prior in self.priors]
        self.is_normal = all(normal is not None for normal in normals)
        self.is_closed = self.is_normal and divergence.kl_weight is not None
        if self.is_closed:
            self.weight = float(cast(float, divergence.kl_weight))
            known = [cast(NormalForm, normal) for normal in normals]
            self.means = torch.stack([n.mean for n in known])
            self.precisions = torch.stack([precision_of(n) for n in known])
            self.half_log_dets = torch.stack([n.half_log_det for n in known])

    def terms(
        self, which: Sequence[int], normal: NormalForm, precision: torch.Tensor
    ) -> _Terms:
        if not self.is_closed:
            return self._each(which, normal, precision)
        known = self.precisions, self.means, self.half_log_dets
        (exact, means, half_log_dets), w = _some(which, *known), self.weight
        away = normal.mean - means
        if exact.ndim == 2:
            gradient = exact * away
            trace = (exact * normal.variance).sum(1)
        else:
            gradient = (exact @ away[:, :, None])[:, :, 0]
            full = normal.covariance()
            trace = (exact * full).sum((1, 2))
        both = trace + (gradient * away).sum(1) - normal.size
        value = half_log_dets - normal.half_log_det + 0.5 * both
        by_cov = w * self.structure.add(-precision, exact)
        weight = torch.full_like(value, w)
        return _Terms(w * value, w * gradient, w * exact, by_cov, weight)

    def _each(
        self, which: Sequence[int], normal: NormalForm, precision: torch.Tensor
    ) -> _Terms:
        """One divergence after the other."""
        parts = zip(which, members(normal), precision, strict=True)
        found = [
            self.divergence.terms(one, self.priors[k], own) for k, one, own in parts
        ]
        names = ("value", "gradient", "curvature", "precision_gradient")
        stacked = [torch.stack([getattr(f, name) for f in found]) for name in names]
        if normal.is_diagonal and stacked[3].ndim == 3:
            stacked[3] = stacked[3].diagonal(dim1=1, dim2=2)
        like = stacked[0]
        weights = [torch.as_tensor(f.entropy_weight).to(like) for f in found]
        value, gradient, curvature, by_cov = stacked
        return _Terms(value, gradient, curvature, by_cov, torch.stack(weights))


@dataclass(eq=False)
class _Descending:
    """Where a descent is, and how it steps."""

    place: Place | None
    #: Fraction of the plain step to try, 0 for the accelerated one; that of the
    #: precision's part; points and residuals before.
    rho: float = 1.0
    share: float = 1.0
    history: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    @property
    def image(self) -> torch.Tensor:
        """Where the plain steps lead to."""
        at = cast(Place, self.place)
        precision = at.precision + self.share * at.move
        return torch.cat([at.normal.mean + at.step, precision.flatten()])

    def trial(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and precision to try."""
        at, rho = cast(Place, self.place), self.rho
        if rho > 0:
            precision = at.precision + rho * self.share * at.move
            return at.normal.mean + rho * at.step, precision
        steps = [*self.history, (self.image, at.residual)]
        point, size = combined(*zip(*steps, strict=True)), at.normal.size
        return point[:size], point[size:].reshape(at.precision.shape)

    def accept(self, place: Place, depth: int) -> None:
        """Move; remember the step, and by how much steps overshoot."""
        if self.rho:
            share = self.share * (GROWTH if self.rho == 1 else self.rho)
            self.share = min(1.0, max(LEAST_SHARE, share))
        if depth:
            step = self.image, cast(Place, self.place).residual
            self.history = [*self.history, step][-depth:]
        self.place, self.rho = place, 0.0 if depth else 1.0

    def reject(self) -> None:
        """Try the plain step, then shorter ones."""
        if self.rho == 0:
            self.history = self.history[len(self.history) // 2 :]
        self.rho = 0.5 * self.rho or 1.0


class Descent:
    """K descents of ``E_q[loss] + D(q || prior)``, one for each target.

    The targets have the same rows and predictor. Starts are means, (K, P), and
    precisions, diagonal or full; the place of one is None where the value is infinite.
    """

    def __init__(
        self,
        targets: Sequence[SupervisedTarget],
        divergence: Divergence,
        mean: torch.Tensor,
        precision: torch.Tensor,
        structure: Structure,
    ) -> None:
        self.targets, self.structure = targets, structure
        self.divergence = _Divergence(targets, divergence, structure)
        self.depth = structure.depth(structure.n_elements(precision[0]))
        #: Accepted increase of the value: what the quadrature cannot resolve.
        self.slack = 0.0
        every = list(range(len(targets)))
        limits = [math.inf for _ in every]
        places = self._places(every, mean, precision, limits)
        self.states = [_Descending(place) for place in places]

    def place(self, k: int) -> Place | None:
        """Where the k-th descent is."""
        return self.states[k].place

    def may_go_on(self, k: int) -> bool:
        """Whether a step has not become too short."""
        state = self.states[k]
        return state.place is not None and (state.rho == 0 or state.rho >= SHORTEST)

    def run(self, tol: float, max_iter: int) -> "Descent":
        """Take steps until all are within a tolerance in nats, or fail."""
        for _ in range(max_iter):
            open_ones = [
                k
                for k, state in enumerate(self.states)
                if self.may_go_on(k) and cast(Place, state.place).gap >= tol
            ]
            if not open_ones:
                break
            self.advance(open_ones)
        return self

    def step(self) -> None:
        """Trials of a single descent until it moves, or fails."""
        before = self.states[0].place
        while self.states[0].place is before and self.may_go_on(0):
            self.advance([0])

    def advance(self, which: Sequence[int]) -> None:
        """One trial of each of some of the descents."""
        states = [self.states[k] for k in which]
        trials = zip(*(state.trial() for state in states), strict=True)
        mean, precision = (torch.stack(part) for part in trials)
        limits = []
        for state in states:
            value = cast(Place, state.place).value
            limits.append(value + self.slack + 1e-13 * abs(value))
        found = self._places(which, mean, precision, limits)
        for state, place in zip(states, found, strict=True):
            if place is None:
                state.reject()
            else:
                state.accept(place, self.depth)

    def _places(
        self,
        which: Sequence[int],
        mean: torch.Tensor,
        precision: torch.Tensor,
        limits: Sequence[float],
    ) -> list[Place | None]:
        """Places with these normals; None where a value is above its limit."""
        out: list[Place | None] = [None] * len(which)
        normal, exists = self.structure.normal(mean, precision)
        exists &= (mean.abs() < LARGEST).all(1)
        kept = exists.nonzero()[:, 0].tolist()
        if not kept:
            return out
        numbers = [which[i] for i in kept]
        normal, precision = _some_of(kept, normal), _some(kept, precision)[0]
        terms = self.divergence.terms(numbers, normal, precision)
        targets = [self.targets[k] for k in numbers]
        sums = sums_at(targets, normal)
        values = (sums.value + terms.value).tolist()
        pairs = zip(values, (limits[i] for i in kept), strict=True)
        good = [i for i, (v, top) in enumerate(pairs) if math.isfinite(v) and v <= top]
        if not good:
            return out
        if len(good) < len(kept):
            sums = sums.some(torch.tensor(good, device=mean.device))
        normal = _some_of(good, normal)
        precision, *rest = _some(good, precision, *terms)
        *steps, gaps = self._directions(normal, sums, _Terms(*rest))
        each = zip(members(normal), precision, *steps, gaps.tolist(), strict=True)
        for i, (own, p, step, move, residual, gap) in zip(good, each, strict=True):
            out[kept[i]] = Place(own, p, values[i], step, move, residual, gap)
        return out

    def _directions(
        self, normal: NormalForm, sums: RowSums | KnownSums, terms: _Terms
    ) -> tuple[torch.Tensor, ...]:
        """Plain steps (1) and (2), residuals and gaps where the sums are known."""
        gradient = sums.gradient() + terms.gradient
        gram, step = self.structure.newton(sums, terms.curvature, gradient, normal)
        move = self.structure.add(gram, terms.by_cov)
        move = move / _like(terms.entropy_weight, move)
        first, white = self.structure.whitened(normal, step, move)
        squared = white.square() * _like(terms.entropy_weight, white)
        gap = 0.5 * (0.5 * squared.sum(1) - (gradient * step).sum(1))
        residual = torch.cat([first, white * math.sqrt(0.5)], 1)
        return step, move, residual, gap


def _some(which: Sequence[int], *parts: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Some of the first axis; the tensors themselves where that is all of it."""
    if len(which) == len(parts[0]):
        return parts
    index = torch.tensor(which, device=parts[0].device)
    return tuple(part[index] for part in parts)


def _some_of(which: Sequence[int], normal: NormalForm) -> NormalForm:
    """Some normals of a batch."""
    return normal if len(which) == len(normal.mean) else normal[list(which)]


def singularity(place: Place) -> float:
    """Largest disagreement between a precision and the scale derived from it."""
    scale = place.normal.scale
    if scale.ndim == 1:
        return 0.0
    product = scale.T @ (place.precision @ scale)
    return float(
        (product - torch.eye(len(scale), dtype=scale.dtype, device=scale.device))
        .abs()
        .max()
    )


def _like(values: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """Numbers of the problems, with the axes of their matrices or vectors."""
    return values.reshape(*values.shape, *[1] * (matrices.ndim - values.ndim))
