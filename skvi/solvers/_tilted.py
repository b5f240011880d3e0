"""Rényi's optimum: the moments of p^(1 - alpha) q^alpha, for a normal q."""

import math
from dataclasses import dataclass
from typing import Any

import torch

from skvi.base import NormalForm
from skvi.sampling import adapt_proposal, pareto_khat
from skvi.sampling._diagnostics import khat_limit
from skvi.solvers.base import Problem, Solution, SolverOptions

__all__ = ["match_tilted_moments"]

PILOT_DRAWS = 8192
MAX_HALVINGS = 12
# Steps below this share of the Monte Carlo error, or of a standard deviation, end.
SHARE_OF_ERROR, SMALLEST_STEP = 0.1, 1e-9
# Above so many parameters a factorised q is moved without correlations.
MAX_DENSE = 2000


class _TiltedTarget:
    """The density p^(1 - alpha) q^alpha, without its constant, for proposals."""

    def __init__(self, target: Any, q: NormalForm, alpha: float) -> None:
        self.target, self.q, self.alpha = target, q, alpha

    def log_joint_batched(self, theta: torch.Tensor) -> torch.Tensor:
        log_p = self.target.log_joint_batched(theta)
        return (1 - self.alpha) * log_p + self.alpha * self.q.log_prob(theta)


@dataclass(frozen=True, eq=False)
class _Draws:
    """Draws of a proposal r with log p and log r: all that is ever evaluated."""

    theta: torch.Tensor
    log_p: torch.Tensor
    log_r: torch.Tensor
    alpha: float


def _draw(
    target: Any, proposal: Any, alpha: float, n_draws: int, generator: torch.Generator
) -> _Draws:
    theta = proposal.sample(n_draws, generator)
    log_p = target.log_joint_batched(theta).nan_to_num(nan=-math.inf)
    return _Draws(theta, log_p, proposal.log_prob(theta), alpha)


