"""Variational inference for a log density of one's own."""

from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from skvi._progress import EvidenceProgress
from skvi.divergences import KL
from skvi.evidence import EvidenceBounds, bound_evidence
from skvi.inference._changes import Changes, other_modes
from skvi.inference._density import DensityTarget
from skvi.inference._start import Start, find_starts
from skvi.linear_model import CoefficientTable
from skvi.objectives import ELBO
from skvi.posteriors import FullRankNormal, MeanFieldNormal
from skvi.solvers import Problem, Solution, SolverOptions
from skvi.solvers._fixed_draws import FixedDraws, balanced_noise
from skvi.utils._interrupts import raising_interrupts
from skvi.utils._random import make_generator, randn
from skvi.utils._validation import (
    Interval,
    StrOptions,
    _fit_context,
    interval_levels,
)
from skvi.utils._warnings import warn_user

__all__ = ["VariationalInference"]

FAMILIES = {"full_rank": FullRankNormal, "mean_field": MeanFieldNormal}
# Draws behind means, deviations and diagnostics.
N_DRAWS = 4000


class VariationalInference(BaseEstimator):
    """Posterior of any model whose log density can be written with torch.

    Finds the normal distribution that is closest to the posterior, in coordinates
    without limits: a positive parameter is then log-normal, for example. It starts at
    modes and curvatures along paths from several random points, so that units and
    correlations do not matter, and maximizes the evidence lower bound (ELBO).

    Parameters
    ----------
    log_density : callable
        ``log_density(parameters)``, or ``log_density(parameters, data)`` if `fit` gets
        data: the log of the joint density of parameters and data, up to a constant.
        `parameters` is a dict of float64 tensors of shape ``(n_draws, *shape)`` on
        their supports; the result has shape ``(n_draws,)``. Jacobians of supports are
        added here.
    shapes : dict of str to tuple of int
        Names and shapes of the parameters; ``()`` is a number.
    supports : dict of str to str, constraint or transform, default=None
        Where parameters live, if they are not "real": "positive", "unit_interval",
        "simplex", "ordered" or "positive_ordered" (the last axis increases), a
        constraint of ``torch.distributions.constraints``, or a bijective torch
        transform.
    posterior : {"full_rank", "mean_field"}, default="full_rank"
        A normal with all correlations, or with none (for thousands of parameters).
    max_iter : int, default=1000
        Maximum number of quasi-Newton steps.
    tol : float, default=1e-4
        Nats that a further step promises when a fit ends.
    random_state : int, RandomState instance or None, default=None
        For starts and draws.
    verbose : int, default=0
        Whether to print progress.

    Attributes
    ----------
    mean_, std_ : dict of str to ndarray
        Posterior means and standard deviations on the supports, from 4000 draws
        with the exact mean and covariance in unconstrained coordinates.
    lower_bound_ : float
        ELBO in nats, a lower bound on the log of the integral of the density: the log
        evidence, if `log_density` has all constants.
    lower_bound_se_ : float
        Its standard error, from draws that the fit has not seen.
    converged_ : bool
        Whether the fit ended by `tol`, and importance weights do not contradict it.
    diagnostics_ : dict
        Of 4000 draws, weighted by density over posterior. "mean_change",
        "std_change": largest change by the weights of a mean, in standard deviations,
        and of the log of a standard deviation; above
        0.15 the fit warns. On eleven published posteriors, and both families, these
        told the fits that were off. "khat": Pareto k of the weights. "efficiency":
        effective fraction of draws. "message": why a fit did not converge.
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
        "posterior": [StrOptions(set(FAMILIES))],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="neither")],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        log_density: Callable,
        shapes: Mapping[str, Any],
        supports: Mapping[str, Any] | None = None,
        *,
        posterior: str = "full_rank",
        max_iter: int = 1000,
        tol: float = 1e-4,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.log_density, self.shapes, self.supports = log_density, shapes, supports
        self.posterior, self.max_iter, self.tol = posterior, max_iter, tol
        self.random_state, self.verbose = random_state, verbose

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, data: Any = None) -> "VariationalInference":
        """Find the normal closest to the posterior.

        Parameters
        ----------
        data : object, default=None
            Second argument of `log_density`, if given: a tensor, or a dict of them.

        Returns
        -------
        VariationalInference
            Itself.

        Raises
        ------
        ValueError
            `log_density` does not return one differentiable number a draw, treats
            draws together, or is not finite anywhere near the start.
        """
        given = () if data is None else (data,)
        target = DensityTarget(self.log_density, self.shapes, self.supports, given)
        generator = make_generator(self.random_state)
        with raising_interrupts():
            target.check(randn(generator, 3, target.layout.size))
            family = FAMILIES[self.posterior]()
            starts = find_starts(target, generator)
            start = family.build(target.layout).near(starts[0].normal)
            problem = Problem(target, ELBO(), KL(), start, generator)
            options = SolverOptions(
                max_iter=self.max_iter, tol=self.tol, progress=self._report
            )
            solution = FixedDraws().solve(problem, options)
            self._set(target, solution, starts, generator)
        return self

    def _report(self, value: float, state: Callable) -> bool:
        if self.verbose:
            print(f"[VariationalInference] ELBO {-value:.4f} nats", flush=True)  # noqa: T201
        return False

    @torch.no_grad()
    def _set(
        self,
        target: DensityTarget,
        solution: Solution,
        starts: list[Start],
        generator: torch.Generator,
    ) -> None:
        """Set the attributes, and warn of what cannot be trusted."""
        normal = solution.posterior.as_normal()
        changes = Changes.of(target, normal, generator)
        n_draws = max(N_DRAWS, 4 * normal.size)
        eps = balanced_noise(generator, n_draws, normal.size, normal.is_diagonal)
        values, _ = target.constrain(normal.transform(eps))
        message = (
            solution.message
            or other_modes(starts, normal, solution.value)
            or changes.message(self.posterior)
        )
        self.mean_ = {k: v.mean(0).numpy() for k, v in values.items()}
        self.std_ = {k: v.std(0).numpy() for k, v in values.items()}
        self.posterior_, self._target = solution.posterior, target
        self.lower_bound_, self.lower_bound_se_ = -solution.value, solution.value_se
        self.n_iter_, self.converged_ = solution.n_iter, not message
        self.diagnostics_ = {
            "mean_change": changes.mean,
            "std_change": changes.std,
            "khat": changes.khat,
            "efficiency": changes.efficiency,
            "message": message,
            "solver": solution.solver,
        }
        if message:
            warn_user(f"VariationalInference: {message}.", ConvergenceWarning)

    @torch.no_grad()
    def sample_posterior(
        self, n_samples: int = 1000, random_state: Any = None
    ) -> dict[str, np.ndarray]:
        """Draw from the fitted posterior.

        Parameters
        ----------
        n_samples : int, default=1000
        random_state : int, RandomState instance or None, default=None

        Returns
        -------
        dict of str to ndarray
            On the supports, each of shape ``(n_samples, *shape)``.
        """
        check_is_fitted(self)
        draw = self.posterior_.draw(n_samples, make_generator(random_state))
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
            Prints as a table; ``to_dict`` and ``to_frame`` give its columns.
        """
        ends = interval_levels("summary", coverage)
        draws = self.sample_posterior(N_DRAWS, 0)
        columns = {name: _columns(name, draw) for name, draw in draws.items()}
        names = [label for labels, _ in columns.values() for label in labels]
        values = np.concatenate([value for _, value in columns.values()], 1)
        lower, upper = np.quantile(values, ends, axis=0)
        numbers = {"lower_bound_": self.lower_bound_, **self.diagnostics_}
        return CoefficientTable(
            names=tuple(names),
            groups=(),
            group_name="",
            mean=values.mean(0),
            std=values.std(0, ddof=1),
            lower=lower,
            upper=upper,
            coverage=coverage,
            title=type(self).__name__,
            numbers={k: v for k, v in numbers.items() if isinstance(v, float)},
        )

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
        return bound_evidence(
            self._target,
            self.posterior_,
            make_generator(random_state),
            n_draws,
            precision,
            "log normalizer",
            report=EvidenceProgress(self),
            max_seconds=max_seconds,
        )


def _columns(name: str, draws: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Names of the elements of a parameter, and draws of them, (n, k)."""
    places = [list(map(str, index)) for index in np.ndindex(draws.shape[1:])]
    labels = [f"{name}[{','.join(p)}]" if p else name for p in places]
    return labels, draws.reshape(len(draws), -1)
