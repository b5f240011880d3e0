"""Base class of sparse Gaussian processes: kernel, inducing points, the fit."""

from __future__ import annotations  # short types in help()

import math
from dataclasses import replace
from numbers import Integral
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.gaussian_process.kernels import ConstantKernel, Kernel, Matern
from sklearn.utils import check_random_state

from skvi._estimator._base import BaseVariational
from skvi._estimator._progress import write_line
from skvi.divergences import KLDivergence
from skvi.evidence._bounds import bound_evidence
from skvi.evidence._result import FROM_TARGET
from skvi.evidence._summarize import lower_bound, without_bounds
from skvi.evidence._table import OVER_LEARNED
from skvi.exceptions import IncompatibleComponentsError
from skvi.gaussian_process._bounds import (
    Collapsed,
    Fitted,
    dimension_scaled_prior,
    uniform_prior,
)
from skvi.gaussian_process._collapsed import NormalRows
from skvi.gaussian_process._evidence import evidence_of_process
from skvi.gaussian_process._features import NEGLIGIBLE, InducingFeatures
from skvi.gaussian_process._laplace import row_over_learned
from skvi.gaussian_process._minibatches import Minibatches
from skvi.gaussian_process._model import Functions, InducingModel
from skvi.gaussian_process._search import Place, Search, spread_points
from skvi.kernels._kernels import check_kernel
from skvi.predictors._inducing import InducingPredictor
from skvi.priors._blocks import build_prior
from skvi.targets._blocks import BlockRows
from skvi.utils._interrupts import limit_threads, with_callbacks
from skvi.utils._validation import (
    Interval,
    StrOptions,
    _fit_context,
    as_tensor,
    check_array,
)

# Rows up to which each is an inducing point, and inducing points beyond.
ALL_ROWS, N_INDUCING = 1500, 500
# The same where every evaluation is a fit: for other likelihoods and losses.
FEW_ROWS, FEW_INDUCING, LEAST_INDUCING = 500, 200, 50
# Rows of the fit at which a larger one starts; largest number of rows by which kernel
# and inducing points are chosen: the fit of the inducing values goes through all.
START_ROWS, SEARCH_ROWS = 1000, 10_000
# Iterations of the search that only has to come near.
FEW_ITER = 30
# Variance of f beside the inducing values, relative to theirs, that changes nothing.
DETERMINED = 1e-9
NOT_ALL = (
    "{} inducing points do not determine the function at {} rows, so that draws of "
    "them have no upper bound; n_inducing=n_samples has one, for some hundred rows"
)
SEARCHES = "searches for the kernel of {} rows"
# Start of the length scales in units of the columns and of the root of their number;
# limits, in the first of these, and for the variance of f.
START_LENGTH, LENGTHS, VARIANCES = 0.7, (0.05, 1e3), (1e-2, 1e3)


