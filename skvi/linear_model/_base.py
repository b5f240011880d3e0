"""Base class of Bayesian linear models."""

from __future__ import annotations  # short types in help()

import math
from dataclasses import replace
from numbers import Real
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_matrix
from sklearn.base import clone, is_classifier
from sklearn.utils.validation import _check_feature_names_in

from skvi import likelihoods
from skvi._estimator._base import NO_ROW_DATA, BaseVariational
from skvi._estimator._continual import check_next_prior
from skvi._estimator._features import feature_units, with_new_features
from skvi._estimator._held_out import choose_parts
from skvi._estimator._parts import DIVERGENCES, LOSSES, POSTERIORS, PRIORS, resolve
from skvi.base._layout import Units
from skvi.divergences import Divergence, KLDivergence
from skvi.evidence._bounds import bound_evidence
from skvi.exceptions import IncompatibleComponentsError, SkviWarning
from skvi.linear_model._exact_coefficients import unscaled_message
from skvi.linear_model._groups import (
    correlated_groups,
    find_groups,
    middles,
    with_columns,
)
from skvi.linear_model._merging import (
    MAX_FULL,
    MAX_QUICK,
    MAX_QUICK_ROWS,
    check_joint,
    normal_of_predictor,
)
from skvi.linear_model._one_output import matching_gamma
from skvi.linear_model._starts import normal_family, start_at_normal, with_plain_normals
from skvi.linear_model._summary import PLUGGED_SCALE, CoefficientsMixin
from skvi.linear_model._units import (
    HierarchicalLinearModel,
    LinearModel,
    columns_beside,
    columns_of_labels,
    grouped_units,
    offset_mean,
)
from skvi.losses import Loss
from skvi.objectives import ELBO
from skvi.posteriors import Family, FullRankNormal, MeanFieldNormal, Posterior
from skvi.posteriors._bordered import BorderedNormal
from skvi.predictors import LinearPredictor
from skvi.priors import GammaHyperprior, HalfCauchy, Normal, Prior
from skvi.priors._blocks import build_prior
from skvi.priors._correlated import correlated
from skvi.priors._posterior import MixtureAsPrior
from skvi.priors.base import VAGUE_SCALE
from skvi.solvers import Problem
from skvi.solvers._choice import choose_solver
from skvi.solvers._natural_gradient import NaturalGradient
from skvi.targets._blocks import BlockRows
from skvi.targets._numbers import LikelihoodNumber, Scale, bound_at, numbers_of
from skvi.targets._supervised import with_prior
from skvi.utils._blocks import Blocks
from skvi.utils._interrupts import with_callbacks
from skvi.utils._rows import SparseRows, row_width
from skvi.utils._validation import StrOptions, _fit_context, is_dask, warn_user


def _is_auto_prior(prior):
    return isinstance(prior, str) and prior == "auto"


# Labels of a group from which their diagonal precision pays, and most parameters beside
# them.
LEAST_LABELS, MAX_BORDER = 200, 1500
NOT_INTEGRATED = (
    "scales of groups are integrated beside normal priors alone. Here effects have the "
    "average of their prior over the scale, and deviations that are too small: give "
    "other coefficients a normal prior, as prior={'coef': Normal()}"
)
FACTORIZED = (
    "{size:,} coefficients are too many for a full covariance, and no group of labels "
    "leaves at most 1,500 of them: they are taken as independent, so that standard "
    "deviations of the intercept, and of effects that many rows share, are too small. "
    "Merge rare labels, or use fewer columns beside the largest factor."
)


