"""Bayesian logistic regression."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from skvi._estimator._classes import BayesianClassifierMixin
from skvi.divergences import Divergence
from skvi.exceptions import SkviWarning
from skvi.linear_model._base import BayesianLinearModel
from skvi.linear_model._exact_coefficients import many_classes_message
from skvi.linear_model._functions import ClassPredictionMixin
from skvi.losses import Loss
from skvi.objectives.base import Objective
from skvi.posteriors import Family, Posterior
from skvi.priors import Prior
from skvi.solvers import Solver


class BayesianLogisticRegression(
    ClassPredictionMixin, BayesianClassifierMixin, BayesianLinearModel
):
    """Logistic regression with a posterior over its coefficients.

    While `sklearn.linear_model.LogisticRegression` returns one vector of coefficients,
    this estimator returns a distribution: coefficients with standard deviations, class
    probabilities averaged over it (and therefore less extreme if data are scarce), and
    bounds on the evidence, by which models can be compared without a validation set.

    The defaults are standard Bayesian inference with a normal approximation. The
    fit is deterministic and takes milliseconds on small data. The guide's page
    :doc:`/parameters` has details of the parameters.

    Parameters
    ----------
    objective : {"elbo", "eubo", "iwelbo", "renyi", "chi", "alpha_energy"} \
