"""A prior that is the posterior of other data, a mixture over the nodes of a scale.

At every scale the fit continues from its own normal, and the weights follow, as in
`skvi.solvers._scale_nodes`: nothing but the nodes is approximated. Nodes are added
where the last one is likely, so that a drift does not leave their range.
"""

import math
from dataclasses import dataclass, replace
from typing import cast

from skvi.base import NormalForm
from skvi.priors._posterior import MixtureAsPrior
from skvi.solvers._scale_nodes import FALL, MAX_ITER, MAX_NODES, NODE_TOL, Node, joined
from skvi.solvers._solution import Ending, Solution
from skvi.solvers.base import Problem, Solver, SolverOptions, no_progress
from skvi.targets._supervised import with_prior

__all__ = ["OverCarriedNodes"]

# Nats below the likeliest scale at which a failed fit does not matter.
NEGLIGIBLE = 25.0
MOST_NODES = 2 * MAX_NODES


@dataclass(frozen=True, eq=False, repr=False)
class OverCarriedNodes(Solver):
    """Fit at each scale of a `MixtureAsPrior`; `inner` solves the problem there."""

    inner: Solver

    @property
    def name(self) -> str:
        """Name of the solver at each scale."""
        return self.inner.name

    def count_iterations(  # type: ignore[override]
        self, problem: Problem, options: SolverOptions
    ) -> int:
        """One for each scale; see `Solver`."""
        return len(cast(MixtureAsPrior, problem.target.prior).log_scales)

    def solve(self, problem: Problem, options: SolverOptions) -> Solution:
        """Fit at all nodes; raises KeyboardInterrupt on Ctrl-C, see `Solver`."""
        prior = cast(MixtureAsPrior, problem.target.prior)
        own = replace(
            options,
            max_iter=MAX_ITER,
            tol=NODE_TOL * options.tol,
            progress=no_progress,
            warm_start=True,
        )
        every = [self._at(problem, prior, z, own) for z in prior.log_scales]
        for end in (0, -1) if prior.can_reach_further else ():
            while _is_likely(every, end) and len(every) < MOST_NODES:
                prior = prior.with_one_beyond(end)
                found = self._at(problem, prior, prior.log_scales[end], own)
                every.insert(0 if end == 0 else len(every), found)
        likeliest, best = max(every, key=lambda pair: pair[0].value)
        # Unlikely scales stay, since they can return where rows are forgotten; but not
        # those at which a fit failed.
        least = likeliest.value - NEGLIGIBLE
        nodes = [node for node, _ in every if node.converged or node.value > least]
        solution = joined(problem, best, nodes, 0.0)
        largest = max(nodes, key=lambda node: node.log_scale)
        if len(nodes) == 1 or largest is not likeliest:
            return solution
        message = (
            f"the scale of the prior is at {math.exp(largest.log_scale):.3g}, the "
            "largest that could be fitted: coefficients are shrunk too much. Fit "
            "recent rows anew, or use a known scale, as prior=Normal(1.0)"
        )
        return replace(solution, message=message, ending=Ending.UNFINISHED)

    def _at(
        self,
        problem: Problem,
        prior: MixtureAsPrior,
        log_scale: float,
        options: SolverOptions,
    ) -> tuple[Node, Solution]:
        """Fit at one of the scales."""
        known = prior.given_scale(math.exp(log_scale))
        target = with_prior(problem.linear_target, known)
        start = problem.posterior.near(cast(NormalForm, known.as_normal()))
        found = self.inner.solve(
            replace(problem, target=target, posterior=start), options
        )
        found.raise_interrupt()
        weight = float(cast(float, problem.divergence.kl_weight))
        z = prior.posterior.log_scales.new_tensor(log_scale)
        log_p = float(prior.log_density_of_scale(z))
        return Node.of(log_scale, found, log_p - found.value / weight), found


def _is_likely(every: list[tuple[Node, Solution]], end: int) -> bool:
    """Whether the scales beyond an end can have a share of the posterior."""
    highest, last = max(node.value for node, _ in every), every[end][0]
    return last.converged and last.value > highest - FALL
