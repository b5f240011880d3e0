"""Search over models by their evidence."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn import get_config
from sklearn.base import BaseEstimator, MetaEstimatorMixin
from sklearn.model_selection import ParameterGrid
from sklearn.utils import check_random_state, get_tags
from sklearn.utils.metadata_routing import (
    MetadataRouter,
    MethodMapping,
    process_routing,
)

from skvi.model_selection._average import averaged, describe_average
from skvi.model_selection._candidates import (
    SearchProgress,
    check_comparable,
    evidence_data,
    fit_all,
    group_models,
    log_prior,
    make_candidates,
    report_failures,
)
from skvi.model_selection._race import PASSES, Race
from skvi.model_selection._results import (
    ROUTED,
    Delegates,
    describe,
    inclusion_of,
    make_results,
    models_of,
    results_as_html,
)
from skvi.plotting._rows import describe_candidates
from skvi.utils._interrupts import Clock, raising_interrupts
from skvi.utils._links import page_template
from skvi.utils._validation import Interval, StrOptions, _fit_context

NOTHING = "Ctrl-C before the end of the first fit: the search has nothing to keep yet"
# Nats: upper limit of the default precision of the last pass.
LOOSEST = 0.1


class EvidenceSearch(Delegates, MetaEstimatorMixin, BaseEstimator):
    """Search over models by their evidence, with an honest "undecided".

    Fits every candidate of a grid once, to all data, and bounds its log evidence
    log p(D) from below and above. There are no folds: the evidence is the probability
    that a model (features, likelihood, prior) assigned to the training targets before
    it saw them. A cheap pass comes first; tighter bounds are computed only if they can
    change the decision.

    Parameters
    ----------
    estimator : estimator or Pipeline
        The final estimator has the method ``evidence_bounds``.
    param_grid : dict or list of dict
        As for `sklearn.model_selection.GridSearchCV`. Candidates that differ only in
        inference (objective, divergence, posterior, solver and its settings, ...) are
        one model: its evidence is bounded once, and reported for all of them.
    min_difference : float, default=1.0
        Nats. A model is excluded if another one is certainly better by more than this.
        Models that are closer are a tie: 1 nat are odds of 2.7 to 1, which are
        negligible.
    confidence_level : float, default=0.95
        Probability that *all* intervals of the search hold simultaneously, and with
        them all of its statements; asymptotically, and if chains have mixed (see
        Notes).
    precision : float, default=None
        Target distance of each bound from the log evidence, in nats, in the last of
        three passes; 10 and 3 times that in the first two. None is a quarter of
        `min_difference`, and at most 0.1.
    method : str, default="auto"
        Passed to ``evidence_bounds``.
    max_seconds : float, default=None
        Time limit, on which results then depend; None: none. Fits may take half of it,
        in equal parts: longer ones end with a warning. Evidences share what is left,
        tighter ones as far as there is any. Not obeyed by the estimates after a fit;
        each model has at least a second for its first evidence.
    model_prior : array-like of shape (n_candidates,) or callable, default=None
        Positive weights of the candidates, in the order of
        `sklearn.model_selection.ParameterGrid`, or a function of a candidate's
        parameters. None is equal weights for all models: merged candidates share one.
    n_jobs : int, default=None
        Processes that fit candidates and bound their evidences, through joblib. The
        result does not depend on it.
    refit : bool or "average", default=True
        Whether to keep the best candidate as `best_estimator_`, for `predict` and so
        on. It is not fitted again: every fit was to all data. "average" predicts by the
        mixture of all candidates, weighted by their probabilities, and keeps those
        above 1e-6.
    error_score : "raise" or nan, default=nan
        Whether to raise the error of a candidate, or to leave NaN in its row, with a
        warning (`FitFailedWarning`).
    allow_supervised_transformers : bool, default=False
        Whether transformers of pipelines may use y; otherwise such candidates are
        refused: features made from y are not part of a model of it, and for pure noise
        the search would prefer the model with the most selected features.
    verbose : int, default=0
        1 writes lines for every pass, with a forecast, every candidate, the decision.
    random_state : int, RandomState instance or None, default=None
        Seed of the bounds. Fits use that of the estimator.

    Attributes
    ----------
    best_estimator_ : estimator
        The candidate of `best_index_`, fitted to all data. Only with ``refit=True``.
    best_index_ : int
        Candidate with the highest estimate (plus log prior weight) among those that are
        not excluded, *even if the search is undecided*. Among candidates that are one
        model it is the one with the highest training bound (ELBO).
    best_params_ : dict
        Parameters of that candidate.
    best_score_ : float
        Estimate of its log evidence, in nats; where there is none, its ELBO.
    decided_ : bool
        Whether all other models are excluded: the best one has more evidence than each
        of them, by more than `min_difference`. Candidates that failed are not compared.
    contenders_ : list of int
        One candidate for each model that is not excluded, the best first.
    verdict_ : str
        The decision and its reasons in one sentence.
    results_ : dict of str to array
        One row for each candidate, ready for `pandas.DataFrame`: "params" and
        "param_*"; "model", the first candidate that is the same model; "estimate",
        "lower" and "upper" of the log evidence in nats, as `EvidenceBounds` prints
        them: unknown ones are NaN or infinite; "laplace_term", what an approximation
        has added to the estimate, which then has no bounds (see Notes); "lower_se" and
        "upper_se"; "interval_lower" and "interval_upper" at `confidence_level`,
        infinite where there are no reliable bounds;
        "probability", "probability_lower" and "probability_upper" of the model, the
        first of which is NaN as soon as the bounds of one of them are not reliable;
        "log_prior", the log of its weight;
        "contender", whether it is not excluded; "reliable", "reason", "method"
        and "plug_in", what an evidence is conditioned on although it comes from y
        (learned hyperparameters make it optimistic);
        "precision" and "n_runs", what was spent; "training_bound", the ELBO of the
        candidate's own fit; "fit_time" and "evidence_time" in seconds;
        "rank_evidence", 1 for the best.
    evidence_bounds_ : list of EvidenceBounds or None
        Last bounds of each candidate's model.
    inclusion_ : dict of str to array
        Posterior probability of each value of each parameter that defines the model:
        "parameter", "value", "probability", and the ends of its interval, "lower" and
        "upper".
    estimators_ : list of estimators
        Candidates of which the average is made, the likeliest first. Only with
        ``refit="average"``, as the next two.
    weights_ : ndarray of shape (n_estimators,)
        Their probabilities, from the estimates of their evidences.
    weights_interval_ : ndarray of shape (n_estimators, 2)
        What the bounds of the evidences leave open: these intervals hold simultaneously
        at `confidence_level`, and are [0, 1] where bounds are not reliable.
    classes_ : ndarray of shape (n_classes,)
        Only for classifiers with ``refit=True``.
    n_features_in_ : int
        Only with ``refit=True``.
    feature_names_in_ : ndarray of shape (n_features,)
        Only if the best estimator has them.

    See Also
    --------
    skvi.evidence_bounds : The bounds of one model, which a fitted search has as well.
    skvi.plotting.EvidenceSearchDisplay : The bounds of all candidates in a picture.
    sklearn.model_selection.GridSearchCV : Search by cross-validation.

    Notes
    -----
    *Decision rule.* Model j is excluded if the interval of some model k lies above its
    own by more than `min_difference`, and k learns no hyperparameter that j does not
    learn. All intervals hold simultaneously with probability `confidence_level`,
    provided that errors are normal and the MCMC chains have reached every mode: so the
    probability that a search decides for a model which is not the best, or is better by
    less, is at most 1 - `confidence_level`. The interval of a model whose bounds are
    not reliable is the whole line. Formulas are in :doc:`/model_selection`.

    *Learned hyperparameters* (``noise_scale="learn"``, ``Normal(scale="learn")``) are
    conditioned on, so that the evidence is a maximum over them and optimistic. Among
    candidates that learn the same ones this is ignored; a mixture of both kinds warns.
    Kernel and noise of sparse Gaussian processes are integrated instead, by Laplace's
    method: candidates are ranked by the sum of log evidence and this term. Nothing
    bounds its error, so that no model is excluded by it, and nothing is decided.

    *Normalized targets.* With ``normalize_y=True`` the prior takes location and scale
    from y ("y_mean" and "y_scale" in the column "plug_in"), so that the evidence is not
    a probability density of y. Candidates that all do so are compared; candidates that
    differ in it are refused, since a prior that follows y would win for that reason
    alone.

    Estimates and bounds are from draws, unless "method" is "exact" or "quadrature".

    References
    ----------
    MacKay (1992), *Bayesian interpolation*: the evidence of a model and its Occam
    factor. Bounds: Ji and Shen (2019), *Stochastic variational inference via upper
    bound*, made tight as in Grosse, Ghahramani and Adams (2015), *Sandwiching the
    marginal likelihood using bidirectional Monte Carlo*.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import PolynomialFeatures
    >>> from skvi.linear_model import BayesianLinearRegression
    >>> from skvi.model_selection import EvidenceSearch
    >>> rng = np.random.default_rng(0)
    >>> x = rng.uniform(-1, 1, (60, 1))
    >>> y = x[:, 0] - 2 * x[:, 0] ** 2 + 0.3 * rng.normal(size=60)
    >>> model = make_pipeline(
    ...     PolynomialFeatures(include_bias=False),
    ...     BayesianLinearRegression(prior="normal", noise_scale=0.3),
    ... )
    >>> grid = {"polynomialfeatures__degree": [1, 2, 3, 4]}
    >>> search = EvidenceSearch(model, grid, random_state=0).fit(x, y)
    >>> search.best_params_, search.decided_
    ({'polynomialfeatures__degree': 2}, True)
    >>> search.results_["probability"].round(2)
    array([0.  , 0.69, 0.17, 0.14])
    """

    _parameter_constraints: dict = {
        "estimator": [BaseEstimator],
        "param_grid": [dict, list],
        "min_difference": [Interval(Real, 0, None, closed="neither")],
        "confidence_level": [Interval(Real, 0, 1, closed="neither")],
        "precision": [None, Interval(Real, 0, None, closed="neither")],
        "method": [str],
        "max_seconds": [None, Interval(Real, 0, None, closed="neither")],
        "model_prior": [None, "array-like", callable],
        "n_jobs": [Integral, None],
        "refit": ["boolean", StrOptions({"average"})],
        "error_score": [StrOptions({"raise"}), Real],
        "allow_supervised_transformers": ["boolean"],
        "verbose": ["verbose"],
        "random_state": ["random_state"],
    }
    _doc_link_module = "skvi"
    _doc_link_template = property(page_template)

    def __init__(
        self,
        estimator: BaseEstimator,
        param_grid: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        min_difference: float = 1.0,
        confidence_level: float = 0.95,
        precision: float | None = None,
        method: str = "auto",
        max_seconds: float | None = None,
        model_prior: ArrayLike | Callable | None = None,
        n_jobs: int | None = None,
        refit: bool | str = True,
        error_score: float | str = np.nan,
        allow_supervised_transformers: bool = False,
        verbose: int = 0,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.estimator = estimator
        self.param_grid = param_grid
        self.min_difference = min_difference
        self.confidence_level = confidence_level
        self.precision = precision
        self.method = method
        self.max_seconds = max_seconds
        self.model_prior = model_prior
        self.n_jobs = n_jobs
        self.refit = refit
        self.error_score = error_score
        self.allow_supervised_transformers = allow_supervised_transformers
        self.verbose = verbose
        self.random_state = random_state

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any, **params: Any) -> Self:
        """Fit all candidates and compare their evidences.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Features, as the estimator accepts them.
        y : array-like of shape (n_samples,)
            Target.
        **params : dict
            Passed to ``fit`` of the estimator: ``sample_weight``, ``exposure``, for a
            pipeline ``step__sample_weight``; with metadata routing what the
            estimator asks for. Weights and exposure of the final step also enter
            the evidence.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            The candidates differ in loss, in class weights, in `normalize_y` or in the
            kind of target, so that their evidences have no common unit; a transformer
            of a pipeline uses y; or all of them failed.
        TypeError
            A candidate has no method ``evidence_bounds``.
        KeyboardInterrupt
            On Ctrl-C. The comparison of the candidates that have been fitted is kept,
            and never decided; without a single fit the search is not fitted.
        """
        if not (self.error_score == "raise" or np.isnan(self.error_score)):
            raise ValueError(
                f"error_score must be 'raise' or nan. Got {self.error_score!r}: an "
                "evidence that failed has no other value."
            )
        # Set at once: after Ctrl-C a search is fitted, or not at all.
        known = vars(self).items()
        self.__dict__ = {k: v for k, v in known if not k.endswith("_")}
        grid = list(ParameterGrid(self.param_grid))
        candidates = make_candidates(
            self.estimator, grid, self.allow_supervised_transformers
        )
        check_comparable(candidates)
        race = self._make_race(X, y, params, grid)
        progress, fit_params = race.progress, self._fit_params(params)
        progress.begin("fits", range(len(grid)))
        settings = self.n_jobs, race.reraise, progress, race.clock
        with raising_interrupts():
            fits = fit_all(candidates, X, y, fit_params, *settings)
            if all(fit.is_interrupted for fit in fits):
                raise KeyboardInterrupt(NOTHING)
            report_failures(fits, "fits")
            models = race.run(models_of(group_models(candidates), fits), fits)
            try:
                found = self._results(race, grid, fits, models)
            except KeyboardInterrupt:
                race.is_interrupted = True
                found = self._results(race, grid, fits, models)
            vars(self).update(found)
            if race.is_interrupted:
                raise KeyboardInterrupt(self.verdict_)
        progress.write(self.verdict_)
        return self

    def _html_repr(self):
        """HTML of the estimator, and of the comparison if it is fitted."""
        box = super()._html_repr()
        if not hasattr(self, "results_"):
            return box
        return box + results_as_html(self.results_, self.verdict_)

    def _make_race(self, X, y, params, grid):
        """Collect the arguments of bounds; check for errors before any fit."""
        routed = get_config()["enable_metadata_routing"]
        options = evidence_data(self.estimator, params, routed)
        if self.method != "auto":
            options["method"] = self.method
        precision = self.precision
        if precision is None:
            precision = min(self.min_difference / 4, LOOSEST)
        shape = (len(grid), len(PASSES))
        seeds = check_random_state(self.random_state).randint(2**31 - 1, size=shape)
        return Race(
            X,
            y,
            options,
            precision,
            seeds,
            log_prior(self.model_prior, grid),
            self.min_difference,
            self.confidence_level,
            self.n_jobs,
            isinstance(self.error_score, str),
            SearchProgress(describe_candidates(grid), self.verbose, self.n_jobs),
            Clock(self.max_seconds),
        )

    def _fit_params(self, params):
        if get_config()["enable_metadata_routing"]:
            return process_routing(self, "fit", **params)["estimator"]["fit"]
        return params

    def _results(self, race, grid, fits, models):
        comparison = race.compare(models)
        order = comparison.contenders()
        best = models[order[0]]
        evidence_bounds = [None] * len(grid)
        for model in models:
            for row in model.rows:
                evidence_bounds[row] = model.bounds
        found = {
            "results_": make_results(grid, fits, models, race),
            "evidence_bounds_": evidence_bounds,
            "best_index_": best.chosen,
            "best_params_": grid[best.chosen],
            "best_score_": best.estimate,
            "contenders_": [models[k].chosen for k in order],
            "decided_": len(order) == 1 and not race.is_interrupted,
            "verdict_": describe(models, race, grid),
        }
        found["inclusion_"] = inclusion_of(grid, models, comparison)
        if self.refit == "average":
            average, ends = averaged(comparison, [model.fitted for model in models])
            found |= {"estimators_": average.estimators, "weights_": average.weights}
            found |= {"weights_interval_": ends, "_average": average}
            found["verdict_"] += describe_average(ends)
        if self.refit:
            found["best_estimator_"] = best.fitted
            if hasattr(best.fitted, "feature_names_in_"):
                found["feature_names_in_"] = best.fitted.feature_names_in_
        return found

    def get_metadata_routing(self) -> MetadataRouter:
        """Return the metadata that the estimator requests.

        Returns
        -------
        MetadataRouter
        """
        mapping = MethodMapping()
        for method in ("fit", *ROUTED):
            mapping.add(caller=method, callee=method)
        return MetadataRouter(owner=self).add(
            estimator=self.estimator, method_mapping=mapping
        )

    def __sklearn_tags__(self):
        """Use the tags of the estimator for inputs and outputs."""
        tags, inner = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.estimator_type = inner.estimator_type
        tags.classifier_tags = deepcopy(inner.classifier_tags)
        tags.regressor_tags = deepcopy(inner.regressor_tags)
        tags.input_tags.sparse = inner.input_tags.sparse
        tags.input_tags.pairwise = inner.input_tags.pairwise
        tags.target_tags = deepcopy(inner.target_tags)
        tags.array_api_support = inner.array_api_support
        return tags