or Objective, default="elbo"
        In which sense the approximation is close to the exact posterior. "elbo", the
        usual one, can be too narrow; "eubo" has the mean and standard deviations of the
        exact posterior, up to Monte Carlo error; "alpha_energy" gives wider posteriors.
    divergence : {"kl", "auto", "renyi", "alpha", "beta", "gamma", "jeffreys"} or \
            Divergence, default="kl"
        How distance to the prior is measured. Anything except "kl" gives a generalized
        posterior and needs ``objective="elbo"``. "auto" is a KL with the weight that
        predicts held-out rows best.
    loss : {"log", "auto", "beta", "gamma"}, Loss or callable, default="log"
        "log" is the likelihood. "beta" and "gamma" give little weight to labels that
        the model considers impossible, such as wrong ones. A callable of the log odds
        and of y coded 0 and 1 gives a Gibbs posterior; see `CallableLoss`. "auto" is
        "log" or a `BetaLoss`, whichever predicts held-out rows better, except wrong
        labels among them.
    posterior : {"auto", "full_rank", "mean_field"} or Family, default="auto"
        "full_rank" models correlations between coefficients, "mean_field" none. "auto"
        is "full_rank" up to 1000 parameters (3000 where it is quick), else
        "mean_field", but for `column_groups` of labels: correlations of 200 and more
        with at most 300 other coefficients are modeled without a full covariance.
    prior : {"auto", "normal", "laplace", "student_t", "horseshoe", "ard", \
"log_uniform"}, Prior, Posterior or dict, default="auto"
        Prior of the coefficients. "auto" is ``Normal(scale=HalfCauchy())``, relative to
        the unit of each column, see the guide: the fit depends on no units. The data
        determine one scale for all, which is integrated out. "horseshoe", "ard" and
        "log_uniform" are sparse.
    column_groups : dict of str to columns or None, default=None
        Groups of columns of X, each with a scale of its own, as of the random effects
        of a mixed model: names, a shell pattern such as "district_*", positions, a
        slice, a mask, or a function of X such as
        `sklearn.compose.make_column_selector`. Each has the prior
        ``Normal(scale=HalfCauchy())``, where 1 is the scale at which the group adds a
        standard deviation of 1 to the log odds; an entry of `prior` changes it, as
        ``prior={"district": Normal(HalfCauchy(2.5))}``. The columns in no group have
        `prior`, or its entry "coef". A dict of two groups, as ``{"shop": {"level": ...,
        "slope": ...}}``, correlates their k-th columns. See :doc:`/linear_models`.
    intercept_prior : {"normal", "laplace", ...}, Prior or None, default=None
        Prior of the log odds at the means of the features. None is ``Normal(10.0)``,
        weak and proper, whatever `prior` is, so that a search over `prior` compares
        nothing else.
    fit_intercept : bool, default=True
        Without an intercept the features are not centered.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes, by label; they multiply the sample weights. "balanced"
        gives every class the same total weight. With weights the posterior and the
        evidence are generalized ones.
    solver : {"auto", "natural_gradient", "empirical_bayes", "moment_matching", \
"stochastic"} or Solver, default="auto"
        "auto" chooses the most accurate one that can solve the combination, such as
        "empirical_bayes" for learned scales.
        ``Stochastic(batch_size=100)`` is for more rows than a pass can take, see
        `skvi.solvers.Stochastic`.
    max_iter : int, default=100
        Maximum number of iterations; one of the stochastic solver is an epoch with
        minibatches, and 100 gradient steps without.
    tol : float, default=1e-5
        Tolerance in nats: solvers without draws stop when they estimate the remaining
        gain to be smaller. It is not a bound on the distance to the optimum.
    warm_start : bool, default=False
        Whether a second fit starts at the posterior of the first; the prior is still
        the given one.
    device : str, default="auto"
        Device of `fit`, such as "cpu" or "cuda:1". "auto" is "cuda" if available and a
        pass over the data has at least 2**28 multiply-adds, else "cpu". Sparse features
        stay on the CPU, where predictions and evidences are computed.
    n_jobs : int, default=None
        Maximum number of threads of `fit`, the predictions and `evidence_bounds`; -1 is
        every core, None keeps the libraries' own limits. Results change by rounding
        only.
    verbose : int, default=0
        1 writes a line about once a second, 2 one for every iteration;
        `evidence_bounds` reports its progress.
    random_state : int, RandomState instance or None, default=None
        Only used by fits with random draws.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Posterior means: one row of log odds for two classes, else one row for each
        class. Medians, with a `SkviWarning`, where classes are so separable that means
        grow with the largest scales of the prior.
    coef_std_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Posterior standard deviations; beside medians half the width of the central
        68 % interval.
    intercept_, intercept_std_ : ndarray of shape (1,) or (n_classes,)
        For the original features, which are not centered.
    lower_bound_ : float
        Evidence lower bound (ELBO) of the fitted posterior, in nats, summed over the
        data, for every `objective`. It bounds log p(D) only with log loss and without
        sample weights.
    lower_bound_se_ : float
        Its Monte Carlo standard error; 0 if it is computed without draws.
    objective_value_ : float
        Optimized objective, in nats.
    objective_value_se_ : float
        Its Monte Carlo standard error, in nats; 0 if it is computed without draws.
    loss_curve_ : ndarray of shape (n_iter,)
        The minimized quantity after every iteration.
    n_iter_ : int
    converged_ : bool
    diagnostics_ : dict
        The solver, its estimate of the remaining gap, the error of the quadrature,
        and the efficiency and Pareto k of 128 importance weights (None if they would
        cost more than a tenth of the fit). "bound_exists" is whether the optimized
        exact bound is finite at this posterior, or None if unknown. "elbo_upper" is
        above the ELBO, where the family has only bounds of its density. "held_out" has
        the mean log densities of held-out rows of the candidates, where the divergence
        or the loss is "auto".
    posterior_ : Posterior
        The fitted posterior, of features in the units of the fit: ``posterior_.units``
        has their origin and scale. `sample_posterior` draws for the original ones. A
        `MixtureOverScales` if `prior` infers a scale.
    prior_scale_ : ndarray of shape (n_features,), float or dict of str to float
        Posterior mean (geometric) of the scale that `prior` infers ("auto"), in units
        of the features; or the learned scales, by block. Only if `prior` infers or
        learns one.
        With `column_groups` a mapping, with one number for each group, and an array
        for the columns in none, "coef".
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
    More than two classes have one column of coefficients each, with the same prior:
    no class is the reference. A component common to all columns changes no probability
    and keeps its prior. Two such columns with prior scale s are equivalent to the
    single column used for two classes, with prior scale ``sqrt(2) * s``.

    With five and more classes a full-rank fit integrates with few points per row: the
    error of its lower bound is in ``diagnostics_["quadrature_error"]`` (0.2 nat on
    1,797 digits of ten classes), and the fit stops when the gap is a tenth of it or
    less. ``posterior="mean_field"`` is integrated to rounding, and is faster.

    References
    ----------
    The rule of three: Knoblauch, Jewson and Damoulas, *Generalized Variational
    Inference*. EUBO: Ji and Shen (2019), eq. 2. Rényi: Li and Turner (2016). Chi:
    Dieng et al. (2017).

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.preprocessing import scale
    >>> from skvi.linear_model import BayesianLogisticRegression
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = BayesianLogisticRegression().fit(scale(X), y)
    >>> round(model.lower_bound_, 2)
    -58.38
    >>> model.predict_proba(scale(X)[:1]).round(3)
    array([[1., 0.]])
    """

    _parameter_constraints: dict = {
        **BayesianLinearModel._parameter_constraints,
        **BayesianClassifierMixin._parameter_constraints,
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
        class_weight: str | Mapping[Any, float] | None = None,
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
        self.class_weight = class_weight
        self.solver = solver
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.device = device
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.random_state = random_state

    def _count_columns(self, labels):
        return labels.likelihood.n_outputs

    def _assemble(self, data, labels):
        if self._stream is None:  # a batch need not have them all
            message = many_classes_message(labels.classes, data.X.shape[0])
            self._warn(message, SkviWarning)
        return self._generalized_linear(data, labels, labels.likelihood)
