"""Fits at nodes of a few shared numbers, whose result is their mixture.

With z the logs of the numbers, q(theta, z) = q(z) q(theta | z). At a node z_k the best
q(theta | z_k) has the minimum F_k of the loss there; the best weights are those of
``p(z_k) exp(-F_k / w)``, with w the weight of the divergence, and the minimum of the
whole is ``-w log sum_k p(z_k) exp(-F_k / w) h`` with steps h between nodes.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch

from skvi.base import NormalForm
from skvi.divergences._forms import precision_of
from skvi.posteriors import Posterior
from skvi.posteriors._mixture import MixtureOverScales, beside
from skvi.solvers._mode import SINGULAR, start_at_mode
from skvi.solvers._newton import Descent
from skvi.solvers._normal_noise import NormalNoise
from skvi.solvers._run import Run, judge_quadrature, known_error, unfinished
from skvi.solvers._solution import Ending, Solution, State
from skvi.solvers._structures import Structure, structure_of
from skvi.solvers.base import Problem, SolverOptions
from skvi.targets import SupervisedTarget
from skvi.targets._hierarchical import by_sums
from skvi.targets._numbers import CarriedScale, Number, Scale, bound_at, numbers_of
from skvi.targets._rows import members
from skvi.targets._supervised import with_design
from skvi.utils._interrupts import check_time

#: Mean and precision of a normal.
Start = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, eq=False)
class Fit:
    """The best normal at a node, and its part of the sum."""

    z: tuple[float, ...]
    target: SupervisedTarget
    normal: NormalForm
    precision: torch.Tensor | None  # None in closed form: it is not needed
    structure: Structure
    value: float  # log integrand
    gap: float
    slopes: list[float] | None = None  # where they come with it

    @property
    def size(self) -> int:
        """Elements of its matrices."""
        if self.precision is None:
            return self.normal.scale.numel()
        return 2 * self.structure.n_elements(self.precision)

    def toward(self, target: SupervisedTarget) -> Start:
        """Start beside it, by the change of the prior, and of normal noise."""
        own, noise = cast(torch.Tensor, self.precision), self.target.likelihood
        share = 1.0
        if noise.is_normal:
            share = float((noise._scale / target.likelihood._scale) ** 2)
        prior, before = target.prior.as_normal(), self.target.prior
        if prior is None or (target.prior is before and share == 1):
            return self.normal.mean, own
        last = precision_of(cast(NormalForm, before.as_normal()))
        change, away = precision_of(prior) - share * last, self.normal.mean - prior.mean
        if self.structure.is_diagonal:
            # Variances do not tell where the mean moves: with more columns than rows
            # it would be many times too far.
            return self.normal.mean, self.structure.add(share * own, change)
        pull = -change * away if change.ndim == 1 else -change @ away
        precision = self.structure.add(share * own, change)
        move = self.structure.solve(precision, pull)
        return self.normal.mean + move, precision


#: Places of nodes, and normals or fits beside them.
Places = Sequence[tuple[float, ...]]
Starts = Sequence[Start | Fit]


def extrapolated(
    z: tuple[float, ...], near: Fit, before: Fit, scales: tuple[bool, ...]
) -> Start:
    """Start at z from two fits: means linear in a scale, precisions in its -2nd power.

    `scales` tells which numbers are scales: others are taken by their logs.
    """
    away = [abs(a - b) for a, b in zip(near.z, before.z, strict=True)]
    k = away.index(max(away))
    at, fractions = np.array([before.z[k], near.z[k], z[k]]), []
    for power in (1, -2):
        first, second, third = np.exp(power * at) if scales[k] else at
        fractions.append(float((third - first) / (second - first)))
    own, last = (cast(torch.Tensor, fit.precision) for fit in (near, before))
    mean = torch.lerp(before.normal.mean, near.normal.mean, fractions[0])
    return mean, torch.lerp(last, own, fractions[1])


# Nats below the highest node at which the rest is left out, and most nodes of a line.
FALL, MAX_NODES = 6.0, 64
# Tolerances, in that of the fit, where the best place is looked for, and at nodes; most
# iterations there.
ROUGH, NODE_TOL, MAX_ITER = 3000.0, 100.0, 50
# Probability of nodes whose fits may end early without a warning.
MOST_LOST = 0.05
# Deviations, in steps, of the log of a likelihood's number in nodes of the posterior.
KERNEL = 0.4
# Elements of the precisions that are fitted at once.
MAX_ELEMENTS = 2**21

Index = tuple[int, ...]
Lattice = tuple[dict[Index, Fit], list[float]]
#: A target, and its numbers.
Parts = tuple[SupervisedTarget, Sequence[Number]]


class NodeRun(Run):
    """Fits at places z, by their indices on a lattice."""

    solver = "natural_gradient"
    known = {"quadrature_error": None}
    #: Nodes of a complete mixture.
    n_least = 2

    def __init__(
        self,
        problem: Problem,
        options: SolverOptions,
        parts: Parts | None = None,
    ) -> None:
        super().__init__(problem, options)
        plain, self.numbers = parts or numbers_of(problem.target)
        found = problem.objective.training_target(plain)
        is_plain = found is plain
        rows = by_sums(problem.linear_target, plain) if is_plain else found
        self.target = with_design(rows)
        self.weight = float(cast(float, problem.divergence.kl_weight))
        #: The posterior at a node, before it is fitted, and the last fit.
        self.last = problem.posterior if options.warm_start else None
        self.family = getattr(problem.posterior, "likeliest", problem.posterior)
        self.structure = structure_of(self.family, self.target)
        #: Fits, and the steps between them: together, since Ctrl-C may come between any
        #: two statements.
        self.lattice: Lattice = {}, [1.0] * len(self.numbers)
        self.zero = (0,) * len(self.numbers)
        self.resolution = 0.0
        #: What gives the fits in closed form.
        self.noise: NormalNoise | None = None

    @property
    def is_usable(self) -> bool:  # type: ignore[override]
        return bool(self.fits)

    @property
    def fits(self) -> dict[Index, Fit]:
        """Those of the lattice."""
        return self.lattice[0]

    @property
    def value(self) -> float:
        fits, steps = self.lattice
        if len(fits) < self.n_least:
            return self._value_alone(fits[self.zero], steps)
        values = _host([f.value for f in fits.values()])
        return -self.weight * (float(torch.logsumexp(values, 0)) + self.log_cell)

    @property
    def log_cell(self) -> float:
        """Log of the volume for which a node stands."""
        return sum(map(math.log, self.lattice[1]))

    def _value_alone(self, fit: Fit, steps: list[float]) -> float:
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

    def _at(self, z: Sequence[float]) -> SupervisedTarget:
        """The target with known numbers."""
        return bound_at(self.target, self.numbers, z)

    def _tolerance(self, factor: float) -> float:
        """Gap to reach: a multiple of the fit's, or what the quadrature resolves."""
        return max(factor * self.options.tol, 0.25 * self.resolution)

    def _solved(
        self, places: Places, starts: Starts, factor: float = NODE_TOL
    ) -> list[Fit]:
        """Fits at several places at once, from normals or from fits beside them."""
        first, found = starts[0], list[Fit]()
        if isinstance(first, Fit):
            size = first.size
        else:
            size = self.structure.n_elements(first[1])
        size = max(1, MAX_ELEMENTS // size)
        for i in range(0, len(places), size):
            check_time()
            some = slice(i, i + size)
            found += self._solved_at_once(places[some], starts[some], factor)
        return found

    def _solved_at_once(
        self, places: Places, starts: Starts, factor: float
    ) -> list[Fit]:
        targets = [self._at(z) for z in places]
        if self.noise is not None:
            return self._in_closed_form(targets, places)
        pairs = zip(starts, targets, strict=True)
        every = [s.toward(t) if isinstance(s, Fit) else s for s, t in pairs]
        mean, precision = (torch.stack(part) for part in zip(*every, strict=True))
        given = self.given.divergence, mean, precision, self.structure
        descent = Descent(targets, *given)
        descent.slack = self.resolution
        descent.run(self._tolerance(factor), MAX_ITER)
        self._begin_again(descent, factor)
        return self._fits_of(descent, places)

    def _in_closed_form(
        self, targets: list[SupervisedTarget], places: Places
    ) -> list[Fit]:
        normal, exists, values, slopes = cast(NormalNoise, self.noise).at(places)
        if not bool(exists.all()):
            raise ValueError(SINGULAR)
        each = members(normal), values.tolist(), slopes.tolist()
        return [
            Fit(z, target, own, None, self.structure, value, 0.0, slope)
            for z, target, own, value, slope in zip(places, targets, *each, strict=True)
        ]

    def _begin_again(self, descent: Descent, factor: float) -> None:
        """Descend from the modes where the given starts led nowhere.

        A start is that of a neighbor, or extrapolated from two: at a place of wide
        normals, losses like exp(-f) may then be without bounds, or of any size.
        """
        places = enumerate(state.place for state in descent.states)
        tol = self._tolerance(factor)
        lost = [k for k, at in places if at is None or at.gap >= tol]
        if not lost:
            return
        targets = [descent.targets[k] for k in lost]
        try:
            begin = [start_at_mode(target, self.structure) for target in targets]
        except ValueError:  # singular there: what the descents have is judged
            return
        mean, precision = (torch.stack(part) for part in zip(*begin, strict=True))
        again = Descent(targets, self.given.divergence, mean, precision, self.structure)
        again.slack = self.resolution
        again.run(tol, MAX_ITER)
        for k, state in zip(lost, again.states, strict=True):
            found, last = state.place, descent.place(k)
            if found and (last is None or found.value < last.value):
                descent.states[k] = state

    def _fits_of(self, descent: Descent, places: Places) -> list[Fit]:
        found = []
        for k, z in enumerate(places):
            pairs = zip(self.numbers, z, strict=True)
            log_p = sum(number.log_density(at) for number, at in pairs)
            log_p += descent.targets[k].prior.log_ratio
            place = descent.place(k)
            if place is None:
                raise ValueError(SINGULAR)
            value = log_p - place.value / self.weight
            parts = descent.targets[k], place.normal, place.precision, self.structure
            found.append(Fit(z, *parts, value, place.gap))
        return found

    def _error(self, fit: Fit) -> float:
        """Change of the value by a rule with twice the nodes."""
        loss = fit.target.expected_loss_terms
        coarse, fine = (loss(fit.normal, refine=k)[0] for k in (1, 2))
        return abs(float(fine - coarse))

    def _mixture(self) -> MixtureOverScales:
        known, steps = self.lattice
        fits = sorted(known.values(), key=lambda fit: fit.z)
        values = _host([f.value for f in fits])
        log_w = torch.log_softmax(values, 0).tolist()
        nodes: list[Posterior] = []
        scales: list | None = None
        for fit in fits:
            normal = fit.normal
            if self.family.layout.size > normal.size:
                normal = beside(normal, fit.z[-1], KERNEL * steps[-1])
            nodes.append(self.family.near(normal))
        n_scales = sum(isinstance(number, Scale) for number in self.numbers)
        if n_scales == 1:
            scales = [fit.z[0] for fit in fits]
        elif n_scales > 1:
            scales = [fit.z[:n_scales] for fit in fits]
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
        converged, message = lost <= MOST_LOST and len(fits) >= self.n_least, ""
        if not converged and not self.stopped:
            remedy = "increase max_iter, or standardize the features"
            message = unfinished(len(self.history), gap, remedy)
        elif converged:
            message = judge_quadrature(error, best.target)
        found = {"gap": gap, "quadrature_error": error}
        return self.solution(converged, message, found)


def _host(values: Sequence[float]) -> torch.Tensor:
    """Numbers of the nodes, which stay on the host."""
    return torch.tensor(values, dtype=torch.float64, device="cpu")


# Nats below the likeliest scale at which a failed fit does not matter.
NEGLIGIBLE = 25.0


class CarriedNodes(NodeRun):
    """Nodes of an earlier mixture that is the prior, and beyond where that is likely.

    Their weights are those of the earlier posterior: they have no step.
    """

    n_least = 1

    def improve(self) -> Solution:
        number = cast(CarriedScale, self.numbers[0])
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

    def _from_prior(self, number: CarriedScale, which: Iterable[int]) -> list[Fit]:
        """Fits at some of the scales, each from its own prior."""
        places = [(number.prior.log_scales[i],) for i in which]
        starts = []
        for place in places:
            prior = cast(NormalForm, self._at(place).prior.as_normal())
            starts.append((prior.mean, precision_of(prior)))
        return self._solved(places, starts)

    def _is_likely(self, every: list[Fit], end: int) -> bool:
        """Whether the scales beyond an end can have a share of the posterior."""
        highest, last = max(fit.value for fit in every), every[end]
        is_done = last.gap < self._tolerance(NODE_TOL)
        return is_done and last.value > highest - FALL
