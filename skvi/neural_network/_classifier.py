"""Bayesian classification with networks."""

from __future__ import annotations  # short types in help()

from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike

from skvi._estimator._classes import BayesianClassifierMixin
from skvi._estimator._model import Model
from skvi._predictive._quantiles import (
    average_log_probabilities,
    log_class_probabilities,
)
from skvi.base._layout import Units
from skvi.divergences import Divergence
from skvi.losses import Loss
from skvi.neural_network._base import BayesianNetwork
from skvi.neural_network._mlp import CLASS_CHOICES, CLASS_TRAINING, MLPMixin
from skvi.neural_network._modules import OutputLimits
from skvi.neural_network._reports import explained_log_loss, flat_message
from skvi.neural_network._training import with_new_classes
from skvi.objectives.base import Objective
from skvi.posteriors import Family, Posterior
from skvi.priors import Prior
from skvi.solvers import Solver
from skvi.utils._interrupts import with_callbacks
from skvi.utils._validation import _fit_context


class NetworkClassifierMixin(BayesianClassifierMixin):
    """Mixin: labels, and class probabilities of the networks' outputs."""

    #: What the fraction that a fit explains is about.
    _error_of_rows = (
        "the log loss of the training rows is {:.3g} times that of the class "
        "frequencies"
    )

    def _assemble(self, data, labels):
        """Return the model: a network for the log odds of the labels."""
        likelihood = labels.likelihood
        network = self._network(data.X, likelihood)
        prior = self._build_prior(network.layout)
        units = self._with_features(self._given_units() or Units(0.0, 1.0), data)
        loss, dtype = self.loss_function_, str(data.X.dtype)
        return Model(labels, network, likelihood, loss, prior, dtype, units)

    def _name_outputs(self, n_outputs):
        """What a module must return, for messages."""
        if n_outputs == 1:
            return "two classes use one log odds, that of classes_[1], as one column"
        return "one column of log odds for each class"

    def _limit_of_outputs(self, f, likelihood):
        """Say that outputs are limited, whatever the parameters are; empty if not.

        Several columns may have one sign, since only their differences matter.
        """
        limits = OutputLimits.of(f)
        if not (limits.saturates.all() or (f.shape[-1] == 1 and limits.one_sided)):
            return ""
        return (
            f"the outputs of the module are {limits}, whatever its parameters are, "
            "but they are log odds, which have no limits: leave out its last layer, "
            "such as Sigmoid, Softmax, ReLU or Tanh"
        )

    def _mean(self, f):
        """Class probabilities of every network, (S, rows, K)."""
        return log_class_probabilities(f).exp()

    def _log_probabilities(self, X):
        X = self._check_X(X)
        log_p = self._drawn().by_rows(X, average_log_probabilities)
        return torch.from_numpy(log_p), X.dtype

    def _compare_with_constant(self, X, y, weight, rows_per_row):
        """Fractional reduction of the log loss relative to the class frequencies."""
        log_proba = self._drawn().by_rows(X, average_log_probabilities)
        codes = y.astype(int)
        explained, entropy = explained_log_loss(log_proba, codes, weight)
        message = flat_message(
            explained,
            entropy,
            weight,
            rows_per_row,
            "the class frequencies",
            self._remedy(),
        )
        return {"explained": explained}, message


