"""Fits of estimators: validate, resolve, check, solve, set fitted attributes."""

from dataclasses import replace
from functools import cache
from numbers import Integral, Real
from typing import Any

import torch
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import ConvergenceWarning

from skvi._outcome import (
    better_state,
    cut_short,
    describe_fit,
    joined_rows,
    judge_fit,
    learned_scales,
)
from skvi._parameters import expand_parameters
from skvi._progress import FitProgress
from skvi._registry import POSTERIORS, SHORTHANDS
from skvi._resolution import ResolutionMixin
from skvi._warm_start import continued_state
from skvi.divergences import Divergence
from skvi.exceptions import IncompatibleComponentsError, SkviWarning
from skvi.losses import Loss
from skvi.objectives import Objective
from skvi.posteriors import Family, Posterior
from skvi.posteriors._exact import Unsolved
from skvi.priors import Prior
from skvi.solvers import (
    Problem,
    Solution,
    Solver,
    SolverOptions,
    Stochastic,
    choose_solver,
)
from skvi.solvers._checkpoint import Checkpoint, CheckpointFile
from skvi.solvers._solution import PhaseInterrupted, State
from skvi.solvers._wide_start import choose_start
from skvi.utils._callbacks import CallbackSupportMixin
from skvi.utils._device import CPU, resolve_device
from skvi.utils._random import generator_on, make_generator
from skvi.utils._validation import Interval, StrOptions
from skvi.utils._warnings import warn_user

__all__ = ["BaseVariational"]


