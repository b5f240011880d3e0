"""Normals with the moments of the posterior (EUBO), or of a density tilted to q."""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple, cast

import torch

from skvi._sampling._chains import N_CHAINS, HamiltonianChains
from skvi._sampling._importance import (
    MAX_RHAT,
    StudentT,
    adapt_proposal,
    draw_limit,
    draw_weighted,
    effective_sample_size,
    khat_limit,
    pareto_khat,
)
from skvi.base import NormalForm
from skvi.divergences import KLDivergence
from skvi.divergences._forms import apply, factorize, inverse_of, log_power_integral
from skvi.objectives import ELBO
from skvi.posteriors import FullRankNormal, MeanFieldNormal, Posterior
from skvi.solvers._empirical_bayes import EmpiricalBayes
from skvi.solvers._natural_gradient import (
    NaturalGradient,
    dispersed_starts,
    solve_from_best,
)
from skvi.solvers._solution import Ending, PhaseInterrupted, Solution, State, ending_of
from skvi.solvers.base import Problem, Solver, SolverOptions
from skvi.targets import Target
from skvi.targets._density import DensityTarget

# Effective number of independent draws for the moments: errors of 1 % of a standard
# deviation in the means. A full covariance gets more, in proportion to P^2.
MIN_ESS = 10_000
# Full steps on fresh draws (each a quarter of all), then the number of averaged steps.
N_FULL, N_AVERAGED, MIN_BLOCK = 2, 12, 1024
# Monte Carlo error of the means, in standard deviations of q: the goal of the number of
# draws if the effective number is unreliable, and the limit for a warning.
ERROR_GOAL, MAX_ERROR = 0.02, 0.1
# Steps without draws, halvings of one, and the last one, in deviations of q.
MAX_KNOWN_STEPS, MAX_HALVINGS, SMALL_STEP = 200, 60, 1e-6
# Least effective draws of tilted moments, and standard errors that fresh draws allow.
MIN_TILTED_ESS, MAX_MISS = 200, 6.0
# Draws for a value alone, also after Ctrl-C, and blocks that a jackknife leaves out.
PILOT_DRAWS, FEW_DRAWS, N_JACKKNIFE = 4096, 256, 32
# Above this number of parameters proposals are factorized: a covariance is too
# expensive.
MAX_FULL_RANK = 2000
# Nats from the ELBO's optimum at which a proposal is good enough.
PROPOSAL_TOL = 1e-3


