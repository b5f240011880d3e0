"""Sparse Gaussian process classification."""

from __future__ import annotations  # short types in help()

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.gaussian_process.kernels import Kernel

from skvi._estimator._classes import BayesianClassifierMixin
from skvi.divergences import Divergence
from skvi.gaussian_process._base import SparseGaussianProcess
from skvi.kernels._kernels import has_white
from skvi.linear_model._functions import ClassPredictionMixin, FunctionsMixin
from skvi.losses import Loss


class SparseGaussianProcessClassifier(
    ClassPredictionMixin,
    FunctionsMixin,
    BayesianClassifierMixin,
    SparseGaussianProcess,
):
    """Gaussian process classification, with one process or one for each class.

    Like `sklearn.gaussian_process.GaussianProcessClassifier`, whose kernels it takes.
    Instead of Laplace's approximation, and one class against the rest, the posterior
    is the closest normal one, and classes share a softmax; one length scale per
    feature is found by default.

    Parameters
    ----------
    kernel : Kernel, default=None
        A kernel of scikit-learn, or one of `skvi.kernels.register_kernel`. None is a
        constant times a Matern kernel of smoothness 5/2 with a length scale for each
        feature. Processes of several classes share it.
    optimizer : "fmin_l_bfgs_b", callable or None, default="fmin_l_bfgs_b"
        How hyperparameters are found; None keeps those of `kernel`. A callable is as
        in scikit-learn.
    n_restarts_optimizer : int, default=0
        Further starts, random within the bounds of the kernel.
    n_inducing : int or "auto", default="auto"
        Number of inducing points, the places whose values summarize the functions.
        With "auto" each row is one for up to 500 rows; beyond it is 200. With more
        classes there are as many fewer as they have processes.
    inducing : "kmeans" or array-like of shape (n_inducing, n_features), \
default="kmeans"
        Where they are: at the centers of clusters, from where they are moved to
        increase the bound; or given places, which stay.
    kernel_prior : "auto" or None, default="auto"
        "auto" gives the length scales of the default kernel a weak prior; None, and a
        given kernel, maximize the bound alone.
    batch_size : int or None, default=None
        Rows of a gradient step, for far more than 10,000 rows: kernel and inducing
        points are found by all of them. None takes 10,000 of them, which is faster. The
        last fit of the inducing values goes through all rows in both cases, in blocks.
    loss : {"log", "beta", "gamma"}, Loss or callable, default="log"
        "log" is the likelihood. "beta" and "gamma" give little weight to labels that
        contradict the rest.
    divergence : {"kl", "renyi", "alpha", "beta", "gamma", "jeffreys"} or Divergence, \
default="kl"
        How distance of the inducing values to their prior is measured.
    class_weight : dict or "balanced", default=None
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
    classes_ : ndarray of shape (n_classes,)
    kernel_ : Kernel
        The kernel that was found.
    inducing_points_ : ndarray of shape (n_inducing, n_features)
    lower_bound_ : float
        Lower bound of the log evidence at this kernel, in nats, summed over the data.
        With another loss that of its exponential, which is no evidence.
    lower_bound_se_, objective_value_, objective_value_se_, loss_curve_, n_iter_, \
converged_
        As for `BayesianLogisticRegression`.
    diagnostics_ : dict
        Also "n_kernel_evaluations" of the search for the kernel, whether it ended
        before `max_iter` ("kernel_converged"), and which hyperparameters are at a limit
        of their range ("kernel_at_limits").
    posterior_ : Posterior
        A normal of the whitened inducing values.
    objective_, divergence_, loss_function_, posterior_family_, prior_ : Component
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features,)

    See Also
    --------
    SparseGaussianProcessRegressor : The same for numbers.

    References
    ----------
    Hensman, Matthews and Ghahramani (2015), *Scalable variational Gaussian process
    classification*.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from skvi.gaussian_process import SparseGaussianProcessClassifier
    >>> X, y = make_moons(80, noise=0.2, random_state=0)
    >>> model = SparseGaussianProcessClassifier().fit(X, y)
    >>> model.predict_proba([[0.0, 1.0], [1.0, -0.5], [9.0, 9.0]])[:, 1].round(1)
    array([0. , 1. , 0.5])
    """

    _parameter_constraints: dict = {
        **SparseGaussianProcess._parameter_constraints,
        **BayesianClassifierMixin._parameter_constraints,
    }

    def __init__(
        self,
        kernel: Kernel | None = None,
        optimizer: str | Callable | None = "fmin_l_bfgs_b",
        n_restarts_optimizer: int = 0,
        n_inducing: int | str = "auto",
        inducing: str | ArrayLike = "kmeans",
        kernel_prior: str | None = "auto",
        batch_size: int | None = None,
        loss: str | Loss | Callable = "log",
        divergence: str | Divergence = "kl",
        class_weight: str | Mapping[Any, float] | None = None,
        max_iter: int = 100,
        tol: float = 1e-5,
        device: str = "auto",
        verbose: int = 0,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.kernel = kernel
        self.optimizer = optimizer
        self.n_restarts_optimizer = n_restarts_optimizer
        self.n_inducing = n_inducing
        self.inducing = inducing
        self.kernel_prior = kernel_prior
        self.batch_size = batch_size
        self.loss = loss
        self.divergence = divergence
        self.class_weight = class_weight
        self.max_iter = max_iter
        self.tol = tol
        self.device = device
        self.verbose = verbose
        self.random_state = random_state

    @property
    def partial_fit(self):
        """Not available: inducing values belong to the rows of their fit."""
        raise AttributeError(f"{type(self).__name__} has no partial_fit.")

    def _n_processes(self, response):
        return response.likelihood.n_outputs

    def _start_kernel(self, sizes, y_scale):
        kernel = super()._start_kernel(sizes, y_scale)
        if has_white(kernel):
            raise ValueError(
                f"Classes have no noise: leave the WhiteKernel out of {kernel!r}."
            )
        return kernel

    def _likelihood(self, data, response, rows, units, y_scale):
        """That of the number of classes, which learns nothing."""
        return response.likelihood, np.zeros(0), np.zeros((0, 2))