class BaseVariational(ResolutionMixin, CallbackSupportMixin, BaseEstimator):
    """Base class of estimators that fit a variational posterior.

    A subclass must implement `_build_target(X, y, sample_weight, prior)`, and call
    `_solve` from its `fit`.
    """

    _parameter_constraints: dict = {
        "objective": [StrOptions(set(SHORTHANDS["objective"])), Objective],
        "divergence": [StrOptions(set(SHORTHANDS["divergence"])), Divergence],
        "loss": [StrOptions(set(SHORTHANDS["loss"])), Loss, callable],
        "posterior": [StrOptions(set(POSTERIORS)), Family],
        "prior": [StrOptions(set(SHORTHANDS["prior"])), Prior, Posterior, dict],
        "intercept_prior": [None, StrOptions(set(SHORTHANDS["prior"])), Prior],
        "fit_intercept": ["boolean"],
        "solver": [StrOptions({"auto", *SHORTHANDS["solver"]}), Solver],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="neither")],
        "warm_start": ["boolean"],
        "device": [str],
        "verbose": ["verbose"],
        "n_jobs": [Integral, None],
        "random_state": ["random_state"],
    }
    _steps_per_iter = 100
    #: Whether the next fit continues the last one, regardless of `warm_start`.
    _continues = False

    @classmethod
    @cache
    def _get_param_names(cls) -> list[str]:
        return super()._get_param_names()  # inspecting a signature is slow

    def set_params(self, **params: Any) -> "BaseVariational":
        """Set parameters; a nested name turns a shorthand into its object.

        ``set_params(divergence="renyi", divergence__alpha=0.3)`` works, and so
        does a grid over ``divergence__alpha`` if the divergence is a string.
        ``prior__coef__scale`` changes one entry of a mapping of priors, and
        ``intercept_prior__scale`` makes None a `Normal`, as ``prior__scale`` does
        "auto"; ``solver__batch_size`` makes "auto" a `skvi.solvers.Stochastic`.

        Parameters
        ----------
        **params : dict

        Returns
        -------
        self
        """
        return super().set_params(**expand_parameters(self, params))

    def __sklearn_is_fitted__(self) -> bool:
        """Whether a fit has been completed."""
        return hasattr(self, "posterior_")

    def _forget(self) -> dict[str, Any]:
        """Become unfitted, so that a failed fit leaves no partial state.

        Returns the attributes of the last fit, for `warm_start`; empty if there was
        none.
        """
        found = vars(self)
        names = ("posterior_", "classes_", "_hyper")
        before = {name: found[name] for name in names if name in found}
        return before if found.pop("posterior_", None) is not None else {}

    def _solve(self, target: Any, before: dict[str, Any], **data: Any) -> None:
        """Check the combination, fit the posterior, set the shared attributes.

        `before` is from `_forget`; `data` are "X", "y" and "metadata" for callbacks. On
        Ctrl-C the attributes are those of the best posterior so far, if there is one.
        """
        problem, solver = self._pose(target)
        file = self._checkpoint_file(target, problem, before)
        solution, progress = self._run(problem, solver, before, data, file)
        solution = self._refine(problem, progress.explain(solution))
        report = None if file is None else file.at("report")
        solution, found = self._attributes(problem, solution, report)
        vars(self).update(found)  # at once: fitted, or not at all
        if solution.interrupted:
            raise KeyboardInterrupt
        progress.finish(self.lower_bound_)

    def _pose(self, target: Any) -> tuple[Problem, Solver]:
        """Check the combination; return the problem at its start, and the solver.

        The problem is on the device of the fit.
        """
        self.objective_.check(self.divergence_, target)
        self.posterior_family_.check_size(target.layout.size)
        generator = make_generator(self.random_state)
        posterior = self.posterior_family_.build(target.layout, generator)
        self._check_posterior(posterior)
        # Components of a mixture are trained independently.
        component = posterior.components[0]
        self.objective_.check_posterior(component, self.divergence_, target)
        device = resolve_device(self.device, self._device_work(target))
        if device != CPU:
            target, posterior = target.to(device), posterior.to(device)
            generator = generator_on(generator, device)
        problem = Problem(
            target, self.objective_, self.divergence_, posterior, generator
        )
        solver = self._choose_solver(problem)
        if isinstance(solver, Stochastic):
            self.objective_.check_draws(solver.draws_per_step)
        return problem, solver

    def _checkpoint_file(
        self, target: Any, problem: Problem, before: dict[str, Any]
    ) -> CheckpointFile | None:
        """File in which the fit saves its state; None for none."""
        return None

    def _start(
        self, problem: Problem, solver: Solver, file: CheckpointFile | None
    ) -> State | None:
        """Find the start of a first fit; None is the state of the problem."""
        start = self._begin(problem, solver)
        first = None if start is None else self._first_phase(problem.at(start))
        if first is None:
            return start
        task, options = first
        checkpoint = None if file is None else file.at("start")
        found = solver.solve(task, replace(options, checkpoint=checkpoint))
        found.raise_interrupt()
        return found.state

    def _begin(self, problem: Problem, solver: Solver) -> State | None:
        """Find the start of the first phase of a fit, without gradients."""
        options = self._solver_options(problem.target)
        start = self._prepare(problem, solver)
        return choose_start(solver, problem, options, start)

    def _first_phase(self, problem: Problem) -> tuple[Problem, SolverOptions] | None:
        """Problem solved first by stochastic gradients, for a better start, or None."""
        return None

    def _device_work(self, target: Any) -> float:
        """Multiply-adds of a pass over the data, for the choice of a device."""
        return 0.0

    def _run(
        self,
        problem: Problem,
        solver: Solver,
        before: dict[str, Any],
        data: dict,
        file: CheckpointFile | None = None,
    ) -> tuple[Solution, FitProgress]:
        """Find a start and solve; after Ctrl-C with the result of the current phase.

        Raises KeyboardInterrupt if there is no result yet.
        """
        start, options = None, self._solver_options(problem.target)
        progress = FitProgress(self, data, solver.count_iterations(problem, options))
        try:
            if before and (self.warm_start or self._continues):
                start = self._continue(problem, before, solver)
                options = replace(options, warm_up=0.0)
            else:
                start = self._start(problem, solver, file)
            checkpoint = None if file is None else file.at("main")
            if checkpoint is not None:
                progress.resume(checkpoint.n_iter, file.path)
            options = replace(options, progress=progress, checkpoint=checkpoint)
            if start is None:
                return solver.solve(problem, options), progress
            options = replace(options, warm_start=True)
            return solver.solve(problem.at(start), options), progress
        except PhaseInterrupted as phase:
            state = better_state(start or problem.state, phase.state)
        except KeyboardInterrupt:
            if start is None:
                raise
            state = start
        return cut_short(problem.at(state), solver), progress

    def _refine(self, problem: Problem, solution: Solution) -> Solution:
        """Refine the posterior with the data; after Ctrl-C it is unchanged."""
        if solution.interrupted:
            return solution
        posterior, target = solution.state
        try:
            refined = posterior.refine(target, problem.generator)
        except KeyboardInterrupt:
            return solution.cut_short()
        if refined is posterior:
            return solution
        return replace(solution, state=State(refined, target), is_exact=False)

    def _attributes(
        self, problem: Problem, solution: Solution, report: Checkpoint | None = None
    ) -> tuple[Solution, dict[str, Any]]:
        """Fitted attributes, after Ctrl-C without slow ones; and how it ended."""
        if not solution.interrupted:
            try:
                found = self._posterior_attributes(solution.state)
                found |= judge_fit(problem, solution, report)
                category = self._compare_with_constant_fit(found, solution.target)
                self._warn(found["diagnostics_"]["message"], category)
                return solution, found
            except KeyboardInterrupt:
                solution = solution.cut_short()
        found = self._posterior_attributes(solution.state)
        return solution, found | describe_fit(problem, solution)

    def _compare_with_constant_fit(
        self, found: dict[str, Any], target: Any
    ) -> type[Warning]:
        """Add `_judge_fit` to the diagnostics; return the category of its warning."""
        fitted = object.__new__(type(self))  # a copy would use the state of a pickle
        vars(fitted).update(vars(self), **found)
        numbers, message = fitted._judge_fit(target)
        diagnostics = found["diagnostics_"]
        diagnostics |= numbers
        has_ended = found["converged_"] and not diagnostics["message"]
        if has_ended:
            diagnostics["message"] = message
        if diagnostics["message"]:
            diagnostics["message"] += fitted._input_remedy(target)
        return SkviWarning if has_ended else ConvergenceWarning

    def _warn(self, message: str, category: type[Warning]) -> None:
        if message:
            text = f"{type(self).__name__}: {message}."
            warn_user(text, category)

    def _check_posterior(self, posterior: Posterior) -> None:
        """Raise if this estimator cannot predict from such a posterior."""
        if isinstance(posterior, Unsolved):
            raise IncompatibleComponentsError(
                f"posterior={self.posterior_family_!r} is known for linear regressions "
                "with conjugate priors. Use posterior='full_rank' or 'mean_field'."
            )

    def _continue(
        self, problem: Problem, before: dict[str, Any], solver: Solver
    ) -> State:
        """The end of the last fit, as a start."""
        classes = getattr(self, "classes_", ())
        state = continued_state(problem, before, classes, solver)
        params = state.posterior.params.to(self._posterior_dtype(problem.target))
        return State(state.posterior.at(params), state.target)

    def _posterior_dtype(self, target: Any) -> torch.dtype:
        return torch.float64

    def _prepare(self, problem: Problem, solver: Solver) -> State | None:
        """Find a good start if the solver does not find its own."""
        return self._initialize(problem) if solver.needs_start(problem) else None

    def _initialize(self, problem: Problem) -> State | None:
        """Start whose draws are close to the posterior; None for the family's own."""
        return None

    def _choose_solver(self, problem: Problem) -> Solver:
        """Return the solver that is given, or the first one that can solve this."""
        return choose_solver(problem, self._given_solver(problem.target.n_rows))

    def _given_solver(self, n_rows: int) -> str | Solver:
        """The solver for so many rows, or the name of one."""
        if isinstance(self.solver, str):
            return self.solver
        solver: Solver = clone(self.solver)
        solver.validate()
        return solver

    def _solver_options(self, target: Any) -> SolverOptions:
        return SolverOptions(
            max_iter=self.max_iter,
            tol=self.tol,
            steps_per_iter=self._steps_per_iter,
            early_stopping=getattr(self, "early_stopping", True),
            n_iter_no_change=getattr(self, "n_iter_no_change", None),
        )

    def _posterior_attributes(self, state: State) -> dict[str, Any]:
        """Fitted attributes that follow from a posterior and learned scales."""
        posterior = state.posterior.at(state.posterior.params.detach().clone()).to(CPU)
        hyper = state.target.hyper.detach().double().cpu().numpy().copy()
        found = {"posterior_": posterior, "_hyper": hyper}
        scales = learned_scales(state.target, "prior_scale")
        if scales:
            # A number, or one for each entry of a mapping of priors.
            single = len(scales) == 1
            value = next(iter(scales.values())) if single else joined_rows(scales)
            found["prior_scale_"] = value
        return found

    def _judge_fit(self, target: Any) -> tuple[dict[str, float | None], str]:
        """Compare with a constant: numbers, and a message if the fit is no better.

        Empty for models whose constant fits are usually right.
        """
        return {}, ""

    def _input_remedy(self, target: Any) -> str:
        """Remedy that concerns the features, to append to a message; empty if none."""
        return ""