class MomentMatching(Solver):
    """Give a normal q the mean and covariance that its optimum must have.

    For the EUBO these are those of the posterior: they minimize KL(posterior || q) over
    normals, full-rank or factorized, so that no gradient is needed; a normal of low
    rank gets the maximum likelihood fit of factor analysis to them, which minimizes it
    as well. The moments come from importance sampling with a Student-t fitted around
    the full-rank ELBO solution while its Pareto k allows it, else from Markov chains.

    For Rényi's bound with 0 < alpha < 1 they are those of ``p^(1 - alpha)
    q^alpha``, which depends on q: Newton steps on fresh draws, the last ones averaged
    (Robbins and Monro), since on fixed draws there may be no solution, started at the
    ELBO solution. The difference to the tilted density of a
    normal close to p, whose moments are known, is estimated, so that the noise stays
    bounded as alpha approaches 1. If the draws are too poor for that, or after Ctrl-C,
    the ELBO solution is kept and the message says so; with `warm_start`, the posterior
    from which it started. The EUBO of a user's log density begins at the ELBO
    solution that the fit starts at.

    Examples
    --------
    >>> from skvi.solvers._moment_matching import MomentMatching
    >>> MomentMatching.name
    'moment_matching'
    """

    name = "moment_matching"

    @staticmethod
    def missing(problem: Problem) -> str:
        """Say what the problem lacks; see `Solver.missing`."""
        if problem.objective.tilt is None:
            return f"{problem.objective!r} is not optimized by matching moments"
        if problem.objective.gradient != "auto":
            return f"{problem.objective!r} asks for gradients from draws"
        normal = problem.posterior.as_normal()
        if normal is None:
            return "the posterior family is not normal"
        if problem.objective.tilt and normal.factor is not None:
            return (
                "the posterior family has covariances of low rank only, whose optimum "
                "does not have the moments of the tilted density"
            )
        if len(problem.target.hyper):
            return "the target has hyperparameters to learn"
        if isinstance(problem.target, DensityTarget) and not problem.objective.tilt:
            return ""
        return NaturalGradient.missing(_proposal_problem(problem.target))

    @staticmethod
    def count_iterations(problem: Problem, options: SolverOptions) -> int:
        """Count 1 for the EUBO, and for Rényi's bound the steps on fresh draws."""
        return N_FULL + N_AVERAGED if problem.objective.tilt else 1

    @torch.no_grad()
    def solve(self, problem: Problem, options: SolverOptions) -> Solution:
        """Match moments; `max_iter` and `warm_start` apply to the ELBO's solution.

        Parameters
        ----------
        problem : Problem
        options : SolverOptions

        Returns
        -------
        Solution
            `value` is the EUBO in nats, estimated from the draws behind the
            moments: consistent, and above log p(D) only if they are the posterior's,
            for which chains must have mixed. For Rényi it is minus the bound,
            estimated by importance sampling from fresh draws: consistent as well.
        """
        is_given = isinstance(problem.target, DensityTarget)  # at the ELBO's solution
        tilt = problem.objective.tilt
        kept = problem.posterior if options.warm_start or is_given else None
        try:
            if is_given:
                return _match(problem, _normal_of(problem.posterior), options)
            start = _proposal_problem(problem.target)
            start = replace(start, posterior=problem.posterior) if tilt else start
            found = _solve(start, options.max_iter)
            near = _moved(problem, found.state)
            kept = near.posterior if kept is None else kept
            found.raise_interrupt()
            normal = _normal_of(found.posterior)
            if tilt and normal.is_diagonal:
                full = fit_proposal_normal(problem.target, options.max_iter)
                normal = normal if full is None else full
            return _match(near, normal, options)
        except PhaseInterrupted as phase:
            kept = _moved(problem, phase.state).posterior if kept is None else kept
        except KeyboardInterrupt:
            if kept is None:
                raise
        problem = replace(problem, posterior=kept)
        value, error = estimate_loss(problem, FEW_DRAWS)
        what = (
            "the posterior of the last fit"
            if options.warm_start
            else "the ELBO's solution"
        )
        message = f"interrupted: {what} was kept"
        found = problem.solved(self, [value], message)
        return replace(found, ending=Ending.INTERRUPTED, value_se=error)


class _TiltedTarget(Target):
    """The density p^(1 - alpha) q^alpha, without its constant, for proposals."""

    def __init__(self, target: Target, q: NormalForm, alpha: float) -> None:
        self.target, self.q, self.alpha = target, q, alpha
        self.layout = target.layout

    def log_joint_batched(self, theta: torch.Tensor) -> torch.Tensor:
        log_p = self.target.log_joint_batched(theta)
        return (1 - self.alpha) * log_p + self.alpha * self.q.log_prob(theta)


