"""Posteriors that are normal given a few shared numbers: mixtures over nodes.

Equal steps of about one posterior deviation make the sum over nodes an integral (the
trapezoidal rule, whose error falls like exp(-2 pi^2 / h^2) for a normal). The likely
range is found on a coarse grid, so that a valley does not hide it; the best place in it
by slopes, which at the best q(theta | z) are those at fixed q: the envelope theorem.

A valley does not hide a scale from a grid of the whole range. Its values are those of
losses that are quadratic around a mode: first around one, then around that at each top
of the integrand.
"""

import math
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple, cast

import numpy as np
import torch

from skvi.base import NormalForm
from skvi.posteriors._mixture import MixtureOverScales, leading
from skvi.solvers._mode import DENSE_LIMIT, add, factorize, find_mode, start_at_mode
from skvi.solvers._newton import Descent
from skvi.solvers._node_run import (
    FALL,
    MAX_NODES,
    NODE_TOL,
    ROUGH,
    Fit,
    Index,
    NodeRun,
    Parts,
    Start,
    extrapolated,
)
from skvi.solvers._normal_noise import NormalNoise, has_normal_noise
from skvi.solvers._run import known_error
from skvi.solvers._solution import Solution
from skvi.solvers.base import Problem, SolverOptions
from skvi.targets import SupervisedTarget
from skvi.targets._blocks import starting
from skvi.targets._numbers import Scale, slopes_of
from skvi.targets._rows import terms_at

# Most points of the grid, and how far it goes beyond the scales at which data and prior
# weigh the same for some coefficient.
MAX_POINTS, BEYOND = 24, (1.0, 3.0)
# Most grids to the end of one top.
MAX_GRIDS = 30


class Top(NamedTuple):
    """A log scale at which the integrand has a maximum."""

    value: float  # log integrand
    z: float
    mode: torch.Tensor


@dataclass(frozen=True, eq=False)
class ScaleGrid:
    """Log integrands of one scale by quadratic losses, beside other numbers."""

    number: Scale
    target_at: Callable[[float], SupervisedTarget]
    weight: float  # of the divergence
    is_full: bool  # the structure of the precision

    def likely(self, start: float, mode: torch.Tensor | None) -> list[Top]:
        """Tops of the integrand, the highest first; from a log scale and a mode."""
        found = []
        for top in self._tops(start, mode):
            z = start
            for _ in range(MAX_GRIDS):
                change, z = top.z - z, top.z
                if abs(change) < 0.5:
                    break
                nearby = self._tops(z, top.mode)
                top = min(nearby, key=lambda other: abs(other.z - z))
            found.append(Top(top.value, z, top.mode))
        return sorted(found, key=lambda top: -top.value)

    def _tops(self, z: float, start: torch.Tensor | None) -> list[Top]:
        """Maxima by the losses around the mode at z."""
        target = self.target_at(z)
        mode, h = find_mode(target, self._prior(z), start=start)
        grid, values = self._values(target, z, mode, h)
        found = []
        for i, value in enumerate(values):
            if value < max(values[max(i - 1, 0) : i + 2]):
                continue
            place = grid[i]
            if 0 < i < len(grid) - 1:
                a, b, c = values[i - 1 : i + 2]
                if (bend := a - 2 * b + c) < 0:
                    place += 0.5 * (a - c) / bend * (grid[1] - grid[0])
            found.append(Top(value, place, mode))
        return found

    def _prior(self, z: float) -> NormalForm:
        return cast(NormalForm, self.target_at(z).prior.as_normal())

    def _range(self, diagonal: torch.Tensor) -> list[float]:
        """A grid, by the information of the rows on each coefficient."""
        weights = self.number.weights
        informed = (weights > 0) & (diagonal > 1e-16 * diagonal.max())
        ratio = (diagonal / weights)[informed]
        low, high = (-BEYOND[0], BEYOND[1])
        if len(ratio):
            low -= 0.5 * math.log(float(ratio.max()))
            high -= 0.5 * math.log(float(ratio.min()))
        low, high = min(low, -1.0), max(high, 1.0)
        return np.linspace(
            low, high, min(MAX_POINTS, math.ceil(high - low) + 1)
        ).tolist()

    def _values(
        self, target: SupervisedTarget, z: float, mode: torch.Tensor, h: torch.Tensor
    ) -> tuple[list[float], list[float]]:
        """Log scales, and the log integrand there."""
        predictor, X = target.predictor, target.X
        is_full = self.is_full and len(mode) <= DENSE_LIMIT
        gram = predictor.gram(X, h) if is_full else predictor.gram_diagonal(X, h)
        grid = self._range(gram.diagonal() if is_full else gram)
        prior = self._prior(z)
        gradient = -(mode - prior.mean) / prior.variance  # of the rows
        right = (gram @ mode if is_full else gram * mode) - gradient
        values, at_mode = [], terms_at(target, mode)[0]
        for place in grid:
            known = self.target_at(place).prior
            own = cast(NormalForm, known.as_normal())
            flat = 1 / own.variance
            precision = add(gram, flat)
            b = right + flat * own.mean
            if is_full:
                root = factorize(precision)
                theta = torch.cholesky_solve(b[:, None], root)[:, 0]
                log_det = 2 * root.diagonal().log().sum()
            else:
                theta, log_det = b / precision, precision.log().sum()
            away, beside = theta - mode, theta - own.mean
            curved = gram @ away if is_full else gram * away
            loss = at_mode + gradient @ away + 0.5 * (away @ curved)
            loss = loss + 0.5 * (beside.square() @ flat + log_det - flat.log().sum())
            log_p = self.number.log_density(place) + known.log_ratio
            values.append(log_p - float(loss) / self.weight)
        return grid, values