class SparseGaussianProcess(BaseVariational):
    """Base class: one or more processes of a kernel, seen through inducing points.

    A subclass implements `_likelihood`, with start and limits of what it learns.
    """

    objective, posterior, prior = "elbo", "full_rank", "normal"
    intercept_prior, fit_intercept, warm_start = None, False, False
    n_jobs, solver, _has_shared_kernel = None, "auto", False
    _evidence_methods = frozenset({"auto", "exact", "importance", "tempering"})

    _parameter_constraints: dict = {
        **BaseVariational._parameter_constraints,
        "kernel": [Kernel, None],
        "optimizer": [StrOptions({"fmin_l_bfgs_b"}), callable, None],
        "n_restarts_optimizer": [Interval(Integral, 0, None, closed="left")],
        "n_inducing": [
            Interval(Integral, 1, None, closed="left"),
            StrOptions({"auto"}),
        ],
        "inducing": [StrOptions({"kmeans"}), "array-like"],
        "kernel_prior": [StrOptions({"auto"}), None],
        "batch_size": [Interval(Integral, 1, None, closed="left"), None],
    }

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> Self:
        """Find kernel and inducing points, and fit the posterior.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            In any units: length scales are relative to the columns.
        y : array-like of shape (n_samples,)
        sample_weight : array-like of shape (n_samples,), default=None
            Nonnegative; a row with weight 2 counts twice.

        Returns
        -------
        self

        Raises
        ------
        IncompatibleComponentsError
            The components cannot be combined; raised before any training.
        KeyboardInterrupt
            On Ctrl-C. The best kernel so far is kept, if there is one, with all
            attributes; otherwise the estimator is not fitted.
        """
        return self._fit(X, y, sample_weight)

    def _choose_parts(self, X, y, sample_weight, rows):
        """Nothing is chosen by held-out rows; refuse what asks for that."""
        if getattr(self.divergence, "weight", None) == "auto":
            raise IncompatibleComponentsError(
                f"divergence={self.divergence!r}",
                "a linear model or a network, which hold rows out to choose it",
                "a number, KLDivergence(0.5)",
            )

    @property
    def _search_rows(self):
        """Rows of a gradient step by which the kernel is found; None for all."""
        if self.batch_size is not None and not isinstance(self.optimizer, str):
            raise IncompatibleComponentsError(
                f"batch_size={self.batch_size}",
                "the steps of optimizer='fmin_l_bfgs_b'",
                "batch_size=None, which has the features in blocks where rows are many",
            )
        return self.batch_size

    @property
    def _search_iter(self):
        """Largest number of iterations of a search for the kernel."""
        return self.max_iter

    def _work(self, target):
        """Multiply-adds of a pass over the data."""
        return target.n_rows * target.layout.size**2

    def _given_solver(self, n_rows):
        given = super()._given_solver(n_rows)
        return "natural_gradient" if given == "auto" else given

    def _n_processes(self, response):
        """Processes with the same kernel, one for each column of f."""
        return 1

    def _find_units(self, data):
        """Units of the target; None if it has none."""
        return None

    def _assemble(self, data, response):
        """Find hyperparameters and inducing points; return the model at these."""
        units = self._find_units(data)
        X, k = as_tensor(data.X).double(), self._n_processes(response)
        columns, known = vars(self).pop("_shared", (None, None))
        weight = None if data.weight is None else as_tensor(data.weight)
        rows = NormalRows(X, self._in_units_of_fit(data, units, columns), weight)
        y_scale = self._size_of(rows)
        sizes = column_sizes(X, weight)
        kernel = self._start_kernel(sizes, y_scale)
        parts = data, response, rows, units, y_scale
        likelihood, at, limits = self._likelihood(*parts)
        objective = self._objective(kernel, likelihood, rows, sizes, y_scale, k)
        start = np.append(kernel.theta, at)
        bounds = np.vstack([kernel.bounds.reshape(-1, 2), limits])
        if self.optimizer is not None:
            start = np.clip(start, bounds[:, 0], bounds[:, 1])
        write_line(self, SEARCHES.format(len(X)))
        with limit_threads(len(X) ** 2 * 10):
            search = Search(objective, bounds, sizes, self.optimizer)
            place = known or self._find(search, start)
        if place.value == -math.inf:
            raise ValueError(
                f"The covariances of kernel={kernel!r} are not positive definite at "
                "these rows, with any hyperparameters that were tried: it is no "
                "kernel for so many features, or its noise is too small."
            )
        self._place, self._limits = place, bounds
        names = [*_names(kernel), *likelihood.learned]
        is_free = self.optimizer is not None
        self._at_limits = _at_limits(names, place.theta, bounds) if is_free else []
        n, point = kernel.n_dims, torch.from_numpy(place.theta)
        likelihood = likelihood.bind(point[n:].clone())
        least = self._negligible(likelihood, len(X))
        Z = X if place.Z is None else place.Z
        features = InducingFeatures.of(kernel, point[:n].clone(), Z, least)
        predictor = InducingPredictor(len(features.Z), k)
        return InducingModel(
            response,
            predictor,
            likelihood,
            self.loss_function_,
            build_prior(self.prior_, predictor.layout),
            str(data.X.dtype),
            units,
            self._taken(units, kernel),
            features=features,
        )

    def _in_units_of_fit(self, data, units, columns):
        """Targets by which the kernel is found, (n, K)."""
        return as_tensor(data.y)[:, None]

    def _taken(self, units, kernel):
        """What an evidence is conditional on: numbers that were taken from y."""
        return ("kernel",) if self.optimizer is not None and kernel.n_dims else ()

    def _size_of(self, rows):
        """Scale of f that suits the target, in the units of the fit."""
        return 1.0

    def _root_mean_square(self, y_scale):
        """That of f around 0, in the units of the fit."""
        return y_scale

    def _negligible(self, likelihood, n_rows):
        """Variance of f that matters in no row."""
        return NEGLIGIBLE / n_rows

    def _start_kernel(self, sizes, y_scale):
        """The kernel at its start, without noise; by default one scale per column."""
        if self.kernel is None:
            d = len(sizes)
            low, high = (end * sizes.numpy() for end in LENGTHS)
            lengths = START_LENGTH * math.sqrt(d) * sizes.numpy()
            high = high * math.sqrt(d)
            size = self._root_mean_square(y_scale)
            constant = ConstantKernel(size**2, np.multiply(VARIANCES, size**2))
            return constant * Matern(lengths, np.stack([low, high], 1), nu=2.5)
        kernel = clone(self.kernel)
        check_kernel(kernel)
        return kernel

    def _objective(self, kernel, likelihood, rows, sizes, y_scale, k):
        """What the hyperparameters maximize."""
        n_learned = len(likelihood.learned)
        if self.kernel is None and self.kernel_prior == "auto":
            log_prior = dimension_scaled_prior(sizes, y_scale, n_learned)
        else:
            log_prior = uniform_prior(kernel.n_dims + n_learned)
        if self._is_collapsed(likelihood):
            return Collapsed(kernel, likelihood, rows, log_prior)
        # Other divergences than KL would choose kernel and noise for a q that is far
        # from the posterior: Jeffreys' has the noise grow with the width of q.
        parts = likelihood, self.loss_function_, KLDivergence(), k
        return Fitted(kernel, parts, rows, log_prior)

    def _is_collapsed(self, likelihood):
        """Whether the evidence is known for every kernel, or a bound of it."""
        return likelihood.is_normal and self.loss_function_.is_log_loss

    def _count_inducing(self, objective, n_rows):
        """Number of inducing points; as many as rows if each is one."""
        if not isinstance(self.inducing, str):
            return len(self.inducing)
        if self.n_inducing != "auto":
            return min(self.n_inducing, n_rows)
        is_quick = isinstance(objective, Collapsed) and self.divergence_.kl_weight == 1
        limit, rest = (ALL_ROWS, N_INDUCING) if is_quick else (FEW_ROWS, FEW_INDUCING)
        if not is_quick:
            k = objective.parts[3] if isinstance(objective, Fitted) else 1
            limit, rest = limit // k, rest // k
        is_exact = n_rows <= limit and self._search_rows is None
        return n_rows if is_exact else min(max(rest, LEAST_INDUCING), n_rows)

    def _find(self, search, theta):
        """Hyperparameters and inducing points, from the best of several starts."""
        random_state = check_random_state(self.random_state)
        if self.optimizer is not None and self._search_rows is None:
            search = search.of_some(SEARCH_ROWS, random_state)
        found = self._find_from(search, theta, random_state)
        low, high = search.bounds.T
        for _ in range(self.n_restarts_optimizer if self.optimizer else 0):
            if found.interrupted:
                break
            other = random_state.uniform(low, high)
            other = self._find_from(search, other, random_state)
            found = max(found, other, key=lambda place: place.value)
        return found

    def _find_from(self, search, theta, random_state):
        """The same from one start."""
        X = search.objective.rows.X
        n, m = len(X), self._count_inducing(search.objective, len(X))
        place, batch_size = Place(theta, None), self._search_rows
        some = search.of_some(SEARCH_ROWS, random_state)

        def improve(place, moves=False):
            if batch_size is None:
                return search.improve(place, self._search_iter, moves)
            place = some.improve(place, FEW_ITER, moves)
            if place.interrupted:
                return place
            seed = random_state.randint(2**31 - 1)
            generator = torch.Generator().manual_seed(seed)
            batches = Minibatches(search, batch_size, generator)
            found = batches.improve(place, self._search_iter, moves)
            if some is not search or found.interrupted:
                return found
            # Few rows are known to be fitted better, or not.
            exact = replace(search, optimizer=None).improve(found, 0)
            return place if exact.value < place.value else found

        if not isinstance(self.inducing, str):
            return improve(Place(theta, self._given_points(X.shape[1])))
        if m == n and batch_size is None:
            return improve(place)
        if n > 1.5 * START_ROWS and self.optimizer is not None:
            few = search.of_some(START_ROWS, random_state)
            place = replace(few.improve(place, FEW_ITER), value=-math.inf)
        lengths = _lengths(search.objective.kernel, place.theta, search.sizes)
        seed = random_state.randint(2**31 - 1)
        Z = spread_points(some.objective.rows, m, lengths, seed)
        if place.interrupted:  # a value at these points, and no more
            last = replace(some, optimizer=None).improve(Place(place.theta, Z), 0)
            return replace(last, interrupted=True)
        return improve(Place(place.theta, Z), isinstance(self.optimizer, str))

    def _given_points(self, n_features):
        """Inducing points that the user gives, (M, d)."""
        Z = check_array(self.inducing, dtype=np.float64, input_name="inducing")
        if self.n_inducing not in ("auto", len(Z)):
            raise ValueError(
                f"n_inducing={self.n_inducing!r}, and inducing has {len(Z)} points: "
                "leave n_inducing at 'auto'."
            )
        if Z.shape[1] != n_features:
            raise ValueError(
                f"inducing has {Z.shape[1]} columns, and X has {n_features}: give "
                "points with the features of X, or inducing='kmeans'."
            )
        return torch.from_numpy(np.unique(Z, axis=0))

    def _posterior_attributes(self, state):
        found = super()._posterior_attributes(state)
        features = self._model.features
        kernel = features.kernel.clone_with_theta(features.theta.numpy())
        found |= {"kernel_": kernel, "inducing_points_": features.Z.numpy().copy()}
        normal = found["posterior_"].as_normal()
        return found | {"_coefficients": Functions.of(self._model, normal)}

    def _checked(self, problem, solution):
        return solution.cut_short() if self._place.interrupted else solution

    def _judge_fit(self, target):
        numbers = {
            "n_kernel_evaluations": self._place.n_evaluations,
            "kernel_converged": self._place.converged,
            "kernel_at_limits": self._at_limits,
        }
        return numbers, "", ""

    def _bound_evidence(self, target, generator, **options):
        """Bounds at the learned hyperparameters, and a value over these."""
        found = self._bound_at_kernel(target, generator, **options)
        if self._has_shared_kernel:
            return found
        return self._over_learned(found, target.inputs, options["max_seconds"])

    def _over_learned(self, found, rows, max_seconds):
        """Bounds with a row for the evidence over hyperparameters, if any is learned.

        `rows` have all targets.
        """
        learned = [name for name in self._model.taken_from_y if name not in FROM_TARGET]
        if not (learned and len(self._place.theta) and math.isfinite(found.estimate)):
            return found
        kernel, likelihood = self._model.features.kernel, clone(self._model.likelihood)
        sizes = column_sizes(rows.X, rows.weight)
        scale, k = self._size_of(rows), self._model.predictor.n_outputs
        objective = self._objective(kernel, likelihood, rows, sizes, scale, k)
        parts = objective, self._place, self._limits, max_seconds
        row = row_over_learned(found.estimate, ", ".join(learned), *parts)
        return replace(found, table={OVER_LEARNED: row, **found.table})

    def _bound_at_kernel(self, target, generator, **options):
        """Certain bounds for normal noise; else from draws, if these are of all of f.

        Draws of the inducing values say nothing of what these do not determine.
        """
        features, q = self._model.features, self.posterior_
        method, is_closed = options["method"], self._is_collapsed(target.likelihood)
        if is_closed and method in ("auto", "exact"):
            noise = target.likelihood._scale.square()
            elbo = lower_bound(target, q, generator)
            parts = noise, target.inputs, target.constant, elbo, options
            return evidence_of_process(features, *parts)
        if method == "exact":
            raise IncompatibleComponentsError(
                "method='exact'", "normal noise and log loss", "method='auto'"
            )
        least = DETERMINED * float(q.normal().variance.max())
        if isinstance(target.rows, BlockRows) or float(target.X[:, -1].max()) > least:
            reason = NOT_ALL.format(len(features.Z), target.n_rows)
            return without_bounds(target, q, generator, options["quantity"], reason)
        return bound_evidence(target, q, generator, **options)

    def _in_units(self, theta):
        """Draws of f at the inducing points, in the units of y."""
        model, k = self._model, self._model.predictor.n_outputs
        v = theta.reshape(len(theta), k, -1)
        f = v @ model.features.factor.T
        if model.units is not None:
            f = f * model.units.y_scale + model.units.y_mean
        return {"inducing_values": (f if k > 1 else f[:, 0]).numpy()}


