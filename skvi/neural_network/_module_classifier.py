"""Bayesian classification with any torch module."""

from __future__ import annotations  # short types in help()

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from skvi.divergences import Divergence
from skvi.losses import Loss
from skvi.neural_network._base import BayesianNetwork
from skvi.neural_network._classifier import NetworkClassifierMixin
from skvi.neural_network._modules import ModuleMixin
from skvi.objectives.base import Objective
from skvi.posteriors import Family, Posterior
from skvi.priors import Prior
from skvi.solvers import Solver
from skvi.utils._interrupts import with_callbacks
from skvi.utils._validation import _fit_context


class BayesianModuleClassifier(NetworkClassifierMixin, ModuleMixin, BayesianNetwork):
    """A posterior over the weights of any `torch.nn.Module`, for classes.

    The module can be arbitrary, with layers that treat each row separately: its
    parameters get a prior and a posterior, except those listed as `deterministic`. X
    may have any number of dimensions, such as images (n_samples, channels, height,
    width). The output has one column, the log odds, for two classes, else one for each
    class. The guide's pages :doc:`/predict` and :doc:`/parameters` have details of
    modules and parameters.

    Parameters
    ----------
    module : torch.nn.Module, class or callable
        The map from rows of X to outputs: a module, which is copied and is the start of
        the fit; or its class, or a function that returns one, called with the
        parameters ``module__name``. None, the default, is an error.
    objective : {"elbo", "eubo", "iwelbo", "renyi", "chi", "alpha_energy"} \
or Objective, default="elbo"
        In which sense the approximation is close to the exact posterior. "elbo" and
        "alpha_energy", which gives wider posteriors, train on minibatches; the others
        on all rows, since minibatches would bias them.
    divergence : {"auto", "kl", "renyi", "alpha", "beta", "gamma", "jeffreys"} or \
            Divergence, default="auto"
        How distance to the prior is measured. Anything except "kl" gives a generalized
        posterior and needs ``objective="elbo"``. "auto" is
        ``KLDivergence(weight=0.3)``, which predicts better, and "kl" in `partial_fit`,
        beside another loss or an objective that weighs draws;
        ``KLDivergence(weight="auto")`` tries others on held-out rows.
    loss : {"log", "beta", "gamma"}, Loss or callable, default="log"
        "log" is the likelihood. "beta" and "gamma" give little weight to labels that
        the model considers impossible, such as wrong ones. A callable of the log odds
        and of y coded 0 to K - 1 gives a Gibbs posterior; see `CallableLoss`.
    posterior : {"mean_field", "low_rank", "full_rank", "ensemble"} or \
Family, default="mean_field"
        "mean_field" gives every weight a mean and a standard deviation; "low_rank" and
        "full_rank" add correlations; "ensemble" is a mixture of eight "mean_field", in
        five to nine times the time.
    prior : {"normal", "laplace", "student_t", "horseshoe", "ard", "log_uniform"}, \
Prior, Posterior or dict, default="normal"
        Prior of the parameters, in units of their layer's natural scale. A dict has one
        for each parameter ("conv1.weight"), or for roles: "coef" (or "weight"),
        "intercept" and "affine", the parameters of normalization layers. Beside a
        single prior that of intercepts is normal, with its scale, or with 10 if it has
        none or learns it.
    inputs : dict of str to int, slice or list of int, default=None
        Columns of X for each argument of the module's ``forward``, by its name, as
        ``{"numbers": slice(0, 8), "city": 8}``; an int gives one of shape (n_samples,).
        None gives all of X to the first argument.
    deterministic : str or sequence of str, default=()
        Parameters without a posterior, learned as point estimates by type-II maximum
        likelihood: names ("conv1.weight"), layers ("norm") or patterns (``"*.bias"``).
    class_weight : dict, "balanced" or None, default=None
        As in `sklearn.linear_model.LogisticRegression`; multiplies `sample_weight`.
    solver : {"auto", "stochastic"} or Solver, default="auto"
        "auto" is ``Stochastic()``, Adam on fresh draws. Its draws per step, its step
        size, what counts as progress, and a file from which an interrupted fit resumes
        are set as in ``Stochastic(n_draws=4, tol=0.1)``, and `solver__n_draws` in a
        search; see :doc:`/parameters` and :doc:`/long_fits`.
    batch_size : int or "auto", default="auto"
        Rows per gradient step. "auto" is all of up to 200 rows, then a sixteenth of
        them, at least 64 and at most 512; all rows for objectives that minibatches
        would bias.
    max_iter : int, default=200
        Maximum number of epochs, passes over the rows; without minibatches an iteration
        is 16 gradient steps.
    early_stopping : bool, default=False
        Whether to stop when the score of held-out rows no longer increases; else when
        the bound is level. See :doc:`/long_fits`.
    validation_fraction : float, default=None
        Fraction of every class that is held out. The fit returns the state with the
        best mean log predictive density of these rows; all else, such as `lower_bound_`
        and the evidence, refers to the training rows. None holds no rows out.
    warm_start : bool, default=False
        Whether a second fit starts at the posterior of the first.
    n_predict_draws : int, default=100
        Networks that predictions average over, drawn once at the end of the fit.
    device : str, default="auto"
        Device of `fit` and of predictions, such as "cpu" or "cuda:1"; "auto" is "cuda"
        if available, else "cpu". Evidences are computed on the CPU.
    verbose : int, default=0
        1 writes a line about once a second, 2 one for every iteration;
        `evidence_bounds` reports its progress.
    random_state : int, RandomState instance or None, default=None
    **module__params : dict
        Parameters of the module, with names that begin with ``module__``: they can be
        searched, as ``{"module__width": [8, 32]}``.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    lower_bound_ : float
        Evidence lower bound (ELBO) of the fitted posterior, in nats, summed over the
        data, for every `objective`: an estimate from draws. In expectation it bounds
        log p(D), with log loss and without weights.
    lower_bound_se_ : float
        Its standard error.
    objective_value_ : float
        Optimized objective, in nats: the average over the last 100 steps or more.
    objective_value_se_ : float
        Its Monte Carlo standard error, in nats: of epochs with minibatches, else of
        steps. Movement of the posterior during these steps counts as noise.
    loss_curve_ : ndarray of shape (n_iter,)
        The minimized quantity in every iteration.
    n_iter_ : int
    validation_scores_ : ndarray of shape (n_iter,) or None
        Mean log predictive density of the held-out rows, in nats per row, weighted as
        in the fit, after every iteration, from up to 20 draws; None without
        `validation_fraction`.
    best_validation_score_ : float or None
        Score of the fitted posterior.
    converged_ : bool
        Whether the bound was level before the step size decreased, or at the end: it
        rose by no more than 1 % of the total rise, or than its noise.
    diagnostics_ : dict
        With log loss also "explained": the fractional reduction of the log loss, on up
        to 2,000 training rows, relative to the class frequencies. A converged fit with
        almost no reduction warns. "module"
        says what was fixed in a module in training mode.
    posterior_ : Posterior
    point_ : dict of str to ndarray
        Fitted values of the `deterministic` parameters.
    prior_scale_ : float or dict of str to float
        The scale that `prior` learned, by block if there are several; only if it learns
        one.
    objective_, divergence_, loss_function_, posterior_family_, prior_ : Component
        Resolved values of the parameters.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features,)

    See Also
    --------
    BayesianModuleRegressor : The same for numbers.
    BayesianMLPClassifier : Multilayer perceptrons, trained faster.

    Notes
    -----
    Predictions average over `n_predict_draws` networks. The draws are fixed at the
    end of the fit, so that repeated, row-wise and batched predictions agree. Two
    classes use one output, the log odds; K > 2 classes use K symmetric outputs.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from torch import nn
    >>> from skvi.neural_network import BayesianModuleClassifier
    >>> from skvi.solvers import Stochastic
    >>> X, y = load_digits(n_class=2, return_X_y=True)
    >>> images = X.astype("float32").reshape(-1, 1, 8, 8) / 16
    >>> def net(n_outputs):
    ...     return nn.Sequential(
    ...         nn.Conv2d(1, 4, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    ...         nn.Linear(16, n_outputs),
    ...     )
    >>> model = BayesianModuleClassifier(
    ...     module=net, solver=Stochastic(learning_rate=0.1, tol=20.0), max_iter=60,
    ...     random_state=0,
    ... )
    >>> model = model.fit(images[:200], y[:200])
    >>> model.score(images[200:], y[200:]) > 0.95
    True
    """

    # Log odds of 3 are a probability of 0.95: the prior reaches confident predictions.
    _output_gain = 3.0
    _parameter_constraints: dict = {
        **BayesianNetwork._parameter_constraints,
        **ModuleMixin._parameter_constraints,
        **NetworkClassifierMixin._parameter_constraints,
    }

    def __init__(
        self,
        module: Callable | None = None,
        objective: str | Objective = "elbo",
        divergence: str | Divergence = "auto",
        loss: str | Loss | Callable = "log",
        posterior: str | Family = "mean_field",
        prior: str | Prior | Posterior | dict[str, Any] = "normal",
        inputs: Mapping[str, Any] | None = None,
        deterministic: str | Sequence[str] = (),
        class_weight: str | Mapping[Any, float] | None = None,
        solver: str | Solver = "auto",
        batch_size: int | str = "auto",
        max_iter: int = 200,
        early_stopping: bool = False,
        validation_fraction: float | None = None,
        warm_start: bool = False,
        n_predict_draws: int = 100,
        device: str = "auto",
        verbose: int = 0,
        random_state: int | np.random.RandomState | None = None,
        **module__params: Any,
    ) -> None:
        self.module = module
        self.objective = objective
        self.divergence = divergence
        self.loss = loss
        self.posterior = posterior
        self.prior = prior
        self.inputs = inputs
        self.deterministic = deterministic
        self.class_weight = class_weight
        self.solver = solver
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.warm_start = warm_start
        self.n_predict_draws = n_predict_draws
        self.device = device
        self.verbose = verbose
        self.random_state = random_state
        self._set_module_params(module__params)

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the posterior over the weights.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Preferably standardized. float32 is kept, everything else becomes float64,
            for results: gradient steps are in single precision.
        y : array-like of shape (n_samples,)
            Two or more classes, of any type.
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
            On Ctrl-C. The best posterior so far is kept, if there is one, with all
            attributes; otherwise the estimator is not fitted.
        """
        return self._fit(X, y, sample_weight)