# Step in posterior deviations, its limits, and by which factor a first guess must be
# wrong to begin again.
STEP, SHORTEST, LONGEST, MUCH = 1.25, 0.01, 0.8, 1.5
# Most places that are tried, and the longest move in z.
MAX_PLACES, FARTHEST = 30, 2.0
# Nats by scale, with minus sign, that are none; most draws for weights, and times rows
# or, as every node weighs every draw, four times the parameters.
OPEN, MAX_DRAWS, MAX_VALUES = 0.5, 2**13, 2**24


class Nodes(NodeRun):
    """Nodes around the likeliest place."""

    def __init__(
        self, problem: Problem, options: SolverOptions, parts: Parts | None = None
    ) -> None:
        super().__init__(problem, options, parts)
        #: Fits at other likely tops of the integrand, which the nodes must reach.
        self.beside: list[Fit] = []
        #: First and last index of each axis.
        self.ends = [[0, 0] for _ in self.numbers]
        #: The mixture if its weights are those of draws.
        self.weighed: MixtureOverScales | None = None
        known = self._at([number.start for number in self.numbers])
        is_normal = known.prior.as_normal() is not None and self.structure.is_full
        if is_normal and has_normal_noise(known):
            self.noise = NormalNoise(self.target, self.numbers, self.weight)

    def improve(self) -> Solution:
        middle = self._climb(*self._first())
        is_near = not self.stopped and middle.gap < self._tolerance(ROUGH)
        if self.options.averages and is_near:
            self._fill(middle)
            self.report()
        return self._finish()

    def _fill(self, middle: Fit) -> None:
        """Nodes wherever the integrand is large."""
        self._lay(middle)
        while missing := self._edges():
            self._extend(missing)
        if self._is_open():
            size = max(self.target.n_rows, 4 * self.target.layout.size)
            n_draws = min(MAX_DRAWS, MAX_VALUES // size)
            with torch.inference_mode(False), torch.no_grad():
                nodes, share = super()._mixture(), n_draws // len(self.fits)
                self.weighed = nodes.weighed(self.given.target, max(share, 1))

    def _is_open(self) -> bool:
        """Whether the losses end to fall with the scale, as for separable classes.

        Far scales then weigh what their prior does, and normals given them are too
        narrow: bounds at nodes are too low to be their weights.
        """
        number, end = self.numbers[0], self.ends[0][1]
        if not isinstance(number, Scale) or self.weight != 1:
            return False
        last, before = (self.fits[(k, *self.zero[1:])] for k in (end, end - 1))
        own = number.log_density(last.z[0]) - number.log_density(before.z[0])
        return last.value - before.value - own > OPEN * (before.z[0] - last.z[0])

    def _mixture(self) -> MixtureOverScales:
        return self.weighed or super()._mixture()

    # The best place -----------------------------------------------------------------

    def _first(self) -> tuple[tuple[float, ...], Start]:
        """Where to begin: on a coarse grid of the scale, around the last fit or not."""
        z, mean = [number.start for number in self.numbers], None
        if isinstance(self.last, MixtureOverScales):
            z = self.last.places()[int(self.last.log_weights.argmax())].tolist()
            normal = cast(NormalForm, self.last.likeliest.as_normal())
            normal = leading(normal, self.target.layout.size)
            if not isinstance(self.numbers[0], Scale):
                return tuple(z), (normal.mean, self.structure.precision_of(normal))
            mean = normal.mean
        for k, number in enumerate(self.numbers):
            if isinstance(number, Scale):
                z[k], mean = self._likeliest(number, z, k, mean)
        return tuple(z), start_at_mode(self._at(z), self.structure, mean)

    def _likeliest(
        self, number: Scale, z: list[float], k: int, mean: torch.Tensor | None
    ) -> tuple[float, torch.Tensor]:
        """The likeliest log scale, and the mode there; fits at others are kept."""

        def at(scale: float) -> SupervisedTarget:
            return starting(self._at([*z[:k], scale, *z[k + 1 :]]))

        grid = ScaleGrid(number, at, self.weight, self.structure.is_full)
        best, *others = grid.likely(z[k], mean)
        for top in others:
            if top.value > best.value - FALL and abs(top.z - best.z) > 1:
                start = start_at_mode(at(top.z), self.structure, top.mode)
                self.beside += self._solved([(*z[:k], top.z, *z[k + 1 :])], [start])
        return best.z, best.mode

    def _climb(self, z: tuple[float, ...], start: Start) -> Fit:
        """The fit about where the integrand is largest."""
        factor, farthest = ROUGH, FARTHEST
        best = self._watched(z, start, factor)
        for _ in range(MAX_PLACES):
            slopes, curvatures = self._slopes(best), self._curvatures(best)
            widths = [(2 * math.pi / c) ** 0.5 for c in curvatures]
            self.lattice = {self.zero: best}, widths
            pairs = list(zip(slopes, curvatures, strict=True))
            near = all(abs(s) <= c**0.5 for s, c in pairs)
            if near or not self.may_go_on:
                break
            moves = [s / c for s, c in pairs]
            farthest = min(farthest, max(map(abs, moves)))
            cut = farthest / max(map(abs, moves))
            z = tuple(at + cut * m for at, m in zip(best.z, moves, strict=True))
            try:
                fit = self._watched(z, best, factor)
            except KeyboardInterrupt:
                self._keep(best)
                raise
            except ValueError:  # singular, so far away
                farthest *= 0.5
                continue
            if fit.value >= best.value - self.resolution:
                best, farthest = fit, min(FARTHEST, 2 * farthest)
            elif factor == ROUGH:  # for slopes that are sums over many parameters
                factor = NODE_TOL
                best = self._watched(best.z, best, factor)
            else:
                farthest *= 0.5
        self._keep(best)
        return best

    def _watched(self, z: tuple[float, ...], start: Start | Fit, factor: float) -> Fit:
        """The fit at one place, which reports each of its iterations."""
        if self.noise is not None:
            self._keep(self._solved([z], [start])[0])
            self.report()
            return self.fits[self.zero]
        target = self._at(z)
        mean, precision = start.toward(target) if isinstance(start, Fit) else start
        begin = mean[None], precision[None], self.structure
        descent = Descent([target], self.given.divergence, *begin)
        self._keep(self._fits_of(descent, [z])[0])
        self._resolve(self.fits[self.zero])
        descent.slack = self.resolution
        while self.may_go_on and descent.may_go_on(0):
            if self.fits[self.zero].gap < self._tolerance(factor):
                break
            descent.step()
            self._keep(self._fits_of(descent, [z])[0])
            self.report()
        return self.fits[self.zero]

    def _resolve(self, fit: Fit) -> None:
        """Twice the error of the quadrature if a loss depends on several f."""
        if fit.target.predictor.n_outputs > 1 and self.resolution == 0:
            error = known_error(fit.target)
            self.resolution = 2 * (error if math.isfinite(error) else self._error(fit))

    def _keep(self, fit: Fit) -> None:
        """The only fit so far."""
        self.lattice = {self.zero: fit}, self.lattice[1]

    def _slopes(self, fit: Fit) -> list[float]:
        if fit.slopes is not None:
            return fit.slopes
        given = self.target, self.numbers, fit.z, fit.target, fit.normal
        return slopes_of(*given, self.weight)

    def _curvatures(self, fit: Fit) -> list[float]:
        parts = zip(self.numbers, fit.z, strict=True)
        each = (n.curvature(fit.target, z, fit.normal, self.weight) for n, z in parts)
        return [max(c, 1e-2) for c in each]

    # Nodes --------------------------------------------------------------------------

    def _settled(self, middle: Fit) -> Fit:
        """The fit in the middle, nearer to the top and more exact."""
        curvatures = self._curvatures(middle)
        parts = zip(self._slopes(middle), curvatures, strict=True)
        moves = [slope / c for slope, c in parts]
        for cut in (1.0, 0.5, 0.25, 0.0):  # the last one only makes it more exact
            place = tuple(z + cut * m for z, m in zip(middle.z, moves, strict=True))
            moved = self._solved([place], [middle])[0]
            if moved.value >= middle.value:
                break
        self._keep(moved)
        return moved

    def _lay(self, middle: Fit) -> None:
        """Steps of the lattice, by the fit in its middle and those beside it."""
        middle = self._settled(middle)
        every = [self._curvatures(fit) for fit in (middle, *self.beside)]
        steps = [min(map(_step, column)) for column in zip(*every, strict=True)]
        sides: dict[Index, Fit] = {}
        for axis, step in enumerate(steps):
            pair = [_unit(self.zero, axis, sign) for sign in (-1, 1)]
            found = self._extended(pair, steps)
            low, high = (self._slopes(found[index])[axis] for index in pair)
            seen = _step(max(0.5 * (low - high) / step, 1e-9))
            if seen < step / MUCH or (seen > MUCH * step and not self.beside):
                steps[axis] = seen
                found = self._extended(pair, steps)
            sides |= found
            self.ends[axis] = [-1, 1]
        self.lattice = self.fits | sides, steps
        self._extend([i for i in self._box() if i not in self.fits])

    def _box(self) -> list[Index]:
        return list(product(*(range(low, high + 1) for low, high in self.ends)))

    def _edges(self) -> list[Index]:
        """Extend the box to what is likely; returns the nodes that it lacks."""
        top = max(fit.value for fit in self.fits.values())
        ends = [list(end) for end in self.ends]
        for axis, end in enumerate(self.ends):
            for side, sign in enumerate((-1, 1)):
                line = (f.value for i, f in self.fits.items() if i[axis] == end[side])
                reach = self.fits[self.zero].z[axis] + end[side] * self.lattice[1][axis]
                is_within = any(sign * (f.z[axis] - reach) > 0 for f in self.beside)
                likely = max(line) > top - FALL or is_within
                if likely and end[1] - end[0] < MAX_NODES:
                    ends[axis][side] += sign
        self.ends = ends
        return [i for i in self._box() if i not in self.fits]

    def _extend(self, missing: Sequence[Index]) -> None:
        """Add nodes beside those that are known."""
        if missing:
            steps = self.lattice[1]
            self.lattice = self.fits | self._extended(missing, steps), steps

    def _extended(
        self, missing: Sequence[Index], steps: Sequence[float]
    ) -> dict[Index, Fit]:
        """Fits at nodes, each from its neighbor, and the one before that."""
        starts, places = list[Start | Fit](), []
        middle = self.fits[self.zero].z
        scales = tuple(isinstance(number, Scale) for number in self.numbers)
        for index in missing:
            parts = zip(middle, steps, index, strict=True)
            place = tuple(z + h * i for z, h, i in parts)
            near = _neighbor(index, self.fits)
            behind = tuple(2 * a - b for a, b in zip(near, index, strict=True))
            last = None if near == self.zero else self.fits.get(behind)
            if last and last.precision is not None:
                starts.append(extrapolated(place, self.fits[near], last, scales))
            else:
                starts.append(self.fits[near])
            places.append(place)
        return dict(zip(missing, self._solved(places, starts), strict=True))


class PlacedNodes(Nodes):
    """Nodes at the places of an earlier mixture, if there is one."""

    def improve(self) -> Solution:
        if not isinstance(last := self.last, MixtureOverScales):
            return super().improve()
        places, size = last.places(), self.target.layout.size
        starts, indices, steps = [], [], []
        for normal in last.normals():
            known = leading(normal, size)
            starts.append((known.mean, self.structure.precision_of(known)))
        for column in places.T:
            axis, index = column.unique(return_inverse=True)
            indices.append(index.tolist())
            steps.append(float(axis.diff()[0]) if len(axis) > 1 else 1.0)
        fits = self._solved([tuple(z) for z in places.tolist()], starts)
        self.lattice = dict(zip(zip(*indices, strict=True), fits, strict=True)), steps
        self.report()
        return self._finish()


def _step(curvature: float) -> float:
    """Step between nodes where minus the log of the integrand has this curvature."""
    return min(max(STEP * max(curvature, 1e-9) ** -0.5, SHORTEST), LONGEST)


def _unit(zero: Index, axis: int, sign: int) -> Index:
    return tuple(sign * (k == axis) for k in range(len(zero)))


def _neighbor(index: Index, known: Container[Index]) -> Index:
    """The known node that is nearest, inwards."""
    near = tuple(i - (i > 0) + (i < 0) for i in index)
    one = ((*index[:k], near[k], *index[k + 1 :]) for k in range(len(index)))
    return next(i for i in (*one, near, (0,) * len(index)) if i in known)
