"""Interface of solvers: arguments and results."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import torch

from skvi.base._component import Component
from skvi.divergences import Divergence
from skvi.objectives.base import Objective
from skvi.posteriors import Posterior
from skvi.solvers._checkpoint import Checkpoint
from skvi.solvers._solution import Ending, Solution, State
from skvi.targets import SupervisedTarget, Target

__all__ = ["Problem", "Progress", "Solver", "SolverOptions"]

Progress = Callable[[float, Callable[[], State]], bool]
Score = Callable[[State], float]


@dataclass(frozen=True, eq=False)
class Problem:
    """Everything that defines a fit; solvers do not modify it.

    Parameters
    ----------
    target : Target
    objective : Objective
    divergence : Divergence
    posterior : Posterior
        Start of the solver.
    generator : torch.Generator or None
        Source of all draws; None if the solver takes none.

    Examples
    --------
    >>> from skvi.base import Layout
    >>> from skvi.divergences import KLDivergence
    >>> from skvi.objectives import ELBO
    >>> from skvi.posteriors import MeanFieldNormal
    >>> from skvi.solvers import Problem
    >>> posterior = MeanFieldNormal().build(Layout({"coef": (1, 3)}))
    >>> from skvi.targets import Target
    >>> problem = Problem(Target(), ELBO(), KLDivergence(), posterior, None)
    >>> problem.objective, problem.divergence
    (ELBO(), KLDivergence())
    """

    target: Target
    objective: Objective
    divergence: Divergence
    posterior: Posterior
    generator: torch.Generator | None

    @property
    def state(self) -> State:
        """Start of the solver."""
        return State(self.posterior, self.target)

    def at(self, state: State) -> "Problem":
        """Copy of the problem that starts at another state.

        Parameters
        ----------
        state : State

        Returns
        -------
        Problem
        """
        return replace(self, posterior=state.posterior, target=state.target)

    @property
    def params(self) -> torch.Tensor:
        """What a solver changes: parameters of the posterior, then those of the target.

        In one vector, in the dtype of the posterior.
        """
        params = self.posterior.params
        return torch.cat([params, self.target.hyper.to(params.dtype)]).detach()

    def with_params(self, params: torch.Tensor) -> "Problem":
        """Copy of the problem at other numbers, differentiable in them.

        Parameters
        ----------
        params : Tensor
            In the order of `params`.

        Returns
        -------
        Problem
        """
        split = len(self.posterior.params)
        posterior = self.posterior.at(params[:split])
        return replace(self, posterior=posterior, target=self.target.at(params[split:]))

    def surrogate(
        self, n_draws: int, generator: torch.Generator | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A function with the gradient of what is minimized, and the value of that.

        Parameters
        ----------
        n_draws : int
        generator : torch.Generator, default=None
            Source of the draws in place of that of the problem.

        Returns
        -------
        surrogate, value : Tensor
            Scalars, in nats, from all rows. The first is differentiable.
        """
        source = self.source_of_draws if generator is None else generator
        parts = self.target, self.posterior, self.divergence, None, n_draws, source
        return self.objective.surrogate(*parts)

    def solved(
        self, solver: "Solver", history: list[float], message: str = ""
    ) -> Solution:
        """The state of this problem as the result of a solver.

        Parameters
        ----------
        solver : Solver
        history : list of float
            What is minimized, in nats, after every iteration; at least one number.
        message : str, default=""
            What to change about a fit that has not converged; empty if it has.

        Returns
        -------
        Solution

        Raises
        ------
        ValueError
            The parameters are not finite, or the history is empty.
        """
        if not history:
            raise ValueError(
                f"The history of solver={solver!r} is empty. Give at least one number, "
                "what it minimized at the end."
            )
        if not self.params.isfinite().all():
            raise ValueError(
                f"solver={solver!r} arrived at parameters that are not finite. Use "
                "shorter steps, or return the last finite ones."
            )
        ending = Ending.UNFINISHED if message else Ending.CONVERGED
        parts = solver.name, self.state, history[-1], history, len(history)
        return Solution(*parts, ending, message)

    @property
    def source_of_draws(self) -> torch.Generator:
        """The generator, for solvers that take draws."""
        if self.generator is None:
            raise ValueError("This solver takes draws: give Problem a generator.")
        return self.generator

    @property
    def linear_target(self) -> SupervisedTarget:
        """The target, for solvers that have checked that it `has_design`."""
        return cast(SupervisedTarget, self.target)


def no_progress(value: float, state: Callable[[], State]) -> bool:
    """Report nothing, and never stop.

    Parameters
    ----------
    value : float
    state : callable

    Returns
    -------
    bool
        False.

    Examples
    --------
    >>> from skvi.solvers.base import no_progress
    >>> no_progress(1.0, lambda: problem.state)
    False
    """
    return False


