"""Sparse Gaussian process regression."""

from __future__ import annotations  # short types in help()

import math
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import reduce
from numbers import Real
from operator import add
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin, clone
from sklearn.gaussian_process.kernels import Kernel, Sum, WhiteKernel
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from skvi._estimator._parts import NOISES
from skvi._estimator._regressors import (
    coarse_grid,
    names_of_units,
    noise_in,
    units_of,
)
from skvi.divergences import Divergence
from skvi.exceptions import IncompatibleComponentsError, SkviWarning
from skvi.gaussian_process._base import SparseGaussianProcess, column_sizes
from skvi.gaussian_process._collapsed import (
    NormalRows,
    collapsed_bound,
    log_evidence,
)
from skvi.gaussian_process._model import SampledProcess
from skvi.kernels._kernels import has_white
from skvi.likelihoods import NoiseLikelihood
from skvi.linear_model._regression_predictions import RegressionPredictionMixin
from skvi.linear_model._units import ColumnsMixin
from skvi.losses import Loss
from skvi.utils._interrupts import with_callbacks
from skvi.utils._tensors import make_generator, randn
from skvi.utils._validation import Interval, StrOptions, _fit_context, as_tensor

# Start of the noise as a fraction of the scale of y, and its limits.
NOISE, NOISES_ALLOWED = math.sqrt(0.1), (1e-4, 3.0)
# Deviation of what rounding takes from a number, in steps: noise of a target on a grid
# is no smaller, although rows with equal features and targets may tempt a fit.
OF_ROUNDING = 12**-0.5
EQUAL = (
    "{} nothing of the scale of y or of its noise, so that "
    "standard deviations have no meaning; give the variance of the noise, as alpha=1.0"
)