class _Known(NamedTuple):
    """Of t0 = n^(1 - alpha) q^alpha with a normal n close to p: known exactly.

    Where q is N(0, I): mean and covariance less those of q, over 1 - alpha, which are
    of t itself where draws are added; and the covariance, of which Newton steps follow.
    """

    q: NormalForm
    alpha: float
    first: torch.Tensor  # (P,)
    second: torch.Tensor  # (P,) if q is factorized, else (P, P)
    covariance: torch.Tensor

    @classmethod
    def of(cls, q: NormalForm, near: NormalForm, alpha: float) -> "_Known":
        if not alpha:  # t is p, and no normal is subtracted from its draws
            eye = _unit(q.scale)
            return cls(q, 0.0, torch.zeros_like(q.mean), -eye, eye)
        offset, delta = q.whiten((near.mean - q.mean)[None])[0], 1 - alpha
        if q.is_diagonal and near.is_diagonal:
            k = q.variance / near.variance
        else:
            rows = near.whiten(_dense(q).scale.T)
            k = rows @ rows.T
        covariance = inverse_of(delta * k + alpha * _unit(k))
        change = covariance * (1 - k) if k.ndim == 1 else covariance @ (_unit(k) - k)
        is_wider = change.ndim > q.scale.ndim
        second = change.diagonal() if is_wider else change
        return cls(q, alpha, apply(covariance, apply(k, offset)), second, covariance)

    def normal(self) -> NormalForm:
        """The normal t0 itself."""
        delta, factor = 1 - self.alpha, cast(torch.Tensor, factorize(self.covariance))
        mean = self.q.mean + delta * apply(self.q.scale, self.first)
        if factor.ndim == self.q.scale.ndim == 1:
            return NormalForm(mean, self.q.scale * factor)
        return NormalForm(mean, _dense(self.q).scale @ factor)

    def follow(self, first: torch.Tensor, second: torch.Tensor) -> "_Known":
        """Newton steps, (..., P), in place of both differences.

        By the Jacobian of the moments of t0: that of a mean is ``(I - alpha C) / (1 -
        alpha)``, that of a factorized q's variances the same of squared correlations.
        For a full covariance both are nearly I.
        """
        if self.covariance.ndim > self.q.scale.ndim:
            eye, alpha = _unit(self.covariance), self.alpha
            std = self.covariance.diagonal().sqrt()
            squares = (self.covariance / torch.outer(std, std)).square()
            first = first @ torch.linalg.inv(eye - alpha * self.covariance)
            second = second @ torch.linalg.inv(eye - alpha * squares)
            first, second = (1 - alpha) * first, (1 - alpha) * second
        return self._replace(first=first, second=second)

    def moved(self, rho: float = 1.0) -> NormalForm:
        """The q after a part rho of its Newton step, less where no width is left."""
        step = self.follow(self.first, self.second)
        for _ in range(MAX_HALVINGS):
            factor = factorize(_unit(self.q.scale) + rho * step.second)
            if factor is not None:
                break
            rho /= 2
        else:
            return self.q
        mean, scale = self.q.mean + rho * apply(self.q.scale, step.first), self.q.scale
        return NormalForm(mean, scale * factor if scale.ndim == 1 else scale @ factor)


def _unit(like: torch.Tensor) -> torch.Tensor:
    """The identity: ones for a diagonal."""
    ones = like.new_ones(len(like))
    return ones if like.ndim == 1 else ones.diag()


def _dense(q: NormalForm) -> NormalForm:
    return NormalForm(q.mean, q.scale.diag()) if q.is_diagonal else q


def _distance(new: NormalForm, q: NormalForm) -> float:
    """Largest change of a mean, in deviations of q, or of a log variance."""
    step = q.whiten((new.mean - q.mean)[None]).abs().max()
    return float(torch.maximum(step, (new.variance / q.variance).log().abs().max()))


def _solve_known(q: NormalForm, near: NormalForm, alpha: float) -> NormalForm:
    """Solution with the normal n instead of p, without draws."""
    for _ in range(MAX_KNOWN_STEPS):
        q, last = _Known.of(q, near, alpha).moved(), q
        if _distance(q, last) < SMALL_STEP:
            break
    return q