class BayesianMLPClassifier(NetworkClassifierMixin, MLPMixin, BayesianNetwork):
    """Neural network classification with predictive uncertainty.

    While `sklearn.neural_network.MLPClassifier` finds one set of weights, this
    estimator finds a distribution over them. Class probabilities are averages over
    networks, and therefore less extreme if data are scarce. No scaler is needed:
    features are standardized inside. The guide's page :doc:`/parameters` has details of
    the parameters.

    Parameters
    ----------
    objective : {"elbo", "eubo", "iwelbo", "renyi", "chi", "alpha_energy"} \
or Objective, default="elbo"
        In which sense the approximation is close to the exact posterior. "elbo" and
        "alpha_energy", which gives wider posteriors, train on minibatches; the others
        on all rows, since minibatches would bias them.
    divergence : {"auto", "kl", "renyi", "alpha", "beta", "gamma", "jeffreys"} or \
            Divergence, default="auto"
        How distance to the prior is measured. Anything except "kl" gives a generalized
        posterior and needs ``objective="elbo"``. "auto" is
        ``KLDivergence(weight="auto")``: rows held out choose its weight, and whether a
        linear model predicts better (see :doc:`/parameters`). Bounds and evidences ask
        for "kl", which is "auto" in `partial_fit`, beside another loss or an objective
        that weighs draws.
    loss : {"log", "beta", "gamma"}, Loss or callable, default="log"
        "log" is the likelihood. "beta" and "gamma" give little weight to labels that
        the model considers impossible, such as wrong ones. A callable of the log odds
        and of y coded 0 to K - 1 gives a Gibbs posterior; see `CallableLoss`.
    posterior : {"auto", "mean_field", "low_rank", "full_rank", "ensemble", \
...} or Family, default="auto"
        "mean_field" gives every weight a mean and a standard deviation, "low_rank" and
        "full_rank" add correlations; "ensemble" is a mixture of eight "mean_field",
        "auto" of four, or a single one where ``divergence="auto"`` is "kl".
        The family changes no other parameter.
    prior : {"auto", "normal", "laplace", "student_t", "horseshoe", "ard", \
"log_uniform"}, Prior, Posterior or dict, default="auto"
        Prior of the weights, in units of the layer's natural scale; "auto" is normal
        with scale 1. A dict has one for "coef" and one for "intercept", or for each
        layer ("coef_0"): ``{"coef_0": Normal("learn_rows"), "coef": Normal("learn"),
        "intercept": Normal()}`` learns scales, in the first layer for each feature.
        Beside a single prior that of the intercepts is normal, with its scale, or with
        10 if it has none or learns it.
    hidden_layer_sizes : "auto", int or array-like of int, default="auto"
        Units of each hidden layer; ``()`` is a linear model. "auto" is one layer of
        100; `lower_bound_` is the number to choose sizes for evidences by.
    activation : {"relu", "softplus", "tanh", "logistic", "identity"}, default="relu"
        "softplus", log(1 + exp(x)), is a smooth "relu" that performs equally well here
        and takes longer; "tanh" and "logistic" level off far outside the data.
    skip_connection : bool, default=True
        Whether the features also act on the outputs directly, as in a linear model, of
        which the hidden layers then learn what is missing. Scales of noise have no such
        connection.
    class_weight : dict, "balanced" or None, default=None
        As in `sklearn.linear_model.LogisticRegression`; multiplies `sample_weight`.
    solver : {"auto", "stochastic"} or Solver, default="auto"
        "auto" is ``Stochastic()``, Adam on fresh draws. Its draws per step, its step
        size, what counts as progress, and a file from which an interrupted fit resumes
        are set as in ``Stochastic(n_draws=4, tol=0.1)``, and `solver__n_draws` in a
        search; see :doc:`/parameters` and :doc:`/long_fits`.
    batch_size : int or "auto", default="auto"
        Rows per gradient step. "auto" is 100; with the whole divergence all of up to
        200 rows, then a sixteenth of them, at least 64 and at most 512; all rows for
        objectives that minibatches would bias.
    max_iter : int or "auto", default="auto"
        Maximum number of epochs, passes over the rows; without minibatches an iteration
        is 16 gradient steps. "auto" is 1,200 steps and 8 for each row, at most 3,000,
        or eight epochs if they are more: lengths that predict well, at which the bound
        may still rise. With the whole divergence it is 4000 epochs, of which most fits
        need fewer.
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
        rose by no more than 1 % of the total rise, or than its noise. If not, the fit
        warns, unless its length is the one that "auto" chose, see `max_iter`: then
        ``diagnostics_["ending"]`` is "planned length".
    diagnostics_ : dict
        With log loss also "explained": the fractional reduction of the log loss, on up
        to 2,000 training rows, relative to the class frequencies. A converged fit with
        almost no reduction warns.
    posterior_ : Posterior
    prior_scale_ : float or dict of str to float or ndarray
        The scale that `prior` learned, by block if there are several, by row if it is
        "learn_rows"; only if it learns one.
    objective_, divergence_, loss_function_, posterior_family_, prior_ : Component
        Resolved values of the parameters.
    hidden_layer_sizes_ : tuple of int
    activation_ : str
        What `hidden_layer_sizes` and `activation` resolve to.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features,)

    See Also
    --------
    BayesianMLPRegressor : The same for numbers.

    Notes
    -----
    Predictions average over `n_predict_draws` networks. The draws are fixed at the
    end of the fit, so that repeated, row-wise and batched predictions agree. Two
    classes use one output, the log odds; K > 2 classes use K symmetric outputs.

    References
    ----------
    Blundell et al. (2015), *Weight uncertainty in neural networks*; Kingma,
    Salimans and Welling (2015), *Variational dropout and the local
    reparameterization trick*, section 2.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from skvi.neural_network import BayesianMLPClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> network = BayesianMLPClassifier(hidden_layer_sizes=5, random_state=0)
    >>> model = make_pipeline(StandardScaler(), network).fit(X, y)
    >>> model.score(X, y) > 0.95
    True
    """

    # Log odds of 3 are a probability of 0.95: the prior reaches confident predictions.
    _scales = (2.0, 3.0)
    _choices, _training = CLASS_CHOICES, CLASS_TRAINING
    _with_new_classes = with_new_classes
    _parameter_constraints: dict = {
        **BayesianNetwork._parameter_constraints,
        **MLPMixin._parameter_constraints,
        **NetworkClassifierMixin._parameter_constraints,
    }

    def __init__(
        self,
        objective: str | Objective = "elbo",
        divergence: str | Divergence = "auto",
        loss: str | Loss | Callable = "log",
        posterior: str | Family = "auto",
        prior: str | Prior | Posterior | dict[str, Any] = "auto",
        hidden_layer_sizes: ArrayLike = "auto",
        activation: str = "relu",
        skip_connection: bool = True,
        class_weight: str | Mapping[Any, float] | None = None,
        solver: str | Solver = "auto",
        batch_size: int | str = "auto",
        max_iter: int | str = "auto",
        early_stopping: bool = False,
        validation_fraction: float | None = None,
        warm_start: bool = False,
        n_predict_draws: int = 100,
        device: str = "auto",
        verbose: int = 0,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.objective = objective
        self.divergence = divergence
        self.loss = loss
        self.posterior = posterior
        self.prior = prior
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.skip_connection = skip_connection
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

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the posterior over the weights.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            In any units. float32 is kept, everything else becomes float64,
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
