"""Full-rank fits with fewer rows than parameters: in the row space of the features.

Beside a normal prior, of a known or one unknown scale, f of the rows depends on as many
coordinates as there are rows. Given the scale the best posterior of all others is their
prior, which costs no divergence, so that the objective is that of the small problem.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import repeat
from typing import cast

import torch

from skvi.base import NormalForm
from skvi.posteriors import FullRankNormal, Posterior
from skvi.posteriors._over_scales import MixtureOverScales
from skvi.solvers._mode import factorize
from skvi.solvers._solution import PhaseInterrupted, Solution, State
from skvi.solvers.base import Problem, SolverOptions
from skvi.targets import SupervisedTarget
from skvi.targets._hierarchical import base_prior
from skvi.targets._reduced import ReducedTarget, reduced

__all__ = ["MIN_SIZE", "has_few_rows", "solve_reduced"]

# With fewer parameters all fits are quick.
MIN_SIZE = 256

Solve = Callable[[Problem, SolverOptions], Solution]


def has_few_rows(problem: Problem) -> bool:
    """Whether a full covariance has fewer rows than parameters, and many of them."""
    target, normal = problem.linear_target, problem.posterior.as_normal()
    is_full = normal is None or not (normal.is_diagonal or normal.factor is not None)
    return is_full and target.layout.size > max(MIN_SIZE, target.n_rows)


def solve_reduced(
    solve: Solve, problem: Problem, options: SolverOptions
) -> Solution | None:
    """Solve the small problem; None where there is none, or it is hardly smaller."""
    target = problem.linear_target
    if problem.divergence.kl_weight is None or not has_few_rows(problem):
        return None
    small = None if target.prior_spec.learned else reduced(target)
    if small is None:
        return None
    rows = _Rows(problem, small)

    def progress(value: float, state: Callable[[], State]) -> bool:
        return options.progress(value, lambda: rows.lifted(state()))

    try:
        found = solve(rows.problem, replace(options, progress=progress))
    except PhaseInterrupted as phase:
        raise PhaseInterrupted(rows.lifted(phase.state)) from None
    return replace(found, state=rows.lifted(found.state))


class _Rows:
    """A problem, and the small one in its row space."""

    def __init__(self, given: Problem, small: ReducedTarget) -> None:
        self.given, self.small = given, small
        posterior = given.posterior
        self.family = posterior
        if isinstance(posterior, MixtureOverScales):
            self.family = posterior.likeliest
        rank, k, relative = len(small.basis), small.n_outputs, small.relative
        columns = relative[:, None] * small.basis.T / relative[:rank]
        rest = columns.new_ones(small.target.layout.size - k * rank).diag()
        #: From parameters of the small problem to all of them, (P, p), and back.
        self.out = torch.block_diag(*[columns] * k, rest)
        back = relative[:rank, None] * small.basis / relative
        self.back = torch.block_diag(*[back] * k, rest)
        start = FullRankNormal().build(small.target.layout).to(small.basis.device)
        moved = _each(posterior, lambda node, _: start.near(self._inside(node)))
        #: The small problem, which starts where the given one does.
        self.problem = replace(given, posterior=moved, target=small.target)

    def _inside(self, posterior: Posterior) -> NormalForm:
        normal = posterior.normal(posterior.params.detach())
        upper = torch.linalg.qr((self.back @ normal.scale).T).R
        scale = (upper * upper.diagonal().sign()[:, None]).T
        return NormalForm(self.back @ normal.mean, scale)

    def lifted(self, state: State) -> State:
        """The state over all parameters."""
        with torch.inference_mode(False), torch.no_grad():
            posterior = _each(state.posterior, self._outside)
        return State(posterior, self.given.target.at(state.target.hyper))

    def _outside(self, posterior: Posterior, scale: float | None) -> Posterior:
        """Posterior of all parameters, of which the others keep their prior."""
        whole, small = (
            _variance(target, scale)
            for target in (self.given.linear_target, self.small.target)
        )
        normal = posterior.normal(posterior.params.detach())
        gain = normal.covariance() - small.diag()
        covariance = self.out @ gain @ self.out.T
        covariance.diagonal().add_(whole)
        moved = NormalForm(self.out @ normal.mean, factorize(covariance))
        return self.family.near(moved)


def _variance(target: SupervisedTarget, scale: float | None) -> torch.Tensor:
    """Prior variances of the parameters; 0 of a number, which is not reduced."""
    prior = base_prior(target)
    known = prior if scale is None else prior.given_scale(scale)
    variance = cast(NormalForm, known.as_normal()).variance
    return torch.nn.functional.pad(variance, (0, target.layout.size - len(variance)))


def _each(
    posterior: Posterior, change: Callable[[Posterior, float | None], Posterior]
) -> Posterior:
    """Change a posterior, or each node of a mixture, which has a known scale."""
    if not isinstance(posterior, MixtureOverScales):
        return change(posterior, None)
    z = None if posterior.log_scales is None else posterior.log_scales.tolist()
    scales = repeat(None) if z is None else map(math.exp, z)
    nodes = [change(*pair) for pair in zip(posterior.nodes, scales, strict=False)]
    return MixtureOverScales(nodes, posterior.log_weights.tolist(), z)
