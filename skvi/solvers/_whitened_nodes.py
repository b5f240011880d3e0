"""Nodes of several scales: a lattice in whitened coordinates, wherever it is likely.

With u the coordinates in which the log integrand has about the curvature -1 at its top,
nodes are those of the lattice D*: all integer points, and all of them moved by a half
along every axis. Its dual is the checkerboard, so that for the same error it needs 1.4
(three numbers) to 4 (six) times fewer nodes than a cubic one.

Slopes in the numbers are known at every node, by the envelope theorem. They tell the
value at its neighbors, so that few nodes are fitted that do not matter.
"""

import math
from dataclasses import replace
from itertools import product

import numpy as np

from skvi.exceptions import IncompatibleComponentsError
from skvi.solvers._node_run import MOST_LOST, Fit, Index, Parts
from skvi.solvers._nodes import Nodes
from skvi.solvers._solution import Ending, Solution
from skvi.solvers.base import Problem, SolverOptions

# Step of the cubic lattice of the same error, in deviations, and the longest in z; the
# least curvature.
STEP, LONGEST, LEAST = 1.6, 1.0, 0.05
# Nats below the top at which nodes end, and how many more for each number above two:
# most of a wide normal is far from its middle.
FALL, FALL_EACH = 7.0, 0.9
# Distances in z at which curvatures are found, in deviations; most steps to the top;
# the tolerance of fits there, in that of the whole.
NEAR, MAX_STEPS, EXACT = 0.5, 8, 1e-4
# Most numbers, most nodes, and the share of nodes that are left out.
MAX_NUMBERS, MAX_FITS, LEFT_OUT = 8, 600, 1e-5