class BayesianLinearModel(CoefficientsMixin, BaseVariational):
    """Base class: a linear predictor with one or more columns.

    Predictions integrate over a normal posterior without noise; from a posterior of
    another family they average over 1000 draws.

    A subclass must implement `_assemble(data, response)`, with `_generalized_linear`
    and a likelihood, and `predict`, for which `_average` gives posterior means.
    Parameters of the estimators here that its constructor omits have their defaults.

    Examples
    --------
    See the page "Adding your own components".
    """

    #: Defaults of parameters that the constructor of a subclass omits.
    objective, divergence, loss, posterior = "elbo", "kl", "log", "auto"
    prior, column_groups, intercept_prior, fit_intercept = "auto", None, None, True
    solver, max_iter, tol, warm_start = "auto", 100, 1e-5, False
    n_jobs, device, verbose, random_state = None, "auto", 0, None

    _parameter_constraints: dict = {
        **BaseVariational._parameter_constraints,
        "divergence": [StrOptions({"auto", *DIVERGENCES}), Divergence],
        "loss": [StrOptions({"auto", *LOSSES}), Loss, callable],
        "posterior": [StrOptions({"auto", *POSTERIORS}), Family],
        "prior": [StrOptions({"auto", *PRIORS}), Prior, Posterior, dict],
        "column_groups": [None, dict],
    }
    #: Columns of each group, by its name.
    column_groups_: dict = {}
    #: Columns of labels whose effects are on the diagonal of a precision, and values
    #: where their effects are none; see `columns_of_labels`.
    _effects: tuple | None = None
    _input = {**BaseVariational._input, "accept_sparse": "csr"}
    #: Parts that held-out rows chose, and the scores of the candidates, by parameter.
    _chosen, _held_out_scores = None, None

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the posterior.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            float32 is kept, everything else becomes float64. A sparse matrix is
            never made dense; CSR is used as it is. An
            array or data frame of dask stays in its blocks.
        y : array-like of shape (n_samples,)
            Numbers, counts, or two or more classes of any type, as the model says.
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

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(
        self,
        X: Any,
        y: Any,
        sample_weight: ArrayLike | None = None,
        forgetting: float = 1.0,
    ) -> Self:
        """Learn from a batch: the current posterior is the prior for the next batch.

        The first call is a `fit`; after a `fit` the next call continues it.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
        sample_weight : array-like of shape (n_samples,), default=None
        forgetting : float, default=1.0
            Power, in (0, 1], of the posterior so far, for data that drift; the rest is
            the first prior. With 0.99, what 100 batches before said counts 0.37 times.

        Returns
        -------
        self

        Raises
        ------
        IncompatibleComponentsError
            The posterior is not normal, so that it cannot be a prior.
        KeyboardInterrupt
            On Ctrl-C. As after every error the estimator is what it was before the
            call: the batch can be given again.

        Notes
        -----
        Features, and the target if it is standardized, stay in the units of the first
        batch in which they vary, with the origin of the first: let it be large, and
        typical. Under a prior of unknown scale the posteriors at all scales are
        carried, with their weights, and further scales are added as they become likely;
        numbers that are learned without a posterior remain those of the first batch.

        `lower_bound_` and `evidence_bounds` are those of the last batch given the
        previous ones: of log p(batch) under the posterior that was its prior. Their
        sum, ``diagnostics_["sum_of_bounds"]``, estimates the evidence of all rows, but
        is not a bound, since that posterior is an approximation.
        """
        return self._learn_batch(X, y, sample_weight, forgetting=forgetting)

    def __sklearn_tags__(self):
        """Declare that X may be sparse."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _work(self, target):
        """Multiply-adds of one pass of a fit."""
        X, size = target.X, target.layout.size
        per_row = size**2 if not self._is_diagonal() else size * row_width(X)
        return len(X) * per_row

    def _device_work(self, target):
        """As `_work`, but 0 for features that stay where they are."""
        stays = isinstance(target.X, SparseRows | BlockRows)
        return 0 if stays else self._work(target)

    def _is_diagonal(self):
        return isinstance(self.posterior_family_, MeanFieldNormal)

    def _find_blocks(self, X, y, sample_weight, rows):
        """As of dask arrays and data frames, in a fit."""
        if not is_dask(X) or self._stream is not None:
            return None
        given = [name for name, values in rows.items() if values is not None]
        given += ["class_weight"] * (getattr(self, "class_weight", None) is not None)
        if given:
            raise IncompatibleComponentsError(
                given[0],
                "rows in memory, and X is in blocks of dask",
                "sample_weight, or arrays, as of X.compute()",
            )
        return Blocks(X, y, sample_weight, is_classifier(self))

    def _make_target(self, X, y, sample_weight=None, rows=NO_ROW_DATA):
        """As for every estimator; warns of features that the prior does not suit."""
        self._X = X  # as it was given
        try:
            target, data = super()._make_target(X, y, sample_weight, rows)
        finally:
            del self._X
        if (relative_to := self._relative_to()) in (None, "all"):
            prior, name = self._coef_prior(), type(self).__name__
            is_relative = relative_to is not None
            rows = data["X"]
            if self.column_groups_:
                rows = rows[:, columns_beside(self.column_groups_, rows.shape[1])]
            message = unscaled_message(rows, prior, name, is_relative)
            self._warn(message, SkviWarning)
        return target, data

    def _find_groups(self, X):
        """Columns of each group, by X as it was given."""
        if self.column_groups is not None and is_dask(X):
            raise IncompatibleComponentsError(
                "column_groups",
                "rows in memory, and X is in blocks of dask",
                "column_groups=None, or arrays, as of X.compute()",
            )
        return find_groups(self, X)

    def _groups_by_position(self):
        """`column_groups` for rows without names; None if there are none."""
        return with_columns(self.column_groups, self.column_groups_)

    def _pose(self, target):
        """As for every estimator; other divergences than KL need known numbers."""
        if isinstance(target.prior, MixtureAsPrior):
            return self._pose_beside(target)
        plain, numbers = numbers_of(target)
        if not numbers or self.divergence_.kl_weight is not None:
            return super()._pose(target)
        # Impossible combinations are refused before any fit: at some numbers.
        start = bound_at(plain, numbers, [number.start for number in numbers])
        problem, solver = super()._pose(start)
        found = self._at_numbers_by_kl(target).to(problem.target.hyper.device)
        return replace(problem, target=found), solver

    def _pose_beside(self, target):
        """Continue at every scale of a mixture, or from the normal of its moments."""
        one = with_prior(target, target.prior.as_one())
        problem, solver = super()._pose(one)
        known = replace(problem, target=target.to(problem.target.hyper.device))
        if isinstance(solver, NaturalGradient) and not solver.missing(known):
            return known, solver
        self._model = replace(self._model, prior=one.prior)
        return problem, solver

    def _check_posterior(self, posterior):
        super()._check_posterior(posterior)
        check_joint(posterior, self.posterior_family_)
        parts = [p for one in posterior.components for p in one.parts.values()]
        normals = [part.as_normal() for part in parts if self._effects is None]
        if any(normal is not None and normal.factor is not None for normal in normals):
            raise IncompatibleComponentsError(
                f"posterior={self.posterior!r}",
                "a network: in a linear model of up to 1,000 coefficients a full "
                "covariance takes less time and describes the posterior better",
                "posterior='full_rank', or above 1,000 coefficients 'mean_field'",
            )
        if self._stream is not None:
            normal = posterior.as_normal() or normal_of_predictor(posterior)
            check_next_prior(normal, self.posterior)

    def _continue(self, problem, before, solver):
        """The last end, or the usual start where the last posterior is the prior."""
        if self._continues:
            return self._prepare(problem, solver)
        return super()._continue(problem, before, solver)

    def _at_numbers_by_kl(self, target):
        """The target at the numbers that a fit by KL finds, for other divergences.

        They need a normal prior: the same for all, so that a search over divergences
        compares nothing else.
        """
        posterior = self.posterior_family_.build(target.layout)
        if posterior.as_normal() is None:
            posterior = normal_family(target.layout).build(target.layout)
        problem = Problem(target, ELBO(), KLDivergence(), posterior, None)
        solution = choose_solver(problem).solve(problem, self._solver_options(target))
        solution.raise_interrupt()
        found, (plain, numbers) = solution.posterior, numbers_of(target)
        place = found.log_weights.exp() @ found.places()
        known = bound_at(plain, numbers, place.tolist())
        taken = list(self._model.taken_from_y)
        if isinstance(numbers[0], Scale):
            taken.append(PLUGGED_SCALE)
            self._plug_scales(plain.prior, place)
        if isinstance(numbers[-1], LikelihoodNumber):
            taken += target.likelihood_spec.learned
        parts = {"prior": known.prior_spec, "likelihood": known.likelihood_spec}
        if target.noise_hyperprior is not None:
            parts["gammas"] = {}
        self._model = replace(self._model, **parts, taken_from_y=tuple(taken))
        return known

    def _plug_scales(self, prior, place):
        """Give priors of the coefficients the scales at logs of unknown ones."""
        units, found = np.asarray(self._model.units.x_scale), {}
        place = prior.declared(place[: prior.n_unknown_scales])
        parts = zip(prior.named_scales().items(), place.tolist(), strict=True)
        for (name, part), z in parts:
            if name in self._correlations:
                continue
            own = units[self._columns_of(name)] if self.column_groups_ else units
            found[name] = Normal(math.exp(z) * prior.unit_of_scale(part) / own)
        has_blocks = isinstance(self.prior_, dict)
        self.prior_ = {**self.prior_, **found} if has_blocks else found["coef"]

    def _columns_of(self, name):
        """Columns of a group, or those in none."""
        rest = columns_beside(self.column_groups_, self.n_features_in_)
        return self.column_groups_.get(name, rest)

    def _is_auto(self, name):
        """Whether held-out rows are to choose a loss or a divergence."""
        given = getattr(self, name)
        if isinstance(given, KLDivergence):
            given = given.weight
        return isinstance(given, str) and given == "auto"

    def _check_stream(self):
        for name in filter(self._is_auto, ("loss", "divergence")):
            raise IncompatibleComponentsError(
                f"{name}='auto'",
                "all rows at once, of which it holds some out",
                f"fit, or the {name}_ that a fit to a first batch has chosen",
            )

    def _choose_parts(self, X, y, sample_weight, rows):
        if not self._continues:
            self.column_groups_ = self._find_groups(self._X)
        self._chosen, self._held_out_scores = {}, {}
        if not (self._is_auto("loss") or self._is_auto("divergence")):
            return
        is_elbo = self._resolve("objective").kind == "expectation"
        if self._is_auto("divergence") and not is_elbo:
            raise IncompatibleComponentsError(
                "divergence='auto'", "objective='elbo'", "divergence='kl'"
            )
        given = X, y, sample_weight, rows
        self._chosen, self._held_out_scores = choose_parts(self, *given)

    def _judge_fit(self, target):
        numbers, *messages = super()._judge_fit(target)
        if self._held_out_scores:
            numbers = numbers | {"held_out": self._held_out_scores}
        return numbers, *messages

    def _resolve(self, name):
        if name in ("loss", "divergence") and self._is_auto(name):
            return clone(self._chosen[name])
        if name == "prior" and self.column_groups_:
            return resolve("prior", self._prior_by_group())
        if name == "prior" and _is_auto_prior(self.prior):
            return Normal(HalfCauchy()) if self._finds_scale() else Normal()
        if name == "posterior" and isinstance(self.posterior, str):
            if self.posterior == "auto":
                return FullRankNormal()  # until `_choose_family` knows the sizes
        return super()._resolve(name)

    def _choose_family(self, data, response):
        """Take what "auto" stands for: a full covariance where it is affordable."""
        self._effects = None
        if not (isinstance(self.posterior, str) and self.posterior == "auto"):
            return
        n_columns, width = self._count_columns(response), data.X.shape[1]
        size = n_columns * (width + bool(self.fit_intercept))
        is_quick = n_columns == 1 and not self.column_groups_
        is_quick = is_quick and self._is_quick(data.X.shape[0], size)
        if size > (MAX_QUICK if is_quick else MAX_FULL):
            self.posterior_family_ = MeanFieldNormal()
        pairs = correlated_groups(self.column_groups)
        if pairs and size > MAX_FULL:
            raise IncompatibleComponentsError(
                f"The correlated groups {list(pairs)}",
                f"at most {MAX_FULL:,} coefficients; got {size:,}",
                "column_groups without a dict in it: independent groups",
            )
        is_few, found = n_columns > 1 or size < LEAST_LABELS or pairs, None
        if not is_few and self._is_normal_by_rows():
            found = columns_of_labels(data.X, data.weight, self.column_groups_)
        if found is not None and len(found[0]) >= max(LEAST_LABELS, size - MAX_BORDER):
            self._effects = found
            border = np.setdiff1d(np.arange(size), found[0])
            self.posterior_family_ = BorderedNormal(tuple(border.tolist()))
        elif self.column_groups_ and size > MAX_FULL:
            warn_user(FACTORIZED.format(size=size), SkviWarning)

    def _hold_out(self, data):
        return self._trained_rows(super()._hold_out(data))

    def _trained_rows(self, data):
        """As for every estimator; columns of labels take no products with zeros."""
        if self._effects is not None and isinstance(data.X, np.ndarray):
            data = replace(data, X=csr_matrix(data.X))
        return super()._trained_rows(data)

    def _is_normal_by_rows(self):
        """Whether coefficients given scales depend on each other by rows alone."""
        return (
            self.divergence_.kl_weight is not None
            and self.objective_.kind == "expectation"
            and self.device in ("auto", "cpu")  # where sparse rows are
            and isinstance(self.prior_, dict)
            and all(
                isinstance(prior, Normal) and not isinstance(prior.scale, str)
                for prior in self.prior_.values()
            )
        )

    def _count_columns(self, response):
        """Columns of the linear predictor."""
        return 1

    def _is_quick(self, n_rows, size):
        """Whether a full covariance needs no work for each step of the fit."""
        prior = self._coef_prior()
        return (
            n_rows < min(size, MAX_QUICK_ROWS)
            and isinstance(prior, Normal)
            and isinstance(prior.scale, Real)
            and self.divergence_.kl_weight is not None
            and self.objective_.kind == "expectation"
            and self.loss_function_.is_log_loss
        )

    def _finds_scale(self):
        """Whether "auto" has an unknown scale."""
        return True

    def _resolve_prior(self):
        """As for every estimator; a mapping has no entry for the intercept."""
        if self._continues:
            return with_plain_normals(self._stream.posterior)
        if isinstance(self.prior, dict) and "intercept" in self.prior:
            raise IncompatibleComponentsError(
                f"prior={self.prior!r}",
                "no entry 'intercept', whose prior is intercept_prior",
                f"intercept_prior={self.prior['intercept']!r} without this entry",
            )
        prior = super()._resolve_prior()
        names = _check_feature_names_in(self)
        if not isinstance(prior, dict):
            has_names = isinstance(prior, Normal) and prior.has_names
            return prior.in_order(names.tolist()) if has_names else prior
        return {
            key: part.in_order(names[self._columns_of(key)].tolist())
            if isinstance(part, Normal) and part.has_names
            else part
            for key, part in prior.items()
        }

    def _prior_by_group(self):
        """Priors of the coefficients as they are given, for each group and the rest."""
        given, groups = self.prior, self.column_groups_
        if isinstance(given, Posterior):
            raise IncompatibleComponentsError(
                "A posterior that is given as prior",
                "no groups of columns, which it has from its own fit",
                "column_groups=None",
            )
        given = given if isinstance(given, dict) else {"coef": given}
        given = {k: p for k, p in given.items() if not _is_auto_prior(p)}
        names = ["coef"] * (len(self._columns_of("coef")) > 0) + list(groups)
        known = dict.fromkeys(names, Normal(HalfCauchy()))
        if unknown := set(given) - set(known):
            raise IncompatibleComponentsError(
                f"A prior of {sorted(unknown)}",
                f"columns of its own; those of X have the names {sorted(known)}",
                "a dict with no other entries",
            )
        return {**known, **given}

    def _bound_evidence(self, target, generator, **options):
        posterior = with_plain_normals(self.posterior_)
        return bound_evidence(target, posterior, generator, **options)

    def _intercept_beside(self, prior):
        """The same weak prior whatever that of the coefficients is."""
        return Normal(VAGUE_SCALE)

    def _relative_to(self):
        """What scales of coefficients are relative to; see `Prior.relative_to`."""
        named = {"auto": "each", "ard": "each", "hierarchical": "all"}
        given = self._coef_prior_in(self.prior)
        if self.column_groups_ and given is None:
            given = "auto"
        if isinstance(given, str) and given in named:
            return named[given]
        return getattr(self._coef_prior(), "relative_to", None)

    def _find_units(self, data):
        """Origin and scale of the features, and origin of the offset."""
        if isinstance(self.prior_, Posterior):
            units = self._given_units() or Units(0.0, 1.0)
            return with_new_features(units, data.X, data.weight)
        origin, scale, unseen = self._feature_units(data)
        is_single = self.fit_intercept and not self._n_beside()
        middle = offset_mean(data.offset, data.weight) if is_single else 0.0
        return Units(0.0, 1.0, origin, scale, middle, unseen)

    def _n_beside(self):
        """Columns of f without the offset."""
        return 0

    def _feature_units(self, data):
        """Origin and scale of the features; see `feature_units`."""
        given = data.features, data.weight, self.fit_intercept, self._relative_to()
        if not (groups := self.column_groups_):
            return feature_units(*given)
        relative = [self.prior_[name].relative_to is not None for name in groups]
        origin, *rest = grouped_units(*given, groups, relative)
        if origin is not None and self._effects is not None:
            origins = self._effects[1]
            origin[list(origins)] = list(origins.values())
        return origin, *rest

    def _coef_prior(self):
        return self._coef_prior_in(self.prior_)

    def _coef_prior_in(self, prior):
        if not isinstance(prior, dict):
            return prior
        # Entries go by name or by role; a dict with neither is refused when the prior
        # is built.
        return prior.get("coef", prior.get("weight"))

    def _initialize(self, problem):
        """Weighted bounds, bent families and unknown numbers start at a normal fit."""
        is_weighted = problem.objective.kind == "weights"
        has_precision = problem.target.noise_hyperprior is not None
        if is_weighted or has_precision or problem.posterior.starts_at_normal:
            return start_at_normal(problem)
        return None

    def _built(self, prior, layout, data, units):
        """A prior over the parameters, with groups that are correlated.

        In a stream that is the last posterior, which has their correlation.
        """
        prior = build_prior(prior, layout, self.column_groups_)
        parts = getattr(prior, "priors", ())
        if not prior.n_unknown_scales and any(p.n_unknown_scales for p in parts):
            self._warn(NOT_INTEGRATED, SkviWarning)
        if self._continues or not self._correlations:
            return prior
        given = self._correlations, data, units.x_scale, self.column_groups_
        return correlated(prior, self._correlations, middles(*given))

    @property
    def _correlations(self):
        """Pairs of groups that are correlated, by the names of their correlations."""
        pairs = correlated_groups(self.column_groups)
        return {f"corr({name})": both for name, both in pairs.items()}

    def _generalized_linear(self, data, response, likelihood, predictor=None):
        """Return the model of log odds, or a log rate, that are linear in X."""
        likelihood.validate()
        if predictor is None:
            predictor = LinearPredictor(
                data.X.shape[1], likelihood.n_outputs, self.fit_intercept
            )
        given = self.prior_
        is_posterior = isinstance(given, Posterior)
        prior = given.real_part() if is_posterior else given
        units = self._find_units(data)
        prior = self._built(prior, predictor.layout, data, units)
        if self._continues and isinstance(prior, MixtureAsPrior):
            prior.first = self._stream.prior
        loss, dtype = self.loss_function_, str(data.X.dtype)
        parts = response, predictor, likelihood, loss, prior, dtype
        gamma = likelihood.gamma_prior
        if gamma is None:
            return LinearModel(*parts, units)
        (name, _), (parameter, *_) = likelihood.gamma_block, likelihood.learned
        if not loss.is_log_loss or self._is_auto("loss"):
            kind = type(likelihood).__name__
            kind = kind if kind in likelihoods.__all__ else "GammaLikelihood"
            raise IncompatibleComponentsError(
                f"loss={self.loss!r}",
                f"a known {parameter}",
                f"loss='log', or likelihood={kind}({parameter}=0.5), with the number "
                "that suits y",
            )
        if is_posterior and name in given.layout:
            gamma = matching_gamma(given)
        gammas = {"noise_hyperprior": GammaHyperprior(*gamma)}
        return HierarchicalLinearModel(*parts, units, gammas=gammas, is_centered=False)
