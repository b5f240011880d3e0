"""Bayesian regression with any torch module."""

from __future__ import annotations  # short types in help()

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from skvi.divergences import Divergence
from skvi.likelihoods import Likelihood
from skvi.losses import Loss
from skvi.neural_network._base import BayesianNetwork
from skvi.neural_network._modules import ModuleMixin
from skvi.neural_network._regression import NetworkRegressorMixin
from skvi.objectives.base import Objective
from skvi.posteriors import Family, Posterior
from skvi.priors import Prior
from skvi.solvers import Solver
from skvi.utils._interrupts import with_callbacks
from skvi.utils._validation import _fit_context


class BayesianModuleRegressor(NetworkRegressorMixin, ModuleMixin, BayesianNetwork):
    """A posterior over the weights of any `torch.nn.Module`, for numbers.

    The module can be arbitrary, with layers that treat each row separately: its
    parameters get a prior and a posterior, except those listed as `deterministic`. X
    may have any number of dimensions, such as images (n_samples, channels, height,
    width). The output has one column for each target, or two with
    ``likelihood="heteroscedastic"``. The guide's pages :doc:`/predict` and
    :doc:`/parameters` have details of modules and parameters.

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
        "log" is the likelihood. "beta" and "gamma" give little weight to outliers of
        the standardized target. A callable of the output and that target gives a Gibbs
        posterior, and needs noise of a known scale; see `CallableLoss`.
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
    likelihood : {"gaussian", "student_t", "johnson_su", "generalized_gamma", \
"heteroscedastic", "hurdle", "rounded", "poisson", "negative_binomial"} or \
Likelihood, default="gaussian"
        Noise around the output. "gaussian", "student_t" (heavy tails, of four degrees
        of freedom, that allow for outliers), "johnson_su" (learns its asymmetry and
        tails) and "generalized_gamma" (for positive targets) have one scale, the most
        probable one (type-II maximum likelihood); "heteroscedastic" is normal noise
        whose scale is another column. "hurdle" is for a value that is repeated, whose
        log odds are one more column; "rounded" for targets such as integers, whose
        scores are then probabilities of intervals, see `RoundedLikelihood`. The counts
        of "poisson" and "negative_binomial" have the exponential of an output as mean.
        Objects set parameters, such as the scale in units of y:
        ``GaussianLikelihood(noise_scale=0.5)``, or
        ``HeteroscedasticLikelihood(StudentTLikelihood(df=2.5))``; or are your own
        (:doc:`/extend`).
    normalize_y : bool, default=True
        Whether the target is standardized for the fit. Results are in units of y; but
        the prior then follows y, so that evidences are comparable only with others of
        the same normalization. With False priors are in units of y. Beside likelihoods
        other than noise the output is relative to the constant that suits y best.
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
        Fraction of the rows that is held out. The fit returns the state with their best
        mean log predictive density; all else, such as `lower_bound_` and the evidence,
        refers to the training rows. None holds no rows out.
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
    likelihood_ : Likelihood
        What was fitted, in units of y; of rounded numbers with their step.
    noise_scale_ : float
        Scale of the noise, in units of y; of normal noise, but not of "student_t" or
        others, the standard deviation. Only if there is noise.
    dispersion_ : float
        Learned dispersion of negative binomial counts; for others, what `likelihood`
        learns by name.
    lower_bound_ : float
        Evidence lower bound (ELBO) of the fitted posterior, in nats, summed over the
        data, for every `objective`: an estimate from draws. In expectation it bounds
        log p(D) at the learned noise, with log loss and without sample weights.
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
        With log loss also "explained", the fraction of the target's variance that the
        fit explains on up to 2,000 training rows, and "missed", an estimate of what
        neighbors share and the fit misses. A converged fit that misses much warns.
        "module" says what was fixed in a module in training mode.
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
    BayesianModuleClassifier : The same for classes.
    BayesianMLPRegressor : Multilayer perceptrons, trained faster.

    Notes
    -----
    Predictions are mixtures of `n_predict_draws` normals, one for each network.
    The draws are fixed at the end of the fit, so that repeated, row-wise and
    batched predictions agree.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from torch import nn
    >>> from skvi.neural_network import BayesianModuleRegressor
    >>> from skvi.solvers import Stochastic
    >>> X, y = (array[:100] for array in load_diabetes(return_X_y=True))
    >>> def net(n_features, n_outputs, width):
    ...     return nn.Sequential(
    ...         nn.Linear(n_features, width), nn.Tanh(), nn.Linear(width, n_outputs)
    ...     )
    >>> model = BayesianModuleRegressor(
    ...     module=net, module__width=5, deterministic="*.bias",
    ...     solver=Stochastic(learning_rate=0.1, tol=200.0), max_iter=30,
    ...     random_state=0,
    ... )
    >>> model = model.fit(X / X.std(0), y)
    >>> list(model.posterior_.layout), model.point_["2.bias"].shape
    (['0.weight', '2.weight'], (1,))
    """

    _parameter_constraints: dict = {
        **BayesianNetwork._parameter_constraints,
        **ModuleMixin._parameter_constraints,
        **NetworkRegressorMixin._parameter_constraints,
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
        likelihood: str | Likelihood = "gaussian",
        normalize_y: bool = True,
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
        self.likelihood = likelihood
        self.normalize_y = normalize_y
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
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Numbers; several targets share the hidden layers.
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
