"""Bayesian regression with a multilayer perceptron."""

from skvi.neural_network._base import BayesianNetwork
from skvi.neural_network._mlp import MLPMixin
from skvi.neural_network._regression import NetworkRegressorMixin
from skvi.predictors import ACTIVATIONS
from skvi.utils._callbacks import with_callbacks
from skvi.utils._validation import StrOptions, _fit_context

__all__ = ["BayesianMLPRegressor"]


class BayesianMLPRegressor(NetworkRegressorMixin, MLPMixin, BayesianNetwork):
    """Neural network regression with predictive uncertainty.

    While `sklearn.neural_network.MLPRegressor` finds one set of weights, this estimator
    finds a distribution over them, and the standard deviation of the noise. Predictions
    are averages over networks, with standard deviations, intervals and quantiles. Far
    from the data the networks disagree more and more (with "tanh" they level off);
    between clusters of data a factorized posterior is overconfident. Standardize the
    features, as for every network; the target is standardized inside.

    Parameters
    ----------
    objective : {"elbo", "eubo", "iwelbo", "renyi", "chi", "alpha_energy"} \
or Objective, default="elbo"
        In which sense the approximation is close to the exact posterior. "elbo" is
        the usual one; it and "alpha_energy", which gives wider posteriors, train on
        minibatches. The others use all rows in every step, since minibatches would
        bias them.
    divergence : {"kl", "renyi", "alpha", "beta", "gamma", "jeffreys"} or \
            Divergence, default="kl"
        How distance to the prior is measured. Anything except "kl" gives a generalized
        posterior and needs ``objective="elbo"``.
    loss : {"log", "beta", "gamma"}, Loss or callable, default="log"
        "log" is the likelihood. "beta" and "gamma" give little weight to outliers;
        they act on the standardized target. A callable ``(f, y) -> (S, n)``, of the
        network's output and of that target, gives a Gibbs posterior and needs a fixed
        `noise_scale`; see `CallableLoss`.
    posterior : {"mean_field", "low_rank", "full_rank", "dropout", "ensemble"} or \
            Family, default="mean_field"
        "mean_field" gives every weight its own mean and standard deviation;
        "low_rank" adds the correlations along ten directions, "full_rank" all of them,
        for a few hundred weights. "dropout" is normal dropout whose rate each layer
        learns, see `GaussianDropout`. "ensemble" is a mixture of eight "mean_field"
        with different starts, in five to nine times the time, see `Ensemble`: less
        certain where there are no rows, between the others or outside of them; among
        them it predicts as one network does.
    prior : {"auto", "normal", "laplace", "student_t", "horseshoe", "ard", \
"log_uniform"}, Prior, Posterior or dict, default="auto"
        Prior distribution of the weights, in units of the layer's natural scale, gain /
        sqrt(inputs), so that one scale suits layers of every width. The gain is 1, in
        hidden layers of "softplus" or "relu" sqrt(2). A dict gives one prior for "coef"
        and one for "intercept", or for each layer ("coef_0"). "learn" as the scale of a
        prior finds it by type-II maximum likelihood. "auto" is a normal prior for each
        block of weights and of intercepts that learns its scale, in the first layer one
        for each feature (automatic relevance determination, ``Normal("learn_rows")``);
        fewer than five parameters keep the scale 1 or that of the layer. A given scale
        costs less evidence if it is right, but if it is too narrow the network may
        explain nothing.
    intercept_prior : {"normal", "laplace", ...}, Prior or None, default=None
        None is the choice of "auto", or a normal prior with the scale of `prior`, or
        with scale 10 if that has none, or learns it: an intercept is never shrunk by a
        sparse prior.
    hidden_layer_sizes : "auto", int or array-like of int, default="auto"
        Units of each hidden layer; ``()`` is a linear model. "auto" is one layer of 20
        units, with more than 2,000 rows 50: every weight costs evidence, which few rows
        do not repay. `lower_bound_` is the number to choose other sizes by. The folds
        of a search may have fewer rows than its refit: near 2,000 give a number.
    activation : {"auto", "softplus", "relu", "tanh", "logistic", "identity"}, \
default="auto"
        "softplus", log(1 + exp(x)), is a smooth "relu", which suits smooth functions:
        of a noisy wave in few rows it misses about half as much. "relu" is faster,
        suits functions with kinks or steps, and fits many rows better. "auto" is
        "softplus", with more than 2,000 rows "relu". "tanh" often fits many rows best,
        but levels off, as "logistic" does: far outside the data they are as certain as
        inside.
    noise : {"constant", "heteroscedastic"}, default="constant"
        Whether the scale of the noise is the same for all rows. "heteroscedastic" gives
        the network a second output, the log of the scale over `noise_scale`, which
        starts at 0 and whose prior is that of the first one.
    likelihood : {"gaussian", "student_t"} or NoiseLikelihood, default="gaussian"
        Shape of the noise. "student_t" has heavy tails, with four degrees of freedom,
        and allows for outliers; ``StudentTLikelihood(df=2.5)`` sets others.
    noise_scale : float or "learn", default="learn"
        Scale of the noise, in units of y: for normal noise its standard deviation.
        "learn" finds the most probable value, for each target, together with the
        posterior (type-II maximum likelihood).
    normalize_y : bool, default=True
        Whether the target is standardized for the fit. Everything that is returned
        is in units of y. The prior then takes its location and scale from y: the
        evidence has the units of the density of y, but is not a probability density of
        y, and is comparable only with others of the same normalization (``plug_in``
        says so). For one that is a probability use False, with `noise_scale` and the
        prior of the last layer in units of y: ``prior={"coef_0": Normal(),
        "intercept_0": Normal(), "coef_1": Normal(50.0), "intercept_1": Normal(200.0)}``
        for one hidden layer and a target in the hundreds. A posterior given as `prior`
        has the units of its own fit, which are then used.
    solver : {"auto", "stochastic", "ivon"}, default="auto"
        "stochastic", the choice of "auto", is Adam on fresh draws. "ivon" is for
        "mean_field" posteriors and ensembles of them: natural gradients at the cost of
        Adam, whose steps do not depend on the units of a parameter, see `Ivon`. With
        fixed prior scales it performs equally well, with learned scales worse.
    n_draws : "auto" or int, default="auto"
        Draws per gradient step: with hidden layers antithetic pairs of weights. "auto"
        is 10, and 4 for the ELBO of more than 2,000 rows in minibatches, which are
        noisier than that. One is the cheapest, for "elbo" only.
    batch_size : int or "auto", default="auto"
        Rows per gradient step. "auto" is all of up to 200 rows, then a sixteenth of
        them, at least 64 and at most 512; all rows for objectives that minibatches
        would bias.
    learning_rate : float or "auto", default="auto"
        Initial step size; "auto" is 0.05 for Adam, less for noisy objectives: 0.01 for
        importance-weighted ones, 0.005 for score gradients; 0.2 for "ivon".
    max_iter : int, default=4000
        Maximum number of epochs, passes over the rows; without minibatches an iteration
        is 16 gradient steps. Most fits end earlier, see `early_stopping`.
    tol : float, default=1e-3
        Nats: a smaller increase of the bound counts as no progress. It is unrelated to
        the distance from the optimum. 0 makes all `max_iter` iterations, half of them
        with the initial step size, unless `early_stopping`: with a small
        `learning_rate` this can reach much better bounds.
    early_stopping : bool, default=False
        False keeps the step size until the bound is level: until it rose by no more
        than its noise, or 1 % of the total rise, in the last third since the warm-up.
        Then the step size decreases linearly, over as many iterations as so far. Each
        further round takes as many iterations as all before, with steps that decrease
        from half of those before; when one of them gains no more than that, the fit has
        converged. After half of `max_iter` the step size decreases in any case. In the
        first fifth of a first fit, up to about 3,000 gradient steps (30 epochs, if they
        are more), the divergence has a tenth of its weight, so that the data shape the
        units before the prior can switch them off. True stops after that
        when the bound no longer increases: the step size is halved after
        `n_iter_no_change` iterations without progress beyond the noise, five times;
        bounds often increase again after long plateaus, which this misses.
        No data need be held out: the bound itself guards against overfitting. With
        `validation_fraction` True stops when the score has not increased by `tol` for
        `n_iter_no_change` epochs after the first fifth; the bound may then still be far
        from its optimum. In every case steps that lead far above the best objective so
        far are undone, and halved, and the fit returns the best state that it has
        passed through.
    validation_fraction : float, default=None
        Fraction of the rows that is held out of the fit, drawn by `random_state`. The
        state after every epoch is scored by its mean log predictive density of these
        rows, and the fit returns the one with the best score, whether or not it stops
        early (except those of the first fifth, in which the divergence has a tenth of
        its weight). Everything else refers to the training rows: the posterior,
        `lower_bound_`, the units of `normalize_y`, and `evidence_bounds`, which takes
        all rows and leaves the same ones out. It copies X. None holds no rows out.
    n_iter_no_change : int, default=20
        Used with ``early_stopping=True``.
    warm_start : bool, default=False
        Whether a second fit starts at the posterior of the first.
    n_predict_draws : int, default=100
        Networks that predictions average over, drawn once at the end of the fit.
    checkpoint_path : str or path-like, default=None
        A file in which `fit` saves its state. An interrupted fit resumes from there
        when it is started again with the same parameters and data, with the same result
        as an uninterrupted one, bit for bit on the same machine; a finished one is not
        trained again. With other parameters or data the file is refused; so is any
        `random_state` except an int. It is a ``.npz`` archive without pickles, and is
        not deleted after the fit.
    checkpoint_interval : float, default=60.0
        Seconds between two writes of that file, the most that can be lost. 0 writes it
        after every few steps.
    device : str, default="auto"
        Device of `fit` and of predictions: "cpu", "cuda", "cuda:1" or another one that
        torch supports and that has double precision. "auto" is "cuda" if available,
        else "cpu". The data are copied to it once; the fitted posterior is kept in main
        memory, and predicts on the CPU if there is no such device. Evidences are
        computed on the CPU.
    verbose : int, default=0
        1 writes a line about once a second, 2 one for every iteration;
        `evidence_bounds` reports its progress.
    random_state : int, RandomState instance or None, default=None

    Attributes
    ----------
    noise_scale_ : float
        Standard deviation of the noise, in units of y.
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
        With log loss also "explained", the fraction of the target's variance explained
        by the fit on up to 2,000 training rows (their weighted R^2), and "missed", an
        estimate of the fraction that neighboring rows have in common and the fit
        misses. A converged fit warns if it misses much, or explains no more than the
        mean.
    posterior_ : Posterior
    prior_scale_ : float or dict of str to float or ndarray
        The scale that `prior` learned, by block if there are several; only if it learns
        one. With prior="auto" that of "coef_0" has shape (n_features,): features with a
        scale near 0 hardly matter. It is a float for one feature, or fewer than five
        units.
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
    >>> from skvi.neural_network import BayesianMLPRegressor
    >>> X, y = (array[:100] for array in load_diabetes(return_X_y=True))
    >>> network = BayesianMLPRegressor(
    ...     hidden_layer_sizes=5, learning_rate=0.1, max_iter=80, tol=0.1,
    ...     random_state=0,
    ... )
    >>> model = make_pipeline(StandardScaler(), network).fit(X, y)
    >>> mean, std = model.predict(X[:2], return_std=True)
    >>> bool((std > 40).all())  # the noise alone is about 55
    True
    """

    _parameter_constraints: dict = {
        **BayesianNetwork._parameter_constraints,
        **MLPMixin._parameter_constraints,
        "activation": [StrOptions({"auto", *ACTIVATIONS})],
        **NetworkRegressorMixin._parameter_constraints,
    }

    def __init__(
        self,
        objective="elbo",
        divergence="kl",
        loss="log",
        posterior="mean_field",
        prior="auto",
        intercept_prior=None,
        hidden_layer_sizes="auto",
        activation="auto",
        noise="constant",
        likelihood="gaussian",
        noise_scale="learn",
        normalize_y=True,
        solver="auto",
        n_draws="auto",
        batch_size="auto",
        learning_rate="auto",
        max_iter=4000,
        tol=1e-3,
        early_stopping=False,
        validation_fraction=None,
        n_iter_no_change=20,
        warm_start=False,
        n_predict_draws=100,
        checkpoint_path=None,
        checkpoint_interval=60.0,
        device="auto",
        verbose=0,
        random_state=None,
    ):
        self.objective = objective
        self.divergence = divergence
        self.loss = loss
        self.posterior = posterior
        self.prior = prior
        self.intercept_prior = intercept_prior
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.noise = noise
        self.likelihood = likelihood
        self.noise_scale = noise_scale
        self.normalize_y = normalize_y
        self.solver = solver
        self.n_draws = n_draws
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.max_iter = max_iter
        self.tol = tol
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.warm_start = warm_start
        self.n_predict_draws = n_predict_draws
        self.checkpoint_path = checkpoint_path
        self.checkpoint_interval = checkpoint_interval
        self.device = device
        self.verbose = verbose
        self.random_state = random_state

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y, sample_weight=None):
        """Fit the posterior over the weights.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Preferably standardized. float32 is kept, everything else becomes float64.
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
