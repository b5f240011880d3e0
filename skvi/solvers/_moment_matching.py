"""The EUBO's optimum in one step: the moments of the posterior."""

import math
from dataclasses import replace
from typing import cast

import torch

from skvi._sampling._chains import N_CHAINS, HamiltonianChains
from skvi._sampling._diagnostics import (
    MAX_RHAT,
    effective_sample_size,
    khat_limit,
    pareto_khat,
)
from skvi._sampling._importance import adapt_proposal, draw_limit, draw_weighted
from skvi.base import NormalForm
from skvi.divergences import KL
from skvi.objectives import ELBO
from skvi.posteriors import FullRankNormal, MeanFieldNormal, Posterior
from skvi.solvers._empirical_bayes import EmpiricalBayes
from skvi.solvers._natural_gradient import NaturalGradient
from skvi.solvers._solution import Ending, PhaseInterrupted, Solution, State, ending_of
from skvi.solvers._tilted import (
    N_AVERAGED,
    N_FULL,
    estimate_loss,
    match_tilted_moments,
)
from skvi.solvers._wide_start import dispersed_starts, solve_from_best
from skvi.solvers.base import Problem, Solver, SolverOptions
from skvi.targets import Target

__all__ = ["MomentMatching", "fit_proposal_normal"]

# Effective number of independent draws for the moments: errors of 1 % of a standard
# deviation in the means. A full covariance gets more, in proportion to P^2.
MIN_ESS = 10_000
# Draws for the value after Ctrl-C, which should be quick.
FEW_DRAWS = 256
# Above this number of parameters proposals are factorized: a covariance is too
# expensive.
MAX_FULL_RANK = 2000
# Nats from the ELBO's optimum at which a proposal is good enough.
PROPOSAL_TOL = 1e-3
TINY_VARIANCE = 1e-300


