"""Bayesian logistic regression."""

import math

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from skvi.likelihoods import BernoulliLikelihood
from skvi.linear_model._base import BayesianLinearModel
from skvi.utils._callbacks import with_callbacks
from skvi.utils._quadrature import log_expect_sigmoid
from skvi.utils._validation import _fit_context

__all__ = ["BayesianLogisticRegression"]


class BayesianLogisticRegression(ClassifierMixin, BayesianLinearModel):
    """Logistic regression with a posterior over its coefficients, for two classes.

    Where `sklearn.linear_model.LogisticRegression` returns one vector of
    coefficients, this estimator returns a distribution: coefficients with standard
    deviations, class probabilities that are averaged over it (and therefore less
    extreme where data are scarce), and bounds on the evidence, by which models can
    be compared without a validation set.

    The defaults are standard Bayesian inference with a normal approximation. The
    fit is deterministic and takes milliseconds on small data.

    Parameters
    ----------
    objective : {"elbo", "eubo"} or Objective, default="elbo"
        In which sense the approximation is close to the exact posterior. "elbo"
        (the usual one) finds the bulk and can be too narrow; "eubo" has the exact
        posterior's mean and standard deviations, at the price of some sampling.
    divergence : {"kl", "renyi"} or Divergence, default="kl"
        How distance to the prior is measured. Anything but "kl" gives a
        generalised posterior and needs ``objective="elbo"``. "renyi" below order 1
        gives wider posteriors; on nearly separable data much wider ones.
    loss : {"log", "beta"} or Loss, default="log"
        "log" is the likelihood. "beta" gives little weight to labels that the
        model finds impossible, such as wrong ones.
    posterior : {"full_rank", "mean_field"} or Family, default="full_rank"
        "full_rank" knows the correlations between coefficients; "mean_field"
        ignores them, needs less memory, and is for thousands of features.
    prior : {"normal", "laplace"}, Prior or dict, default="normal"
        Distribution of the coefficients before the data. The default scale 1 suits
        standardised features. A dict gives one prior for "coef" and one for
        "intercept".
    intercept_prior : {"normal", "laplace"}, Prior or None, default=None
        None is a normal prior with the scale of `prior`.
    fit_intercept : bool, default=True
    solver : {"auto", "natural_gradient", "moment_matching", "stochastic"}, \
default="auto"
        "auto" takes the most exact one that can solve the combination.
    n_draws : int, default=10
        Draws per gradient step of the stochastic solver.
    batch_size : int or "auto", default="auto"
        Rows per gradient step. "auto" uses all rows; data with more rows than an
        int are fitted by stochastic gradients on minibatches of that size, which
        is noisier, and worth it for millions of rows.
    learning_rate : float or "auto", default="auto"
        First step size of the stochastic solver; "auto" is 0.05.
    max_iter : int, default=100
        Largest number of iterations. An iteration of the stochastic solver is an
        epoch (one visit of every row) with minibatches, and 100 gradient steps
        without; one of the moment-matching solver is a step of the fit from which
        it draws.
    tol : float, default=1e-5
        Nats: a fit has converged when it is this close to its optimum.
    warm_start : bool, default=False
        Whether a second fit starts at the posterior of the first, which saves
        iterations on similar data; the prior stays the one that was given.
    verbose : int, default=0
        1 writes a line about once a second, 2 one for every iteration. Where
        scikit-learn has callbacks (from version 1.9), ``set_callbacks`` shows a
        progress bar.
    random_state : int, RandomState instance or None, default=None
        Only fits that draw use it.

    Attributes
    ----------
    classes_ : ndarray of shape (2,)
    coef_ : ndarray of shape (1, d)
        Posterior means.
    coef_std_ : ndarray of shape (1, d)
        Posterior standard deviations.
    intercept_, intercept_std_ : ndarray of shape (1,)
    lower_bound_ : float
        Evidence lower bound (ELBO) of the fitted posterior, in nats, summed over
        the data, whatever was optimised. It bounds log p(D) only with log loss and
        without sample weights.
    lower_bound_se_ : float
        Its standard error, 0 where it is computed without draws.
    objective_value_ : float
        What was optimised, in nats; for "eubo" an estimate from draws.
    loss_curve_ : ndarray of shape (n_iter,)
        The minimised quantity after every iteration.
    n_iter_ : int
    converged_ : bool
    diagnostics_ : dict
        The solver, its estimate of the remaining gap, the error of the quadrature,
        and the efficiency and Pareto k of 128 importance weights (None where they
        would cost more than a tenth of the fit).
    posterior_ : Posterior
        The fitted posterior.
    objective_, divergence_, loss_function_, posterior_family_, prior_ : Component
        What the parameters were resolved to.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (d,)

    See Also
    --------
    skvi.evidence_bounds : Evidence of a pipeline or a search.

    Notes
    -----
    More than two classes are not supported yet.

    References
    ----------
    The rule of three: Knoblauch, Jewson and Damoulas, *Generalized Variational
    Inference*. EUBO: Ji and Shen (2019), eq. 2.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.preprocessing import scale
    >>> from skvi.linear_model import BayesianLogisticRegression
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = BayesianLogisticRegression().fit(scale(X), y)
    >>> round(model.lower_bound_, 2)
    -55.47
    >>> model.predict_proba(scale(X)[:1]).round(3)
    array([[1., 0.]])
    """

    def __init__(
        self,
        objective="elbo",
        divergence="kl",
        loss="log",
        posterior="full_rank",
        prior="normal",
        intercept_prior=None,
        fit_intercept=True,
        solver="auto",
        n_draws=10,
        batch_size="auto",
        learning_rate="auto",
        max_iter=100,
        tol=1e-5,
        warm_start=False,
        verbose=0,
        random_state=None,
    ):
        self.objective = objective
        self.divergence = divergence
        self.loss = loss
        self.posterior = posterior
        self.prior = prior
        self.intercept_prior = intercept_prior
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.n_draws = n_draws
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.verbose = verbose
        self.random_state = random_state

    def __sklearn_tags__(self):
        """Declare that there are two classes."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y, sample_weight=None):
        """Fit the posterior.

        Parameters
        ----------
        X : array-like of shape (n, d)
            float32 is kept, everything else becomes float64.
        y : array-like of shape (n,)
            Two classes, of any type.
        sample_weight : array-like of shape (n,), default=None
            Not negative; a weight of 2 counts a row twice.

        Returns
        -------
        self

        Raises
        ------
        IncompatibleComponentsError
            The parts cannot be combined; before any training.
        """
        return self._fit(X, y, sample_weight)

    def _likelihood(self):
        return BernoulliLikelihood()

    def _encode(self, y, reset=True):
        """Labels as 0.0 and 1.0."""
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        if reset:
            classes = np.unique(y)
            if len(classes) > 2:
                raise ValueError(
                    "Only binary classification is supported. The type of the target "
                    f"is multiclass, with {len(classes)} classes. Use "
                    "sklearn.multiclass.OneVsRestClassifier around this estimator."
                )
            if len(classes) < 2:
                raise ValueError(
                    "This solver needs samples of 2 classes in the data, but the "
                    f"data contains only one class: {classes[0]!r}"
                )
            self.classes_ = classes
        elif not np.isin(y, self.classes_).all():
            raise ValueError(
                f"y has labels that were not in the fit: "
                f"{np.setdiff1d(y, self.classes_)}; known are {self.classes_}."
            )
        return (y == self.classes_[1]).astype(np.float64)

    def _check_weighted(self, target_values):
        if len(np.unique(target_values)) < 2:
            raise ValueError(
                "The rows with a positive sample_weight contain only one class; the "
                "fit needs both."
            )

    def decision_function(self, X):
        """Log odds of ``classes_[1]``, of the probability averaged over the posterior.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        ndarray of shape (n,)
            In the same order as ``predict_proba(X)[:, 1]``. It is closer to 0 than
            the linear predictor at the posterior mean.
        """
        log_p, dtype = self._log_probabilities(X)
        return (log_p[:, 1] - log_p[:, 0]).numpy().astype(dtype)

    def predict(self, X):
        """Most probable class.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        ndarray of shape (n,)
        """
        # The averaged probability is above 1/2 exactly where the mean is above 0.
        mean, _, _ = self._predictive_moments(X)
        return self.classes_[(mean > 0).numpy().astype(int)]

    def predict_proba(self, X):
        """Class probabilities, averaged over the posterior by quadrature.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        ndarray of shape (n, 2)
            In the order of ``classes_``; rows sum to 1.
        """
        log_p, dtype = self._log_probabilities(X)
        return log_p.exp().numpy().astype(dtype)

    def predict_log_proba(self, X):
        """Logarithm of `predict_proba`.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        ndarray of shape (n, 2)
        """
        log_p, dtype = self._log_probabilities(X)
        return log_p.numpy().astype(dtype)

    def _log_probabilities(self, X):
        """Log of both averaged probabilities, from the smaller one."""
        mean, std, dtype = self._predictive_moments(X)
        small = log_expect_sigmoid(-mean.abs(), std).clamp(max=math.log(0.5))
        large = torch.log1p(-small.exp())
        positive = mean > 0
        columns = [
            torch.where(positive, small, large),
            torch.where(positive, large, small),
        ]
        return torch.stack(columns, 1), dtype

    def predict_log_density(self, X, y):
        """Log predictive probability of each label: the proper score of a forecast.

        Parameters
        ----------
        X : array-like of shape (n, d)
        y : array-like of shape (n,)

        Returns
        -------
        ndarray of shape (n,)
            In nats, each row given the training data alone.
        """
        log_proba = self.predict_log_proba(X)
        column = self._encode(y, reset=False).astype(int)
        if len(column) != len(log_proba):
            raise ValueError(f"X has {len(log_proba)} rows, but y has {len(column)}.")
        return log_proba[np.arange(len(column)), column]
