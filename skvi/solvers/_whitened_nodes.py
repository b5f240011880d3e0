"""Nodes of several scales: a lattice in whitened coordinates, wherever it is likely.

With u the coordinates in which the log integrand has about the curvature -1 at its top,
nodes are those of the lattice D*: all integer points, and all of them moved by a half
along every axis. Its dual is the checkerboard, so that for the same error it needs 1.4
(three numbers) to 4 (six) times fewer nodes than a cubic one.

Log scales of little effect have exponential tails. Coordinates x, with ``z = middle +
width sinh(TAIL x) / TAIL``, shorten them; those that are whitened are of x.

Slopes in the numbers are known at every node, by the envelope theorem. They tell the
value at its neighbors, so that few nodes are fitted that do not matter.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from skvi.exceptions import IncompatibleComponentsError
from skvi.solvers._node_run import (
    MOST_LOST,
    NODE_TOL,
    Fit,
    Index,
    Parts,
    Places,
    Starts,
)
from skvi.solvers._nodes import FARTHEST, Nodes
from skvi.solvers._solution import Ending, Solution
from skvi.solvers.base import Problem, SolverOptions
from skvi.targets._numbers import Scale

# Step of the cubic lattice of the same error, in deviations, and its growth for each
# number above four; the least curvature, and the largest unit; by which tails are
# stretched.
STEP, GROWTH, LEAST, WIDEST, TAIL = 1.4, 0.1, 0.05, 1.0, 0.5
# Nats below the top at which nodes end, and how many more for each number above two:
# most of a wide normal is far from its middle.
FALL, FALL_EACH = 6.5, 0.9
# Distance in z of the farthest nodes: densities of scales fall like exp(-|z|), and at
# correlations with a larger z pairs are numerically singular.
BEYOND = 12.0
# Distances in z at which curvatures are found, in deviations given all others, and the
# least; nats from the top within which they are those there, and most steps to it; the
# tolerance of fits there, in that of the whole.
NEAR, CLOSEST, NEAR_TOP, MAX_STEPS, EXACT = 0.5, 1e-3, 0.1, 8, 1e-4
# Most numbers, most nodes, most elements of their matrices, and the share of nodes that
# are left out.
MAX_NUMBERS, MAX_FITS, MAX_STORED, LEFT_OUT = 8, 1000, 2**27, 1e-5
# Longest steps where nodes are few: with longer ones halves of lattices differ.
COARSEST = 1.15
# Most by which the logs of sums over both halves of the lattice differ, 0.3 for a
# normal of eight numbers, and by which a lattice is finer where it is more. Of pairs
# posteriors as wide as WIDEST are far from normal, and lattices finer at once.
MOST_APART, FINER, AS_PAIRS = 0.5, 0.7, 0.35
FAR = (
    "the posterior of scales and correlations is far from normal: averages over them "
    "can be wrong. Center the features of slopes, as GroupedFeatures does, or use a "
    "number as the scale of some group, as prior={'a': Normal(1.0)}"
)


class WhitenedNodes(Nodes):
    """Nodes of two scales or more, and of numbers of the likelihood."""

    #: From halves of indices to x, (D, D), when nodes are laid.
    axes: np.ndarray | None = None
    #: The middle, minus the second derivatives in z there, and units of x.
    middle: np.ndarray
    curvature: np.ndarray
    widths: np.ndarray
    #: Step, in that of a fit, how far nodes reach, most of them, and what is left out.
    share, fall, most, left_out = 1.0, FALL, MAX_FITS, LEFT_OUT

    def __init__(
        self, problem: Problem, options: SolverOptions, parts: Parts | None = None
    ) -> None:
        super().__init__(problem, options, parts)
        self.known_slopes: dict[Index, np.ndarray] = {}
        #: Values of nodes that were left out for their number.
        self.lost: list[float] = []

    def improve(self) -> Solution:
        if (size := len(self.numbers)) > MAX_NUMBERS:
            raise IncompatibleComponentsError(
                f"A fit that averages over {size} unknown scales and numbers",
                f"{MAX_NUMBERS} at most",
                "a number as the scale of some groups, such as prior={'a': Normal(1.0)}"
                ", or one group for columns of the same kind",
            )
        return super().improve()

    @property
    def log_cell(self) -> float:
        """See `NodeRun.log_cell`; there are two nodes in each cube."""
        if self.axes is None:
            return super().log_cell
        log_widths = float(np.log(self.widths).sum())
        return float(np.linalg.slogdet(self.axes)[1]) + log_widths - math.log(2)

    def _fill(self, middle: Fit) -> None:
        middle = self._at_top(self._settled(middle))
        share, cost = self._first_share(), FINER ** -len(self.numbers)
        self._grow(middle, share)
        while self._is_coarse and len(self.fits) * cost < self.n_most:
            share, self.axes = FINER * share, None
            middle = max(self.fits.values(), key=lambda fit: fit.value)
            middle = self._solved([middle.z], [middle], EXACT)[0]
            self._grow(self._at_top(middle), share)
        values = [fit.value for fit in self.fits.values()]
        least = float(np.logaddexp.reduce(values)) + math.log(self.left_out)
        kept = {i: fit for i, fit in self.fits.items() if fit.value > least}
        self.lattice = kept, self.lattice[1]

    def _grow(self, middle: Fit, share: float) -> None:
        """Nodes of a lattice, from that in its middle."""
        self.axes, self.known_slopes = share * self._axes(middle), {}
        steps = (STEP * self.widths).tolist()
        self.lattice = {self.zero: middle}, steps
        while missing := self._likely_neighbors():
            free = self.n_most - len(self.fits)
            if free <= 0 or not self.may_go_on:
                self.lost = [low for _, _, low in missing.values()]
                break
            some = sorted(missing, key=lambda i: -missing[i][0])[:free]
            places = [self._place(index) for index in some]
            found = self._solved(places, [missing[i][1] for i in some])
            new = dict(zip(some, found, strict=True))
            self.lattice = self.fits | new, steps

    def _first_share(self) -> float:
        """Steps so long that all nodes of a normal are not more than the most."""
        size = len(self.numbers)
        reach = 2 * math.pi * (self.fall + FALL_EACH * (size - 2))
        cell = 0.5 * (math.sqrt(2) * (STEP + GROWTH * max(size - 4, 0))) ** size
        count = reach ** (size / 2) / math.gamma(size / 2 + 1) / cell
        return min(max(count / self.n_most, 1.0) ** (1 / size), COARSEST)

    @property
    def _is_coarse(self) -> bool:
        """Whether either half of the lattice alone has another sum."""
        halves: list[list[float]] = [[-math.inf], [-math.inf]]
        for index, fit in self.fits.items():
            halves[index[0] % 2].append(fit.value)
        low, high = sorted(map(np.logaddexp.reduce, halves))
        return self.axes is not None and high - low > MOST_APART

    @property
    def _is_bent(self) -> bool:
        """Whether data say little of pairs whose levels are not those declared."""
        prior, parts = self.target.prior, zip(self.numbers, self.widths, strict=True)
        wide = [n for n, width in parts if width == WIDEST and isinstance(n, Scale)]
        moved = (n.is_paired and prior.pair_at(n.part)[0].middle for n in wide)
        return any(moved)

    @property
    def n_most(self) -> int:
        """Most nodes that are fitted."""
        return min(self.most, max(MAX_STORED // self.fits[self.zero].size, 1))

    def _finish(self) -> Solution:
        found, values = super()._finish(), [fit.value for fit in self.fits.values()]
        lost = float(np.logaddexp.reduce([-math.inf, *self.lost]))
        if self.stopped or lost < np.logaddexp.reduce(values) + math.log(MOST_LOST):
            if self.stopped or not (self._is_coarse or self._is_bent):
                return found
            return replace(found, message=FAR, ending=Ending.UNFINISHED)
        message = (
            f"the data say so little of {len(self.numbers)} scales and numbers that "
            f"they are likely beyond all {self.n_most} nodes: intervals are too short. "
            "Use fewer groups, or a number as the scale of some, as "
            "prior={'a': Normal(1.0)}"
        )
        return replace(found, message=message, ending=Ending.UNFINISHED)

    def _at_top(self, middle: Fit) -> Fit:
        """The fit at the top, by Newton's method: so nodes do not depend on the way."""
        last = math.inf
        for _ in range(MAX_STEPS):
            if last > NEAR_TOP:
                self._axes(middle)
            slopes = np.array(self._slopes(middle))
            step = np.linalg.solve(self.curvature, slopes)
            gain = float(slopes @ step)
            if last <= NEAR_TOP and not gain < 0.25 * last:
                break
            step *= min(1.0, FARTHEST / np.abs(step).max(initial=FARTHEST))
            cuts = (1.0, 0.5, 0.25, 0.1, 0.02) if gain > NEAR_TOP else (1.0,)
            places = [tuple((np.array(middle.z) + cut * step).tolist()) for cut in cuts]
            fits = self._solved(places, [middle] * len(places), EXACT)
            moved = max(fits, key=lambda fit: fit.value)
            if moved.value < middle.value - min(gain, NEAR_TOP):
                break
            middle, last = moved, gain
            self._keep(middle)
        return middle

    def _axes(self, middle: Fit) -> np.ndarray:
        """Axes of the lattice, by slopes on both sides of the middle."""
        near = [NEAR / math.sqrt(c) for c in self._curvatures(middle)]
        near = [min(max(d, CLOSEST), NEAR) for d in near]
        signed = [sign * np.diag(near)[k] for k in range(len(near)) for sign in (1, -1)]
        places = [tuple(np.add(middle.z, move).tolist()) for move in signed]
        fits = self._solved(places, [middle] * len(places), EXACT)
        slopes = np.array([self._slopes(fit) for fit in fits])
        curvature = (slopes[1::2] - slopes[::2]) / (2 * np.array(near)[:, None])
        values, vectors = np.linalg.eigh(0.5 * (curvature + curvature.T))
        values = np.maximum(values, LEAST)
        self.curvature = (vectors * values) @ vectors.T
        self.middle = np.array(middle.z)
        inverse = (vectors / values) @ vectors.T
        self.widths = np.minimum(inverse.diagonal() ** 0.5, WIDEST)
        in_x = self.widths[:, None] * self.curvature * self.widths
        values, vectors = np.linalg.eigh(in_x)
        step = self.share * (STEP + GROWTH * max(len(near) - 4, 0))
        paired = [number.is_paired for number in self.numbers]
        step /= 1 + AS_PAIRS * self.widths[paired].max(initial=0.0) ** 2
        return vectors * (math.sqrt(2) * step / np.sqrt(values))

    def _place(self, index: Index) -> tuple[float, ...]:
        """Of a node: indices are twice those of the lattice, all even or all odd."""
        x = self._own_axes @ (0.5 * np.array(index))
        return tuple((self.middle + self.widths * np.sinh(TAIL * x) / TAIL).tolist())

    def _is_beyond(self, index: Index) -> bool:
        """Whether a node is so far that its prior alone excludes it."""
        away = np.array(self._place(index)) - self.middle
        return bool((np.abs(away) > BEYOND).any())

    @property
    def _own_axes(self) -> np.ndarray:
        return np.eye(len(self.zero)) if self.axes is None else self.axes

    def _stretched(self, z: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
        """Coordinates x of a place, and dz / dx in units of the widths."""
        away = TAIL * (np.array(z) - self.middle) / self.widths
        return np.arcsinh(away) / TAIL, np.sqrt(1 + away**2)

    def _solved(
        self, places: Places, starts: Starts, factor: float = NODE_TOL
    ) -> list[Fit]:
        """As for all nodes; the integrand is that over x."""
        found = super()._solved(places, starts, factor)
        if self.axes is None:
            return found
        logs = [np.log(self._stretched(fit.z)[1]).sum() for fit in found]
        pairs = zip(found, logs, strict=True)
        return [replace(fit, value=fit.value + float(log)) for fit, log in pairs]

    def _likely_neighbors(self) -> dict[Index, tuple[float, Fit, float]]:
        """Nodes to be added: their values at most, fits beside them, likely values."""
        size, found = len(self.numbers), dict[Index, tuple[float, Fit, float]]()
        least = max(fit.value for fit in self.fits.values())
        least -= self.fall + FALL_EACH * (size - 2)
        moves = [tuple(m) for m in (2 * np.eye(size, dtype=int)).tolist()]
        moves += [tuple(-x for x in m) for m in moves]
        moves += list(product((-1, 1), repeat=size))
        steps = 0.5 * np.array(moves) @ self._own_axes.T
        in_x = self.widths[:, None] * self.curvature * self.widths
        falls = 0.25 * np.einsum("ij,jk,ik->i", steps, in_x, steps)
        for index, fit in self.fits.items():
            if fit.value < least or index in self.known_slopes:
                continue  # where it is known, so are its neighbors
            values = fit.value + steps @ self._slopes_at(index) - falls
            pairs = zip(moves, values.tolist(), falls.tolist(), strict=True)
            for move, value, fall in pairs:
                new = tuple(a + b for a, b in zip(index, move, strict=True))
                known = new in self.fits or value < least
                known = known or self._is_beyond(new)
                if not known and (new not in found or value > found[new][0]):
                    found[new] = value, fit, value - fall
        return found

    def _slopes_at(self, index: Index) -> np.ndarray:
        if index not in self.known_slopes:
            fit = self.fits[index]
            x, ratio = self._stretched(fit.z)
            slopes = np.array(self._slopes(fit)) * self.widths * ratio
            self.known_slopes[index] = slopes + TAIL * np.tanh(TAIL * x)
        return self.known_slopes[index]