class MomentMatching(Solver):
    """Give a normal q the mean and covariance that its optimum must have.

    For the EUBO these are those of the posterior: they minimize KL(posterior || q) over
    normals, full-rank or factorized, so that no gradient is needed; a normal of low
    rank gets the maximum likelihood fit of factor analysis to them, which minimizes it
    as well. The moments come from importance sampling with a Student-t fitted around
    the full-rank ELBO solution while its Pareto k allows it, else from Markov chains.

    For Rényi's bound with 0 < alpha < 1 they are those of ``p^(1 - alpha)
    q^alpha``, which depends on q: Newton steps on fresh draws, the last ones
    averaged, started at the ELBO solution. The difference to the tilted density of a
    normal close to p, whose moments are known, is estimated, so that the noise stays
    bounded as alpha approaches 1. If the draws are too poor for that, or after Ctrl-C,
    the ELBO solution is kept and the message says so; with `warm_start`, the posterior
    from which it started. The EUBO of a user's log density begins at the ELBO
    solution that the fit starts at.

    Examples
    --------
    >>> from skvi.solvers import MomentMatching
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
        if problem.target.starts_at_fit and not problem.objective.tilt:
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
        tilted, kept = bool(problem.objective.tilt), None
        start = _proposal_problem(problem.target)
        if options.warm_start:
            kept = problem.posterior
        if tilted:
            start = replace(start, posterior=problem.posterior)
        try:
            if problem.target.starts_at_fit:
                kept = problem.posterior
                return self._match(problem, _normal_of(kept), options)
            found = _solve(start, options.max_iter)
            near = _moved(problem, found.state)
            kept = near.posterior if kept is None else kept
            found.raise_interrupt()
            match = self._match_tilted if tilted else self._match
            return match(near, _normal_of(found.posterior), options)
        except PhaseInterrupted as phase:
            kept = _moved(problem, phase.state).posterior if kept is None else kept
        except KeyboardInterrupt:
            if kept is None:
                raise
        return self._cut_short(replace(problem, posterior=kept), options.warm_start)

    def _match(
        self, problem: Problem, normal: NormalForm, options: SolverOptions
    ) -> Solution:
        """Use the posterior's moments, with proposals around a normal."""
        target, generator = problem.target, problem.source_of_draws
        proposal, pilot = adapt_proposal(target, normal, generator)
        efficiency = pilot.ess / len(pilot.theta)
        goal = _ess_goal(problem)
        limit = draw_limit(target.layout.size)
        n_draws = min(limit, math.ceil(goal / efficiency))
        max_khat = khat_limit(n_draws)
        if pilot.khat < max_khat and efficiency > 0.02:
            draws = draw_weighted(target, proposal, n_draws, generator)
            theta, weights = draws.theta, draws.weights
            log_joint = draws.log_weights + proposal.log_prob(theta)
            found = {"ess": draws.ess, "khat": draws.khat, "source": "importance"}
            bad = "" if draws.khat < max_khat else f"Pareto k {draws.khat:.2f}"
            shape = None
        else:
            starts = dispersed_starts(target, proposal.normal, generator, N_CHAINS)
            n_iter = min(limit // N_CHAINS, max(200, math.ceil(goal / N_CHAINS)))
            sampler = HamiltonianChains(target, starts, proposal.normal, generator)
            chains = sampler.warm_up(300).run(n_iter)
            theta = chains.theta.flatten(0, 1)
            log_joint = chains.log_joint.flatten()
            weights = torch.full_like(log_joint, 1 / len(log_joint))
            ess = float(effective_sample_size(chains.theta).min())
            found = {"ess": ess, "rhat": chains.rhat, "source": "chains"}
            bad = "" if chains.rhat < MAX_RHAT else f"R-hat {chains.rhat:.2f}"
            shape = chains.log_joint.shape
        is_diagonal = problem.posterior.is_diagonal
        moments = _moments(theta, weights, proposal.normal, is_diagonal)
        state = State(problem.posterior.near(moments), target)
        log_weights = log_joint - state.posterior.log_prob(theta)
        value = float(weights @ log_weights)
        error = _standard_error(weights, log_weights, shape)
        found["khat_q"] = pareto_khat(log_weights)
        message = ""
        if bad:
            message = (
                f"the draws behind the moments are poor ({bad}); use a stronger "
                "prior, standardize the features, or objective='elbo'"
            )
        options.progress(value, lambda: state)
        return Solution(
            solver=self.name,
            state=state,
            value=value,
            history=[value],
            n_iter=1,
            ending=ending_of(not bad),
            message=message,
            diagnostics=found,
            value_se=error,
        )

    def _match_tilted(
        self, problem: Problem, normal: NormalForm, options: SolverOptions
    ) -> Solution:
        """Start at the ELBO solution, with proposals from the tilted density."""
        if normal.is_diagonal:
            full = fit_proposal_normal(problem.target, options.max_iter)
            normal = normal if full is None else full
        limit = draw_limit(problem.target.layout.size)
        return match_tilted_moments(
            problem, normal, _ess_goal(problem), limit, options.progress
        )

    def _cut_short(self, problem: Problem, warm: bool) -> Solution:
        """Keep the current posterior, with a rough estimate of its bound."""
        value, error = estimate_loss(problem, FEW_DRAWS)
        what = "the posterior of the last fit" if warm else "the ELBO's solution"
        return Solution(
            solver=self.name,
            state=problem.state,
            value=value,
            history=[value],
            n_iter=1,
            ending=Ending.INTERRUPTED,
            message=f"interrupted: {what} was kept",
            value_se=error,
        )


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


def _ess_goal(problem: Problem) -> int:
    """Effective number of independent draws for the moments."""
    if problem.posterior.is_diagonal:
        return MIN_ESS
    return max(MIN_ESS, 10 * problem.target.layout.size**2)


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
    return Problem(target, ELBO(), KL(), posterior, None)


def _standard_error(
    weights: torch.Tensor, values: torch.Tensor, chains: torch.Size | None
) -> float:
    """Standard error of a weighted mean of draws, or of a mean over chains."""
    centered = values - weights @ values
    if chains is None:
        return float((weights * centered).norm())
    ess = float(effective_sample_size(values.reshape(*chains, 1)).min())
    return float(centered.std()) / ess**0.5


def _moments(
    theta: torch.Tensor,
    weights: torch.Tensor,
    fallback: NormalForm,
    is_diagonal: bool,
) -> NormalForm:
    """Weighted mean and (co)variance of draws."""
    mean = weights @ theta
    centered = theta - mean
    if is_diagonal:
        variance = weights @ centered.square()
        return NormalForm(mean, variance.clamp(min=TINY_VARIANCE).sqrt())
    covariance = centered.T @ (weights[:, None] * centered)
    factor, info = torch.linalg.cholesky_ex(covariance)
    # Fewer effective draws than parameters: keep the shape of the proposal.
    return NormalForm(mean, fallback.scale if int(info) else factor)