@dataclass(frozen=True, eq=False)
class _Draws:
    """Draws with the log densities of p and of where they are from, (S,)."""

    theta: torch.Tensor
    log_p: torch.Tensor
    log_r: torch.Tensor
    chains: torch.Size | None = None
    found: dict = field(default_factory=dict)
    bad: str = ""

    @classmethod
    def weighted(cls, problem: Problem, proposal: StudentT, n_draws: int) -> "_Draws":
        generator = problem.source_of_draws
        draws = draw_weighted(problem.target, proposal, n_draws, generator)
        found = {"ess": draws.ess, "khat": draws.khat, "source": "importance"}
        bad = "" if draws.khat < khat_limit(n_draws) else f"Pareto k {draws.khat:.2f}"
        log_r = proposal.log_prob(draws.theta)
        return cls(draws.theta, draws.log_weights + log_r, log_r, None, found, bad)

    @classmethod
    def of_chains(cls, problem: Problem, normal: NormalForm, n_iter: int) -> "_Draws":
        target, generator = problem.target, problem.source_of_draws
        starts = dispersed_starts(target, normal, generator, N_CHAINS)
        sampler = HamiltonianChains(target, starts, normal, generator)
        chains = sampler.warm_up(300).run(n_iter)
        ess = float(effective_sample_size(chains.theta).min())
        found = {"ess": ess, "rhat": chains.rhat, "source": "chains"}
        bad = "" if chains.rhat < MAX_RHAT else f"R-hat {chains.rhat:.2f}"
        theta, log_p = chains.theta.flatten(0, 1), chains.log_joint.flatten()
        return cls(theta, log_p, log_p, chains.log_joint.shape, found, bad)


class _Sample:
    """Moments of the tilted density where q is N(0, I), from draws.

    Errors of the same draws for t0 are subtracted: noise is bounded for alpha -> 1.
    """

    def __init__(
        self, draws: _Draws, q: NormalForm, near: NormalForm, alpha: float
    ) -> None:
        self.near, self.delta, self.z = near, 1 - alpha, q.whiten(draws.theta - q.mean)
        self.reference = _Known.of(q, near, alpha)
        rest = alpha * q.log_prob_whitened(self.z) - draws.log_r
        self.log_t = self.delta * draws.log_p + rest
        self.w_t, self.w_0 = torch.softmax(self.log_t, 0), torch.zeros_like(rest)
        if alpha:
            self.log_0 = self.delta * near.log_prob(draws.theta) + rest
            self.w_0 = torch.softmax(self.log_0, 0)

    @property
    def ess(self) -> float:
        return float(1 / self.w_t.square().sum())

    @property
    def bound(self) -> float:
        """Renyi's: the integral of t over that of t0, which is in closed form."""
        ratio = torch.logsumexp(self.log_t, 0) - torch.logsumexp(self.log_0, 0)
        parts = self.reference.q, self.near, self.reference.alpha, self.delta
        return float(ratio + log_power_integral(*parts)) / self.delta

    @property
    def bound_se(self) -> float:
        """Standard error of the bound: draws that both integrals share cancel."""
        return float((self.w_t - self.w_0).norm()) / self.delta

    @cached_property
    def known(self) -> _Known:
        """As of t0, for t."""
        known, w = self.reference, (self.w_t - self.w_0) / self.delta
        first, before = known.first + w @ self.z, known.first
        if known.second.ndim == 1:
            change = w @ self.z.square() + self.delta * (before**2 - first**2)
        else:
            pair = torch.stack([before, first])
            change = self.z.T @ (w[:, None] * self.z)
            change += self.delta * pair.T @ (pair * pair.new_tensor([[1.0], [-1.0]]))
        return known._replace(first=first, second=known.second + change)

    def errors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Standard errors of q's means and of second moments, (P,), for N(0, I)."""
        found = []
        for values in (self.z, self.z.square()):
            each = [w[:, None] * (values - w @ values) for w in (self.w_t, self.w_0)]
            found.append((each[0] - each[1]) / self.delta)
        first = self.reference.follow(*found).first
        return first.norm(dim=0), found[1].norm(dim=0)


