"""Stochastic gradients on fresh draws: the fallback for every combination."""

from collections.abc import Sequence

from skvi.solvers._members import train
from skvi.solvers._solution import Solution
from skvi.solvers._training import Training
from skvi.solvers.base import Problem, Solver, SolverOptions

__all__ = ["Stochastic"]


class Stochastic(Solver):
    """Adam with fresh draws in every step, decaying steps and averaging.

    An iteration is an epoch, one visit of every row in minibatches; where all rows
    are used at once it is a sweep of ``options.steps_per_iter`` gradient steps. The
    objective is judged after every 100 steps or more. With ``early_stopping``, when
    its average over three such stretches (`n_iter_no_change` iterations, where that
    is given) is not lower than before by more than its noise, the step size is
    halved; at 1/32 of its start the fit has converged. Without, the step size falls
    linearly over `max_iter` iterations, in the first of which gradients hold little of
    the divergence where `warm_up` says so, and the fit has converged if the last
    quarter of them was level. The result is the average of the parameters over the
    last stretch, which removes most of the noise that is left, or the last state
    while the objective still falls. Ctrl-C keeps the last average, before the first
    one the current state, and the start where that is better on the same draws.

    Hyperparameters that the target learns are trained beside the posterior.

    Examples
    --------
    >>> from skvi.solvers import Stochastic
    >>> Stochastic.name
    'stochastic'
    """

    name = "stochastic"

    @staticmethod
    def needs_start(problem: Problem) -> bool:
        """Always: draws of a fresh posterior miss the data; see `Solver`."""
        return True

    def solve(self, problem: Problem, options: SolverOptions) -> Solution:
        """Fit the posterior and what the target learns beside it.

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
        """Fit several posteriors side by side, each as it would be fitted alone.

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
            See `solve`. After Ctrl-C all that were not done are interrupted.
        """
        if len(problems) > 1 and any(option.checkpoint for option in options):
            raise ValueError("A checkpoint is of a single member.")
        members = [
            Training(problem, option)
            for problem, option in zip(problems, options, strict=True)
        ]
        try:
            train(members)
        except KeyboardInterrupt:
            pass
        return [member.solution or member.cut_short() for member in members]
