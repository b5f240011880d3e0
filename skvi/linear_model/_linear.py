"""Bayesian linear regression."""

from __future__ import annotations  # short types in help()

from collections.abc import Callable
from numbers import Real
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin

from skvi._estimator._parts import NOISES, POSTERIORS
from skvi.divergences import Divergence
from skvi.likelihoods import NoiseLikelihood
from skvi.linear_model._base import BayesianLinearModel
from skvi.linear_model._merging import MergingMixin
from skvi.linear_model._regression import GaussianRegression
from skvi.linear_model._regression_predictions import RegressionPredictionMixin
from skvi.linear_model._units import ColumnsMixin
from skvi.losses import Loss
from skvi.objectives.base import Objective
from skvi.posteriors import Family, Posterior
from skvi.priors import GammaHyperprior, HalfCauchy, Prior
from skvi.solvers import Solver
from skvi.utils._interrupts import with_callbacks
from skvi.utils._validation import (
    Interval,
    StrOptions,
    _fit_context,
)


class BayesianLinearRegression(
    RegressorMixin,
    RegressionPredictionMixin,
    MergingMixin,
    ColumnsMixin,
    GaussianRegression,
):
    """Linear regression with a posterior over coefficients, noise and precisions.

    By default the model of `sklearn.linear_model.BayesianRidge`: normal noise and
    normal coefficients, each with an unknown precision. The precisions are integrated
    out, in milliseconds, so that intervals of new targets have their nominal coverage
    even for six rows. There are the evidence of the model, noise with heavy tails,
    other priors and losses, and several targets.
    The guide's page :doc:`/parameters` has details of the parameters.

    Parameters
    ----------
    objective : {"elbo", "eubo", "iwelbo", "renyi", "chi", "alpha_energy"} \
or Objective, default="elbo"
        In which sense the approximation is close to the exact posterior. If the noise
        has a hyperprior, objectives other than "elbo" train on draws.
    divergence : {"kl", "auto", "renyi", "alpha", "beta", "gamma", "jeffreys"} or \
Divergence, default="kl"
        How distance to the prior is measured. Anything except "kl" gives a generalized
        posterior and needs ``objective="elbo"``; unless it is a KL, an unknown noise
        and scale of the prior are those of the best fit under "kl". "auto" is a KL with
        the weight that predicts held-out rows best.
    loss : {"log", "auto", "beta", "gamma"}, Loss or callable, default="log"
        "log" is the likelihood. "beta" and "gamma" give little weight to outliers; they
        act on the target standardized by its median and median absolute deviation.
        "auto" is "log" or a `BetaLoss`, whichever predicts held-out rows better, except
        outliers among them.
    posterior : {"auto", "exact", "full_rank", "mean_field"} or Family, default="auto"
        "exact" is the exact posterior of conjugate models, see Notes. The others are
        normal at every noise and scale of the prior, and average over these;
        "full_rank" models correlations between coefficients, "mean_field" none.
        "auto" is "exact" where it exists, else "full_rank", up to 1000 parameters (3000
        where it is quick), else "mean_field", but for `column_groups` of labels:
        correlations of 200 and more with at most 300 other coefficients are modeled
        without a full covariance.
    prior : {"auto", "hierarchical", "ard", "normal", "laplace", "student_t", \
"horseshoe", "log_uniform"}, Prior, Posterior or dict, default="auto"
        Prior of the coefficients, for a standardized target. "auto" is normal, with one
        unknown scale, which has a half-Cauchy prior. "hierarchical" is that of
        scikit-learn's `BayesianRidge`, with a Gamma(1e-6, 1e-6) prior of the precision;
        "ard" has one for each coefficient. A ``posterior_`` can be the prior of later
        rows.
    column_groups : dict of str to columns or None, default=None
        Groups of columns of X, each with a scale of its own, as of the random effects
        of a mixed model: names, a shell pattern such as "district_*", positions, a
        slice, a mask, or a function of X such as
        `sklearn.compose.make_column_selector`. Each has the prior
        ``Normal(scale=HalfCauchy())``, where 1 is the scale at which the group adds the
        standard deviation of y; an entry of `prior` changes it, as
        ``prior={"district": Normal(HalfCauchy(2.5))}``. The columns in no group have
        `prior`, or its entry "coef". A dict of two groups, as ``{"shop": {"level": ...,
        "slope": ...}}``, correlates their k-th columns. See :doc:`/linear_models`.
    intercept_prior : {"normal", "laplace", ...}, Prior or None, default=None
        Prior of the prediction at the means of the features. None is a normal with the
        scale of the target in the units of the fit, which is 1 if it is standardized:
        almost flat, but proper, so that there is an evidence.
    fit_intercept : bool, default=True
        Without an intercept neither features nor target are centered.
    likelihood : {"gaussian", "student_t"} or NoiseLikelihood, default="gaussian"
        Shape of the noise. "student_t" has heavy tails, of four degrees of freedom, and
        expects outliers; ``StudentTLikelihood(df=2.5)`` sets others.
    noise_scale : float, "learn", "hyperprior", HalfCauchy or GammaHyperprior, \
default="hyperprior"
        Scale of the noise, in units of y: for normal noise its standard deviation.
        "learn" finds the value of largest evidence, or ELBO. "hyperprior" gives it a
        half-Cauchy prior whose median is the deviation of y, and predictions and
        evidence average over it. Other hyperpriors are in the units of the fit: a
        `GammaHyperprior` is that of the precision, as of scikit-learn's
        `BayesianRidge` with ``GammaHyperprior(1e-6, 1e-6)``.
    normalize_y : bool, default=True
        Whether the target is standardized for the fit. Results are in units of y; but
        the prior then follows y, so that evidences are comparable only with others of
        the same normalization. With False priors are in units of y.
    solver : {"auto", "exact", "natural_gradient", "empirical_bayes", \
"moment_matching", "stochastic"} or Solver, default="auto"
        "auto" chooses the most accurate one that can solve the combination.
        ``Stochastic(batch_size=100)`` is for more rows than a pass can take, see
        `skvi.solvers.Stochastic`.
    max_iter : int, default=100
        Maximum number of iterations; one of the stochastic solver is an epoch with
        minibatches, and 100 gradient steps without.
    tol : float, default=1e-5
        Tolerance in nats: solvers without draws stop when they estimate the remaining
        gain to be smaller. It is not a bound on the distance to the optimum.
    warm_start : bool, default=False
        Whether a second fit starts at the posterior of the first.
    device : str, default="auto"
        Device of `fit`, such as "cpu" or "cuda:1". "auto" is "cuda" if available and a
        pass over the data has at least 2**28 multiply-adds, else "cpu". Sparse features
        stay on the CPU, where predictions and evidences are computed.
    n_jobs : int, default=None
        Maximum number of threads of `fit`, the predictions and `evidence_bounds`; -1 is
        every core, None keeps the libraries' own limits.
    verbose : int, default=0
        1 writes a line about once a second, 2 one for every iteration;
        `evidence_bounds` reports its progress.
    random_state : int, RandomState instance or None, default=None
        Only used by fits with random draws.

    Attributes
    ----------
    coef_, coef_std_ : ndarray of shape (n_features,) or (n_outputs, n_features)
        Posterior means and standard deviations, in units of y per unit of X.
    intercept_, intercept_std_ : float or ndarray of shape (n_outputs,)
        Intercept for the original, uncentered features.
    noise_scale_ : float or ndarray of shape (n_outputs,)
        Scale of the noise, in units of y, ``1 / sqrt(alpha_)``; for normal noise its
        standard deviation, for Student-t noise smaller than that. With a
        hyperprior the posterior mean of its logarithm says what it is.
    alpha_ : float or ndarray of shape (n_outputs,)
        Precision of the noise, ``noise_scale_ ** -2``.
    lambda_ : float or ndarray
        (Mean) precision of the coefficients in ``posterior_``, if their prior is
        normal, without `column_groups`; of shape (n_features,) or (n_outputs,
        n_features) with one for each coefficient, (n_outputs,) with one for each
        target.
    sigma_ : ndarray of shape (n_features, n_features), or with a first axis n_outputs
        Covariance of the coefficients, with a full-rank posterior, or an exact one of
        up to 3000 features.
    prior_scale_ : ndarray of shape (n_features,), float or dict of str to float
        Posterior mean (geometric) of the scale that `prior` infers ("auto"), in units
        of y per unit of X; or the learned one. Only if `prior` infers or learns one.
        With `column_groups` a mapping, with one number for each group, and an array
        for the columns in none, "coef".
    lower_bound_ : float
        Evidence lower bound (ELBO) of the fitted posterior, in nats, summed over data
        and targets, for every `objective`. It bounds log p(D) only with log loss and
        without sample weights; with a learned noise, at that noise. It is log p(D)
        where the posterior is exact.
    lower_bound_se_ : float
        Its Monte Carlo standard error; 0 if it is computed without draws.
    objective_value_ : float
        Optimized objective, in nats.
    objective_value_se_ : float
        Its Monte Carlo standard error, in nats; 0 if it is computed without draws.
    loss_curve_ : ndarray of shape (n_iter,)
        The minimized quantity after every iteration. One value where the posterior is
        exact.
    n_iter_ : int
    converged_ : bool
    diagnostics_ : dict
        As in `BayesianLogisticRegression`.
    posterior_ : Posterior, or tuple of n_outputs of them
        The source of all results, in the units of the fit, with the logarithm of an
        unknown noise precision.
    outputs_ : list of BayesianLinearRegression
        Only for a target of shape (n_samples, n_outputs): the fit of each column.
    objective_, divergence_, loss_function_, posterior_family_, prior_ : Component
        Resolved values of the parameters.
    column_groups_ : dict of str to ndarray
        Positions of the columns of each group.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features,)

    See Also
    --------
    skvi.evidence_bounds : Evidence of a pipeline or a search.

    Notes
    -----
    With normal noise, log loss, ``objective="elbo"``, ``divergence="kl"`` and a prior
    of the noise, of one scale that all coefficients share, or of both, the posterior is
    exact: a mixture of normals over nodes of these numbers. With given ones "full_rank"
    is exact. As the prior of later rows it is replaced by a normal and a Gamma
    distribution with its moments. With few rows an informative hyperprior helps: see
    :doc:`/predict`.

    The evidence is in closed form with normal noise, log loss, normal coefficients and
    given (or learned) scales, by quadrature in the models above, and otherwise from
    draws, which integrate out everything with a hyperprior. Vague Gamma hyperpriors
    cost about 14 nats each, as the result says.

    References
    ----------
    Gelman (2006), *Prior distributions for variance parameters in hierarchical
    models*: half-Cauchy scales. *Variational inference*, lecture notes, section 10.3:
    the model, with Gamma priors of both precisions. MacKay
    (1992), *Bayesian interpolation*. Robust losses: Knoblauch, Jewson and Damoulas,
    *Generalized Variational Inference*.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skvi.linear_model import BayesianLinearRegression
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = BayesianLinearRegression().fit(X, y)
    >>> round(model.noise_scale_, 1), round(model.lower_bound_, 1)
    (54.3, -2415.4)
    >>> mean, std = model.predict(X[:2], return_std=True)
    >>> std.round(1)
    array([54.8, 54.9])
    """

    _parameter_constraints: dict = {
        **BayesianLinearModel._parameter_constraints,
        "posterior": [StrOptions({"auto", "exact", *POSTERIORS}), Family],
        "likelihood": [StrOptions(set(NOISES)), NoiseLikelihood],
        "noise_scale": [
            Interval(Real, 0, None, closed="neither"),
            StrOptions({"learn", "hyperprior"}),
            GammaHyperprior,
            HalfCauchy,
        ],
        "normalize_y": ["boolean"],
    }

    def __init__(
        self,
        objective: str | Objective = "elbo",
        divergence: str | Divergence = "kl",
        loss: str | Loss | Callable = "log",
        posterior: str | Family = "auto",
        prior: str | Prior | Posterior | dict[str, Any] = "auto",
        column_groups: dict[str, Any] | None = None,
        intercept_prior: str | Prior | None = None,
        fit_intercept: bool = True,
        likelihood: str | NoiseLikelihood = "gaussian",
        noise_scale: float | str | GammaHyperprior | HalfCauchy = "hyperprior",
        normalize_y: bool = True,
        solver: str | Solver = "auto",
        max_iter: int = 100,
        tol: float = 1e-5,
        warm_start: bool = False,
        device: str = "auto",
        n_jobs: int | None = None,
        verbose: int = 0,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.objective = objective
        self.divergence = divergence
        self.loss = loss
        self.posterior = posterior
        self.prior = prior
        self.column_groups = column_groups
        self.intercept_prior = intercept_prior
        self.fit_intercept = fit_intercept
        self.likelihood = likelihood
        self.noise_scale = noise_scale
        self.normalize_y = normalize_y
        self.solver = solver
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.device = device
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.random_state = random_state

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the posterior.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            float32 is kept, everything else becomes float64. A sparse matrix is
            never made dense, not even to center it. An
            array or data frame of dask stays in its blocks.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Every column is a separate target, with its own noise and precisions.
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
            attributes; otherwise the estimator is not fitted. With several targets it
            is only fitted if the last one had been reached.
        """
        return self._fit_one_or_more(X, y, sample_weight)