class SparseGaussianProcessRegressor(
    RegressorMixin, RegressionPredictionMixin, ColumnsMixin, SparseGaussianProcess
):
    """Gaussian process regression, exact for few rows, sparse for many.

    Like `sklearn.gaussian_process.GaussianProcessRegressor`, whose kernels it takes,
    but for thousands of rows, with noise and one length scale per feature found by
    default, noise with heavy tails, and robust losses.

    Parameters
    ----------
    kernel : Kernel, default=None
        A kernel of scikit-learn, or one of `skvi.kernels.register_kernel`. A
        `WhiteKernel` among its summands is the start of the noise. None is a constant
        times a Matern kernel of smoothness 5/2 with a length scale for each feature.
    alpha : "learn" or float, default="learn"
        Variance of the noise, in squared units of y.
    optimizer : "fmin_l_bfgs_b", callable or None, default="fmin_l_bfgs_b"
        How hyperparameters are found; None keeps those of `kernel`. A callable is as
        in scikit-learn.
    n_restarts_optimizer : int, default=0
        Further starts, random within the bounds of the kernel.
    normalize_y : bool, default=True
        Whether the target is standardized for the fit; hyperparameters are then in
        units of its standard deviation, as in scikit-learn.
    n_inducing : int or "auto", default="auto"
        Number of inducing points, the places whose values summarize the function. With
        "auto" each row is one for up to 1,500 rows, which is exact; beyond it is 500.
        For other likelihoods, losses and divergences, whose fits take longer, 500 rows
        and 200.
    inducing : "kmeans" or array-like of shape (n_inducing, n_features), \
default="kmeans"
        Where they are: at the centers of clusters, from where they are moved to
        increase the bound; or given places, which stay.
    kernel_prior : "auto" or None, default="auto"
        "auto" gives the length scales and the noise of the default kernel a weak
        prior, without which many features are fitted by a constant or exactly; None,
        and a given kernel, maximize the evidence alone.
    batch_size : int or None, default=None
        Rows of a gradient step, for far more than 10,000 rows: kernel and inducing
        points are found by all of them. None takes 10,000 of them, which is faster. The
        last fit of the inducing values goes through all rows in both cases, in blocks.
    likelihood : {"gaussian", "student_t"} or NoiseLikelihood, default="gaussian"
        Shape of the noise. "student_t" expects outliers.
    loss : {"log", "beta", "gamma"}, Loss or callable, default="log"
        "log" is the likelihood. "beta" and "gamma" give little weight to outliers.
    divergence : {"kl", "renyi", "alpha", "beta", "gamma", "jeffreys"} or Divergence, \
default="kl"
        How distance of the inducing values to their prior is measured. Kernel and noise
        are those of KL divergence.
    max_iter : int, default=100
        Largest number of iterations of the search for kernel and inducing points, and
        of the last fit of the inducing values. With `batch_size` the search makes ten
        gradient steps in each.
    tol : float, default=1e-5
        Tolerance in nats of such a fit.
    device : str, default="auto"
    verbose : int, default=0
    random_state : int, RandomState instance or None, default=None
        For the clusters, the rows of a first fit, and restarts.

    Attributes
    ----------
    kernel_ : Kernel
        The kernel that was found, with the noise as a `WhiteKernel`: scikit-learn's
        regressor with it and ``optimizer=None`` is the same model, if each row is an
        inducing point.
    noise_scale_ : float
        Standard deviation of the noise, or its scale, in units of y.
    inducing_points_ : ndarray of shape (n_inducing, n_features)
    lower_bound_ : float
        Lower bound of the log evidence at this kernel, in nats, summed over the data:
        the log evidence itself where each row is an inducing point and noise is normal.
        With another loss that of its exponential, which is no evidence.
    lower_bound_se_, objective_value_, objective_value_se_, loss_curve_, n_iter_, \
converged_
        As for `BayesianLinearRegression`.
    diagnostics_ : dict
        Also "n_kernel_evaluations" of the search for the kernel, whether it ended
        before `max_iter` ("kernel_converged"), and which hyperparameters are at a limit
        of their range ("kernel_at_limits").
    posterior_ : Posterior, or tuple of n_outputs of them
        A normal of the whitened inducing values.
    outputs_ : list of SparseGaussianProcessRegressor
        Only for a target of shape (n_samples, n_outputs): the fit of each column, all
        with one kernel.
    objective_, divergence_, loss_function_, posterior_family_, prior_ : Component
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features,)

    See Also
    --------
    SparseGaussianProcessClassifier : The same for classes.

    Notes
    -----
    With whitened inducing values v and features phi(x) the function is phi(x)'v plus a
    rest that is independent between rows: a linear model with one more variance per
    row. Points that others determine up to rounding are left out; no variance is added
    to any.

    References
    ----------
    Titsias (2009), *Variational learning of inducing variables in sparse Gaussian
    processes*. The prior: Hvarfner, Hellsten and Nardi (2024), *Vanilla Bayesian
    optimization performs great in high dimensions*.

    Examples
    --------
    >>> import numpy as np
    >>> from skvi.gaussian_process import SparseGaussianProcessRegressor
    >>> X = np.linspace(0, 6, 40)[:, None]
    >>> y = np.sin(X[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=40)
    >>> model = SparseGaussianProcessRegressor().fit(X, y)
    >>> mean, std = model.predict([[3.0], [9.0]], return_std=True)
    >>> std.round(2)  # inside and outside the data
    array([0.08, 1.  ])
    """

    _parameter_constraints: dict = {
        **SparseGaussianProcess._parameter_constraints,
        "alpha": [Interval(Real, 0, None, closed="neither"), StrOptions({"learn"})],
        "normalize_y": ["boolean"],
        "likelihood": [StrOptions(set(NOISES)), NoiseLikelihood],
    }
    #: No posterior of numbers beside the function.
    _exact = None

    def __init__(
        self,
        kernel: Kernel | None = None,
        alpha: float | str = "learn",
        optimizer: str | Callable | None = "fmin_l_bfgs_b",
        n_restarts_optimizer: int = 0,
        normalize_y: bool = True,
        n_inducing: int | str = "auto",
        inducing: str | ArrayLike = "kmeans",
        kernel_prior: str | None = "auto",
        batch_size: int | None = None,
        likelihood: str | NoiseLikelihood = "gaussian",
        loss: str | Loss | Callable = "log",
        divergence: str | Divergence = "kl",
        max_iter: int = 100,
        tol: float = 1e-5,
        device: str = "auto",
        verbose: int = 0,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.kernel = kernel
        self.alpha = alpha
        self.optimizer = optimizer
        self.n_restarts_optimizer = n_restarts_optimizer
        self.normalize_y = normalize_y
        self.n_inducing = n_inducing
        self.inducing = inducing
        self.kernel_prior = kernel_prior
        self.batch_size = batch_size
        self.likelihood = likelihood
        self.loss = loss
        self.divergence = divergence
        self.max_iter = max_iter
        self.tol = tol
        self.device = device
        self.verbose = verbose
        self.random_state = random_state

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> Self:
        """Find kernel and inducing points, and fit the posterior.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            In any units: length scales are relative to the columns.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Every column is a target; all have one kernel and noise, relative to the
            deviation of each with `normalize_y`.
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
        return self._fit_one_or_more(X, y, sample_weight)

    def _params_of_output(self, X, k, n_outputs):
        return {}

    def _share(self, output, before, y):
        """All columns for the first, which finds the kernel; that for the others."""
        is_known = self.alpha != "learn" and self.normalize_y
        if y.shape[1] > 1 and is_known and self.optimizer is not None:
            raise IncompatibleComponentsError(
                f"alpha={self.alpha!r}",
                "one target, since several share a kernel in units of their deviations",
                "alpha='learn', or normalize_y=False",
            )
        output._has_shared_kernel = True
        output._shared = (None, before[0]._place) if before else (y, None)

    def _choose_parts(self, X, y, sample_weight, rows):
        super()._choose_parts(X, y, sample_weight, rows)
        columns, known = getattr(self, "_shared", (None, None))
        if columns is not None and sample_weight is not None:
            self._shared = columns[sample_weight > 0], known

    def _evidence(self, X, y, rows, random_state, options):
        found = super()._evidence(X, y, rows, random_state, options)
        if not self._n_columns or not self.outputs_[0]._has_shared_kernel:
            return found
        first, y = self.outputs_[0], [o._rows_of_fit[1] for o in self.outputs_]
        X, _, *weight = first._rows_of_fit
        rows = NormalRows(*map(as_tensor, (X, np.concatenate(y, 1), *weight)))
        return first._over_learned(found, rows, options["max_seconds"])

    def _negligible(self, likelihood, n_rows):
        """Beside the noise."""
        noise = float(likelihood._scale) ** 2
        return noise * super()._negligible(likelihood, n_rows)

    def sample_posterior(
        self, n_draws: int = 1, random_state: int | np.random.RandomState | None = None
    ) -> dict[str, np.ndarray]:
        """Draw values of the function at the inducing points.

        Parameters
        ----------
        n_draws : int, default=1
        random_state : int, RandomState instance or None, default=None

        Returns
        -------
        dict of str to ndarray
            "inducing_values" of shape (n_draws, n_inducing), in units of y, without
            noise; of several targets "inducing_values_0" and so on.
        """
        check_is_fitted(self)
        if not self._n_columns:
            return self._in_units(self._draw(n_draws, random_state))
        random_state = check_random_state(random_state)
        draws = [o.sample_posterior(n_draws, random_state) for o in self.outputs_]
        found = enumerate(draws)
        return {f"inducing_values_{k}": part["inducing_values"] for k, part in found}

    def sample_function(
        self, random_state: int | np.random.RandomState | None = None
    ) -> Callable[[Any], np.ndarray]:
        """Draw one function from the posterior.

        Parameters
        ----------
        random_state : int, RandomState instance or None, default=None

        Returns
        -------
        callable
            X of shape (n_samples, n_features) -> values of shape (n_samples,) or
            (n_samples, n_outputs), without noise. All calls evaluate the same function:
            new values are drawn given those of all rows so far. Which function it is
            depends on the order of calls, and their cost grows as the cube of the
            number of different rows.
        """
        check_is_fitted(self)
        # A later fit must not change the function.
        return SampledProcess(copy(self), check_random_state(random_state))

    def log_marginal_likelihood(
        self, theta: ArrayLike | None = None, eval_gradient: bool = False
    ) -> float | tuple[float, np.ndarray]:
        """Log evidence of the rows of the fit at some hyperparameters, in nats.

        It is exact where each row is an inducing point. With fewer points it is the
        lower bound at these points (Titsias, 2009).

        Parameters
        ----------
        theta : array-like of shape (n_hyperparameters,), default=None
            Logarithms, as in ``kernel_.theta``, with the noise as the last one if that
            is learned. None are those of the fit.
        eval_gradient : bool, default=False

        Returns
        -------
        value : float
            In units of y, as `lower_bound_`. That of scikit-learn is of the
            standardized target.
        gradient : ndarray of shape (n_hyperparameters,)
            Only with `eval_gradient`.

        Raises
        ------
        IncompatibleComponentsError
            With other likelihoods and losses, which have no such formula.
        """
        check_is_fitted(self)
        if self._n_columns:
            parts = [o.log_marginal_likelihood(theta, True) for o in self.outputs_]
            value, gradient = (sum(both) for both in zip(*parts, strict=True))
            return (value, gradient) if eval_gradient else value
        model, rows = self._model, NormalRows(*map(as_tensor, self._rows_of_fit))
        if not self._is_collapsed(model.likelihood):
            raise IncompatibleComponentsError(
                "log_marginal_likelihood", "normal noise and log loss", "lower_bound_"
            )
        kernel, noise = model.features.kernel, model.likelihood._scale.square()
        given = self.kernel_.theta if theta is None else np.array(theta, np.float64)
        if given.shape != (n := self.kernel_.n_dims,):
            raise ValueError(f"theta must have the shape ({n},). Got {given.shape}.")
        at = torch.from_numpy(given.copy()).requires_grad_(eval_gradient)
        own, last = at[: kernel.n_dims], at[kernel.n_dims :]
        parts = kernel, own, last.exp() if len(last) else noise, rows
        is_exact, Z = self._place.Z is None, model.features.Z
        value = log_evidence(*parts) if is_exact else collapsed_bound(*parts, Z)
        found = float(value.detach()) - rows.total * math.log(model.units.y_scale)
        if not eval_gradient:
            return found
        return found, torch.autograd.grad(value, at)[0].numpy()

    def _find_units(self, data):
        """Origin and scale of the target."""
        is_normal = self._resolve("likelihood").is_normal
        robust = not (self.loss_function_.is_log_loss and is_normal)
        return units_of(data.y, data.weight, None, self.normalize_y, True, robust)

    def _in_units_of_fit(self, data, units, columns):
        """Each target standardized by itself, with the largest grid of them."""
        own = [data]
        if columns is not None:
            own = [replace(data, y=y) for y in columns.T]
        found, self._grid = [], 0.0
        for part in own:
            units = self._find_units(part)
            found.append((as_tensor(part.y) - units.y_mean) / units.y_scale)
            if (grid := coarse_grid(part.y, part.weight)) is not None:
                self._grid = max(self._grid, grid[0] / units.y_scale)
        return torch.stack(found, 1)

    def _root_mean_square(self, y_scale):
        """Of the target without its mean, or where it is not taken off, with it."""
        return y_scale if self.normalize_y else self._size

    def _size_of(self, rows):
        """Standard deviation of the target, in the units of the fit."""
        if self.normalize_y:
            return 1.0
        w = torch.ones_like(rows.y[:, 0]) if rows.weight is None else rows.weight
        size = float((w @ rows.y.square().mean(1) / w.sum()).sqrt())
        self._size = size if size > 0 else 1.0
        return float(column_sizes(rows.y, rows.weight).square().mean().sqrt())

    def _taken(self, units, kernel):
        names = names_of_units(centered=True) if self.normalize_y else ()
        learned = ("noise_scale",) if self._learns_noise() else ()
        return (*super()._taken(units, kernel), *learned, *names)

    def _learns_noise(self):
        return self.alpha == "learn" and self.optimizer is not None

    def _start_kernel(self, sizes, y_scale):
        kernel = super()._start_kernel(sizes, y_scale)
        self._white = None
        if has_white(kernel):
            kernel, self._white = _without_white(kernel)
            if self.alpha != "learn":
                raise IncompatibleComponentsError(
                    f"alpha={self.alpha!r}",
                    "a kernel without a WhiteKernel, which is noise as well",
                    "alpha='learn', or a kernel without it",
                )
        return kernel

    def _likelihood(self, data, response, rows, units, y_scale):
        """The noise, and limits of the logarithms of what it learns."""
        given = self._resolve("likelihood")
        given.validate()
        if given.noise_scale != type(given)().noise_scale:
            raise ValueError(
                f"likelihood={given!r} has a noise_scale, which the estimator sets: "
                f"give alpha={given.noise_scale!r}**2."
            )
        scale, white = "learn", self._white
        if self._learns_noise() and np.ptp(data.y) == 0:
            equal = f"{len(data.y)} rows with equal values of y tell"
            told = "one row tells" if len(data.y) == 1 else equal
            self._warn(EQUAL.format(told), SkviWarning)
        if self.optimizer is None and self.alpha == "learn" and white is None:
            raise IncompatibleComponentsError(
                "alpha='learn'",
                "an optimizer, or a WhiteKernel, which is the noise",
                "alpha=0.01, for example, or WhiteKernel(0.01) in the kernel",
            )
        start, limits = NOISE * y_scale, np.multiply(NOISES_ALLOWED, y_scale)
        limits[0] = max(limits[0], self._grid * OF_ROUNDING)
        if white is not None:
            start, limits = math.sqrt(white.noise_level), white.noise_level_bounds
            is_fixed = isinstance(limits, str)
            scale = start if is_fixed else scale
            limits = None if is_fixed else np.sqrt(limits)
        if self.alpha != "learn":
            scale = noise_in(units, math.sqrt(self.alpha))
        likelihood = clone(given).set_params(noise_scale=scale)
        at = likelihood.initial_hyper(rows.y[:, 0]).numpy()
        ends = np.array(likelihood._learned_limits, dtype=object)
        self._noise_limits = "fixed"
        if scale == "learn":
            at[0], ends[0] = math.log(start), np.log(limits)
            self._noise_limits = tuple(np.square(limits).tolist())
        return likelihood, at, np.array([*ends], dtype=np.float64).reshape(-1, 2)

    def _posterior_attributes(self, state):
        found, units = super()._posterior_attributes(state), self._model.units
        scale = float(self._model.likelihood._scale)
        found["noise_scale_"] = scale * units.y_scale
        white = WhiteKernel(scale**2, self._noise_limits)
        found["kernel_"] = found["kernel_"] + white
        rows = state.target.inputs
        parts = (part for part in (rows.X, rows.y, rows.weight) if part is not None)
        found["_rows_of_fit"] = [part.numpy().copy() for part in parts]
        return found

    def _observations(self, X, theta, random_state):
        """One new target of each of S functions, (n, S)."""
        model, generator = self._model, make_generator(random_state)
        noise = randn(generator, X.shape[0], len(theta))
        f = self._coefficients.sample(X, noise, self.n_jobs).T
        y = model.likelihood.sample(f[..., None], generator)
        return (y.T * model.units.y_scale + model.units.y_mean).numpy()


def _without_white(kernel):
    """A sum without its white kernel, and this one."""
    parts = _summands(kernel)
    white = [part for part in parts if isinstance(part, WhiteKernel)]
    rest = [part for part in parts if not has_white(part)]
    if len(white) == 1 and len(rest) == len(parts) - 1 > 0:
        return reduce(add, rest), white[0]
    raise ValueError(
        f"A kernel may have one WhiteKernel, which must be a summand, beside others. "
        f"Got {kernel!r}: add it, as in ConstantKernel() * RBF() + WhiteKernel()."
    )


def _summands(kernel):
    if not isinstance(kernel, Sum):
        return [kernel]
    return [*_summands(kernel.k1), *_summands(kernel.k2)]
