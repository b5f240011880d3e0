"""Stochastic gradients on fresh draws: the fallback for every combination."""

import math

import torch

from skvi.solvers.base import Problem, Solution, SolverOptions

__all__ = ["Stochastic"]

STEPS_PER_SWEEP = 100
# Sweeps without progress before the step size is halved, and its smallest share.
PATIENCE = 3
SMALLEST_SHARE = 1 / 32
# Below this share of effective draws self-normalised gradients are mostly bias.
MIN_EFFICIENCY = 0.1


class Stochastic:
    """Adam with fresh draws in every step, decaying steps and averaging.

    An iteration is a sweep of 100 gradient steps. When the average objective of
    three sweeps is not lower than before by more than its noise, the step size
    is halved; at 1/32 of its start the fit has converged. The result is the
    average of the parameters over the last sweep, which removes most of the
    noise that is left.

    Examples
    --------
    >>> from skvi.solvers import Stochastic
    >>> Stochastic.name
    'stochastic'
    """

    name = "stochastic"

    @staticmethod
    def missing(problem: Problem) -> str:
        """Say what the problem lacks for this solver.

        Parameters
        ----------
        problem : Problem

        Returns
        -------
        str
            Empty where the solver can be used.
        """
        if problem.posterior.log_prob_kind != "exact":
            return "the posterior family has no exact density"
        return ""

    def solve(self, problem: Problem, options: SolverOptions) -> Solution:
        """Fit ``problem.posterior`` in place.

        Parameters
        ----------
        problem : Problem
        options : SolverOptions

        Returns
        -------
        Solution
            `value` is the average of the last sweep's 100 estimates, each from
            ``options.n_draws`` draws, in nats.
        """
        posterior = problem.posterior
        kept, params = posterior.params.clone(), posterior.params.clone()
        adam = _Adam(params, options.learning_rate)
        schedule = _Schedule(adam, options.learning_rate)
        history: list[float] = []
        message = ""
        try:
            while len(history) < options.max_iter and not schedule.done:
                average, values = _sweep(problem, options, params, adam)
                if not bool(torch.isfinite(values).all()):
                    message = _non_finite(problem)
                    break
                kept = average
                history.append(float(values.mean()))
                schedule.observe(values)
        except KeyboardInterrupt:
            message = "interrupted: the last complete sweep was kept"
        posterior.params = kept.detach()
        if not schedule.done and not message:
            message = (
                f"the step size is still {adam.rate:.2g} after {options.max_iter} "
                "sweeps of 100 gradient steps; increase max_iter"
            )
        efficiency = _weight_efficiency(problem)
        if not message and efficiency < MIN_EFFICIENCY:
            message = (
                f"the weights that train {problem.objective!r} are degenerate (share "
                f"of effective draws {efficiency:.3f}), so that its gradients are "
                "biased; use gradient='auto', solver='auto' or more n_draws"
            )
        return Solution(
            solver=self.name,
            value=history[-1] if history else _evaluate(problem, options),
            history=history,
            n_iter=len(history),
            converged=schedule.done and not message,
            message=message,
            diagnostics={"interrupted": message.startswith("interrupted")},
        )


@torch.no_grad()
def _weight_efficiency(problem: Problem) -> float:
    """Share of effective draws of a weights objective; 1 for an expectation."""
    if problem.objective.kind != "weights":
        return 1.0
    theta, log_q = problem.posterior.rsample_with_log_prob(1000, problem.generator)
    log_weights = problem.target.log_joint_batched(theta) - log_q
    return float(1 / torch.softmax(log_weights, 0).square().sum()) / len(theta)


class _Schedule:
    """Halves the step size where the objective does not fall by more than noise."""

    def __init__(self, adam: "_Adam", rate: float) -> None:
        self.adam, self.smallest = adam, rate * SMALLEST_SHARE
        self.best, self.best_error, self.waited = math.inf, 0.0, 0

    @property
    def done(self) -> bool:
        return self.adam.rate < self.smallest

    def observe(self, values: torch.Tensor) -> None:
        mean = float(values.mean())
        error = float(values.std()) / math.sqrt(len(values))
        fell = mean < self.best - 2 * math.hypot(error, self.best_error)
        self.waited = 0 if fell else self.waited + 1
        if mean < self.best:
            self.best, self.best_error = mean, error
        if self.waited >= PATIENCE:
            self.adam.rate, self.waited, self.best = self.adam.rate / 2, 0, mean


@torch.no_grad()
def _evaluate(problem: Problem, options: SolverOptions) -> float:
    return float(_surrogate(problem, options)[1])


def _surrogate(
    problem: Problem, options: SolverOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    return problem.objective.surrogate(
        problem.target,
        problem.posterior,
        problem.divergence,
        None,
        options.n_draws,
        problem.generator,
    )


def _sweep(
    problem: Problem, options: SolverOptions, params: torch.Tensor, adam: "_Adam"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Take 100 steps in place; return the mean parameters and the losses."""
    total, values = torch.zeros_like(params), []
    for _ in range(STEPS_PER_SWEEP):
        leaf = params.clone().requires_grad_()
        problem.posterior.params = leaf
        surrogate, value = _surrogate(problem, options)
        (gradient,) = torch.autograd.grad(surrogate, leaf)
        values.append(value)
        if not bool(torch.isfinite(gradient).all()):
            values.append(value * math.nan)
            break
        adam.step(params, gradient)
        total += params
    problem.posterior.params = params.clone()
    return total / STEPS_PER_SWEEP, torch.stack(values)


def _non_finite(problem: Problem) -> str:
    posterior = problem.posterior
    with torch.no_grad():
        theta, log_q = posterior.rsample_with_log_prob(1, problem.generator)
        parts = {
            "log q": log_q,
            "log prior": problem.target.prior.log_prob(theta),
            "log joint": problem.target.log_joint(theta),
        }
    bad = [name for name, value in parts.items() if not torch.isfinite(value).all()]
    return (
        f"{' and '.join(bad) or 'the gradient'} went non-finite; the last finite "
        "state was kept. Lower learning_rate or standardise the features"
    )


class _Adam:
    """Kingma and Ba (2014) on one flat vector, in place."""

    def __init__(self, params: torch.Tensor, rate: float) -> None:
        self.rate, self.t = rate, 0
        self.m, self.v = torch.zeros_like(params), torch.zeros_like(params)

    def step(self, params: torch.Tensor, gradient: torch.Tensor) -> None:
        self.t += 1
        self.m.mul_(0.9).add_(gradient, alpha=0.1)
        self.v.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        scale = self.rate / (1 - 0.9**self.t)
        denominator = (self.v / (1 - 0.999**self.t)).sqrt_().add_(1e-8)
        params.addcdiv_(self.m, denominator, value=-scale)
