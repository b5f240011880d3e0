"""Deep Gaussian process regression."""

import numpy as np
from sklearn.gaussian_process.kernels import Kernel, WhiteKernel

from skvi.divergences import Divergence
from skvi.gaussian_process._deep import LayersMixin
from skvi.gaussian_process._regressor import SparseGaussianProcessRegressor
from skvi.likelihoods import NoiseLikelihood
from skvi.losses import Loss
from skvi.utils._tensors import make_generator
from skvi.utils._validation import as_tensor


class DeepGaussianProcessRegressor(LayersMixin, SparseGaussianProcessRegressor):
    """Gaussian process regression in layers, for functions that a kernel does not fit.

    A sparse Gaussian process whose rows are first moved by others, of the same kind:
    functions that are smooth in one place and steep in another, or that jump. It starts
    as the fitted `SparseGaussianProcessRegressor` with as many inducing points, which
    is kept if the layers do not increase the lower bound; or as layers that were
    trained with fewer, if their bound is higher.

    Parameters
    ----------
    kernel : Kernel, default=None
        That of the last layer, as for `SparseGaussianProcessRegressor`; inner layers
        have the default kernel. All hyperparameters are learned.
    alpha : "learn" or float, default="learn"
        Variance of the noise, in squared units of y.
    n_layers : int, default=2
        1 is the sparse process.
    layer_width : int or "auto", default="auto"
        Directions along which an inner layer moves the rows: the leading principal
        components of the standardized features if there are more of these. "auto" is
        30.
    n_restarts_optimizer : int, default=0
        Further starts of the sparse process, random within the bounds of the kernel.
    normalize_y : bool, default=True
        Whether the target is standardized for the fit; hyperparameters are then in
        units of its standard deviation.
    n_inducing : int, default=100
        Number of inducing points of each layer.
    kernel_prior : "auto" or None, default="auto"
        The weak prior of the sparse process.
    likelihood : {"gaussian", "student_t"} or NoiseLikelihood, default="gaussian"
        Shape of the noise. "student_t" expects outliers.
    loss : {"log", "beta", "gamma"}, Loss or callable, default="log"
        "log" is the likelihood. "beta" and "gamma" give little weight to outliers.
    divergence : {"kl", "renyi", "alpha", "beta", "gamma", "jeffreys"} or Divergence, \
default="kl"
        How distance of the inducing values to their prior is measured, in the sum over
        all outputs of all layers. Several layers take KL alone, with any weight.
    batch_size : int, default=500
        Rows of a gradient step.
    max_iter : int, default=2000
        Gradient steps of several layers; those with fewer points take a quarter each.
    verbose : int, default=0
    random_state : int, RandomState instance or None, default=None

    Attributes
    ----------
    kernel_ : Kernel
        That of the last layer, with the noise as a `WhiteKernel`.
    inner_kernels_ : list of Kernel
        Those of the layers before it, from the first one; only with several layers.
        Their outputs are in units of the columns' standard deviations.
    noise_scale_ : float
        Standard deviation of the noise, or its scale, in units of y.
    inducing_points_ : ndarray of shape (n_inducing, n_features)
        Those of the last layer.
    lower_bound_ : float
        Lower bound of the log evidence at these kernels, in nats, summed over the data;
        with several layers an estimate, with the standard error `lower_bound_se_`.
    lower_bound_se_, objective_value_, objective_value_se_, loss_curve_, n_iter_, \
converged_
        As for `BayesianLinearRegression`.
    diagnostics_ : dict
        Also "n_layers", 1 if the sparse process was kept, its objective,
        "sparse_objective_value", the "gain" of the layers with its standard error, and
        whether they "starts_coarse", from layers with fewer points.
    posterior_ : Posterior
        Normals of the whitened inducing values.
    objective_, divergence_, loss_function_, posterior_family_, prior_ : Component
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features,)

    See Also
    --------
    SparseGaussianProcessRegressor : One layer, with more options.

    Notes
    -----
    The bound is that of Salimbeni and Deisenroth: each row is drawn from the marginal
    normals of the inner layers, and the expected loss under the last one is closed, or
    an integral. An inner layer adds a function to the features; at the start its
    posterior is its prior, whose variance is so small that the bound of the sparse
    process is lost by at most 0.1 nats per row. Its length scales start at the columns'
    standard deviations, times the root of their number. With other losses the objective
    is a generalized one (Knoblauch). Predictions are mixtures of 100 normals;
    `sample_posterior` has the whitened values of all outputs of all layers.

    References
    ----------
    Damianou and Lawrence (2013), *Deep Gaussian processes*. Salimbeni and Deisenroth
    (2017), *Doubly stochastic variational inference for deep Gaussian processes*.
    Knoblauch (2019), *Robust deep Gaussian processes*.

    Examples
    --------
    >>> import numpy as np
    >>> from skvi.gaussian_process import DeepGaussianProcessRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = np.linspace(-1, 1, 60)[:, None]
    >>> y = np.sign(X[:, 0]) + 0.05 * rng.normal(size=60)
    >>> model = DeepGaussianProcessRegressor(
    ...     n_inducing=12, max_iter=400, random_state=0
    ... ).fit(X, y)
    >>> model.diagnostics_["n_layers"]
    2
    >>> model.lower_bound_ > model.diagnostics_["sparse_objective_value"]
    True
    """

    _parameter_constraints: dict = {
        **SparseGaussianProcessRegressor._parameter_constraints,
        **LayersMixin._layer_constraints,
    }

    def __init__(
        self,
        kernel: Kernel | None = None,
        alpha: float | str = "learn",
        n_layers: int = 2,
        layer_width: int | str = "auto",
        n_restarts_optimizer: int = 0,
        normalize_y: bool = True,
        n_inducing: int = 100,
        kernel_prior: str | None = "auto",
        likelihood: str | NoiseLikelihood = "gaussian",
        loss: str | Loss = "log",
        divergence: str | Divergence = "kl",
        batch_size: int = 500,
        max_iter: int = 2000,
        verbose: int = 0,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.kernel = kernel
        self.alpha = alpha
        self.n_layers = n_layers
        self.layer_width = layer_width
        self.n_restarts_optimizer = n_restarts_optimizer
        self.normalize_y = normalize_y
        self.n_inducing = n_inducing
        self.kernel_prior = kernel_prior
        self.likelihood = likelihood
        self.loss = loss
        self.divergence = divergence
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.verbose = verbose
        self.random_state = random_state

    @property
    def log_marginal_likelihood(self):
        """Not available: it has no closed form, and `lower_bound_` is below it."""
        raise AttributeError(f"{type(self).__name__} has no log_marginal_likelihood.")

    @property
    def sample_function(self):
        """Not available: layers are drawn for all rows at once, by `sample_y`."""
        raise AttributeError(f"{type(self).__name__} has no sample_function.")

    def _params_of_output(self, X, k, n_outputs):
        # A single column is fitted as a vector is.
        return {"random_state": self.random_state} if n_outputs == 1 else {}

    def _posterior_attributes(self, state):
        found = super()._posterior_attributes(state)
        if found["_layers"] is not None:
            model = found["_model"]
            scale = float(model.likelihood._scale)
            found["noise_scale_"] = scale * model.units.y_scale
            found["kernel_"] = found["kernel_"] + WhiteKernel(scale**2)
        return found

    def _observations(self, X, theta, random_state):
        if self._layers is None:
            return super()._observations(X, theta, random_state)
        model, generator = self._model, make_generator(random_state)
        rows = as_tensor(X).double()
        f = self._layers.sample(theta, rows, generator)
        y = model.likelihood.sample(f, generator)
        return (y.T * model.units.y_scale + model.units.y_mean).numpy()
