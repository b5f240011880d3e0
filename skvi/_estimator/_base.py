"""The base class of estimators: a fit on one page, and queries of its result."""

from collections.abc import Mapping
from functools import cache
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, clone, is_classifier, is_regressor
from sklearn.utils.validation import check_is_fitted

from skvi._estimator._arviz import draws_of, to_arviz
from skvi._estimator._classes import Labels
from skvi._estimator._continual import Stream, learn_batch
from skvi._estimator._evidence import (
    data_of_fit,
    evidence_bounds,
    evidence_of,
    joined_rows,
    learned_scales,
)
from skvi._estimator._fitting import conclude, continued_state, pose, refine, solve
from skvi._estimator._model import Numbers, TrainingData
from skvi._estimator._parts import (
    POSTERIORS,
    SHORTHANDS,
    beside_coefficients,
    expand_parameters,
    resolve,
    with_intercept,
)
from skvi.divergences import Divergence
from skvi.evidence._bounds import bound_evidence
from skvi.exceptions import IncompatibleComponentsError, SkviWarning
from skvi.losses import Loss
from skvi.objectives.base import Objective
from skvi.posteriors import Family, Posterior
from skvi.posteriors._whitened import Unsolved
from skvi.priors import Prior
from skvi.solvers import Problem, Solver, SolverOptions
from skvi.solvers._checkpoint import CheckpointFile
from skvi.solvers._choice import choose_solver
from skvi.solvers._solution import INTERRUPTED, Solution, State
from skvi.utils._interrupts import (
    CallbackSupportMixin,
    limit_threads,
    raising_interrupts,
)
from skvi.utils._links import page_template
from skvi.utils._tensors import CPU, make_generator
from skvi.utils._validation import (
    Interval,
    StrOptions,
    as_numpy,
    check_sample_weight,
    refuse_dates_as_target,
    refuse_label_matrix,
    validate_arguments,
    validate_data,
    validate_parameters,
    warn_user,
)

# A fit with X, y and weights alone.
NO_ROW_DATA: Mapping[str, Any] = {}
NOTHING = "Ctrl-C before there was a posterior: nothing is fitted yet"