def _match(problem: Problem, near: NormalForm, options: SolverOptions) -> Solution:
    """Moments of p^(1 - alpha) q^alpha, with proposals around a normal near p."""
    target, alpha = problem.target, cast(float, problem.objective.tilt)
    is_diagonal, center, tilted = problem.posterior.is_diagonal, near, target
    q = cast(NormalForm, problem.posterior.as_normal() if is_diagonal else _dense(near))
    if alpha:
        q = _solve_known(q, near, alpha)
        center, tilted = (
            _Known.of(q, near, alpha).normal(),
            _TiltedTarget(target, q, alpha),
        )
    proposal, pilot = adapt_proposal(tilted, center, problem.source_of_draws)
    goal = MIN_ESS if is_diagonal else max(MIN_ESS, 10 * target.layout.size**2)
    factor, size = goal / pilot.ess, len(pilot.theta)
    if alpha:
        sample = _Sample(_Draws.weighted(problem, proposal, size), q, near, alpha)
        factor = max(factor, (float(sample.errors()[0].max()) / ERROR_GOAL) ** 2)
    limit = draw_limit(target.layout.size)
    n_draws = min(limit, math.ceil(size * factor))
    if not alpha:
        if pilot.khat < khat_limit(n_draws) and pilot.ess > 0.02 * size:
            draws = _Draws.weighted(problem, proposal, n_draws)
        else:
            n_iter = min(limit // N_CHAINS, max(200, math.ceil(goal / N_CHAINS)))
            draws = _Draws.of_chains(problem, proposal.normal, n_iter)
        q = _Sample(draws, q, near, alpha).known.moved()
        return _posterior_solution(problem, q, draws, options)
    history: list[float] = []
    for k in range(N_FULL + N_AVERAGED):
        block = max(MIN_BLOCK, math.ceil(n_draws / (4 if k < N_FULL else N_AVERAGED)))
        sample = _Sample(_Draws.weighted(problem, proposal, block), q, near, alpha)
        q = sample.known.moved(1 / max(k - N_FULL + 2, 1))
        history.append(-sample.bound)
        state = partial(_state_at, problem, q)
        if options.progress(history[-1], state):
            parts = MomentMatching.name, state(), history[-1], history, len(history)
            found = {"ess": sample.ess}
            return Solution(*parts, Ending.STOPPED, "", found, value_se=sample.bound_se)
    sample = _Sample(_Draws.weighted(problem, proposal, n_draws), q, near, alpha)
    return _checked(problem, sample, history)


def _state_at(problem: Problem, q: NormalForm) -> State:
    return State(problem.posterior.near(q), problem.target)


def _posterior_solution(
    problem: Problem, q: NormalForm, draws: _Draws, options: SolverOptions
) -> Solution:
    """The EUBO and its error, from the draws behind the moments."""
    state = _state_at(problem, q)
    log_weights = draws.log_p - state.posterior.log_prob(draws.theta)
    weights = torch.softmax(draws.log_p - draws.log_r, 0)
    value = float(weights @ log_weights)
    error = _standard_error(weights, log_weights, draws.chains)
    message = ""
    if draws.bad:
        message = (
            f"the draws behind the moments are poor ({draws.bad}); use a stronger "
            "prior, standardize the features, or objective='elbo'"
        )
    options.progress(value, lambda: state)
    parts = MomentMatching.name, state, value, [value], 1, ending_of(not message)
    found = {**draws.found, "khat_q": pareto_khat(log_weights)}
    return Solution(*parts, message, found, value_se=error)


def _standard_error(
    weights: torch.Tensor, values: torch.Tensor, chains: torch.Size | None
) -> float:
    """Standard error of a weighted mean of draws, or of a mean over chains."""
    centered = values - weights @ values
    if chains is None:
        return float((weights * centered).norm())
    ess = float(effective_sample_size(values.reshape(*chains, 1)).min())
    return float(centered.std()) / ess**0.5


def _checked(problem: Problem, sample: _Sample, history: list[float]) -> Solution:
    """Compare the moments on fresh draws, which also give the bound's value.

    Where they are too poor, or the bound is lower than the ELBO's solution has it, that
    solution is kept.
    """
    mean_errors, square_errors = sample.errors()
    step = sample.known.follow(sample.known.first, sample.known.second)
    second = sample.known.second
    second = second if second.ndim == 1 else second.diagonal()
    # The fit has errors of the same size as this check.
    misses = torch.stack(
        [
            step.first.abs() / (mean_errors + SMALL_STEP),
            second.abs() / (square_errors + SMALL_STEP),
        ]
    )
    missed, error = float(misses.max()) / math.sqrt(2), float(mean_errors.max())
    khat, message = pareto_khat(sample.log_t), ""
    remedy = "use gradient='doubly_reparam', objective='elbo', or a stronger prior"
    if not khat < khat_limit(len(sample.z)) or sample.ess < MIN_TILTED_ESS:
        message = (
            f"the draws behind the tilted moments are poor (Pareto k {khat:.2f}, "
            f"{sample.ess:.0f} effective draws); {remedy}"
        )
    elif not (missed < MAX_MISS and error < MAX_ERROR):
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
    state, value, value_se = problem.state, -sample.bound, sample.bound_se
    before, error_before = estimate_loss(problem)
    is_worse = value > before + 3 * math.hypot(error_before, value_se)
    ending = ending_of(not message)
    if error < MAX_ERROR and sample.ess >= MIN_TILTED_ESS and not is_worse:
        state = _state_at(problem, sample.reference.q)
    else:
        reason = message or "the draws behind the moments missed a mode or a tail"
        message, ending = f"{reason}; the ELBO's solution was kept", Ending.UNFINISHED
        value, value_se = before, error_before
    parts = MomentMatching.name, state, value, history, len(history), ending
    return Solution(*parts, message, found, value_se=value_se)


def estimate_loss(problem: Problem, n_draws: int = PILOT_DRAWS) -> tuple[float, float]:
    """Minimized loss, in nats, from draws of the current posterior, and its error.

    The error is that of a jackknife over blocks of draws.
    """
    draw = problem.posterior.draw(n_draws, problem.source_of_draws)
    log_weights = problem.target.log_joint_batched(draw.theta) - draw.log_q
    bound = problem.objective.bound
    block = torch.arange(len(log_weights), device=log_weights.device) % N_JACKKNIFE
    parts = [bound(log_weights[block != b]) for b in range(N_JACKKNIFE)]
    error = float(torch.stack(parts).std()) * (N_JACKKNIFE - 1) / N_JACKKNIFE**0.5
    sign = 1 if problem.objective.direction == "upper" else -1
    return sign * float(bound(log_weights)), error


def _solve(problem: Problem, max_iter: int) -> Solution:
    """ELBO solution that is close enough, from the better of two starts."""
    solver = NaturalGradient if EmpiricalBayes.missing(problem) else EmpiricalBayes
    return solve_from_best(
        solver(), problem, SolverOptions(max_iter=max_iter, tol=PROPOSAL_TOL)
    )


def _normal_of(posterior: Posterior) -> NormalForm:
    """The normal; that with its moments of a mixture over unknown numbers."""
    return cast(NormalForm, posterior.as_prior().as_normal())


def _moved(problem: Problem, state: State) -> Problem:
    """Problem with its posterior near the normal found by a phase."""
    near = problem.posterior.near(_normal_of(state.posterior))
    return replace(problem, posterior=near)


def fit_proposal_normal(
    target: Target, max_iter: int = 100, start: NormalForm | None = None
) -> NormalForm | None:
    """ELBO solution of a linear model, as the center of a proposal, (P,).

    Full-rank up to 2000 parameters, factorized above, to 0.001 nats. None if the ELBO
    needs draws, as for a prior with dependent coefficients.
    """
    problem = _proposal_problem(target)
    if NaturalGradient.missing(problem):
        return None
    if start is None:
        found = _solve(problem, max_iter)
    else:
        problem = replace(problem, posterior=problem.posterior.near(start))
        options = SolverOptions(max_iter=max_iter, tol=PROPOSAL_TOL, warm_start=True)
        found = NaturalGradient().solve(problem, options)
    if found.interrupted:
        raise KeyboardInterrupt
    return _normal_of(found.posterior)


def _proposal_problem(target: Target) -> Problem:
    full = target.layout.size <= MAX_FULL_RANK
    family = FullRankNormal() if full else MeanFieldNormal()
    posterior = family.build(target.layout).to(target.hyper.device)
    return Problem(target, ELBO(), KLDivergence(), posterior, None)