class WhitenedNodes(Nodes):
    """Nodes of two scales or more, and of numbers of the likelihood."""

    #: From halves of indices to z, (D, D); and minus the second derivatives there.
    axes: np.ndarray | None = None
    curvature: np.ndarray

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
        return float(np.linalg.slogdet(self.axes)[1]) - math.log(2)

    def _fill(self, middle: Fit) -> None:
        middle = self._at_top(self._settled(middle))
        self.axes, self.known_slopes = self._axes(middle), {}
        steps = [min(STEP / math.sqrt(c), LONGEST) for c in self.curvature.diagonal()]
        self.lattice = self.fits | self._islands(), steps
        while missing := self._likely_neighbors():
            free = MAX_FITS - len(self.fits)
            if free <= 0 or not self.may_go_on:
                self.lost = [value for value, _ in missing.values()]
                break
            some = sorted(missing, key=lambda i: -missing[i][0])[:free]
            places = [self._place(index) for index in some]
            pairs = [(missing[i][1], z) for i, z in zip(some, places, strict=True)]
            starts = [near.toward(self._at(z)) for near, z in pairs]
            found = self._solved(places, starts)
            new = dict(zip(some, found, strict=True))
            self.lattice = self.fits | new, steps
        values = [fit.value for fit in self.fits.values()]
        least = float(np.logaddexp.reduce(values)) + math.log(LEFT_OUT)
        kept = {i: fit for i, fit in self.fits.items() if fit.value > least}
        self.lattice = kept, steps

    def _finish(self) -> Solution:
        found, values = super()._finish(), [fit.value for fit in self.fits.values()]
        lost = float(np.logaddexp.reduce([-math.inf, *self.lost]))
        if self.stopped or lost < np.logaddexp.reduce(values) + math.log(MOST_LOST):
            return found
        message = (
            f"the data say so little of {len(self.numbers)} scales and numbers that "
            f"they are likely beyond all {MAX_FITS} nodes: intervals are too short. Use "
            "fewer groups, or a number as the scale of some, as "
            "prior={'a': Normal(1.0)}"
        )
        return replace(found, message=message, ending=Ending.UNFINISHED)

    def _islands(self) -> dict[Index, Fit]:
        """Nodes at other tops of the integrand, which need not be connected."""
        places: dict[Index, Fit] = {}
        for fit in self.beside:
            away = np.array(fit.z) - self.fits[self.zero].z
            twice = 2 * np.linalg.solve(self.axes, away)
            even, odd = 2 * np.round(twice / 2), 2 * np.round((twice - 1) / 2) + 1
            near = min(even, odd, key=lambda i: float(np.sum((i - twice) ** 2)))
            places.setdefault(tuple(near.astype(int).tolist()), fit)
        if not places:
            return {}
        goals = [self._place(index) for index in places]
        pairs = zip(places.values(), goals, strict=True)
        fits = self._solved(goals, [fit.toward(self._at(z)) for fit, z in pairs])
        return dict(zip(places, fits, strict=True))

    def _at_top(self, middle: Fit) -> Fit:
        """The fit at the top, by Newton's method: so nodes do not depend on the way."""
        self._axes(middle)
        last = math.inf
        for _ in range(MAX_STEPS):
            slopes = np.array(self._slopes(middle))
            step = np.linalg.solve(self.curvature, slopes)
            gain = float(slopes @ step)
            if not gain < 0.25 * last:
                break
            place = tuple((np.array(middle.z) + step).tolist())
            start = middle.toward(self._at(place))
            moved = self._solved([place], [start], EXACT)[0]
            if moved.value < middle.value - gain:
                break
            middle, last = moved, gain
            self._keep(middle)
        return middle

    def _axes(self, middle: Fit) -> np.ndarray:
        """Axes of the lattice, by slopes on both sides of the middle."""
        near = [NEAR / math.sqrt(c) for c in self._curvatures(middle)]
        near = [min(max(d, 0.05), NEAR) for d in near]
        signed = [sign * np.diag(near)[k] for k in range(len(near)) for sign in (1, -1)]
        places = [tuple(np.add(middle.z, move).tolist()) for move in signed]
        starts = [middle.toward(self._at(z)) for z in places]
        fits = self._solved(places, starts, EXACT)
        slopes = np.array([self._slopes(fit) for fit in fits])
        curvature = (slopes[1::2] - slopes[::2]) / (2 * np.array(near)[:, None])
        values, vectors = np.linalg.eigh(0.5 * (curvature + curvature.T))
        values = np.maximum(values, LEAST)
        self.curvature = (vectors * values) @ vectors.T
        return vectors * (math.sqrt(2) * np.minimum(STEP / np.sqrt(values), LONGEST))

    def _place(self, index: Index) -> tuple[float, ...]:
        """Of a node: indices are twice those of the lattice, all even or all odd."""
        axes = self.axes if self.axes is not None else np.eye(len(index))
        moved = axes @ (0.5 * np.array(index))
        return tuple((np.array(self.fits[self.zero].z) + moved).tolist())

    def _likely_neighbors(self) -> dict[Index, tuple[float, Fit]]:
        """Nodes to be added: what their values should be, and the fits beside them."""
        size, found = len(self.numbers), dict[Index, tuple[float, Fit]]()
        least = max(fit.value for fit in self.fits.values())
        least -= FALL + FALL_EACH * (size - 2)
        moves = [tuple(m) for m in (2 * np.eye(size, dtype=int)).tolist()]
        moves += [tuple(-x for x in m) for m in moves]
        moves += list(product((-1, 1), repeat=size))
        steps = np.array([self._place(m) for m in moves]) - self._place(self.zero)
        falls = 0.25 * np.einsum("ij,jk,ik->i", steps, self.curvature, steps)
        for index, fit in self.fits.items():
            if fit.value < least:
                continue
            values = fit.value + steps @ self._slopes_at(index) - falls
            for move, value in zip(moves, values.tolist(), strict=True):
                new = tuple(a + b for a, b in zip(index, move, strict=True))
                known = new in self.fits or value < least
                if not known and (new not in found or value > found[new][0]):
                    found[new] = value, fit
        return found

    def _slopes_at(self, index: Index) -> np.ndarray:
        if index not in self.known_slopes:
            self.known_slopes[index] = np.array(self._slopes(self.fits[index]))
        return self.known_slopes[index]