def column_sizes(X, weight):
    """Standard deviations of the columns; 1 for constant ones."""
    w = X.new_ones(len(X)) if weight is None else weight
    away = X - X[0]
    away = away - (w @ away) / w.sum()
    sizes = ((w @ away.square()) / w.sum()).sqrt()
    return torch.where(sizes > 0, sizes, 1.0)


def _lengths(kernel, theta, sizes):
    """Length scales of the columns, as far as the kernel has one for each."""
    bound = kernel.clone_with_theta(theta[: kernel.n_dims])
    for part in _parts_of(bound):
        scale = np.asarray(getattr(part, "length_scale", 1.0))
        if scale.shape == (len(sizes),):
            return torch.from_numpy(scale.astype(np.float64))
    return sizes


def _at_limits(names, theta, bounds):
    """Names of the hyperparameters that are at an end of their range."""
    near = np.isclose(theta[:, None], bounds, rtol=0, atol=1e-6).any(1)
    return [name for name, is_near in zip(names, near, strict=True) if is_near]


def _names(kernel):
    """Name of each hyperparameter of a kernel that is not fixed."""
    return [
        part.name if part.n_elements == 1 else f"{part.name}[{i}]"
        for part in kernel.hyperparameters
        if not part.fixed
        for i in range(part.n_elements)
    ]


def _parts_of(kernel):
    inner = [getattr(kernel, name, None) for name in ("k1", "k2", "kernel")]
    inner = [part for part in inner if part is not None]
    return [leaf for part in inner for leaf in _parts_of(part)] or [kernel]