class BaseVariational(CallbackSupportMixin, BaseEstimator):
    """Base class of estimators that fit a variational posterior.

    A subclass must implement `_assemble(data, response)`, its `Model`, `_work(target)`,
    the multiply-adds of a pass, and if targets are not plain numbers `_response(y)`.
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
    #: What a batch takes from those before it; None for a fit.
    _stream: Stream | None = None

    _input: dict = {"dtype": [np.float64, np.float32]}
    #: Further arguments of `validate_data` if there is a target.
    _input_with_target: dict = {}
    #: Further data of rows, arguments of methods that take rows, and what says nothing,
    #: such as an exposure of 1.
    _row_data: dict[str, float] = {}
    #: What to give instead of others, for the message of an error.
    _instead: dict[str, str] = {}
    #: Methods of evidences.
    _evidence_methods = frozenset({"auto", "importance", "tempering"})

    _validate_params = validate_parameters
    _doc_link_module = "skvi"
    _doc_link_template = property(page_template)
    evidence_bounds = evidence_bounds
    to_arviz = to_arviz
    _data_of_fit = data_of_fit

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
        found.pop("_past", None)
        names = ("posterior_", "classes_", "_hyper")
        before = {name: found[name] for name in names if name in found}
        return before if found.pop("posterior_", None) is not None else {}

    @property
    def _continues(self):
        """Whether the fit goes on with the posterior of the last batch."""
        return self._stream is not None and self._stream.posterior is not None

    def _learn_batch(self, X, y, sample_weight=None, rows=NO_ROW_DATA, **options):
        """Fit one more batch; see `learn_batch`."""
        return learn_batch(self, X, y, sample_weight, rows, **options)

    def _posterior_to_continue(self):
        """The prior of the next batch."""
        return self.posterior_

    def _check_stream(self):
        """Raise if a posterior of these parameters cannot be the next prior."""

    def _fit(self, X, y, sample_weight=None, rows=NO_ROW_DATA):
        """Fit: validate, assemble, solve, set attributes."""
        with raising_interrupts(NOTHING):
            before = self._forget()
            target, data = self._make_target(X, y, sample_weight, rows)
            with limit_threads(self._work(target), getattr(self, "n_jobs", None)):
                problem, solver = self._pose(target)
                file = self._checkpoint_file(target, problem, before)
                solution, progress = solve(self, problem, solver, before, data, file)
                solution = self._checked(problem, progress.explain(solution))
                solution = refine(problem, solution)
                # On Ctrl-C they are those of the best posterior so far.
                solution, found = conclude(self, problem, solution, file)
            vars(self).update(found)  # at once: fitted, or not at all
            if solution.interrupted:
                raise KeyboardInterrupt(INTERRUPTED)
            progress.finish(self.lower_bound_)
        return self

    def _make_target(self, X, y, sample_weight=None, rows=NO_ROW_DATA):
        """Validate, assemble the model; return the target, and data for callbacks."""
        checks = {**self._input, **self._input_with_target}
        blocks = self._find_blocks(X, y, sample_weight, rows)
        if blocks is not None:
            X, y, sample_weight = blocks.first()
        y = as_numpy(self._with_row_data(y, rows))
        if is_regressor(self):
            refuse_dates_as_target(y)
        elif is_classifier(self):
            refuse_label_matrix(y)
        X, y = validate_data(self, X, y, reset=not self._continues, **checks)
        sample_weight = self._check_weights(X, sample_weight)
        self._choose_parts(X, y, sample_weight, rows)
        response = self._response(y if blocks is None else blocks.look.values)
        self.objective_ = self._resolve("objective")
        self.loss_function_ = self._resolve("loss")
        self.posterior_family_ = self._resolve("posterior")
        self.prior_ = self._resolve_prior()
        self.divergence_ = self._resolve_divergence(X, y, sample_weight)
        for part in (self.divergence_, self.loss_function_, self.posterior_family_):
            part.validate()
        offset = self._offset_of(rows, X.shape[0])
        data = TrainingData.gather(response, X, y, sample_weight, offset)
        if blocks is not None:
            data = data.over(blocks)
        self._warn(data.few_rows_message(), SkviWarning)
        self._choose_family(data, response)
        data = self._hold_out(data)
        model = self._assemble(data, response)
        self.loss_function_.check(model.likelihood)
        target = model.over_blocks(model.target(data), data)
        # Set at once; evidence and predictions use only this.
        self._model, self._fingerprint = model, data.fingerprint
        self._total_weight = data.total_weight
        if self._continues:
            self._total_weight += self._stream.total_weight
        self._had_weights = sample_weight is not None
        self._had_rows = {
            name
            for name, none in self._row_data.items()
            if (given := rows.get(name)) is not None
            and np.any(np.not_equal(given, none))
        }
        return target, {"X": X, "y": y, "metadata": {"sample_weight": sample_weight}}

    def _find_blocks(self, X, y, sample_weight, rows):
        """Rows in blocks of dask; None for arrays, and where they are refused."""
        return None

    def _pose(self, target: Any) -> tuple[Problem, Solver]:
        """Check the combination; the problem at its start, and the solver."""
        return pose(self, target)

    def _resolve(self, name: str) -> Any:
        """The object that a parameter stands for."""
        return resolve(name, getattr(self, name))

    def _choose_parts(self, X: Any, y: Any, sample_weight: Any, rows: Any) -> None:
        """Choose parts that are "auto" by the rows, before they are resolved."""

    def _resolve_divergence(self, X: Any, y: Any, sample_weight: Any) -> Divergence:
        """The divergence, which may depend on the rows."""
        found: Divergence = self._resolve("divergence")
        return found

    def _resolve_prior(self) -> Any:
        """One prior, or one for each block if there is an intercept."""
        return with_intercept(self, self._resolve("prior"))

    def _intercept_beside(self, prior: Any) -> Prior | None:
        """Prior of the intercept where none is given."""
        return beside_coefficients(prior)

    def _given_units(self) -> Any:
        """Units of the fit whose posterior is the prior; None if there is none."""
        return self.prior_.units if isinstance(self.prior_, Posterior) else None

    def _hold_out(self, data):
        """Rows of the fit, with held-out ones; all of them by default."""
        return data

    def _choose_family(self, data, response):
        """Replace `posterior_family_` where it depends on the sizes of the data."""

    def _response(self, y):
        """Return the encoding of the targets: numbers, or classes of a classifier."""
        if not is_classifier(self):
            return Numbers()
        labels = None if self._stream is None else self._stream.response
        if labels is None:
            labels = Labels.find(y, getattr(self, "class_weight", None))
        self.classes_ = labels.classes
        return labels

    def _check_weights(self, X, sample_weight):
        if sample_weight is None:
            return None
        sample_weight = check_sample_weight(
            sample_weight, X, dtype=np.float64, ensure_non_negative=True
        )
        if not sample_weight.any():  # newer scikit-learn says so itself
            raise ValueError(
                "Sample weights must contain at least one non-zero number. Got only "
                "zeros: leave sample_weight out to count every row once."
            )
        return sample_weight

    def _with_row_data(self, y, rows):
        """The target with what `rows` has of it; TypeError for unknown names."""
        if unknown := sorted(set(rows) - set(self._row_data)):
            raise TypeError(
                f"{type(self).__name__} takes no {unknown[0]!r}. Data of rows are "
                f"{', '.join(('sample_weight', *self._row_data))}."
                f"{self._instead.get(unknown[0], '')}"
            )
        return y

    def _offset_of(self, rows, n_rows):
        """What is added to f, (n_rows,); None if there is nothing."""
        return None

    def _row_data_of(self, data):
        """The further data of rows of a fit, as methods take them."""
        return {}

    def _trained_rows(self, data):
        """The training rows among the rows of the fit: all of them by default."""
        return data

    def _check_X(self, X):
        check_is_fitted(self)
        return validate_data(self, X, **self._input, reset=False)

    def sample_posterior(
        self, n_draws: int = 1, random_state: int | np.random.RandomState | None = None
    ) -> dict[str, np.ndarray]:
        """Draw parameters from the fitted posterior.

        Parameters
        ----------
        n_draws : int, default=1
        random_state : int, RandomState instance or None, default=None

        Returns
        -------
        dict of str to ndarray
            For linear models "coef" of shape (n_draws, n_outputs, n_features), with
            as many outputs as `coef_` has rows, and "intercept" of shape (n_draws,
            n_outputs). For networks "coef_0" of shape (n_draws, n_features, n_units),
            "intercept_0" of shape (n_draws, n_units), and so on for every layer: of
            standardized features and targets.
        """
        return self._in_units(self._draw(n_draws, random_state))

    def _in_units(self, theta):
        """Draws as blocks, in the units of the data where these are known."""
        blocks = self.posterior_.layout.unpack(theta)
        return {name: block.numpy().copy() for name, block in blocks.items()}

    @torch.no_grad()
    def _draw(self, n_draws, random_state):
        """Fresh draws of the fitted posterior, (n_draws, P)."""
        check_is_fitted(self)
        self._check_n_draws(n_draws)
        return self._sample(n_draws, make_generator(random_state))

    def _check_n_draws(self, n_draws):
        allowed = {"n_draws": [Interval(Integral, 1, None, closed="left")]}
        validate_arguments(type(self).__name__, {"n_draws": n_draws}, allowed)

    def _sample(self, n_draws, generator):
        """Draws of what predictions come from: the fitted posterior, by default."""
        return self.posterior_.draw(n_draws, generator).theta

    def _evidence(self, X, y, rows, random_state, options):
        return evidence_of(self, X, y, rows, random_state, options)

    def _arviz_groups(self, X, y, rows, n_draws, random_state):
        return draws_of(self, X, y, rows, n_draws, random_state)

    def _arviz_labels(self, posterior):
        """Dimensions of variables by name, and coordinates by dimension."""
        return {}, {}

    def _bound_evidence(self, target, generator, **options):
        """Bound the evidence of a target, after the check that it is the fit's."""
        return bound_evidence(target, self.posterior_, generator, **options)

    def _checkpoint_file(
        self, target: Any, problem: Problem, before: dict[str, Any]
    ) -> CheckpointFile | None:
        """File in which the fit saves its state; None for none."""
        return None

    def _first_phase(self, problem: Problem) -> tuple[Problem, SolverOptions] | None:
        """Problem solved first by stochastic gradients, for a better start, or None."""
        return None

    def _device_work(self, target: Any) -> float:
        """Multiply-adds of a pass over the data, for the choice of a device."""
        return 0.0

    def _warn(self, message: str, category: type[Warning]) -> None:
        if message:
            text = f"{type(self).__name__}: {message}."
            warn_user(text, category)

    def _check_posterior(self, posterior: Posterior) -> None:
        """Raise if this estimator cannot predict from such a posterior."""
        if isinstance(posterior, Unsolved):
            raise IncompatibleComponentsError(
                f"posterior={self.posterior_family_!r}",
                "a linear regression with conjugate priors",
                "posterior='full_rank' or 'mean_field'",
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

    def _checked(self, problem: Problem, solution: Solution) -> Solution:
        """The solution, or a better one that its training missed."""
        return solution

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

    def _judge_fit(self, target: Any) -> tuple[dict[str, float | None], str, str]:
        """Compare with a constant: numbers, and messages if the fit is no better.

        The first is given however the fit ended, the second if it converged. Empty for
        models whose constant fits are usually right.
        """
        return {}, "", ""

    def _input_remedy(self, target: Any) -> str:
        """Remedy that concerns the features, to append to a message; empty if none."""
        return ""
