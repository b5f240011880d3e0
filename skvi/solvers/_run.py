"""Runs of solvers without draws: requirements, reports, and how they end."""

import math

import torch

from skvi.base import NormalForm
from skvi.solvers._solution import Solution, State, ending_of
from skvi.solvers.base import Problem, SolverOptions
from skvi.targets import SupervisedTarget
from skvi.utils._interrupts import check_time


class Run:
    """Improves a state, one iteration after the other, until Ctrl-C at any moment.

    A subclass must implement `value`, `state` and `improve`.
    """

    solver: str
    #: Whether there is a state to keep.
    is_usable = True
    #: Diagnostics of the state that need no further computation.
    known: dict = {}

    def __init__(self, problem: Problem, options: SolverOptions) -> None:
        self.given, self.options = problem, options
        self.history: list[float] = []
        self.stopped = False

    @property
    def value(self) -> float:
        """Value of the loss at the current state."""
        raise NotImplementedError

    def state(self) -> State:
        """Best state so far."""
        raise NotImplementedError

    def improve(self) -> Solution:
        """Iterate to the end, and assess convergence."""
        raise NotImplementedError

    def run(self) -> Solution:
        """Improve; after Ctrl-C return the current state, if there is one."""
        try:
            return self.improve()
        except KeyboardInterrupt:
            if not self.is_usable:
                raise
            found = {**self.known, "gap": math.inf}
            return self.solution(False, "", found).cut_short()

    @property
    def may_go_on(self) -> bool:
        """Whether to continue, according to the callback and `max_iter`."""
        return not self.stopped and len(self.history) < self.options.max_iter

    def report(self) -> None:
        """Say that an iteration is over."""
        check_time()
        self.history.append(self.value)
        with torch.inference_mode(False):  # callbacks may do anything
            self.stopped = self.options.progress(self.value, self.state)

    def solution(self, converged: bool, message: str, found: dict) -> Solution:
        """The current state, without Monte Carlo noise in its value."""
        return Solution(
            solver=self.solver,
            state=self.state(),
            value=self.value,
            history=self.history,
            n_iter=len(self.history),
            ending=ending_of(converged, self.stopped),
            message=message,
            diagnostics=found,
            is_exact=True,
        )


# Allowed gap, in nats, between the quadrature and one with twice the nodes; each row
# is integrated to 1e-7.
QUADRATURE_TOLERANCE, ROW_TOLERANCE = 1e-4, 1e-7
# The same if a loss depends on several f, in too many dimensions for a rule.
COARSE_TOLERANCE = 0.2


def missing_for_expectations(
    problem: Problem, kinds: tuple[str, ...] = ("expectation",)
) -> str:
    """Why an objective is not one of these kinds without draws; empty if it is."""
    if problem.objective.kind not in kinds:
        return (
            f"it minimizes expectations under q, and {problem.objective!r} is not one"
        )
    if problem.objective.needs_draws:
        return f"{problem.objective!r} asks for draws"
    return ""


def missing_for_quadrature(problem: Problem) -> str:
    """Why a problem is not an integral over the rows' f; empty if it is."""
    target = problem.target
    missing = missing_for_expectations(problem, ("expectation", "rows"))
    if missing:
        return missing
    if len(target.hyper):
        return "the target learns hyperparameters"
    if not target.has_design:
        return (
            "the model is not linear in its parameters (precisions with hyperpriors "
            "are parameters, too)"
        )
    normal = problem.posterior.as_normal()
    if normal is None:
        return "the posterior family is not normal"
    if target.prior is None:
        return "the target has no prior"
    divergence, prior = problem.divergence, target.prior
    if not (divergence.has_closed_form(prior) or divergence.has_nodes(normal, prior)):
        return f"{divergence!r} has no closed form for this prior"
    if normal.factor is not None:
        if problem.posterior.border is None:
            return "the posterior family has covariances of low rank only"
        if divergence.kl_weight is None or prior.as_normal() is None:
            return "the posterior family needs a KL divergence from a normal prior"
    return ""


def refined_value(problem: Problem, normal: NormalForm, divergence: float) -> float:
    """The objective with twice the nodes."""
    loss = problem.linear_target.expected_loss_terms(normal, refine=2)[0]
    return float(loss) + divergence


def known_error(target: SupervisedTarget) -> float:
    """Error of the quadrature in nats that needs no finer rule; infinite if unknown."""
    error = target.likelihood.row_error if target.loss.is_log_loss else None
    return math.inf if error is None else error * target.n_rows


def judge_quadrature(error: float, target: SupervisedTarget) -> str:
    """What to change if the integrals are too coarse; empty if they are not."""
    several = target.predictor.n_outputs > 1
    allowed = max(QUADRATURE_TOLERANCE, ROW_TOLERANCE * target.n_rows)
    if error <= (COARSE_TOLERANCE if several else allowed):
        return ""
    remedy = "posterior='mean_field'" if several else "loss='log'"
    return (
        f"the quadrature may be wrong by {error:.2g} nats; use {remedy} or a "
        "prior with a smaller scale"
    )


def unfinished(n_iter: int, gap: float, remedy: str = "increase max_iter") -> str:
    """Say how far away an optimum may be, in nats, and what to do."""
    left = "far" if math.isinf(gap) else f"{gap:.2g} nats"
    plural = "" if n_iter == 1 else "s"
    return (
        f"after {n_iter} iteration{plural} the objective may still be {left} from its "
        f"optimum; {remedy}"
    )


def remedy_for(problem: Problem, normal: NormalForm) -> str:
    """What to change if a fit has not converged."""
    prior = problem.linear_target.prior.matching_normal()
    width = float((normal.variance / prior.variance).max().sqrt())
    if width < 2:
        return "increase max_iter, or standardize the features"
    return (
        f"it hardly penalizes width here, so that the posterior became {width:.0f} "
        "times as wide as the prior: use divergence='kl', an order closer to 1, "
        "or posterior='mean_field'"
    )
