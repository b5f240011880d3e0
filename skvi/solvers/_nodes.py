"""Posteriors that are normal given a few shared numbers: mixtures over nodes of these.

With z the logs of the numbers, q(theta, z) = q(z) q(theta | z). At a node z_k the best
q(theta | z_k) has the minimum F_k of the loss there; the best weights are those of
``p(z_k) exp(-F_k / w)``, with w the weight of the divergence, and the minimum of the
whole is ``-w log sum_k p(z_k) exp(-F_k / w) h``. Equal steps h of about one posterior
deviation make the sum an integral (the trapezoidal rule, whose error falls like exp(-2
pi^2 / h^2) for a normal). The likely range is found on a coarse grid, so that a valley
does not hide it; the best place in it by slopes, which at the best q(theta | z) are
those at fixed q: the envelope theorem.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import cast

import numpy as np
import torch

from skvi.base import NormalForm
from skvi.divergences._linalg import precision_of
from skvi.posteriors import MixtureOverScales, Posterior
from skvi.posteriors._over_scales import beside, leading
from skvi.solvers._mode import (
    DENSE_LIMIT,
    SINGULAR,
    add,
    factorize,
    find_mode,
    start_at_mode,
)
from skvi.solvers._newton import Descent
from skvi.solvers._run import Run, judge_quadrature, known_error, unfinished
from skvi.solvers._solution import Ending, Solution, State
from skvi.solvers.base import Problem, SolverOptions
from skvi.targets import SupervisedTarget
from skvi.targets._numbers import CarriedScale, Number, Scale, bound_at, numbers_of
from skvi.targets._row_terms import terms_at
from skvi.targets._supervised import with_design
from skvi.utils._clock import check_time

__all__ = ["Nodes"]

# Step in posterior deviations, its limits, and how much longer than a first guess it
# must be to begin again.
STEP, SHORTEST, LONGEST, MUCH = 1.25, 0.01, 0.8, 1.5
# Nats below the highest node at which the rest is left out, and most nodes of a line.
FALL, MAX_NODES = 6.0, 64
# Tolerances, in that of the fit, where the best place is looked for, and at nodes.
ROUGH, NODE_TOL = 3000.0, 100.0
# Most iterations at a node, and most places that are tried; longest move in z.
MAX_ITER, MAX_PLACES, FARTHEST = 50, 30, 2.0
# Most points of the coarse grid, and how far it goes beyond the scales at which data
# and prior weigh the same for some coefficient.
MAX_COARSE, BEYOND = 24, (1.0, 3.0)
# Probability of nodes whose fits may end early without a warning.
MOST_LOST = 0.05
# Deviations, in steps, of the log of a likelihood's number in nodes of the posterior.
KERNEL = 0.4
# Nats below the likeliest scale at which a failed fit does not matter.
NEGLIGIBLE = 25.0
# Elements of the precisions that are fitted at once.
MAX_ELEMENTS = 2**22

Index = tuple[int, ...]
Start = tuple[torch.Tensor, torch.Tensor]
Lattice = tuple[dict[Index, "_Fit"], list[float]]
#: A target, and its numbers.
Parts = tuple[SupervisedTarget, Sequence[Number]]


@dataclass(frozen=True, eq=False)
class _Fit:
    """The best normal at a node, and its part of the sum."""

    z: tuple[float, ...]
    target: SupervisedTarget
    normal: NormalForm
    precision: torch.Tensor
    value: float  # log integrand
    gap: float

    @property
    def likelihood_part(self) -> torch.Tensor:
        """Precision that the rows add."""
        prior = precision_of(cast(NormalForm, self.target.prior.as_normal()))
        return (
            add(self.precision, -prior)
            if self.precision.ndim >= prior.ndim
            else (self.precision - prior.diagonal())
        )


class Nodes(Run):
    """Fits at places z, by their indices on a lattice."""

    solver = "natural_gradient"
    known = {"quadrature_error": None}

    def __init__(
        self,
        problem: Problem,
        options: SolverOptions,
        parts: Parts | None = None,
        keeps_places: bool = False,
    ) -> None:
        super().__init__(problem, options)
        plain, self.numbers = parts or numbers_of(problem.target)
        self.target = with_design(problem.objective.training_target(plain))
        self.weight = float(cast(float, problem.divergence.kl_weight))
        #: The posterior at a node, before it is fitted, and the last fit.
        self.last = problem.posterior if options.warm_start else None
        self.family = getattr(problem.posterior, "likeliest", problem.posterior)
        self.is_diagonal = self.family.is_diagonal
        #: Fits, and the steps between them: together, since Ctrl-C may come between any
        #: two statements.
        self.lattice: Lattice = {}, [1.0] * len(self.numbers)
        self.zero = (0,) * len(self.numbers)
        #: Fits at other likely tops of the integrand, which the nodes must reach.
        self.beside: list[_Fit] = []
        #: First and last index of each axis.
        self.ends = [[0, 0] for _ in self.numbers]
        self.resolution, self.keeps_places = 0.0, keeps_places

    @property
    def is_usable(self) -> bool:  # type: ignore[override]
        return bool(self.fits)

    @property
    def fits(self) -> dict[Index, _Fit]:
        """Those of the lattice."""
        return self.lattice[0]

    @property
    def value(self) -> float:
        fits, steps = self.lattice
        if len(fits) == 1 and not isinstance(self.numbers[0], CarriedScale):
            return self._value_alone(fits[self.zero], steps)
        values = _host([f.value for f in fits.values()])
        log_steps = sum(map(math.log, steps))
        return -self.weight * (float(torch.logsumexp(values, 0)) + log_steps)

    def _value_alone(self, fit: _Fit, steps: list[float]) -> float:
        """Of one fit: beside an independent scale, or by a width of the numbers."""
        if len(self.numbers) == 1 and isinstance(self.numbers[0], Scale):
            between = self.given.divergence.closed_form
            change = between(fit.normal, self.target.prior)
            change = change - between(fit.normal, fit.target.prior)
            loss = self.numbers[0].log_density(fit.z[0]) - fit.value
            return self.weight * loss + float(change)
        return -self.weight * (fit.value + sum(map(math.log, steps)))

    def state(self) -> State:
        with torch.inference_mode(False), torch.no_grad():
            return State(self._mixture(), self.given.target)

    def run(self) -> Solution:
        """As for every run; after Ctrl-C the mixture before may be better."""
        found = super().run()
        if self.last is not None:
            found.raise_interrupt()
        return found

    def improve(self) -> Solution:
        if isinstance(self.numbers[0], CarriedScale):
            return self._carried(self.numbers[0])
        if self.keeps_places and isinstance(self.last, MixtureOverScales):
            self._refit(self.last)
            return self._finish()
        middle = self._climb(*self._first())
        if not self.stopped and middle.gap < self._tolerance(ROUGH):
            self._lay(middle)
            while missing := self._edges():
                self._extend(missing)
            self.report()
        return self._finish()

    # Places -------------------------------------------------------------------------

    def _at(self, z: Sequence[float]) -> SupervisedTarget:
        """The target with known numbers."""
        return bound_at(self.target, self.numbers, z)

    def _tolerance(self, factor: float) -> float:
        """Gap to reach: a multiple of the fit's, or what the quadrature resolves."""
        return max(factor * self.options.tol, 0.25 * self.resolution)

    def _solved(
        self, places: Sequence[tuple[float, ...]], starts: Sequence[Start]
    ) -> list[_Fit]:
        """Fits at several places at once."""
        size = max(1, MAX_ELEMENTS // starts[0][1].numel())
        found: list[_Fit] = []
        for i in range(0, len(places), size):
            check_time()
            targets = [self._at(z) for z in places[i : i + size]]
            begin = (torch.stack(p) for p in zip(*starts[i : i + size], strict=True))
            descent = Descent(targets, self.given.divergence, *begin)
            descent.slack = self.resolution
            descent.run(self._tolerance(NODE_TOL), MAX_ITER)
            found += self._fits_of(descent, places[i : i + size])
        return found

    def _fits_of(
        self, descent: Descent, places: Iterable[tuple[float, ...]]
    ) -> list[_Fit]:
        found = []
        for k, z in enumerate(places):
            pairs = zip(self.numbers, z, strict=True)
            log_p = sum(number.log_density(at) for number, at in pairs)
            place = descent.place(k)
            if place is None:
                raise ValueError(SINGULAR)
            value = log_p - place.value / self.weight
            parts = descent.targets[k], place.normal, place.precision
            found.append(_Fit(z, *parts, value, place.gap))
        return found

    # The best place -----------------------------------------------------------------

    def _first(self) -> tuple[tuple[float, ...], Start]:
        """Where to begin: on a coarse grid of the scale, around the last fit or not."""
        z, mean = [number.start for number in self.numbers], None
        if isinstance(self.last, MixtureOverScales):
            z = self.last.places()[int(self.last.log_weights.argmax())].tolist()
            normal = cast(NormalForm, self.last.likeliest.as_normal())
            normal = leading(normal, self.target.layout.size)
            if not isinstance(self.numbers[0], Scale):
                return tuple(z), (normal.mean, precision_of(normal))
            mean = normal.mean
        for k, number in enumerate(self.numbers):
            if isinstance(number, Scale):
                z[k], mean = self._coarse(z, k, mean)
        return tuple(z), start_at_mode(self._at(z), self.is_diagonal, mean)

    def _coarse(
        self, z: list[float], k: int, mean: torch.Tensor | None
    ) -> tuple[float, torch.Tensor]:
        """The likeliest log scale, and the mode there; others that are likely beside.

        Losses are quadratic around a mode: first around one, then around that at each
        top of the integrand.
        """
        number = cast(Scale, self.numbers[k])
        tops, mean = self._tops_from(number, z, mean)
        found: list[tuple[float, float, torch.Tensor]] = []
        for top, value in tops:
            at, own = z[k], mean
            for _ in range(MAX_PLACES):
                change, at = top - at, top
                if abs(change) < 0.5:
                    break
                near = [*z[:k], at, *z[k + 1 :]]
                beside, own = self._tops_from(number, near, own)
                top, value = min(beside, key=lambda pair: abs(pair[0] - at))
            found.append((value, at, own))
        highest, best, mean = max(found, key=lambda one: one[0])
        likely = [one for one in found if one[0] > highest - FALL]
        for _, at, own in likely:
            if abs(at - best) > 1:
                place = (*z[:k], at, *z[k + 1 :])
                start = start_at_mode(self._at(place), self.is_diagonal, own)
                self.beside += self._solved([place], [start])
        return best, mean

    def _tops_from(
        self, number: Scale, z: list[float], mean: torch.Tensor | None
    ) -> tuple[list[tuple[float, float]], torch.Tensor]:
        """Log scales at which the integrand has a maximum, its values, and a mode."""
        target = self._at(z)
        prior = cast(NormalForm, target.prior.as_normal())
        mean, h = find_mode(target, prior, start=mean)
        grid, values = self._around(target, number, mean, h)
        tops = []
        for i, value in enumerate(values):
            if value < max(values[max(i - 1, 0) : i + 2]):
                continue
            at = grid[i]
            if 0 < i < len(grid) - 1:
                a, b, c = values[i - 1 : i + 2]
                if (bend := a - 2 * b + c) < 0:
                    at += 0.5 * (a - c) / bend * (grid[1] - grid[0])
            tops.append((at, value))
        return tops, mean

    def _around(
        self,
        target: SupervisedTarget,
        number: Scale,
        mean: torch.Tensor,
        h: torch.Tensor,
    ) -> tuple[list[float], list[float]]:
        """A grid of log scales, and the log integrand by a quadratic model."""
        predictor, X = target.predictor, target.X
        is_full = not self.is_diagonal and len(mean) <= DENSE_LIMIT
        gram = predictor.gram(X, h) if is_full else predictor.gram_diagonal(X, h)
        diagonal = gram.diagonal() if is_full else gram
        prior = cast(NormalForm, target.prior.as_normal())
        gradient = -(mean - prior.mean) / prior.variance  # of the rows, at the mode
        informed = (number.weights > 0) & (diagonal > 1e-16 * diagonal.max())
        ratio = (diagonal / number.weights)[informed]
        low, high = (-BEYOND[0], BEYOND[1])
        if len(ratio):
            low -= 0.5 * math.log(float(ratio.max()))
            high -= 0.5 * math.log(float(ratio.min()))
        low, high = min(low, -1.0), max(high, 1.0)
        count = min(MAX_COARSE, math.ceil(high - low) + 1)
        grid = np.linspace(low, high, count).tolist()
        right = (gram @ mean if is_full else gram * mean) - gradient
        values, at_mode = [], terms_at(target, mean)[0]
        for z in grid:
            own = cast(NormalForm, number.bind(self.target, z).prior.as_normal())
            flat = 1 / own.variance
            precision = add(gram, flat)
            b = right + flat * own.mean
            if is_full:
                root = factorize(precision)
                theta = torch.cholesky_solve(b[:, None], root)[:, 0]
                log_det = 2 * root.diagonal().log().sum()
            else:
                theta, log_det = b / precision, precision.log().sum()
            away, beside = theta - mean, theta - own.mean
            curved = gram @ away if is_full else gram * away
            loss = at_mode + gradient @ away + 0.5 * (away @ curved)
            loss = loss + 0.5 * (beside.square() @ flat + log_det - flat.log().sum())
            values.append(number.log_density(z) - float(loss) / self.weight)
        return grid, values

    def _climb(self, z: tuple[float, ...], start: Start) -> _Fit:
        """The fit about where the integrand is largest."""
        for _ in range(MAX_PLACES):
            fit = self._watched(z, start)
            slopes = self._slopes(fit)
            curvatures = self._curvatures(fit)
            widths = [(2 * math.pi / c) ** 0.5 for c in curvatures]
            self.lattice = self.fits, widths
            pairs = list(zip(slopes, curvatures, strict=True))
            near = all(abs(s) <= c**0.5 for s, c in pairs)
            if near or not self.may_go_on:
                break
            moves = [s / c for s, c in pairs]
            longest = max(map(abs, moves))
            cut = min(1.0, FARTHEST / longest)
            z = tuple(at + cut * move for at, move in zip(z, moves, strict=True))
            start = self._predicted(z, fit, None)
        return fit

    def _watched(self, z: tuple[float, ...], start: Start) -> _Fit:
        """The fit at one place, which reports each of its iterations."""
        mean, precision = start
        target = self._at(z)
        descent = Descent([target], self.given.divergence, mean[None], precision[None])
        self._keep(self._fits_of(descent, [z])[0])
        self._resolve(self.fits[self.zero])
        descent.slack = self.resolution
        while self.may_go_on and descent.may_go_on(0):
            if self.fits[self.zero].gap < self._tolerance(ROUGH):
                break
            descent.step()
            self._keep(self._fits_of(descent, [z])[0])
            self.report()
        return self.fits[self.zero]

    def _resolve(self, fit: _Fit) -> None:
        """Twice the error of the quadrature if a loss depends on several f."""
        if fit.target.predictor.n_outputs > 1 and self.resolution == 0:
            error = known_error(fit.target)
            self.resolution = 2 * (error if math.isfinite(error) else self._error(fit))

    def _error(self, fit: _Fit) -> float:
        """Change of the value by a rule with twice the nodes."""
        loss = fit.target.expected_loss_terms
        coarse, fine = (loss(fit.normal, refine=k)[0] for k in (1, 2))
        return abs(float(fine - coarse))

    def _keep(self, fit: _Fit) -> None:
        """The only fit so far."""
        self.lattice = {self.zero: fit}, self.lattice[1]

    def _slopes(self, fit: _Fit) -> list[float]:
        parts = zip(self.numbers, fit.z, strict=True)
        return [n.slope(fit.target, z, fit.normal, self.weight) for n, z in parts]

    def _curvatures(self, fit: _Fit) -> list[float]:
        parts = zip(self.numbers, fit.z, strict=True)
        each = (n.curvature(fit.target, z, fit.normal, self.weight) for n, z in parts)
        return [max(c, 1e-2) for c in each]

    # Nodes --------------------------------------------------------------------------

    def _lay(self, middle: _Fit) -> None:
        """Steps of the lattice, by the fit in its middle and those beside it."""
        curvatures = self._curvatures(middle)
        parts = zip(middle.z, self._slopes(middle), curvatures, strict=True)
        place = tuple(z + slope / c for z, slope, c in parts)
        middle = self._solved([place], [self._predicted(place, middle, None)])[0]
        self._keep(middle)
        every = [self._curvatures(fit) for fit in (middle, *self.beside)]
        steps = [min(map(_step, column)) for column in zip(*every, strict=True)]
        sides: dict[Index, _Fit] = {}
        for axis, step in enumerate(steps):
            pair = [_unit(self.zero, axis, sign) for sign in (-1, 1)]
            found = self._extended(pair, steps)
            low, high = (self._slopes(found[index])[axis] for index in pair)
            wider = _step(max(0.5 * (low - high) / step, 1e-9))
            if wider > MUCH * step and not self.beside:
                steps[axis] = wider
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
    ) -> dict[Index, _Fit]:
        """Fits at nodes, each from its neighbor."""
        starts, places = [], []
        middle = self.fits[self.zero].z
        for index in missing:
            parts = zip(middle, steps, index, strict=True)
            place = tuple(z + h * i for z, h, i in parts)
            near = self._neighbor(index)
            behind = tuple(2 * a - b for a, b in zip(near, index, strict=True))
            last = self.fits.get(behind) if near != self.zero else None
            starts.append(self._predicted(place, self.fits[near], last))
            places.append(place)
        return dict(zip(missing, self._solved(places, starts), strict=True))

    def _neighbor(self, index: Index) -> Index:
        """The known node that is nearest, inwards."""
        near = tuple(i - (i > 0) + (i < 0) for i in index)
        options = (
            near,
            *((*index[:k], near[k], *index[k + 1 :]) for k in range(len(index))),
        )
        return next(i for i in (*options[1:], options[0], self.zero) if i in self.fits)

    def _predicted(
        self, z: tuple[float, ...], near: _Fit, before: _Fit | None
    ) -> Start:
        """Start at a place, from the fit beside it, and the one before that."""
        if before is not None:
            return self._extrapolated(z, near, before)
        known, known_before = self._at(z).prior, near.target.prior
        if known is known_before:
            return near.normal.mean, near.precision
        prior, last = known.as_normal(), precision_of(known_before.as_normal())
        own = precision_of(prior)
        precision = near.likelihood_part
        precision = (
            add(precision, own)
            if precision.ndim >= own.ndim
            else precision + own.diagonal()
        )
        pull = _times(last - own, near.normal.mean - prior.mean)
        if precision.ndim == 1:
            return near.normal.mean + pull / precision, precision
        move = torch.cholesky_solve(pull[:, None], factorize(precision))[:, 0]
        return near.normal.mean + move, precision

    def _extrapolated(self, z: tuple[float, ...], near: _Fit, before: _Fit) -> Start:
        """From two fits: linear in the scale, and a geodesic of the covariance."""
        away = [abs(a - b) for a, b in zip(near.z, before.z, strict=True)]
        k = away.index(max(away))
        at = before.z[k], near.z[k], z[k]
        fraction = (at[2] - at[0]) / (at[1] - at[0])
        scales = [math.exp(x) for x in at] if isinstance(self.numbers[k], Scale) else at
        along = (scales[2] - scales[0]) / (scales[1] - scales[0])
        mean = torch.lerp(before.normal.mean, near.normal.mean, along)
        first, second = before.normal.scale, near.normal.scale
        if near.normal.is_diagonal:
            return mean, (first * (second / first) ** fraction).square().reciprocal()
        ratio = torch.linalg.solve_triangular(first, second, upper=False)
        vectors, roots, _ = torch.linalg.svd(ratio)
        inverse = torch.linalg.solve_triangular(
            first.mT, vectors * roots**-fraction, upper=True
        )
        return mean, inverse @ inverse.mT

    def _refit(self, last: MixtureOverScales) -> None:
        """Fits at the places of an earlier mixture."""
        places, size = last.places(), self.target.layout.size
        starts, indices, steps = [], [], []
        for normal in last.normals():
            known = leading(normal, size)
            starts.append((known.mean, precision_of(known)))
        for column in places.T:
            axis, index = column.unique(return_inverse=True)
            indices.append(index.tolist())
            steps.append(float(axis.diff()[0]) if len(axis) > 1 else 1.0)
        fits = self._solved([tuple(z) for z in places.tolist()], starts)
        self.lattice = dict(zip(zip(*indices, strict=True), fits, strict=True)), steps
        self.report()

    def _carried(self, number: CarriedScale) -> Solution:
        """Fits at the nodes of an earlier mixture, and beyond where that is likely.

        Their weights are those of the earlier posterior: they have no step.
        """
        every = self._from_prior(number, range(len(number.prior.log_scales)))
        for end in (0, -1) if number.prior.can_reach_further else ():
            while self._is_likely(every, end) and len(every) < MAX_NODES:
                number.prior = number.prior.with_one_beyond(end)
                beyond = self._from_prior(number, [end])
                every = beyond + every if end == 0 else every + beyond
        # Unlikely scales stay, since they can return where rows are forgotten; but not
        # those at which a fit failed.
        top = max(every, key=lambda fit: fit.value)
        tol = self._tolerance(NODE_TOL)
        nodes = [f for f in every if f.gap < tol or f.value > top.value - NEGLIGIBLE]
        self.lattice = {(i,): fit for i, fit in enumerate(nodes)}, [1.0]
        self.report()
        found = self._finish()
        largest = max(nodes, key=lambda fit: fit.z)
        if len(nodes) == 1 or largest is not top:
            return found
        message = (
            f"the scale of the prior is at {math.exp(largest.z[0]):.3g}, the largest "
            "that could be fitted: coefficients are shrunk too much. Fit recent rows "
            "anew, or use a known scale, as prior=Normal(1.0)"
        )
        return replace(found, message=message, ending=Ending.UNFINISHED)

    def _from_prior(self, number: CarriedScale, which: Iterable[int]) -> list[_Fit]:
        """Fits at some of the scales, each from its own prior."""
        places = [(number.prior.log_scales[i],) for i in which]
        starts = []
        for place in places:
            prior = cast(NormalForm, self._at(place).prior.as_normal())
            starts.append((prior.mean, precision_of(prior)))
        return self._solved(places, starts)

    def _is_likely(self, every: list[_Fit], end: int) -> bool:
        """Whether the scales beyond an end can have a share of the posterior."""
        highest, last = max(fit.value for fit in every), every[end]
        is_done = last.gap < self._tolerance(NODE_TOL)
        return is_done and last.value > highest - FALL

    # The result ---------------------------------------------------------------------

    def _mixture(self) -> Posterior:
        known, steps = self.lattice
        fits = sorted(known.values(), key=lambda fit: fit.z)
        values = _host([f.value for f in fits])
        log_w = torch.log_softmax(values, 0).tolist()
        nodes, scales = [], None
        for fit in fits:
            normal = fit.normal
            if self.family.layout.size > normal.size:
                normal = beside(normal, fit.z[-1], KERNEL * steps[-1])
            nodes.append(self.family.near(normal))
        if isinstance(self.numbers[0], Scale):
            scales = [fit.z[0] for fit in fits]
        return MixtureOverScales(nodes, log_w, scales)

    def _finish(self) -> Solution:
        fits = list(self.fits.values())
        values = _host([f.value for f in fits])
        shares = torch.softmax(values, 0).tolist()
        best = max(fits, key=lambda fit: fit.value)
        error = known_error(best.target)
        if not (error < self.options.tol and best.target.predictor.n_outputs > 1):
            error = self._error(best)
        pairs = list(zip(shares, fits, strict=True))
        gap = sum(share * fit.gap for share, fit in pairs)
        tol = self._tolerance(NODE_TOL if len(fits) > 1 else ROUGH)
        lost = sum(share for share, fit in pairs if fit.gap >= tol)
        is_whole = len(fits) > 1 or isinstance(self.numbers[0], CarriedScale)
        converged, message = lost <= MOST_LOST and is_whole, ""
        if not converged and not self.stopped:
            remedy = "increase max_iter, or standardize the features"
            message = unfinished(len(self.history), gap, remedy)
        elif converged:
            message = judge_quadrature(error, best.target)
        found = {"gap": gap, "quadrature_error": error}
        return self.solution(converged, message, found)


def _step(curvature: float) -> float:
    """Step between nodes where minus the log of the integrand has this curvature."""
    return min(max(STEP * max(curvature, 1e-9) ** -0.5, SHORTEST), LONGEST)


def _host(values: Sequence[float]) -> torch.Tensor:
    """Numbers of the nodes, which stay on the host."""
    return torch.tensor(values, dtype=torch.float64, device="cpu")


def _unit(zero: Index, axis: int, sign: int) -> Index:
    return tuple(sign * (k == axis) for k in range(len(zero)))


def _times(matrix: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    return matrix * vector if matrix.ndim == 1 else matrix @ vector
