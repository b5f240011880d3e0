"""Variational inference for a log density of one's own."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, cast

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from skvi._estimator._base import NOTHING
from skvi._estimator._evidence import cut_short, what_failed
from skvi._estimator._fitting import continued, refine
from skvi._estimator._parts import DIVERGENCES, OBJECTIVES, POSTERIORS, resolve
from skvi._estimator._progress import EvidenceProgress
from skvi.base import NormalForm
from skvi.divergences import Divergence
from skvi.evidence import EvidenceBounds
from skvi.evidence._bounds import bound_evidence
from skvi.evidence._changes import (
    Changes,
    balanced_draws,
    draws_for,
    modes_of,
    other_modes,
)
from skvi.evidence._summarize import lower_bound, upper_elbo
from skvi.inference._beginning import (
    begin_near,
    each_draw,
    few_rows,
    find_center,
    pose,
    regularized,
    solve_rows,
    some_points,
    stochastic,
)
from skvi.linear_model._summary import CoefficientTable
from skvi.objectives import ELBO
from skvi.objectives.base import Objective
from skvi.posteriors import Family, Posterior
from skvi.posteriors._normal import NormalPosterior
from skvi.posteriors._product import CategoricalPosterior
from skvi.priors import Prior
from skvi.solvers import Problem, Solver, SolverOptions, Stochastic
from skvi.solvers._choice import choose_solver
from skvi.solvers._fixed_draws import FixedDraws
from skvi.solvers._paths import MAX_DENSE, Start
from skvi.solvers._solution import PhaseInterrupted, Solution, State
from skvi.targets._density import DensityTarget, RowsDensityTarget
from skvi.targets._density_checks import (
    check_density,
    explain_ridge,
    lost_digits,
)
from skvi.utils._arviz import as_tree
from skvi.utils._interrupts import raising_interrupts
from skvi.utils._links import page_template
from skvi.utils._tensors import make_generator
from skvi.utils._validation import (
    Interval,
    StrOptions,
    _fit_context,
    elements,
    interval_levels,
    validate_parameters,
    warn_user,
)

# Draws behind means, deviations and diagnostics.
N_DRAWS = 4000
# Times `tol` that a round of stochastic steps must gain.
NOISY = 100
# What the Pareto k of a summary is about.
KHAT = "khat of density / posterior"
# Draws of the final ELBO of families that are not normal.
N_FINAL = 2**14


class VariationalInference(BaseEstimator):
    """Posterior of any model whose log density can be written down.

    Finds the distribution of a family that is closest to the posterior, in coordinates
    without limits: with a normal one a positive parameter is log-normal, for example.
    It starts at modes and curvatures along paths from several random points, so that
    units and correlations do not matter, and maximizes the evidence lower bound (ELBO).

    Parameters
    ----------
    log_density : callable
        ``log_density(parameters)``, or ``log_density(parameters, data)`` if `fit` gets
        data: the log of the joint density of parameters and data, up to a constant.
        `parameters` is a dict of tensors of shape ``(n_draws, *shape)`` on their
        supports, float64 unless they are indices; the result has shape
        ``(n_draws,)``. Jacobians of supports are added here. Where torch cannot
        differentiate it, as with numpy, gradients are central differences, which take
        two evaluations for each parameter; ``objective=ELBO("score")`` needs none, also
        for a density with steps. A dict of factors, whose keys name the parameters that
        each depends on ("mu", or "mu, sigma"), is their sum; ``ELBO("score",
        rao_blackwell=True)`` rewards a parameter by its own factors only.
    shapes : dict of str to tuple of int
        Names and shapes of the parameters; ``()`` is a number.
    supports : dict of str to str, constraint or transform, default=None
        Where parameters live, if they are not "real": "positive", "unit_interval",
        "simplex", "ordered" or "positive_ordered" (the last axis increases),
        "unit_vector", "lower_cholesky", "positive_definite", "corr_cholesky",
        "corr_matrix", a constraint of ``torch.distributions.constraints``, or a
        bijective torch transform. Discrete ones are "boolean" (0.0 and 1.0, as
        float64) or ``constraints.integer_interval(low, high)`` (int64, such as
        indices).
    start : dict of str to array-like, default=None
        Values of all parameters that are not discrete, each of its shape, where the
        first path begins; others begin around it, in place of 0.
    vectorize : bool, default=False
        Whether `log_density` and `prior` are of one draw: parameters have their
        `shapes`, without an axis of draws, and the result is a number;
        `torch.func.vmap` calls them.
    prior : callable, Prior, Posterior or dict of str to Prior, default=None
        What is added to `log_density`: ``prior(parameters)``, a log density; an object
        of `skvi.priors` for parameters that are "real", or one for each of them; the
        `posterior_` of an earlier fit. None, if `log_density` contains it.
    batch_size : int, default=None
        Rows of the data of `fit` in a gradient step. ``log_density(parameters, rows)``
        is then the log likelihood of some rows, the sum of those of each, and
        `prior` has all that does not depend on data. Data are a tensor, or a tuple,
        list or dict of them, with rows on the first axis of each. None takes all rows,
        as diagnostics and bounds do in any case.
    posterior : str or Family, default="full_rank"
        "full_rank" is a normal with all correlations, "mean_field" one with none (for
        thousands of parameters), "flow" a normal that is bent by a network, for
        funnels, skewness and curved dependencies: more accurate, in 5 to 40 s instead
        of 1. "mixture" is one of normals, placed at all modes that the starts find.
        Other families are objects of `skvi.posteriors`, or their names:
        ``Product({"rate": Gamma(), "mu, sigma": FullRankNormal()})`` has independent
        factors. Each discrete parameter has a factor of its own in any case.
    objective : str or Objective, default="elbo"
        What the fit optimizes: "elbo", or for heavier tails and other bounds "eubo",
        "renyi", "iwelbo", "chi". `lower_bound_` is the ELBO in any case.
    divergence : str or Divergence, default="kl"
        Generalized inference minimizes ``E_q[loss] + D(q || prior)``, where the loss is
        minus `log_density`, whatever it is, and `prior` is given. ``KLDivergence(w)``
        is the ELBO of ``log_density / w``; for others, such as "renyi", weights are no
        diagnostics, and those in `diagnostics_` are None. Bounds remain those of the
        log of the integral of ``exp(log_density)`` under the prior.
    solver : "auto" or Solver, default="auto"
        "auto" is a deterministic quasi-Newton method on many fixed draws for normals
        and the ELBO; else, and where the objective names a gradient, stochastic
        gradients, which ``Stochastic(n_draws=..., learning_rate=...)`` controls.
    max_iter : int, default=1000
        Maximum number of iterations: quasi-Newton steps, or sweeps of 100 gradient
        steps.
    tol : float, default=1e-4
        Nats that a further step promises when a fit ends; where steps are stochastic,
        as noisy as they are, a hundred times that, in a round as long as all before.
    warm_start : bool, default=False
        Whether to start where the last fit ended, such as with more data.
    random_state : int, RandomState instance or None, default=None
        For starts and draws.
    verbose : int, default=0
        Whether to print progress.

    Attributes
    ----------
    mean_, std_ : dict of str to ndarray
        Posterior means and standard deviations on the supports, from 4000 draws
        with the exact mean and covariance in unconstrained coordinates.
    probabilities_ : dict of str to ndarray
        Of the values of discrete parameters, each of shape ``(*shape, K)``.
    lower_bound_ : float
        ELBO in nats, a lower bound on the log of the integral of the density: the log
        evidence, if `log_density` has all constants.
    lower_bound_se_ : float
        Its standard error, from draws that the fit has not seen.
    converged_ : bool
        Whether the fit ended by `tol`, and importance weights do not contradict it.
    diagnostics_ : dict
        Of 4000 draws, weighted by density over posterior. "mean_change",
        "std_change": largest change by the weights of a mean, in standard deviations
        (of the probability of a discrete value, in halves), and of the log of a
        standard deviation, each less three of its standard errors; above 0.15 the fit
        warns. On eleven published posteriors,
        and both families, these told the fits that were off. "khat": Pareto k of the
        weights. "efficiency": effective fraction of draws. "message": why a fit did
        not converge. "ending": how; after Ctrl-C the first four are None.
        "elbo_upper", with "elbo_upper_se": bound of the ELBO from above, of families
        whose `lower_bound_` is one from below.
    n_iter_ : int
    posterior_ : Posterior
        Over unconstrained coordinates.

    Examples
    --------
    >>> import torch
    >>> from torch.distributions import HalfNormal, Normal
    >>> from skvi.inference import VariationalInference
    >>> y = torch.linspace(2.0, 4.0, 20, dtype=torch.float64)
    >>> def log_density(p):
    ...     prior = Normal(0.0, 10.0).log_prob(p["mu"])
    ...     prior = prior + HalfNormal(5.0).log_prob(p["sigma"])
    ...     return prior + Normal(p["mu"], p["sigma"]).log_prob(y[:, None]).sum(0)
    >>> vi = VariationalInference(
    ...     log_density, {"mu": (), "sigma": ()}, {"sigma": "positive"}, random_state=0
    ... ).fit()
    >>> round(float(vi.mean_["mu"]), 1), vi.converged_
    (3.0, True)
    >>> vi.sample_posterior(100)["sigma"].shape
    (100,)
    """

    _parameter_constraints: dict = {
        "log_density": [callable],
        "shapes": [dict],
        "supports": [dict, None],
        "start": [dict, None],
        "vectorize": ["boolean"],
        "prior": [callable, Prior, Posterior, dict, None],
        "batch_size": [Interval(Integral, 1, None, closed="left"), None],
        "posterior": [StrOptions(set(POSTERIORS)), Family],
        "objective": [StrOptions(set(OBJECTIVES)), Objective],
        "divergence": [StrOptions(set(DIVERGENCES)), Divergence],
        "solver": [StrOptions({"auto"}), Solver],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="neither")],
        "warm_start": ["boolean"],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }
    _validate_params = validate_parameters
    _doc_link_module = "skvi"
    _doc_link_template = property(page_template)

    def __init__(
        self,
        log_density: Callable,
        shapes: Mapping[str, Any],
        supports: Mapping[str, Any] | None = None,
        *,
        start: Mapping[str, Any] | None = None,
        vectorize: bool = False,
        prior: Any = None,
        batch_size: int | None = None,
        posterior: str | Family = "full_rank",
        objective: str | Objective = "elbo",
        divergence: str | Divergence = "kl",
        solver: str | Solver = "auto",
        max_iter: int = 1000,
        tol: float = 1e-4,
        warm_start: bool = False,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.log_density, self.shapes, self.supports = log_density, shapes, supports
        self.start, self.vectorize = start, vectorize
        self.prior, self.batch_size = prior, batch_size
        self.posterior, self.objective, self.solver = posterior, objective, solver
        self.divergence = divergence
        self.max_iter, self.tol, self.warm_start = max_iter, tol, warm_start
        self.random_state, self.verbose = random_state, verbose

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, data: Any = None) -> "VariationalInference":
        """Find the distribution of the family that is closest to the posterior.

        Parameters
        ----------
        data : object, default=None
            Second argument of `log_density`, if given: a tensor, or a dict of them;
            with `batch_size` its rows.

        Returns
        -------
        VariationalInference
            Itself.

        Raises
        ------
        ValueError
            `log_density` does not return one number a draw, treats draws together,
            or is not finite anywhere near the start; it has `batch_size` and is not
            differentiable by torch; data have no
            rows for `batch_size`, or fewer, or their log likelihood is not a sum.
        IncompatibleComponentsError
            Objective, family or solver do not go together.
        KeyboardInterrupt
            On Ctrl-C: the attributes are those of the best posterior so far, unless
            there is none yet.
        """
        target = self._make_target(data)
        generator = make_generator(self.random_state)
        family, objective, divergence = (
            resolve(name, getattr(self, name))
            for name in ("posterior", "objective", "divergence")
        )
        problem = pose(target, family, objective, generator)
        center = find_center(target, self.start)
        with raising_interrupts(NOTHING):
            check_density(target, some_points(problem.posterior, generator), center)
            problem = regularized(problem, divergence)
            starts: list[Start] = []
            try:
                solution = refine(problem, self._solve(problem, starts, center))
            except KeyboardInterrupt as stop:
                solution = _best_start(problem, starts, stop)
            of_model = replace(solution, state=State(solution.posterior, target))
            self._set(of_model, problem, starts, generator)
        return self

    def _make_target(self, data: Any) -> DensityTarget:
        """The target of the density of all draws, or of each, or of rows."""
        given = () if data is None else (data,)
        density, prior = self.log_density, self.prior
        if self.vectorize:
            density = each_draw(density)
            prior = each_draw(prior) if callable(prior) else prior
        what = density, self.shapes, self.supports
        if self.batch_size is None:
            return DensityTarget(*what, given, prior)
        target = RowsDensityTarget(*what, data, prior)
        if self.batch_size > target.n_rows:
            raise ValueError(
                f"batch_size={self.batch_size} must be at most the number of rows of "
                f"the data, {target.n_rows}. Use None for all rows."
            )
        return target

    def _solve(
        self, problem: Problem, starts: list[Start], center: torch.Tensor | None
    ) -> Solution:
        """From the last fit, or from the ends of several paths, added to `starts`."""
        last = getattr(self, "posterior_", None) if self.warm_start else None
        posterior, objective = problem.posterior, problem.objective
        is_direct = (
            self.solver == "auto"
            and isinstance(objective, ELBO)
            and objective.gradient == "auto"
            and isinstance(posterior, NormalPosterior)
            and not _has_wide_factor(posterior)
            and problem.divergence.has_closed_form(problem.target.reference)
        )
        if last is not None and last.layout == posterior.layout:
            posterior = continued(posterior, last.unrefined)
        else:
            options = self._options(ELBO())
            first = problem
            if self.batch_size:
                first = few_rows(problem, self.batch_size)
            parts = first, options, is_direct, self._print, starts, center
            posterior = begin_near(*parts)
        problem = replace(problem, posterior=posterior)
        options = replace(self._options(problem.objective), warm_start=True)
        if self.batch_size:
            solver = stochastic(problem, self.solver, self.batch_size)
            family = resolve("posterior", self.posterior)
            options = replace(options, tol=NOISY * self.tol)
            return solve_rows(problem, family, solver, options)
        solver = FixedDraws() if is_direct else choose_solver(problem, self.solver)
        if isinstance(solver, Stochastic):
            options = replace(options, tol=NOISY * self.tol)
        return solver.solve(problem, options)

    def _options(self, objective: Objective) -> SolverOptions:
        sign = 1 if objective.direction == "upper" else -1

        def report(value: float, state: Callable) -> bool:
            self._print(f"{type(objective).__name__} {sign * value:.4f} nats")
            return False

        return SolverOptions(max_iter=self.max_iter, tol=self.tol, progress=report)

    def _print(self, text: str) -> None:
        if self.verbose:
            print(f"[VariationalInference] {text}", flush=True)  # noqa: T201

    @torch.no_grad()
    def _set(
        self,
        solution: Solution,
        problem: Problem,
        starts: list[Start],
        generator: torch.Generator,
    ) -> None:
        """Set the attributes, after Ctrl-C without the slow ones, and raise then."""
        found = None
        if not solution.interrupted:
            try:
                found = self._judged(solution, problem, starts, generator)
            except KeyboardInterrupt:
                solution = solution.cut_short()
        if found is None:
            bound = lower_bound(solution.target, solution.posterior, generator)
            theta = solution.posterior.draw(N_DRAWS, generator).theta
            found = self._attributes(solution, theta, bound, solution.message)
        last = getattr(self, "_modes", []) if self.warm_start else []
        modes = modes_of(starts, starts[0].normal) if starts else last
        # The only mode of some rows is not that of all.
        found["_modes"] = [] if self.batch_size and len(modes) == 1 else modes
        vars(self).update(found)  # at once: fitted, or not at all
        if solution.interrupted:
            raise KeyboardInterrupt(solution.message)
        if message := self.diagnostics_["message"]:
            warn_user(f"VariationalInference: {message}.", ConvergenceWarning)

    def _mode(
        self, starts: list[Start], normal: NormalForm, value: float
    ) -> tuple[NormalForm, float]:
        """With what starts are compared: where these had some rows, the best one."""
        if self.batch_size and starts:
            return starts[0].normal, starts[0].value
        return normal, value

    def _judged(
        self,
        solution: Solution,
        problem: Problem,
        starts: list[Start],
        generator: torch.Generator,
    ) -> dict[str, Any]:
        """Attributes of a finished fit, with what cannot be trusted."""
        posterior, target = solution.posterior, cast(DensityTarget, solution.target)
        bound = -solution.value, solution.value_se
        n_final = draws_for(target) if target.n_rows else N_FINAL
        is_standard = problem.target is target
        if solution.solver != FixedDraws.name or posterior.n_stored or not is_standard:
            bound = lower_bound(target, posterior, generator, n_final)
        if problem.divergence.kl_weight != 1:
            at = replace(solution, state=State(posterior, problem.target))
            message = what_failed(problem, at) or solution.message
            theta = balanced_draws(posterior, draws_for(target), generator)
            return self._attributes(solution, theta, bound, message)
        value = -bound[0] if is_standard else solution.value
        fitted = cast(DensityTarget, problem.target)  # the likelihood has a power
        changes = Changes.of(fitted, posterior, generator)
        message = (
            lost_digits(target, changes.theta)
            or solution.message
            or other_modes(starts, *self._mode(starts, changes.normal, value))
            or changes.message(posterior)
        )
        if message and (
            ridge := explain_ridge(fitted, changes.normal, changes.theta[0])
        ):
            message = f"{message}. But {ridge}"
        found = self._attributes(solution, changes.theta, bound, message)
        found["diagnostics_"] |= {
            "mean_change": changes.mean,
            "std_change": changes.std,
            "khat": changes.khat,
            "efficiency": changes.efficiency,
            **upper_elbo(target, posterior, generator, n_final),
        }
        return found

    @staticmethod
    def _attributes(
        solution: Solution, theta: torch.Tensor, bound: Sequence[float], message: str
    ) -> dict[str, Any]:
        """Fitted attributes by name."""
        posterior, target = solution.posterior, cast(DensityTarget, solution.target)
        values, _ = target.constrain(theta)
        return {
            "mean_": {k: v.double().mean(0).numpy() for k, v in values.items()},
            "std_": {
                k: v.double().std(0).nan_to_num(math.inf).numpy()
                for k, v in values.items()
            },
            "probabilities_": {
                name: table.numpy()
                for part in posterior.parts.values()
                if isinstance(part, CategoricalPosterior)
                for name, table in part.probabilities().items()
            },
            "posterior_": posterior,
            "_target": target,
            "lower_bound_": bound[0],
            "lower_bound_se_": bound[1],
            "n_iter_": solution.n_iter,
            "converged_": not message,
            "diagnostics_": {
                **dict.fromkeys(("mean_change", "std_change", "khat", "efficiency")),
                "message": message,
                "solver": solution.solver,
                "ending": solution.ending.value,
            },
        }

    @torch.no_grad()
    def sample_posterior(
        self, n_draws: int = 1000, random_state: Any = None
    ) -> dict[str, np.ndarray]:
        """Draw from the fitted posterior.

        Parameters
        ----------
        n_draws : int, default=1000
        random_state : int, RandomState instance or None, default=None

        Returns
        -------
        dict of str to ndarray
            On the supports, each of shape ``(n_draws, *shape)``.
        """
        check_is_fitted(self)
        draw = self.posterior_.draw(n_draws, make_generator(random_state))
        values, _ = self._target.constrain(draw.theta)
        return {name: value.numpy() for name, value in values.items()}

    @torch.no_grad()
    def log_prob(self, parameters: Mapping[str, Any]) -> np.ndarray:
        """Log density of the fitted posterior.

        Parameters
        ----------
        parameters : dict of str to array-like
            All of them, on their supports, each of shape ``(n, *shape)``.

        Returns
        -------
        ndarray of shape (n,)
            In nats.
        """
        check_is_fitted(self)
        if missing := sorted(set(self.shapes) - set(parameters)):
            raise ValueError(
                f"parameters must name all of {sorted(self.shapes)}. "
                f"Missing: {missing}."
            )
        values = {
            name: torch.as_tensor(np.asarray(parameters[name], dtype=np.float64))
            for name in self.shapes
        }
        theta = self._target.unconstrain(values)
        _, log_jacobian = self._target.constrain(theta)
        return (self.posterior_.log_prob(theta) - log_jacobian).numpy()

    def summary(self, coverage: float = 0.9) -> CoefficientTable:
        """Means, standard deviations and central intervals of all parameters.

        Parameters
        ----------
        coverage : float, default=0.9

        Returns
        -------
        CoefficientTable
            Prints as a table; ``to_dict`` and ``to_frame`` give its columns. Means and
            standard deviations are `mean_` and `std_`, intervals are of 4000 draws.
        """
        ends = interval_levels("summary", coverage)
        draws = self.sample_posterior(N_DRAWS, 0)
        names, values = elements(draws)
        lower, upper = np.quantile(values, ends, axis=0)
        numbers = {"lower_bound_": self.lower_bound_, **self.diagnostics_}
        numbers[KHAT] = numbers.pop("khat")
        mean, std = (
            elements({k: v[None] for k, v in found.items()})[1][0]
            for found in (self.mean_, self.std_)
        )
        return CoefficientTable(
            names=tuple(names),
            groups=(),
            group_name="",
            mean=mean,
            std=std,
            lower=lower,
            upper=upper,
            coverage=coverage,
            title=type(self).__name__,
            numbers={k: v for k, v in numbers.items() if isinstance(v, float)},
        )

    def to_arviz(self, n_draws: int = 1000, random_state: Any = None) -> Any:
        """Draws of the posterior for the plots and tables of ArviZ.

        Parameters
        ----------
        n_draws : int, default=1000
        random_state : int, RandomState instance or None, default=None

        Returns
        -------
        xarray.DataTree
            "posterior": draws on the supports, which are four chains if `n_draws` is a
            multiple of four. "sample_stats": "log_p", the log density, and "log_q",
            that of the fitted posterior, both in coordinates without limits.

        Raises
        ------
        ImportError
            arviz-base is not installed.
        """
        check_is_fitted(self)
        with torch.no_grad():
            draw = self.posterior_.draw(n_draws, make_generator(random_state))
            values, _ = self._target.constrain(draw.theta)
            log_p = self._target.log_joint_batched(draw.theta)
        logs = {"log_p": log_p.numpy(), "log_q": draw.log_q.numpy()}
        posterior = {name: value.numpy() for name, value in values.items()}
        return as_tree({"posterior": posterior, "sample_stats": logs})

    def evidence_bounds(
        self,
        *,
        n_draws: int | None = None,
        precision: float | None = None,
        max_seconds: float | None = None,
        random_state: Any = None,
    ) -> EvidenceBounds:
        """Bound the log of the integral of the density from below and above.

        Parameters
        ----------
        n_draws : int, default=None
            Draws on each side. None is as many as `precision` needs.
        precision : float, default=None
            Target distance of each bound, in nats; None is 0.03.
        max_seconds : float, default=None
            Approximate time limit.
        random_state : int, RandomState instance or None, default=None

        Returns
        -------
        EvidenceBounds
            In nats. It is the log evidence if `log_density` has all constants of prior
            and likelihood.
        """
        check_is_fitted(self)
        generator = make_generator(random_state)
        found = bound_evidence(
            self._target,
            self.posterior_,
            generator,
            n_draws,
            precision,
            "log normalizer",
            report=EvidenceProgress(self),
            max_seconds=max_seconds,
            modes=self._modes,
        )
        with torch.no_grad():
            theta = self.posterior_.draw(N_DRAWS, generator).theta
        lost = lost_digits(self._target, theta)
        return replace(found, reliable=False, reason=lost) if lost else found


def _has_wide_factor(posterior: NormalPosterior) -> bool:
    """Whether it is of low rank, with more parameters than have a dense start."""
    has_factor = posterior.as_normal().factor is not None
    return has_factor and posterior.layout.size > MAX_DENSE


def _best_start(
    problem: Problem, starts: list[Start], stop: KeyboardInterrupt
) -> Solution:
    """After Ctrl-C: near the best normal so far; raise again if there is none."""
    if isinstance(stop, PhaseInterrupted):
        normal = cast(NormalForm, stop.state.posterior.as_normal())
    elif starts:
        starts.sort(key=lambda start: start.value)
        normal = starts[0].normal
    else:
        raise stop
    near = State(problem.posterior.near(normal), problem.target)
    return cut_short(problem.at(near), FixedDraws())
