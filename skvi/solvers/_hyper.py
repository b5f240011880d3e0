"""Learned scales and their limits, and fits in the row space of the features.

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
from skvi.exceptions import NoOptimumError
from skvi.posteriors import FullRankNormal, Posterior
from skvi.posteriors._mixture import MixtureOverScales
from skvi.solvers._mode import factorize
from skvi.solvers._solution import PhaseInterrupted, Solution, State
from skvi.solvers.base import Problem, SolverOptions
from skvi.targets import SupervisedTarget, Target
from skvi.targets._hierarchical import base_prior
from skvi.targets._reduced import ReducedTarget, reduced

# Robust losses can be unbounded below: a lower limit that a diverging scale reaches
# before its steps have become too small, and a decrease that is worth a warning.
ROBUST_FLOOR, SUSPICIOUS = math.log(1e2), math.log(0.3)
# Of the rows within three standard deviations of the noise, 8 % lie within a tenth of
# one if the noise is normal, and nearly all if the noise has degenerated.
INSIDE, EXACT, MAX_EXACT = 3.0, 0.1, 0.5


def hyper_range(
    target: Target, has_small_steps: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Lower and upper limits of the point parameters of a target, (H,) each.

    With decreasing step sizes, robust losses need a higher lower limit.
    """
    layout = target.point_layout
    low, high = (end.to(target.hyper.device) for end in layout.limits())
    if has_small_steps and _is_robust(target):
        noise = layout.positions(n for n, b in layout.items() if b.role == "noise")
        low[noise] = target.initial_hyper()[noise] - ROBUST_FLOOR
    return low, high


def suspicion(target: Target, hyper: torch.Tensor) -> str:
    """Say that a noise scale decreases with a robust loss, as if degenerating."""
    fallen = hyper - target.initial_hyper().to(hyper.dtype) < SUSPICIOUS
    layout = target.point_layout
    noise = layout.positions(n for n, b in layout.items() if b.role == "noise")
    is_suspicious = _is_robust(target) and bool(fallen[noise].any())
    return f"; a learned scale decreases, too: {RUNAWAY}" if is_suspicious else ""


def runaway_message(
    target: Target, to_zero: torch.Tensor, to_infinity: torch.Tensor
) -> str:
    """Name the learned scales without optimum, and a remedy; empty if there is none.

    Raises NoOptimumError if a noise scale degenerates to 0 with a robust loss.
    """
    floor_remedies = {"noise": target.floor_remedy, "prior": _FLOOR_OF_PRIOR}
    parts = []
    for name, block in target.point_layout.items():
        if block.role not in floor_remedies:
            continue
        if bool(to_zero[block.slice].any()):
            _check_loss(target, name, block.role)
            parts.append(f"{name} degenerates to 0: {floor_remedies[block.role]}")
        elif bool(to_infinity[block.slice].any()):
            parts.append(f"{name} diverges: {_CEILING[block.role]}")
    return "; ".join(parts)


def check_noise(
    target: SupervisedTarget, normal: NormalForm, scale: torch.Tensor
) -> None:
    """Raise NoOptimumError if a robust loss has settled on exactly fitted rows.

    That is, on more than half of those that are not outliers: a meaningless optimum
    near 0, if a hyperprior keeps the noise from reaching 0.
    """
    first = target.likelihood_spec.initial_hyper(target.y)
    if not (_is_robust(target) and target.likelihood_spec.is_location and len(first)):
        return
    if scale.log() > first[0] - ROBUST_FLOOR:
        return
    mean, _ = target.predictor.moments(target.X, normal)
    distance = (target.y - mean).abs() / scale
    n_exact, n_inside = ((distance < bound).sum() for bound in (EXACT, INSIDE))
    if n_exact > MAX_EXACT * n_inside:
        raise NoOptimumError(
            f"With loss={target.loss!r} the noise degenerates to 0: {RUNAWAY}."
        )


def _is_robust(target: Target) -> bool:
    """Whether the loss is not the log loss: a learned noise may have no optimum."""
    return isinstance(target, SupervisedTarget) and not target.loss.is_log_loss


def _check_loss(target: Target, name: str, kind: str) -> None:
    if kind == "noise" and isinstance(target, SupervisedTarget) and _is_robust(target):
        raise NoOptimumError(
            f"With loss={target.loss!r} the {name} degenerates to 0: {RUNAWAY}."
        )


RUNAWAY = (
    "if some rows are fitted exactly, as equal targets are, a robust loss has no "
    "minimum, and the result would be meaningless. Fix the scale (such as "
    "noise_scale=0.5), use loss='log', or an order closer to 1"
)
_FLOOR_OF_PRIOR = (
    "with these data the evidence is largest without any effect of the features; give "
    "the prior a number for its scale, or leave the features out"
)
_CEILING = {
    "noise": "the model explains nothing; standardize the target, or fix it at a "
    "number",
    "prior": "the data set no limit to the size of the coefficients (features of a "
    "tiny unit, or classes that can be separated); standardize the features, or give "
    "the prior a number for its scale",
}


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
