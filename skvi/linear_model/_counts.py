"""Bayesian regression of counts."""

from __future__ import annotations  # short types in help()

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from skvi._estimator._parts import COUNTS, ZEROS
from skvi.likelihoods import Likelihood
from skvi.linear_model._base import BayesianLinearModel
from skvi.linear_model._count_responses import Counts, check_likelihood, log_exposure
from skvi.linear_model._targets import TargetRegressor
from skvi.utils._interrupts import with_callbacks
from skvi.utils._validation import StrOptions, _fit_context


class BayesianPoissonRegressor(TargetRegressor):
    """Regression of counts with a posterior over its coefficients.

    A count y_i has mean ``exposure_i * exp(x_i' coef + intercept)``, and a Poisson
    distribution, or another `likelihood` with overdispersion. While
    `sklearn.linear_model.PoissonRegressor` returns one vector of coefficients, this
    estimator returns a distribution: coefficients with standard deviations, rates and
    counts with intervals, and bounds on the evidence, by which models can be compared
    without a validation set.

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
        "log" is the likelihood. "beta" and "gamma" give little weight to counts that
        the model considers impossible. A callable ``(f, y) -> (S, n)`` of the log rate,
        exposure included, and the count gives a Gibbs posterior. "auto" is "log" or a
        `BetaLoss`, whichever predicts held-out rows better, except wild counts among
        them.
    posterior : {"auto", "full_rank", "mean_field"} or Family, default="auto"
        "full_rank" models correlations between coefficients, "mean_field" none. "auto"
        is "full_rank" up to 1000 parameters (3000 where it is quick), else
        "mean_field", but for `column_groups` of labels: correlations of 200 and more
        with at most 300 other coefficients are modeled without a full covariance.
    prior : {"auto", "normal", "laplace", "student_t", "horseshoe", "ard", \
"log_uniform"}, Prior, Posterior or dict, default="auto"
        Prior of the coefficients. "auto" is ``Normal(scale=HalfCauchy())``, relative to
        the unit of each column, see the guide: the fit depends on no units. The data
        determine one scale for all, which is integrated out.
    column_groups : dict of str to columns or None, default=None
        Groups of columns of X, each with a scale of its own, as of the random effects
        of a mixed model: names, a shell pattern such as "district_*", positions, a
        slice, a mask, or a function of X such as
        `sklearn.compose.make_column_selector`. Each has the prior
        ``Normal(scale=HalfCauchy())``, where 1 is the scale at which the group adds a
        standard deviation of 1 to the log rate; an entry of `prior` changes it, as
        ``prior={"district": Normal(HalfCauchy(2.5))}``. The columns in no group have
        `prior`, or its entry "coef". A dict of two groups, as ``{"shop": {"level": ...,
        "slope": ...}}``, correlates their k-th columns. See :doc:`/linear_models`.
    intercept_prior : {"normal", "laplace", ...}, Prior or None, default=None
        Prior of the log of the mean count at the means of the features and of the log
        exposure: the units of either do not matter. None is ``Normal(10.0)``, weak and
        proper.
    fit_intercept : bool, default=True
        Without an intercept neither features nor log exposures are centered.
    likelihood : {"auto", "poisson", "negative_binomial", "zero_inflated_poisson", \
"zero_inflated_negative_binomial", "hurdle_poisson", "hurdle_negative_binomial"} or \
Likelihood, default="auto"
        Distribution of a count given its mean. Real counts mostly vary more than
        "poisson" allows, which "auto" is; "negative_binomial" has the variance mean +
        dispersion * mean ** 2, and averages over an unknown dispersion. "zero_inflated"
        ones have more zeros, whose log odds are linear in X, too; with a "hurdle" all
        zeros are such.
    solver : {"auto", "natural_gradient", "moment_matching", "stochastic"} or Solver, \
default="auto"
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
    coef_, coef_std_ : ndarray of shape (n_features,) or (2, n_features)
        Posterior means and standard deviations; with zeros apart the second row is of
        their log odds.
    intercept_, intercept_std_ : float or ndarray of shape (2,)
        Log rate per unit of exposure, for the original features.
    dispersion_ : float
        Only with negative binomial counts: posterior mean of the dispersion, or the
        given or learned value.
    lower_bound_ : float
        Evidence lower bound (ELBO) of the fitted posterior, in nats, summed over the
        data, for every `objective`. It bounds log p(D) only for counts, with log loss
        and without sample weights.
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
        As in `BayesianLogisticRegression`.
    posterior_ : Posterior
        The fitted posterior, in the units of the fit: ``posterior_.units``.
    prior_scale_ : ndarray of shape (n_features,), float or dict of str to float
        Posterior mean (geometric) of the scale that `prior` infers ("auto"), in units
        of the features; or the learned one. Only if `prior` infers or learns one.
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
    BayesianLogisticRegression : The same for classes.

    Notes
    -----
    ``exposure`` (time, area, persons at risk) is a parameter of `fit`, `predict`,
    `score` and the other methods that take rows, and can be routed as metadata:
    ``set_fit_request(exposure=True)``. It enters f as a log offset.

    Like scikit-learn's estimator, this one accepts rates, y = count / exposure, with
    ``sample_weight=exposure``: the posterior is that of the counts with `exposure`. The
    log mass is then extended by the Gamma function and is not a normalized density, so
    that `evidence_bounds` and `predict_log_density` raise an error, `lower_bound_` is
    not a bound of an evidence, and losses other than "log" are refused. Negative
    binomial rates with weights are not counts with exposure.

    Under the normal posterior f is normal: the mean rate is ``exp(m + v / 2)``, and the
    predictive distribution is a mixture over a lognormal rate and the dispersion. Its
    standard deviation, quantiles and log mass are exact, or integrals in one or two
    dimensions.

    Examples
    --------
    >>> import numpy as np
    >>> from skvi.linear_model import BayesianPoissonRegressor
    >>> rng = np.random.default_rng(0)
    >>> X, years = rng.normal(size=(200, 2)), rng.uniform(1, 5, size=200)
    >>> y = rng.poisson(years * np.exp(X @ [0.5, -0.3] + 1))
    >>> model = BayesianPoissonRegressor().fit(X, y, exposure=years)
    >>> model.coef_.round(2)
    array([ 0.48, -0.3 ])
    >>> model.predict_interval(X[:2], exposure=years[:2])
    array([[ 2.,  9.],
           [ 6., 18.]])
    """

    _parameter_constraints: dict = {
        **BayesianLinearModel._parameter_constraints,
        "likelihood": [StrOptions({"auto", *COUNTS, *ZEROS}), Likelihood],
    }

    _row_data = {"exposure": 1}
    _instead = {"offset": " Give exposure=np.exp(offset)."}
    _names, _score_power, _are_positive = COUNTS, 1, True

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X: Any,
        y: Any,
        *,
        sample_weight: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
        **row_data: ArrayLike | None,
    ) -> Self:
        """Fit the posterior.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            float32 is kept, everything else becomes float64. A sparse matrix is
            never made dense; CSR is used as it is. An
            array or data frame of dask stays in its blocks.
        y : array-like of shape (n_samples,)
            Counts; other nonnegative numbers only with ``loss="log"``.
        sample_weight : array-like of shape (n_samples,), default=None
            Nonnegative; a row with weight 2 counts twice.
        exposure : array-like of shape (n_samples,), default=None
            Positive; None is 1 for every row.
        **row_data : array-like of shape (n_samples,)
            Refused: an ``offset`` is ``exposure=np.exp(offset)``.

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
        return self._fit(X, y, sample_weight, {"exposure": exposure, **row_data})

    def _response(self, y):
        return Counts.find(y)

    def _assemble(self, data, counts):
        counts.check_loss(self.loss_function_)
        return self._generalized_linear(data, counts, self._likelihood())

    def _with_origin(self, units, mean):
        return units

    def _likelihood(self):
        """The distribution of counts."""
        make = ZEROS.get(self.likelihood) if isinstance(self.likelihood, str) else None
        likelihood = self._resolve("likelihood") if make is None else make()
        check_likelihood(likelihood)
        return self._number_of(likelihood)

    def _offset_of(self, rows, n_rows):
        exposure = rows.get("exposure")
        return None if exposure is None else log_exposure(exposure, n_rows)

    def _row_data_of(self, data):
        return {"exposure": None if data.offset is None else np.exp(data.offset)}

    def _n_beside(self):
        """One column of f for zeros apart."""
        is_word = isinstance(self.likelihood, str)
        return int(
            self.likelihood in ZEROS if is_word else self.likelihood.n_outputs > 1
        )

    def _count_columns(self, counts):
        return 1 + self._n_beside()

    def _group_labels(self):
        return ["count", "zero"]

    def _dense_targets(self, y, name):
        return self._model.response.check_counts(y, name)

    def _evidence(self, X, y, *options):
        self._check_X(X)
        self._dense_targets(y, "evidence_bounds")
        return super()._evidence(X, y, *options)