@dataclass(frozen=True)
class SolverOptions:
    """Limits and accuracy of a solver.

    Parameters
    ----------
    max_iter : int, default=100
        Iterations; for the stochastic solver epochs with minibatches, and sweeps of
        `steps_per_iter` gradient steps without.
    tol : float, default=1e-5
        Nats: stop when the solver's estimate of the remaining gain is below it; for the
        stochastic solver, the smallest decrease that counts as one.
    steps_per_iter : int, default=100
        Gradient steps of one iteration of the stochastic solver without minibatches.
    early_stopping : bool, default=False
        Whether the stochastic solver stops when the `score` no longer increases.
    warm_up : float, default=0.0
        The fraction of `max_iter`, but at most 30 windows of 100 steps or more, in
        which the stochastic solver gives the divergence less weight, so that the data
        shape q before the prior does: a hundredth for the first half, from where it
        rises. Only if it has a separate gradient of the divergence, see
        `Steps.weigh_divergence`, as for the ELBO of normals.
    has_fixed_length : bool, default=False
        Whether `max_iter` is a length that was chosen to predict well, so that an
        objective that still decreases at its end is no fault.
    long_steps : bool, default=False
        Whether steps of the stochastic solver that are left to it, and the weight at
        the start of the warm-up, suit a network with the whole divergence: longer ones,
        and 3 %. With less weight such networks predict worse, at better objectives.
    fixed : Tensor of bool of shape (P,), default=None
        Parameters whose factorized posterior stays as it is at the start.
    rate : float, default=None
        The largest step that the stochastic solver chooses; None is its own.
    n_iter_no_change : int, default=20
        Iterations in which the score does not increase, before it stops.
    warm_start : bool, default=False
        Whether to start at the state of the posterior.
    averages : bool, default=True
        Whether to average over numbers that all rows share, such as the scale of a
        prior; otherwise they are known, about where they are likeliest. Where averages
        cost little they are taken in any case.
    dtype : torch.dtype, default=None
        Precision of the steps of the stochastic solver; None is that of the posterior,
        in which the result is in any case.
    score : callable, default=None
        Score of a `State`, such as its log predictive density of held-out rows, in nats
        per row. The stochastic solver then scores the state after every iteration, and
        returns the one with the largest score; with `early_stopping` it stops when the
        score no longer increases.
    progress : callable, default=no_progress
        Called after every iteration with the minimized quantity in nats and a
        function that returns the `State` as it is then; returns whether to stop.
    checkpoint : Checkpoint, default=None
        Where the stochastic solver writes its state, and resumes from. For a single
        member only.

    Examples
    --------
    >>> from skvi.solvers import SolverOptions
    >>> SolverOptions(max_iter=5).max_iter
    5
    """

    max_iter: int = 100
    tol: float = 1e-5
    steps_per_iter: int = 100
    early_stopping: bool = False
    warm_up: float = 0.0
    has_fixed_length: bool = False
    long_steps: bool = False
    fixed: torch.Tensor | None = None
    rate: float | None = None
    n_iter_no_change: int = 20
    warm_start: bool = False
    averages: bool = True
    dtype: torch.dtype | None = None
    score: Score | None = None
    progress: Progress = no_progress
    checkpoint: Checkpoint | None = None


class Solver(Component):
    """Base class of solvers: a subclass must implement `solve`.

    Estimators take an instance as their parameter `solver`. It holds parameters only,
    as every component.

    Examples
    --------
    >>> from skvi.solvers import Solver, Stochastic
    >>> isinstance(Stochastic(), Solver), Stochastic().name
    (True, 'stochastic')
    """

    #: Whether a quick solve starts at the state of the posterior with `warm_start`, so
    #: that solutions from several starts can be compared.
    continues = False

    @property
    def name(self) -> str:
        """Name of the solver in results: that of its class by default."""
        return type(self).__name__

    @staticmethod
    def missing(problem: Problem) -> str:
        """Say what the problem lacks for this solver.

        Parameters
        ----------
        problem : Problem

        Returns
        -------
        str
            Empty if the solver can be used.
        """
        return ""

    @staticmethod
    def needs_start(problem: Problem) -> bool:
        """Whether an initial posterior is unsuitable as a start.

        Parameters
        ----------
        problem : Problem

        Returns
        -------
        bool
            By default False: the solver finds its own start.
        """
        return False

    @staticmethod
    def count_iterations(problem: Problem, options: SolverOptions) -> int:
        """Maximum number of iterations that are reported.

        Parameters
        ----------
        problem : Problem
        options : SolverOptions

        Returns
        -------
        int
            By default `max_iter`.
        """
        return options.max_iter

    def solve(self, problem: Problem, options: SolverOptions) -> Solution:
        """Fit the posterior, and the target's hyperparameters if it learns any.

        Parameters
        ----------
        problem : Problem
            It is not changed.
        options : SolverOptions

        Returns
        -------
        Solution
            With the new posterior and target; `value` in nats, summed over the data.

        Raises
        ------
        KeyboardInterrupt
            On Ctrl-C before there is anything to keep; after that a `Solution` says
            that it was interrupted.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement solve.")
