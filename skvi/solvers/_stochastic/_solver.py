"""Stochastic gradients on fresh draws: applicable to every combination."""

from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral, Real
from os import PathLike

import torch

from skvi.exceptions import IncompatibleComponentsError
from skvi.solvers._solution import Solution
from skvi.solvers._stochastic._members import train
from skvi.solvers._stochastic._optimizers import Adam
from skvi.solvers._stochastic._schedules import paces, without_steps
from skvi.solvers._stochastic._training import Training
from skvi.solvers.base import Problem, Solver, SolverOptions
from skvi.utils._processes import sharing
from skvi.utils._validation import Interval, StrOptions

# Draws of a gradient step unless given.
N_DRAWS = 10
# Step size of all parameters, times the number of inputs of a unit. Chosen on training
# rows: 0.05 for two layers of 50 units, and 0.02 for three of 100, end at a constant.
WIDTH_SHARE = 0.5


class Stochastic(Solver):
    """Stochastic gradients: Adam with fresh draws in every step, and averaging.

    Parameters
    ----------
    batch_size : int or "auto", default="auto"
        Rows per gradient step. "auto" is all rows, and for networks what their own
        `batch_size` says.
    learning_rate : float or "auto", default="auto"
        Initial step size. "auto" is `rate`, for networks at most a half over the number
        of inputs of a unit, with the whole divergence two over it for the means of
        weights, at most 0.1, and `rate` for the rest; times the fractions that the
        noise of the objective and the posterior family allow. A number is that of all
        parameters.
    n_draws : int or "auto", default="auto"
        Draws of the posterior per gradient step. "auto" is 10, 64 for families that
        bend. For MLPs, whose draws are antithetic pairs, it is 2; with the whole
        divergence 10, or 4 for the ELBO of more than 2,000 rows in minibatches, and 2
        of activations (``ELBO("local")``). For modules it is 4. One is the cheapest,
        for "elbo" only.
    tol : float or "auto", default="auto"
        Nats: a smaller increase of the bound, or with held-out rows of their score,
        counts as no progress. It is unrelated to the distance from the optimum. 0 makes
        all `max_iter` iterations. "auto" is the `tol` of the estimator, and 1e-3 for
        networks.
    n_iter_no_change : int or "auto", default="auto"
        Epochs in which the score of held-out rows does not increase, after which a
        network with ``early_stopping`` stops. "auto" is 20.
    checkpoint_path : str or path-like, default=None
        A file in which the `fit` of a network saves its state. An interrupted fit
        resumes from there when it is started again with the same parameters, data and
        int `random_state`, with the same result as an uninterrupted one. See
        :doc:`/long_fits`.
    checkpoint_interval : float, default=60.0
        Seconds between two writes of that file, the most that can be lost. 0 writes it
        after every few steps.
    distributed : bool, default=False
        Whether the processes of torch.distributed's default group share the rows of a
        step. Each runs the same program, with the same int `random_state`; the result
        is that of one process. See :doc:`/long_fits`.

    Notes
    -----
    An iteration is an epoch, one pass over the rows in minibatches; if all rows are
    used at once it is a sweep of ``options.steps_per_iter`` gradient steps. The
    objective is evaluated over windows of 100 steps or more. The step size is constant
    until the objective is level, or half of `max_iter` is over, and then decreases
    linearly, three times as long, see `StableDecay`. With `warm_up`, gradients contain
    little of the divergence in the first iterations, and only later ones count as
    level. Where most values of a window are far above the best one, its state is
    restored, and the step size halved. Rare gradients that are much longer than others
    are shortened. The result is the average of the parameters over the last window,
    which removes most of the remaining noise, or the last state while the objective
    still decreases; or that of the best window, if the last one is worse. Ctrl-C keeps
    the last average, before the first one the current state, or the start if that is
    better on the same draws.
    Hyperparameters that the target learns are trained jointly with the posterior.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from skvi.linear_model import BayesianLogisticRegression
    >>> from skvi.solvers import Stochastic
    >>> solver = Stochastic(batch_size=100, n_draws=4)
    >>> model = BayesianLogisticRegression(solver=solver, max_iter=2, random_state=0)
    >>> model.set_params(solver__batch_size=50).solver
    Stochastic(batch_size=50, n_draws=4)
    """

    _parameter_constraints: dict = {
        "batch_size": [
            StrOptions({"auto"}),
            Interval(Integral, 1, None, closed="left"),
        ],
        "learning_rate": [
            StrOptions({"auto"}),
            Interval(Real, 0, None, closed="neither"),
        ],
        "n_draws": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "tol": [StrOptions({"auto"}), Interval(Real, 0, None, closed="left")],
        "n_iter_no_change": [
            StrOptions({"auto"}),
            Interval(Integral, 1, None, closed="left"),
        ],
        "checkpoint_path": [None, str, PathLike],
        "checkpoint_interval": [Interval(Real, 0, None, closed="left")],
        "distributed": ["boolean"],
    }
    name = "stochastic"
    #: Initial step size that "auto" stands for.
    rate = 0.05

    def __init__(
        self,
        *,
        batch_size: int | str = "auto",
        learning_rate: float | str = "auto",
        n_draws: int | str = "auto",
        tol: float | str = "auto",
        n_iter_no_change: int | str = "auto",
        checkpoint_path: str | PathLike | None = None,
        checkpoint_interval: float = 60.0,
        distributed: bool = False,
    ) -> None:
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.n_draws = n_draws
        self.tol = tol
        self.n_iter_no_change = n_iter_no_change
        self.checkpoint_path = checkpoint_path
        self.checkpoint_interval = checkpoint_interval
        self.distributed = distributed

    def rows_per_step(self, n_rows: int) -> int:
        """Rows of a gradient step on so many rows of data.

        Parameters
        ----------
        n_rows : int

        Returns
        -------
        int
        """
        return (
            n_rows if self.batch_size == "auto" else min(int(self.batch_size), n_rows)
        )

    @property
    def draws_per_step(self) -> int:
        """Draws of a gradient step."""
        return N_DRAWS if self.n_draws == "auto" else int(self.n_draws)

    def _train(self, problem: Problem, options: SolverOptions) -> Training:
        """The training of one member."""
        if self.checkpoint_path is not None:
            raise IncompatibleComponentsError(
                f"checkpoint_path={self.checkpoint_path!r}",
                "a network, whose fits take long",
                "checkpoint_path=None",
            )
        own = {name: getattr(self, name) for name in ("tol", "n_iter_no_change")}
        options = replace(options, **{k: v for k, v in own.items() if v != "auto"})
        rate, has_paces = self.learning_rate, False
        if rate == "auto":
            part, has_paces = problem.posterior.components[0], options.long_steps
            shares = problem.objective.rate_share * part.rate_share
            rate = shares * (self.rate if has_paces else self._rate(problem, options))

        def make(problem: Problem, params: torch.Tensor) -> Adam:
            pace = paces(problem) if has_paces else None
            if options.fixed is not None:
                pace = without_steps(problem, options.fixed, pace)
            return Adam(params, float(rate), pace)

        n_rows = self.rows_per_step(problem.target.n_rows)
        n_draws = self.draws_per_step
        if self.n_draws == "auto":
            n_draws = max(n_draws, problem.posterior.components[0].least_draws)
        sizes = n_rows, n_draws
        return Training(problem, options, self.name, make, *sizes)

    def _rate(self, problem: Problem, options: SolverOptions) -> float:
        """One for all parameters, a half over the largest number of inputs of a unit.

        At most that of the options; see `paces`. Parameters in units of a normal fit
        are not weights.
        """
        if problem.posterior.starts_at_normal:
            return self.rate
        smallest = float(problem.target.layout.natural_scales().min())
        return min(options.rate or self.rate, WIDTH_SHARE * smallest**2)

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
            from `n_draws` draws, in nats.
        """
        return solve_members([(self, problem, options)])[0]


def solve_members(
    tasks: Sequence[tuple[Stochastic, Problem, SolverOptions]],
) -> list[Solution]:
    """Fit several posteriors in parallel, each as it would be fitted alone.

    Members have their own starts, rows, generators, weights of the divergence and prior
    scales. Those of one structure (networks of the same sizes, the same kind of loss
    and draws) are trained in one stack of matrix products. After Ctrl-C all unfinished
    ones are interrupted.
    """
    if len(tasks) > 1 and any(options.checkpoint for *_, options in tasks):
        raise ValueError("A checkpoint is of a single member.")
    members = [solver._train(problem, options) for solver, problem, options in tasks]
    is_shared = all(solver.distributed for solver, *_ in tasks)
    try:
        with sharing(is_shared, [m.identity() for m in members] if is_shared else []):
            train(members)
    except KeyboardInterrupt:
        pass
    return [member.solution or member.cut_short() for member in members]
