"""Runs whose result is a mixture over nodes of a few shared numbers.

With z the logs of the numbers, q(theta, z) = q(z) q(theta | z). At a node z_k the best
q(theta | z_k) has the minimum F_k of the loss there; the best weights are those of
``p(z_k) exp(-F_k / w)``, with w the weight of the divergence, and the minimum of the
whole is ``-w log sum_k p(z_k) exp(-F_k / w) h`` with steps h between nodes.
"""

import math
from collections.abc import Iterable, Sequence
from typing import cast

import torch

from skvi.posteriors._over_scales import MixtureOverScales, beside
from skvi.solvers._mode import SINGULAR
from skvi.solvers._newton import Descent
from skvi.solvers._node_fit import Fit, Start
from skvi.solvers._run import Run, judge_quadrature, known_error, unfinished
from skvi.solvers._solution import Solution, State
from skvi.solvers.base import Problem, SolverOptions
from skvi.targets import SupervisedTarget
from skvi.targets._numbers import Number, Scale, bound_at, numbers_of
from skvi.targets._supervised import with_design
from skvi.utils._clock import check_time

__all__ = ["FALL", "MAX_NODES", "NODE_TOL", "ROUGH", "Index", "NodeRun", "Parts"]

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
MAX_ELEMENTS = 2**22

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
        self.resolution = 0.0

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
        log_steps = sum(map(math.log, steps))
        return -self.weight * (float(torch.logsumexp(values, 0)) + log_steps)

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
        self, places: Sequence[tuple[float, ...]], starts: Sequence[Start]
    ) -> list[Fit]:
        """Fits at several places at once."""
        size = max(1, MAX_ELEMENTS // starts[0][1].numel())
        found: list[Fit] = []
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
    ) -> list[Fit]:
        found = []
        for k, z in enumerate(places):
            pairs = zip(self.numbers, z, strict=True)
            log_p = sum(number.log_density(at) for number, at in pairs)
            place = descent.place(k)
            if place is None:
                raise ValueError(SINGULAR)
            value = log_p - place.value / self.weight
            parts = descent.targets[k], place.normal, place.precision
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