class _Point:
    """One normal q, seen from the draws, in coordinates in which q is N(0, I).

    With t the tilted density and delta = 1 - alpha, both moments below are
    ``(E_t - E_q) / delta``, each expectation estimated with the same draws. Their
    limit for delta -> 0 is the covariance with lw under q: natural gradients.
    """

    def __init__(self, draws: _Draws, q: NormalForm) -> None:
        self.draws, self.q, self.delta = draws, q, 1 - draws.alpha
        self.z = q.whiten(draws.theta - q.mean)
        log_q = q.log_prob_whitened(self.z)
        self.log_t = self.delta * draws.log_p + draws.alpha * log_q - draws.log_r
        self.log_u = log_q - draws.log_r
        self.w_t, self.w_q = torch.softmax(self.log_t, 0), torch.softmax(self.log_u, 0)
        # E_r[q / r] = 1: alpha times its logarithm takes the noise away.
        count = math.log(len(log_q))
        tops = [torch.logsumexp(x, 0) - count for x in (self.log_t, self.log_u)]
        self.bound = float(tops[0] - draws.alpha * tops[1]) / self.delta

    def moments(self, full: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """First, and second moments around the mean of t: (P,), (P, P) or (P,)."""
        w = (self.w_t - self.w_q) / self.delta
        first = w @ self.z
        if full:
            second = self.z.T @ (w[:, None] * self.z)
            return first, second - self.delta * torch.outer(first, first)
        return first, w @ self.z.square() - self.delta * first.square()

    def errors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Standard errors of the first and of the diagonal second moments."""
        out = []
        for x in (self.z, self.z.square()):
            parts = [w[:, None] * (x - w @ x) for w in (self.w_t, self.w_q)]
            out.append((parts[0] - parts[1]).square().sum(0).sqrt() / self.delta)
        return out[0], out[1]

    @property
    def ess(self) -> float:
        """Effective draws, of the tilted density or of q, whichever has fewer."""
        return min(float(1 / w.square().sum()) for w in (self.w_t, self.w_q))

    @property
    def khat(self) -> float:
        return max(pareto_khat(x) for x in (self.log_t, self.log_u))


@dataclass(frozen=True, eq=False)
class _Step:
    """A step in whitened coordinates: q's new precision at full length, and mean."""

    natural_mean: torch.Tensor
    mean: torch.Tensor | None
    precision: torch.Tensor

    def apply(self, q: NormalForm, rho: float) -> NormalForm | None:
        """Return the normal after a share rho of the step; None where there is none."""
        if q.is_diagonal:
            precision = 1 + rho * (self.precision - 1)
            if not bool((precision > 0).all()):
                return None
            mean = self.natural_mean / precision if self.mean is None else self.mean
            scale = q.scale * precision.rsqrt()
            return NormalForm(q.mean + rho * q.scale * mean, scale)
        eye = torch.eye(len(q.mean), dtype=q.mean.dtype)
        factor, info = torch.linalg.cholesky_ex(eye + rho * (self.precision - eye))
        if int(info):
            return None
        mean = torch.cholesky_solve(self.natural_mean[:, None], factor)[:, 0]
        # covariance = L P^-1 L' with the old factor L.
        root = torch.linalg.solve_triangular(factor, q.scale.T, upper=False)
        scale, info = torch.linalg.cholesky_ex(root.T @ root)
        return None if int(info) else NormalForm(q.mean + rho * q.scale @ mean, scale)


def _newton_step(point: _Point) -> _Step:
    """Exact in one step where p is normal and q full-rank, for every alpha.

    There the precision of t is ``delta K + alpha I`` with K that of p, so that
    ``K = I + (precision of t - I) / delta``, and the natural parameters follow.
    """
    diagonal, delta = point.q.is_diagonal, point.delta
    dense = not diagonal or len(point.q.mean) <= MAX_DENSE
    first, second = point.moments(dense)
    mean = None
    if dense:
        eye = torch.eye(len(first), dtype=first.dtype)
        factor, info = torch.linalg.cholesky_ex(eye + delta * second)
        if not int(info):
            # I - K and K^-1 of the natural mean, without a difference of inverses.
            excess = torch.cholesky_solve(second, factor)
            natural = torch.cholesky_solve(first[:, None], factor)[:, 0]
            if not diagonal:
                return _Step(natural, None, eye - 0.5 * (excess + excess.T))
            solution, info = torch.linalg.solve_ex(
                eye - point.draws.alpha * second, first
            )
            # An ascent direction only where the matrix is positive definite.
            mean = solution if not int(info) and solution @ first > 0 else first
        second = second.diagonal()
    variance = (1 + delta * second).clamp(min=1e-8)
    if diagonal:
        return _Step(first / variance, mean, 1 - second / variance)
    return _Step(first / variance, None, torch.diag(1 - second / variance))


def _iterate(
    draws: _Draws, q: NormalForm, max_iter: int
) -> tuple[_Point, list[float], bool]:
    """Solve the moment equations on fixed draws; the bound on them never falls."""
    point, history = _Point(draws, q), []
    for _ in range(max_iter):
        history.append(-point.bound)
        moved = _search(point, _newton_step(point))
        if moved is None:
            return point, history, True
        errors, before, point = point.errors(), point, moved
        if _is_small(before, point, errors):
            return point, [*history, -point.bound], True
    return point, history, False


def _search(point: _Point, step: _Step) -> _Point | None:
    """Halve the step until the bound on these draws rises; None where it is flat."""
    rho, tolerance = 1.0, 1e-12 * (1 + abs(point.bound))
    for _ in range(MAX_HALVINGS):
        q = step.apply(point.q, rho)
        trial = None if q is None else _Point(point.draws, q)
        if trial is not None and trial.bound >= point.bound - tolerance:
            return trial
        rho /= 2
    return None


def _is_small(
    before: _Point, after: _Point, errors: tuple[torch.Tensor, torch.Tensor]
) -> bool:
    """Whether mean and variances moved by less than their Monte Carlo error / 10."""
    move = before.q.whiten((after.q.mean - before.q.mean)[None])[0].abs()
    change = (after.q.variance / before.q.variance - 1).abs()
    limits = [float(SHARE_OF_ERROR * e.max()) + SMALLEST_STEP for e in errors]
    return float(move.max()) <= limits[0] and float(change.max()) <= limits[1]


def _tilt(near: NormalForm, q: NormalForm, alpha: float) -> NormalForm:
    """Normal proportional to ``near^(1 - alpha) q^alpha``."""
    if near.is_diagonal:
        parts = (1 - alpha) / near.variance, alpha / q.variance
        total = parts[0] + parts[1]
        return NormalForm(
            (parts[0] * near.mean + parts[1] * q.mean) / total, total.rsqrt()
        )
    near_precision = (1 - alpha) * torch.cholesky_inverse(near.scale)
    scale = torch.diag(q.scale) if q.is_diagonal else q.scale
    q_precision = alpha * torch.cholesky_inverse(scale)
    inverse = torch.linalg.inv(torch.linalg.cholesky(near_precision + q_precision))
    covariance = inverse.T @ inverse
    mean = covariance @ (near_precision @ near.mean + q_precision @ q.mean)
    return NormalForm(mean, torch.linalg.cholesky(covariance))


def match_tilted_moments(
    name: str,
    problem: Problem,
    options: SolverOptions,
    near: NormalForm,
    goal: int,
    max_draws: int,
) -> Solution:
    """Give a normal q the moments of ``p^(1 - alpha) q^alpha``, from where it is.

    The first round, from few draws, finds where q ends; the second proposes from
    the tilted density there and decides. Only the draws of one round are ever used
    together, so log p is evaluated once for each of them.

    `near` is a normal near p to propose from; `goal` the effective draws.
    """
    target, posterior, generator = problem.target, problem.posterior, problem.generator
    alpha = problem.objective.tilt
    for is_last in (False, True):
        q = posterior.as_normal()
        tilted = _TiltedTarget(target, q, alpha)
        start = _tilt(near, q, alpha)
        proposal, pilot = adapt_proposal(tilted, start, generator)
        needed = math.ceil(goal * len(pilot.theta) / pilot.ess)
        n_draws = min(max_draws, needed) if is_last else PILOT_DRAWS
        draws = _draw(target, proposal, alpha, n_draws, generator)
        point, history, arrived = _iterate(draws, q, options.max_iter)
        posterior.set_normal(point.q)
    fresh = _Point(_draw(target, proposal, alpha, n_draws, generator), point.q)
    found = {
        "ess": min(point.ess, fresh.ess),
        "khat": max(point.khat, fresh.khat),
        "moment_error": float(point.errors()[0].max()),
        "source": "importance",
    }
    message = _judge(found, n_draws, arrived)
    return Solution(
        name, -fresh.bound, history, len(history), not message, message, found
    )


def _judge(found: dict, n_draws: int, arrived: bool) -> str:
    if not found["khat"] < khat_limit(n_draws) or found["ess"] < 100:
        return (
            f"the draws behind the tilted moments are poor (Pareto k "
            f"{found['khat']:.2f}, {found['ess']:.0f} effective draws); use "
            "gradient='doubly_reparam', objective='elbo', or a stronger prior"
        )
    if not arrived:
        return "the moments still change; increase max_iter"
    return ""
