"""Rényi's optimum: the moments of p^(1 - alpha) q^alpha, for a normal q."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch

from skvi._sampling._diagnostics import khat_limit, pareto_khat
from skvi._sampling._importance import StudentT, adapt_proposal
from skvi.base import NormalForm
from skvi.divergences._power_integral import log_power_integral
from skvi.solvers._solution import Ending, Solution, State, ending_of
from skvi.solvers.base import Problem, Progress
from skvi.targets import Target

__all__ = ["estimate_loss", "match_tilted_moments"]

# Full steps on fresh draws (each a quarter of all), then the number of averaged steps.
N_FULL, N_AVERAGED = 2, 12
MIN_BLOCK, MIN_ESS, PILOT_DRAWS = 1024, 200, 4096
# Blocks of draws that a jackknife leaves out in turn.
N_JACKKNIFE = 32
# Monte Carlo error of the means, in standard deviations of q: the goal of the number of
# draws if the effective number is unreliable, and the limit for a warning.
ERROR_GOAL, MAX_ERROR = 0.02, 0.1
MAX_KNOWN_STEPS, SMALL_STEP = 200, 1e-6
# Maximum step, in standard deviations of q; errors that the final check allows.
MAX_STEP, MAX_ERRORS = 1.0, 6.0


class _TiltedTarget(Target):
    """The density p^(1 - alpha) q^alpha, without its constant, for proposals."""

    def __init__(self, target: Target, q: NormalForm, alpha: float) -> None:
        self.target, self.q, self.alpha = target, q, alpha
        self.layout = target.layout

    def log_joint_batched(self, theta: torch.Tensor) -> torch.Tensor:
        log_p = self.target.log_joint_batched(theta)
        return (1 - self.alpha) * log_p + self.alpha * self.q.log_prob(theta)


@dataclass(frozen=True, eq=False)
class _Reference:
    """t0 = n^(1 - alpha) q^alpha with a normal n close to p: known exactly.

    Where q is N(0, I): its covariance, and ``(E_t0 - E_q) / (1 - alpha)`` of
    coordinates (`first`) and of their products (`second`).
    """

    first: torch.Tensor
    second: torch.Tensor
    covariance: torch.Tensor

    @classmethod
    def of(cls, q: NormalForm, near: NormalForm, alpha: float) -> "_Reference":
        delta = 1 - alpha
        offset = q.whiten((near.mean - q.mean)[None])[0]
        if near.is_diagonal:
            k = q.variance / near.variance
            covariance = 1 / (delta * k + alpha)
            first, rest = covariance * k * offset, covariance * (1 - k)
            return cls(first, rest + delta * first.square(), covariance)
        scale = torch.diag(q.scale) if q.is_diagonal else q.scale
        root = torch.linalg.solve_triangular(near.scale, scale, upper=False)
        k = root.T @ root
        eye = torch.eye(len(offset), dtype=offset.dtype, device=offset.device)
        covariance = torch.linalg.inv(delta * k + alpha * eye)
        first, rest = covariance @ (k @ offset), covariance @ (eye - k)
        second = 0.5 * (rest + rest.T) + delta * torch.outer(first, first)
        return cls(first, second, 0.5 * (covariance + covariance.T))

    def precondition(self, first: torch.Tensor, alpha: float) -> torch.Tensor:
        """Newton step of the mean: by the moments' Jacobian, (I - alpha cov) / delta.

        `first` is of shape (..., P).
        """
        if self.covariance.ndim == 1:
            return first * (1 - alpha) / (1 - alpha * self.covariance)
        # The matrix is symmetric.
        inverse = torch.linalg.inv(_minus(self.covariance, alpha))
        return first @ inverse

    def precondition_diagonal(self, second: torch.Tensor, alpha: float) -> torch.Tensor:
        """Newton step of a factorized q's variances, with an analogous Jacobian.

        The derivative of a variance of t in one of q is the squared covariance.
        """
        if self.covariance.ndim == 1:
            return second
        # Scaled to a unit diagonal, as at the solution: positive definite there.
        std = self.covariance.diagonal().sqrt()
        correlation = self.covariance / torch.outer(std, std)
        matrix = _minus(correlation.square(), alpha)
        return torch.linalg.solve(matrix, second)


def _minus(matrix: torch.Tensor, alpha: float) -> torch.Tensor:
    """(I - alpha M) / (1 - alpha)."""
    eye = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    return (eye - alpha * matrix) / (1 - alpha)


class _Sample:
    """Moments of the tilted density from draws of a proposal r.

    Errors of the same draws for t0 are subtracted: noise is bounded for alpha -> 1.
    """

    def __init__(
        self,
        problem: Problem,
        proposal: StudentT,
        near: NormalForm,
        q: NormalForm,
        n_draws: int,
    ) -> None:
        alpha = cast(float, problem.objective.tilt)
        self.delta = 1 - alpha
        theta = proposal.sample(n_draws, problem.source_of_draws)
        log_p = problem.target.log_joint_batched(theta).nan_to_num(nan=-math.inf)
        self.z = q.whiten(theta - q.mean)
        rest = alpha * q.log_prob_whitened(self.z) - proposal.log_prob(theta)
        self.log_t = self.delta * log_p + rest
        log_t0 = self.delta * near.log_prob(theta) + rest
        self.w_t, self.w_0 = torch.softmax(self.log_t, 0), torch.softmax(log_t0, 0)
        # log of the integral of t over that of t0, which is in closed form.
        ratio = torch.logsumexp(self.log_t, 0) - torch.logsumexp(log_t0, 0)
        known = log_power_integral(q, near, alpha, self.delta)
        self.bound = float(ratio + known) / self.delta
        #: Standard error of the bound: draws that both integrals share cancel.
        self.bound_se = float((self.w_t - self.w_0).norm()) / self.delta

    def moments(self, known: _Reference) -> tuple[torch.Tensor, torch.Tensor]:
        """``(E_t - E_q) / delta`` of the coordinates and of their products."""
        w = (self.w_t - self.w_0) / self.delta
        first = known.first + w @ self.z
        if known.second.ndim == 1:
            return first, known.second + w @ self.z.square()
        return first, known.second + self.z.T @ (w[:, None] * self.z)

    def influence(self, values: torch.Tensor) -> torch.Tensor:
        """Influence of each draw on the error of the moment of `values`, (S, m)."""
        w_t, w_0 = self.w_t[:, None], self.w_0[:, None]
        centered_t = values - (w_t * values).sum(0)
        centered_0 = values - (w_0 * values).sum(0)
        return (w_t * centered_t - w_0 * centered_0) / self.delta

    @property
    def ess(self) -> float:
        return float(1 / self.w_t.square().sum())


def _move(
    q: NormalForm,
    moments: tuple[torch.Tensor, torch.Tensor],
    known: _Reference,
    alpha: float,
    rho: float = 1.0,
) -> NormalForm:
    """Newton step on the moment equations, with the Jacobian of t0, times rho.

    It is linear in the moments, so that their noise averages out over steps.
    """
    first, second = moments
    mean = rho * known.precondition(first, alpha)
    mean = mean * min(1.0, MAX_STEP / max(float(mean.abs().max()), 1e-300))
    if q.is_diagonal:
        second = second if second.ndim == 1 else second.diagonal()
        change = rho * known.precondition_diagonal(second, alpha)
        change = change.clamp(-MAX_STEP, MAX_STEP)
        scale = q.scale * torch.exp(0.5 * change)
        return NormalForm(q.mean + q.scale * mean, scale)
    eye = torch.eye(len(mean), dtype=mean.dtype, device=mean.device)
    while True:
        factor, info = torch.linalg.cholesky_ex(eye + rho * second)
        if not int(info):
            return NormalForm(q.mean + q.scale @ mean, q.scale @ factor)
        rho /= 2


def _solve_known(q: NormalForm, near: NormalForm, alpha: float) -> NormalForm:
    """Solution with the normal n instead of p, without draws."""
    for _ in range(MAX_KNOWN_STEPS):
        known = _Reference.of(q, near, alpha)
        new = _move(q, (known.first, known.second), known, alpha)
        step = q.whiten((new.mean - q.mean)[None]).abs().max()
        step = torch.maximum(step, (new.variance / q.variance).log().abs().max())
        q = new
        if float(step) < SMALL_STEP:
            break
    return q


def _covering_normal(q: NormalForm, near: NormalForm, alpha: float) -> NormalForm:
    """t0 itself, from which proposals are adapted."""
    known = _Reference.of(q, near, alpha)
    shift = (1 - alpha) * known.first
    if known.covariance.ndim == 1:
        return NormalForm(q.mean + q.scale * shift, q.scale * known.covariance.sqrt())
    scale = torch.diag(q.scale) if q.is_diagonal else q.scale
    factor = scale @ torch.linalg.cholesky(known.covariance)
    if q.is_diagonal:
        return NormalForm(q.mean + q.scale * shift, factor)
    return NormalForm(q.mean + q.scale @ shift, factor)


def match_tilted_moments(
    problem: Problem,
    near: NormalForm,
    goal: int,
    max_draws: int,
    progress: Progress,
) -> Solution:
    """Give a normal q the moments of ``p^(1 - alpha) q^alpha``, starting at q.

    Averaged steps on fresh draws (Robbins and Monro): on fixed ones there may be no
    solution. `near` is a normal close to p, `goal` the effective draws for the average.
    """
    alpha = cast(float, problem.objective.tilt)
    q = _solve_known(cast(NormalForm, problem.posterior.as_normal()), near, alpha)
    proposal, pilot = adapt_proposal(
        _TiltedTarget(problem.target, q, alpha),
        _covering_normal(q, near, alpha),
        problem.source_of_draws,
    )
    size, known = len(pilot.theta), _Reference.of(q, near, alpha)
    first = _Sample(problem, proposal, near, q, size)
    error = float(_mean_errors(first, known, alpha).max()) / ERROR_GOAL
    n_draws = min(max_draws, math.ceil(size * max(goal / pilot.ess, error**2)))
    history: list[float] = []
    for i in range(N_FULL + N_AVERAGED):
        averaged = max(i - N_FULL + 2, 1)
        n_parts = 4 if i < N_FULL else N_AVERAGED
        block = max(MIN_BLOCK, math.ceil(n_draws / n_parts))
        sample = _Sample(problem, proposal, near, q, block)
        history.append(-sample.bound)
        known = _Reference.of(q, near, alpha)
        q = _move(q, sample.moments(known), known, alpha, 1 / averaged)
        state = partial(_state_at, problem, q)
        if progress(history[-1], state):
            found = {"ess": sample.ess}
            return _solution(state(), sample, history, Ending.STOPPED, "", found)
    sample = _Sample(problem, proposal, near, q, n_draws)
    solution = _check(_state_at(problem, q), sample, q, near, history, alpha)
    value, error = estimate_loss(problem)
    is_known = solution.diagnostics["moment_error"] < MAX_ERROR
    is_worse = solution.value > value + 3 * math.hypot(error, solution.value_se)
    if is_known and sample.ess >= MIN_ESS and not is_worse:
        return solution
    reason = solution.message or "the draws behind the moments missed a mode or a tail"
    message = f"{reason}; the ELBO's solution was kept"
    kept = replace(solution, state=problem.state, value=value, value_se=error)
    return replace(kept, message=message, ending=Ending.UNFINISHED)


def _state_at(problem: Problem, q: NormalForm) -> State:
    return State(problem.posterior.near(q), problem.target)


def estimate_loss(problem: Problem, n_draws: int = PILOT_DRAWS) -> tuple[float, float]:
    """Minimized loss, in nats, from draws of the current posterior, and its error.

    The error is that of a jackknife over blocks of draws.
    """
    posterior, objective = problem.posterior, problem.objective
    draw = posterior.draw(n_draws, problem.source_of_draws)
    theta, log_q = draw.theta, draw.log_q
    log_weights = problem.target.log_joint_batched(theta) - log_q
    value = float(objective.bound(log_weights))
    block = torch.arange(len(log_weights), device=log_weights.device) % N_JACKKNIFE
    parts = [objective.bound(log_weights[block != b]) for b in range(N_JACKKNIFE)]
    error = float(torch.stack(parts).std()) * (N_JACKKNIFE - 1) / N_JACKKNIFE**0.5
    return (value if objective.direction == "upper" else -value), error


def _solution(
    state: State,
    sample: _Sample,
    history: list[float],
    ending: Ending,
    message: str,
    found: dict,
) -> Solution:
    return Solution(
        solver="moment_matching",
        state=state,
        value=-sample.bound,
        history=history,
        n_iter=len(history),
        ending=ending,
        message=message,
        diagnostics=found,
        value_se=sample.bound_se,
    )


def _check(
    state: State,
    sample: _Sample,
    q: NormalForm,
    near: NormalForm,
    history: list[float],
    alpha: float,
) -> Solution:
    """Compare the moments on fresh draws, which also give the bound's value."""
    known = _Reference.of(q, near, alpha)
    first, second = sample.moments(known)
    second = second if second.ndim == 1 else second.diagonal()
    # The fit has errors of the same size as this check.
    mean_errors = _mean_errors(sample, known, alpha)
    squared = sample.influence(sample.z.square()).square().sum(0)
    misses = torch.stack(
        [
            known.precondition(first, alpha).abs() / (mean_errors + SMALL_STEP),
            second.abs() / (squared.sqrt() + SMALL_STEP),
        ]
    )
    missed, error = float(misses.max()) / math.sqrt(2), float(mean_errors.max())
    khat, message = pareto_khat(sample.log_t), ""
    remedy = "use gradient='doubly_reparam', objective='elbo', or a stronger prior"
    if not khat < khat_limit(len(sample.z)) or sample.ess < MIN_ESS:
        message = (
            f"the draws behind the tilted moments are poor (Pareto k {khat:.2f}, "
            f"{sample.ess:.0f} effective draws); {remedy}"
        )
    elif not (missed < MAX_ERRORS and error < MAX_ERROR):
        message = (
            f"the means are uncertain by {error:.2g} standard deviations, and the "
            f"moments off by {missed:.1f} standard errors; {remedy}"
        )
    found = {
        "ess": sample.ess,
        "moment_error": error,
        "value_error": sample.bound_se,
        "khat": khat,
        "source": "importance",
    }
    return _solution(state, sample, history, ending_of(not message), message, found)


def _mean_errors(sample: _Sample, known: _Reference, alpha: float) -> torch.Tensor:
    """Standard errors of q's means, in standard deviations of q, (P,)."""
    influence = known.precondition(sample.influence(sample.z), alpha)
    return influence.square().sum(0).sqrt()
