"""One unknown scale of a prior, by nodes: a mixture of the fits at known scales.

With z the log of the scale, q(theta, z) = q(z) q(theta | z). At a node z_k the best
q(theta | z_k) is the fit under the prior of this scale, with the minimum F_k of its
loss; the best weights are then those of ``p(z_k) exp(-F_k / w)``, with w the weight of
the divergence, and the minimum of the whole is ``-w log sum_k p(z_k) exp(-F_k / w) h``.
Equal steps h of about one posterior deviation of z make the sum an integral (the
trapezoidal rule, whose error falls like exp(-2 pi^2 / h^2) for a normal).
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import torch

from skvi.base import NormalForm
from skvi.posteriors import MixtureOverScales, Posterior
from skvi.priors import BuiltPrior
from skvi.solvers._reduce import solve_reduced
from skvi.solvers._run import unfinished
from skvi.solvers._solution import Ending, Solution, State
from skvi.solvers._unknown_scale import implied_scale, shrinkage
from skvi.solvers.base import Problem, Solver, SolverOptions, no_progress
from skvi.targets import HierarchicalTarget, SupervisedTarget
from skvi.targets._supervised import with_prior

__all__ = [
    "FALL",
    "MAX_ITER",
    "MAX_NODES",
    "NODE_TOL",
    "Node",
    "OverScales",
    "joined",
    "over_scales",
    "slope_of_scale",
]

# Step in posterior deviations of the log scale, its limits, and how much longer than a
# first guess it must be to begin again.
STEP, SHORTEST, LONGEST, MUCH = 1.25, 0.01, 1.0, 1.5
# Nats below the highest node at which the rest is left out, and most nodes of a side.
FALL, MAX_NODES, SIGNS = 5.0, 32, (-1, 1)
# Nats that the fit which finds the middle may leave, and likely nodes, in tolerances
# (0.03 and 0.001 nats by default); and most iterations of a node.
ROUGH, NODE_TOL, MAX_ITER = 3000.0, 100.0, 50
# Probability of scales whose fits may end early without a warning.
MOST_LOST = 0.05


def over_scales(solver: Solver, problem: Problem) -> Solver:
    """Return the solver itself, or one that integrates over the scale of the prior.

    Solutions of the second one have a `MixtureOverScales` as their posterior.
    """
    target = problem.target
    can = (
        isinstance(target, SupervisedTarget)
        and not isinstance(target, HierarchicalTarget)
        and target.prior.n_unknown_scales == 1
        and problem.objective.kind == "expectation"
        and problem.divergence.kl_weight is not None
        and problem.posterior.as_normal() is not None
        and solver.continues
    )
    return OverScales(solver) if can else solver


class Node(NamedTuple):
    """A fit at one log scale, and its part of the sum.

    `value` and `slope`: log integrand and its derivative in the log scale, by the
    envelope theorem at a fixed q. `error`, `gap`: nats that quadrature and fit leave.
    """

    log_scale: float
    posterior: Posterior
    value: float
    slope: float
    error: float
    gap: float
    converged: bool

    @classmethod
    def of(
        cls, log_scale: float, found: Solution, value: float, slope: float = math.nan
    ) -> "Node":
        """The node of a solution."""
        number = found.diagnostics.get
        error, gap = (float(number(k) or 0.0) for k in ("quadrature_error", "gap"))
        done = found.converged
        return cls(log_scale, found.posterior, value, slope, error, gap, done)

    @property
    def normal(self) -> NormalForm:
        """The fit as a normal."""
        return cast(NormalForm, self.posterior.as_normal())


@dataclass(frozen=True, eq=False, repr=False)
class OverScales(Solver):
    """Integrate over the one unknown scale of a prior.

    `inner` solves the problem at each scale.
    """

    inner: Solver

    continues = True

    @property
    def name(self) -> str:
        """Name of the solver at each scale."""
        return self.inner.name

    def needs_start(self, problem: Problem) -> bool:  # type: ignore[override]
        """As the solver at each scale; see `Solver`."""
        return self.inner.needs_start(problem)

    def count_iterations(  # type: ignore[override]
        self, problem: Problem, options: SolverOptions
    ) -> int:
        """That of the solver at each scale; see `Solver`."""
        return self.inner.count_iterations(problem, options)

    def solve(self, problem: Problem, options: SolverOptions) -> Solution:
        """Fit beside an independent scale first, then at the nodes; see `Solver`."""
        found = solve_reduced(self.solve, problem, options)
        if found is not None:
            return found
        last = problem.posterior
        if isinstance(last, MixtureOverScales):
            problem = replace(problem, posterior=last.likeliest)
        first = self.inner.solve(problem, replace(options, tol=ROUGH * options.tol))
        alone = replace(first, state=_alone(first.state))
        if first.converged:
            try:
                nodes = _Nodes(self.inner, problem, options).around(first.posterior)
                step = nodes[1].log_scale - nodes[0].log_scale
                return joined(problem, first, nodes, math.log(step))
            except KeyboardInterrupt:
                alone = alone.cut_short()
        if problem.posterior is not last:
            alone.raise_interrupt()  # the mixture before may be better
        return alone


class _Nodes:
    """Fits at known scales, each from the one beside it."""

    def __init__(self, inner: Solver, problem: Problem, options: SolverOptions) -> None:
        self.inner, self.problem = inner, problem
        self.options = replace(
            options,
            max_iter=MAX_ITER,
            tol=NODE_TOL * options.tol,
            warm_start=True,
            progress=no_progress,
        )
        self.prior = problem.linear_target.prior
        self.weights = self.prior.scale_weights()
        self.kl_weight = float(cast(float, problem.divergence.kl_weight))

    def around(self, posterior: Posterior) -> list[Node]:
        """Nodes in ascending order, from a fit beside an independent scale."""
        normal = cast(NormalForm, posterior.as_normal())
        middle = self._solve(math.log(implied_scale(self.prior, normal)), posterior)
        step = _step(self._curvature(middle))
        first = self._next([middle], -step)
        sides = [[middle, first], [middle, self._next([first, middle], step)]]
        # Losses are not quadratic: the slopes tell the width better.
        fall = sides[0][1].slope - sides[1][1].slope
        wider = _step(0.5 * fall / step)
        if wider > MUCH * step:
            sides = [
                [middle, self._next(s, (wider - step) * sign)]
                for s, sign in zip(sides, SIGNS, strict=True)
            ]
            step = wider
        highest = max((middle, *(side[1] for side in sides)), key=lambda n: n.value)
        for side, sign in zip(sides, SIGNS, strict=True):
            while side[-1].value > highest.value - FALL and len(side) < MAX_NODES:
                side.append(self._next(side, sign * step))
                highest = max(highest, side[-1], key=lambda n: n.value)
        below, above = sides
        return below[:0:-1] + above

    def _next(self, side: list[Node], step: float) -> Node:
        """The node after the last one of a side."""
        start, z = side[-1].posterior, side[-1].log_scale
        if len(side) > 1:  # on the line through the last two
            far, near = side[-2].normal, side[-1].normal
            ahead = 1 + step / (z - side[-2].log_scale)
            mean, scale = (
                far.mean.lerp(near.mean, ahead),
                far.scale.lerp(near.scale, ahead),
            )
            start = start.near(NormalForm(mean, scale))
        return self._solve(z + step, start)

    def _solve(self, log_scale: float, start: Posterior) -> Node:
        known = self.prior.given_scale(math.exp(log_scale))
        target = with_prior(self.problem.linear_target, known)
        problem = replace(self.problem, target=target, posterior=start)
        found = self.inner.solve(problem, self.options)
        if found.interrupted:
            raise KeyboardInterrupt
        normal = cast(NormalForm, found.posterior.as_normal())
        slope = slope_of_scale(self.prior, normal, log_scale)
        z = normal.mean.new_tensor(log_scale)
        value = float(self.prior.log_density_of_scale(z)) - found.value / self.kl_weight
        return Node.of(log_scale, found, value, slope)

    def _curvature(self, node: Node) -> float:
        """Curvature of minus the log integrand, as if the losses were quadratic."""
        normal, precision = node.normal, math.exp(-2 * node.log_scale)
        squares = float(self.weights @ (normal.mean.square() + normal.variance))
        moved = precision * shrinkage(self.weights, normal)
        return 2 * precision * (squares - moved) + math.cosh(node.log_scale) ** -2


def slope_of_scale(prior: BuiltPrior, normal: NormalForm, log_scale: float) -> float:
    """Slope in the log scale of the log of the integrand: the envelope theorem.

    Parameters
    ----------
    prior : BuiltPrior
        With one unknown scale.
    normal : NormalForm
        The fit at this scale.
    log_scale : float

    Returns
    -------
    float
    """
    weights = prior.scale_weights()
    squares = float(weights @ (normal.mean.square() + normal.variance))
    size = int((weights > 0).sum())
    return math.exp(-2 * log_scale) * squares - size - math.tanh(log_scale)


def _step(curvature: float) -> float:
    """Step between nodes where minus the log of the integrand has this curvature."""
    return min(max(STEP * max(curvature, 1e-9) ** -0.5, SHORTEST), LONGEST)


def _alone(state: State) -> State:
    """The fit beside an independent scale as a mixture of one."""
    posterior, target = state
    normal = cast(NormalForm, posterior.as_normal())
    z = math.log(implied_scale(cast(SupervisedTarget, target).prior, normal))
    one = MixtureOverScales([posterior], [0.0], [z])
    return State(one, target)


def joined(
    problem: Problem, first: Solution, nodes: list[Node], log_step: float
) -> Solution:
    """Solution with the mixture over all nodes; their sum is an integral."""
    weight = float(cast(float, problem.divergence.kl_weight))
    values = nodes[0].normal.mean.new_tensor([node.value for node in nodes])
    total = -weight * (float(torch.logsumexp(values, 0)) + log_step)
    log_weights = torch.log_softmax(values, 0)
    posterior = MixtureOverScales(
        [node.posterior for node in nodes],
        log_weights.tolist(),
        [node.log_scale for node in nodes],
    )
    diagnostics = dict(first.diagnostics)
    if "quadrature_error" in diagnostics:
        diagnostics["quadrature_error"] = max(node.error for node in nodes)
    if "gap" in diagnostics:  # the total gains as much as its terms on average
        gaps = values.new_tensor([node.gap for node in nodes])
        diagnostics["gap"] = float(log_weights.exp() @ gaps)
    lost = values.new_tensor([float(not node.converged) for node in nodes])
    if float(log_weights.exp() @ lost) > MOST_LOST:
        message = unfinished(MAX_ITER, diagnostics["gap"], "standardize the features")
        first = replace(first, ending=Ending.UNFINISHED, message=message)
    return replace(
        first,
        state=State(posterior, first.target),
        value=total,
        history=[*first.history, total],
        n_iter=first.n_iter + 1,
        diagnostics=diagnostics,
    )
