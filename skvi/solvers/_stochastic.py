"""Stochastic gradients on fresh draws: applicable to every combination."""

from collections.abc import Sequence

import torch

from skvi.solvers._adam import Adam
from skvi.solvers._ivon import IvonSteps
from skvi.solvers._members import train
from skvi.solvers._optimizer import Optimizer
from skvi.solvers._solution import Solution
from skvi.solvers._training import Training
from skvi.solvers.base import Problem, Solver, SolverOptions

__all__ = ["Ivon", "Stochastic"]


class Stochastic(Solver):
    """Adam with fresh draws in every step, decaying steps and averaging.

    An iteration is an epoch, one pass over the rows in minibatches; if all rows are
    used at once it is a sweep of ``options.steps_per_iter`` gradient steps. The
    objective is evaluated over windows of 100 steps or more. With ``early_stopping``,
    if its average over three windows (`n_iter_no_change` iterations, if given) is not
    lower than before by more than its noise, the step size is halved; at 1/32 of its
    start the fit has converged. Without, the step size is constant until the objective
    is level, or half of `max_iter` is over, and then decreases linearly; rounds of
    smaller steps follow, each as long as all before, until one gains nothing, see
    `StableDecay`. With `warm_up`, gradients contain little of the divergence in the
    first iterations, and only later ones count as without progress. Where most values
    of a window are far above the best one, its state is restored, and the step size
    halved. Rare gradients that are much longer than others are shortened. The result is
    the average of the parameters over the last window, which removes most of the
    remaining noise, or the last state while the objective still decreases; or that of
    the best window, if the last one is worse. Ctrl-C keeps the last average, before the
    first one the current state, or the start if that is better on the same draws.
    Hyperparameters that the target learns are trained jointly with the posterior.

    Examples
    --------
    >>> from skvi.solvers import Stochastic
    >>> Stochastic.name
    'stochastic'
    """

    name = "stochastic"

    #: Initial step size if `SolverOptions` give none.
    rate = 0.05

    def _train(self, problem: Problem, options: SolverOptions) -> Training:
        """The training of one member."""
        rate = options.learning_rate
        if rate is None:
            rate = self.rate * problem.objective.rate_share

        def make(problem: Problem, params: torch.Tensor) -> Optimizer:
            return self._optimizer(problem, params, rate)

        return Training(problem, options, self.name, make)

    @staticmethod
    def _optimizer(problem: Problem, params: torch.Tensor, rate: float) -> Optimizer:
        """The optimizer of a member."""
        return Adam(params, rate)

    @staticmethod
    def needs_start(problem: Problem) -> bool:
        """Always: draws of an initial posterior miss the data; see `Solver`."""
        return True

    def solve(self, problem: Problem, options: SolverOptions) -> Solution:
        """Fit the posterior and the hyperparameters of the target.

        Parameters
        ----------
        problem : Problem
        options : SolverOptions

        Returns
        -------
        Solution
            `value` is the average of the last sweep's estimates (100 or more), each
            from ``options.n_draws`` draws, in nats.
        """
        return self.solve_members([problem], [options])[0]

    def solve_members(
        self, problems: Sequence[Problem], options: Sequence[SolverOptions]
    ) -> list[Solution]:
        """Fit several posteriors in parallel, each as it would be fitted alone.

        Parameters
        ----------
        problems : sequence of Problem
            Members with their own starts, rows, generators, weights of the
            divergence and prior scales. Those of one structure (networks of the same
            sizes, the same kind of loss and draws) are trained in one stack of
            matrix products.
        options : sequence of SolverOptions
            One for each member.

        Returns
        -------
        list of Solution
            See `solve`. After Ctrl-C all unfinished ones are interrupted.
        """
        if len(problems) > 1 and any(option.checkpoint for option in options):
            raise ValueError("A checkpoint is of a single member.")
        members = [
            self._train(problem, option)
            for problem, option in zip(problems, options, strict=True)
        ]
        try:
            train(members)
        except KeyboardInterrupt:
            pass
        return [member.solution or member.cut_short() for member in members]


class Ivon(Stochastic):
    """Stochastic natural gradients for mean-field normals (IVON).

    As `Stochastic`, but the means take a fraction `learning_rate` of a Newton step,
    with a curvature estimated from the draws, and the precisions move toward that
    curvature: natural gradients of q at the cost of Adam. Steps are invariant to the
    units of a parameter. Steps of 0.2 for means and three hundredths of that for
    precisions suit networks of all sizes and data that were tried; the point parameters
    of the target take steps of Adam, a tenth as large.

    References
    ----------
    Shen et al. (2024), *Variational learning is effective for large deep networks*.

    Examples
    --------
    >>> from skvi.solvers._stochastic import Ivon
    >>> Ivon.name
    'ivon'
    """

    name = "ivon"
    rate = 0.2

    @staticmethod
    def missing(problem: Problem) -> str:
        """Say what the problem lacks; see `Solver.missing`."""
        if not problem.posterior.components[0].is_mean_field:
            return "it needs posterior='mean_field', or an ensemble of them"
        if problem.objective.rate_share < 1:
            return (
                f"the gradients of {problem.objective!r} are too noisy to estimate a "
                "curvature"
            )
        return ""

    @staticmethod
    def _optimizer(problem: Problem, params: torch.Tensor, rate: float) -> Optimizer:
        """The optimizer of a member."""
        components = problem.posterior.components
        return IvonSteps(
            params,
            rate,
            n_params=problem.target.layout.size,
            n_components=len(components),
            weight=problem.divergence.kl_weight or 1.0,
        )
