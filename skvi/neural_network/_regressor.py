"""Bayesian regression with a multilayer perceptron."""

from __future__ import annotations  # short types in help()

from collections.abc import Callable
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from skvi._estimator._parts import SHORTHANDS
from skvi.divergences import Divergence
from skvi.likelihoods import Likelihood
from skvi.losses import Loss
from skvi.neural_network._base import BayesianNetwork
from skvi.neural_network._mlp import MLPMixin
from skvi.neural_network._regression import NetworkRegressorMixin
from skvi.objectives.base import Objective
from skvi.posteriors import Family, Posterior
from skvi.predictors._mlp import ACTIVATIONS
from skvi.priors import Prior
from skvi.solvers import Solver
from skvi.utils._interrupts import with_callbacks
from skvi.utils._validation import StrOptions, _fit_context


class BayesianMLPRegressor(NetworkRegressorMixin, MLPMixin, BayesianNetwork):
    """Neural network regression with predictive uncertainty.

    While `sklearn.neural_network.MLPRegressor` finds one set of weights, this estimator
    finds a distribution over them, and the standard deviation of the noise. Predictions
    are averages over networks, with standard deviations, intervals and quantiles. Far
    from the data the networks disagree more and more (with "tanh" they level off);
    between clusters of data a factorized posterior is overconfident. No scaler is
    needed: features and target are standardized inside. The guide's page
    :doc:`/parameters` has details of the parameters.

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
        "log" is the likelihood. "beta" and "gamma" give little weight to outliers of
        the standardized target. A callable of the output and that target gives a Gibbs
        posterior, and needs noise of a known scale; see `CallableLoss`.
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
        Units of each hidden layer; ``()`` is a linear model. "auto" is two of 50;
        `lower_bound_` is the number to choose sizes for evidences by.
    activation : {"auto", "softplus", "relu", "tanh", "logistic", "identity"}, \
default="auto"
        "relu", the choice of "auto", is fast and extrapolates linearly; "softplus" is a
        smooth one. "tanh" and "logistic" level off: far outside the data they are as
        certain as inside.
    skip_connection : bool, default=True
        Whether the features also act on the outputs directly, as in a linear model, of
        which the hidden layers then learn what is missing. Scales of noise have no such
        connection.
    likelihood : {"auto", "gaussian", "student_t", "johnson_su", \
"generalized_gamma", "heteroscedastic", "hurdle", "rounded", "poisson", \
"negative_binomial"} or Likelihood, default="auto"
        Noise around the output. "gaussian", "student_t" (heavy tails, of four degrees
        of freedom, that allow for outliers), "johnson_su" (learns its asymmetry and
        tails) and "generalized_gamma" (for positive targets) have one scale, the most
        probable one (type-II maximum likelihood); "heteroscedastic" is normal noise
        whose scale is another output. "hurdle" is for a value that is repeated, such as
        0, "rounded" for targets such as integers, whose scores are then probabilities
        of intervals, see `RoundedLikelihood`. "auto" is the shape that suits the target
        (:doc:`/predict`): normal, "johnson_su" or "generalized_gamma", a hurdle of one,
        or intervals, with a scale for each row; beside another loss "gaussian".
        The counts of "poisson" and "negative_binomial" have the exponential of an
        output as mean. Objects set parameters, such as the scale in units of y:
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
        Rows per gradient step. "auto" is 100; with the whole divergence all of up to
        200 rows, then a sixteenth of them, at least 64 and at most 512; all rows for
        objectives that minibatches would bias.
    max_iter : int or "auto", default="auto"
        Maximum number of epochs, passes over the rows; without minibatches an iteration
        is 16 gradient steps. "auto" is 1,200 steps and 8 for each row, at most 5,000,
        or eight epochs if they are more: lengths that predict well, at which the bound
        may still rise. With the whole divergence it is 4000 epochs, of which most fits
        need fewer.
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

    Attributes
    ----------
    likelihood_ : Likelihood
        What was fitted, in units of y; of rounded numbers with their step.
    noise_scale_ : float
        Scale of the noise, in units of y, or of its logarithm for "generalized_gamma";
        the standard deviation only of normal noise. Only if there is noise.
    asymmetry_, delta_, shape_ : float
        Learned shape of the noise, see `JohnsonSULikelihood` and
        `GeneralizedGammaLikelihood`.
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
        rose by no more than 1 % of the total rise, or than its noise. If not, the fit
        warns, unless its length is the one that "auto" chose, see `max_iter`: then
        ``diagnostics_["ending"]`` is "planned length".
    diagnostics_ : dict
        With log loss also "explained", the fraction of the target's variance that the
        fit explains on up to 2,000 training rows, and "missed", an estimate of what
        neighbors share and the fit misses. A converged fit that misses much warns.
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
    BayesianMLPClassifier : The same for classes.

    Notes
    -----
    Predictions are mixtures of `n_predict_draws` normals, one for each network.
    The draws are fixed at the end of the fit, so that repeated, row-wise and
    batched predictions agree.

    References
    ----------
    Blundell et al. (2015), *Weight uncertainty in neural networks*; Kingma,
    Salimans and Welling (2015), *Variational dropout and the local
    reparameterization trick*, section 2.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from skvi.divergences import KLDivergence
    >>> from skvi.neural_network import BayesianMLPRegressor
    >>> X, y = (array[:100] for array in load_diabetes(return_X_y=True))
    >>> network = BayesianMLPRegressor(
    ...     divergence=KLDivergence(0.3), posterior="mean_field", hidden_layer_sizes=5,
    ...     random_state=0,
    ... )
    >>> model = make_pipeline(StandardScaler(), network).fit(X, y)
    >>> mean, std = model.predict(X[:2], return_std=True)
    >>> bool((std < y.std()).all())  # which is 69
    True
    """

    _parameter_constraints: dict = {
        **BayesianNetwork._parameter_constraints,
        **MLPMixin._parameter_constraints,
        "activation": [StrOptions({"auto", *ACTIVATIONS})],
        **NetworkRegressorMixin._parameter_constraints,
        "likelihood": [StrOptions({"auto", *SHORTHANDS["likelihood"]}), Likelihood],
    }

    def __init__(
        self,
        objective: str | Objective = "elbo",
        divergence: str | Divergence = "auto",
        loss: str | Loss | Callable = "log",
        posterior: str | Family = "auto",
        prior: str | Prior | Posterior | dict[str, Any] = "auto",
        hidden_layer_sizes: ArrayLike = "auto",
        activation: str = "auto",
        skip_connection: bool = True,
        likelihood: str | Likelihood = "auto",
        normalize_y: bool = True,
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

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the posterior over the weights.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            In any units. float32 is kept, everything else becomes float64,
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
