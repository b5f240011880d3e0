"""Deep Gaussian process classification."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import Kernel

from skvi.divergences import Divergence
from skvi.gaussian_process._classifier import SparseGaussianProcessClassifier
from skvi.gaussian_process._deep import LayersMixin
from skvi.losses import Loss


class DeepGaussianProcessClassifier(LayersMixin, SparseGaussianProcessClassifier):
    """Gaussian process classification in layers.

    As `DeepGaussianProcessRegressor`: it starts as the fitted
    `SparseGaussianProcessClassifier`, which is kept if the layers do not increase the
    lower bound.

    Parameters
    ----------
    kernel : Kernel, default=None
        That of the last layer, as for `SparseGaussianProcessClassifier`; inner layers
        have the default kernel. All hyperparameters are learned.
    n_layers : int, default=2
        1 is the sparse process.
    layer_width : int or "auto", default="auto"
        Directions along which an inner layer moves the rows, as for the regressor.
    n_restarts_optimizer : int, default=0
        Further starts of the sparse process, random within the bounds of the kernel.
    n_inducing : int, default=50
        Number of inducing points of each layer. The sparse process has a fit for each
        kernel that it tries.
    kernel_prior : "auto" or None, default="auto"
        The weak prior of the sparse process.
    loss : {"log", "beta", "gamma"}, Loss or callable, default="log"
        "log" is the likelihood. "beta" and "gamma" give little weight to labels that
        contradict the rest.
    divergence : {"kl", "renyi", "alpha", "beta", "gamma", "jeffreys"} or Divergence, \
default="kl"
        How distance of the inducing values to their prior is measured; several layers
        take KL alone, with any weight.
    class_weight : dict or "balanced", default=None
    batch_size : int, default=500
        Rows of a gradient step.
    max_iter : int, default=2000
        Gradient steps of several layers; those with fewer points take a quarter each.
    verbose : int, default=0
    random_state : int, RandomState instance or None, default=None

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    kernel_ : Kernel
        That of the last layer.
    inner_kernels_ : list of Kernel
        Those of the layers before it; only with several layers.
    inducing_points_ : ndarray of shape (n_inducing, n_features)
        Those of the last layer.
    lower_bound_ : float
        Lower bound of the log evidence at these kernels, in nats, summed over the data;
        with several layers an estimate, with the standard error `lower_bound_se_`.
    lower_bound_se_, objective_value_, objective_value_se_, loss_curve_, n_iter_, \
converged_
        As for `BayesianLogisticRegression`.
    diagnostics_ : dict
        As for `DeepGaussianProcessRegressor`.
    posterior_ : Posterior
        Normals of the whitened inducing values.
    objective_, divergence_, loss_function_, posterior_family_, prior_ : Component
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features,)

    See Also
    --------
    DeepGaussianProcessRegressor : The same for numbers.

    References
    ----------
    Salimbeni and Deisenroth (2017), *Doubly stochastic variational inference for deep
    Gaussian processes*.

    Examples
    --------
    >>> import numpy as np
    >>> from skvi.gaussian_process import DeepGaussianProcessClassifier
    >>> X = np.linspace(-2, 2, 60)[:, None]
    >>> model = DeepGaussianProcessClassifier(
    ...     n_inducing=10, max_iter=30, random_state=0
    ... ).fit(X, np.abs(X[:, 0]) > 1)
    >>> model.predict([[0.0], [1.9]])
    array([False,  True])
    """

    _parameter_constraints: dict = {
        **SparseGaussianProcessClassifier._parameter_constraints,
        **LayersMixin._layer_constraints,
    }

    def __init__(
        self,
        kernel: Kernel | None = None,
        n_layers: int = 2,
        layer_width: int | str = "auto",
        n_restarts_optimizer: int = 0,
        n_inducing: int = 50,
        kernel_prior: str | None = "auto",
        loss: str | Loss = "log",
        divergence: str | Divergence = "kl",
        class_weight: str | Mapping[Any, float] | None = None,
        batch_size: int = 500,
        max_iter: int = 2000,
        verbose: int = 0,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.kernel = kernel
        self.n_layers = n_layers
        self.layer_width = layer_width
        self.n_restarts_optimizer = n_restarts_optimizer
        self.n_inducing = n_inducing
        self.kernel_prior = kernel_prior
        self.loss = loss
        self.divergence = divergence
        self.class_weight = class_weight
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.verbose = verbose
        self.random_state = random_state
