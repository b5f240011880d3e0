"""Bayesian ordinal regression."""

from __future__ import annotations  # short types in help()

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from skvi._estimator._classes import BayesianClassifierMixin, Labels
from skvi.exceptions import SkviWarning
from skvi.expectations._rules import factorize_rows, quasi_random_rule
from skvi.likelihoods import OrdinalLikelihood
from skvi.linear_model._base import BayesianLinearModel
from skvi.linear_model._coefficients import DrawnCoefficients
from skvi.linear_model._summary import CoefficientTable
from skvi.losses import Loss
from skvi.posteriors import Family, Posterior
from skvi.predictors import OrdinalPredictor
from skvi.priors import Normal, Prior
from skvi.utils._tensors import log_mean_exp
from skvi.utils._validation import StrOptions

# Prior deviation of the log of the distance between two cutpoints.
DISTANCE_SCALE = 1.5
# Draws behind intervals of probabilities, and points behind moments of cutpoints.
N_DRAWS, N_POINTS = 1000, 2048


@dataclass(frozen=True, eq=False)
class OrderedLabels(Labels):
    """Classes in their order, which need not be that of their names."""

    @classmethod
    def in_order(cls, y: Any, order: Any, class_weight: Any) -> OrderedLabels:
        """Check labels; `order` has all of them, None is that of `numpy.sort`."""
        found = Labels.find(y, class_weight).classes
        classes = found if order is None else np.asarray(order)
        if classes.ndim != 1 or len(np.unique(classes)) < len(classes):
            raise ValueError(f"categories must be different labels. Got {order!r}.")
        if not np.isin(found, classes).all():
            raise ValueError(
                f"y has the labels {np.setdiff1d(found, classes)}, which are not in "
                f"categories={classes.tolist()}: name all of them, in their order."
            )
        return cls(classes, class_weight)

    def encode(self, y: Any) -> np.ndarray:
        """Return positions in the order; see `Response.encode`."""
        order = np.argsort(self.classes)
        known = Labels(self.classes[order], None).encode(y)
        return order[known.astype(int)].astype(np.float64)


class BayesianOrdinalClassifier(BayesianClassifierMixin, BayesianLinearModel):
    """Regression of ordered classes, such as ratings, with a posterior.

    A cumulative model: ``P(y <= k | x) = F(cutpoints[k] - x' coef)``, with the logistic
    or the normal distribution function F, known as proportional odds, or ordered
    probit. The cutpoints have a posterior together with the coefficients, so that
    probabilities and the evidence average over both.

    Parameters
    ----------
    link : {"logit", "probit"}, default="logit"
        Whether F is the logistic or the normal distribution function.
    categories : array-like of shape (n_classes,), default=None
        The classes from low to high; some need not occur. None is the order of the
        categories of an ordered `pandas.Categorical`, else that of sorted labels.
    loss : {"log", "auto", "beta", "gamma"}, Loss or callable, default="log"
        As of `BayesianLogisticRegression`.
    posterior : {"auto", "full_rank", "mean_field"} or Family, default="auto"
        Over coefficients, the first cutpoint and logs of distances between cutpoints.
    prior : {"auto", "normal", "laplace", "student_t", "horseshoe", "ard", \
"log_uniform"}, Prior, Posterior or dict, default="auto"
        Prior of the coefficients, as of `BayesianLogisticRegression`.
    column_groups : dict of str to columns or None, default=None
        Groups of columns with scales of their own, as of `BayesianLogisticRegression`.
    intercept_prior : {"normal", "laplace", ...}, Prior or None, default=None
        Prior of minus the first cutpoint at the means of the features. None is
        ``Normal(10.0)``. Logs of distances between cutpoints have ``Normal(1.5)``.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes, by label; they multiply the sample weights.
    max_iter : int, default=100
    tol : float, default=1e-5
        Tolerance in nats, as of `BayesianLogisticRegression`.
    n_jobs : int, default=None
        Maximum number of threads; -1 is every core.
    verbose : int, default=0
    random_state : int, RandomState instance or None, default=None
        Only used by fits with random draws.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        From low to high.
    coef_, coef_std_ : ndarray of shape (1, n_features)
        Posterior means and standard deviations. A positive coefficient moves
        probability to higher classes.
    cutpoints_, cutpoints_std_ : ndarray of shape (n_classes - 1,)
        Posterior means and standard deviations, for the features as they were given.
    intercept_, intercept_std_ : ndarray of shape (1,)
        Minus the first cutpoint.
    lower_bound_ : float
        Evidence lower bound (ELBO), in nats, summed over the data.
    diagnostics_ : dict
        As of `BayesianLogisticRegression`.
    posterior_ : Posterior
        Of the features in the units of the fit. A `MixtureOverScales` if `prior`
        infers a scale.
    n_iter_ : int
    converged_ : bool
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features,)

    See Also
    --------
    BayesianLogisticRegression : For classes without an order.

    Notes
    -----
    Parameters of other linear models that are not listed have their defaults.

    References
    ----------
    McCullagh (1980), *Regression models for ordinal data*.

    Examples
    --------
    >>> import numpy as np
    >>> from skvi.linear_model import BayesianOrdinalClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 2))
    >>> latent = X @ [1.0, -0.5] + rng.logistic(size=300)
    >>> y = np.array(["low", "medium", "high"])[np.digitize(latent, [-1.0, 1.5])]
    >>> order = ["low", "medium", "high"]
    >>> model = BayesianOrdinalClassifier(categories=order).fit(X, y)
    >>> print(model.summary())
    BayesianOrdinalClassifier: 90 % credible intervals
                   mean    std   lower   upper
    x0            0.923  0.131   0.708   1.138
    x1           -0.437  0.118  -0.630  -0.244
    low|medium   -1.094  0.143  -1.328  -0.861
    medium|high   1.533  0.158   1.280   1.799
    lower_bound_ -287.6
    """

    _parameter_constraints: dict = {
        **BayesianLinearModel._parameter_constraints,
        **BayesianClassifierMixin._parameter_constraints,
        "link": [StrOptions({"logit", "probit"})],
        "categories": ["array-like", None],
    }

    def __init__(
        self,
        link: str = "logit",
        categories: ArrayLike | None = None,
        loss: str | Loss = "log",
        posterior: str | Family = "auto",
        prior: str | Prior | Posterior | dict[str, Any] = "auto",
        column_groups: dict[str, Any] | None = None,
        intercept_prior: str | Prior | None = None,
        class_weight: Any = None,
        max_iter: int = 100,
        tol: float = 1e-5,
        n_jobs: int | None = None,
        verbose: int = 0,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.link = link
        self.categories = categories
        self.loss = loss
        self.posterior = posterior
        self.prior = prior
        self.column_groups = column_groups
        self.intercept_prior = intercept_prior
        self.class_weight = class_weight
        self.max_iter = max_iter
        self.tol = tol
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.random_state = random_state

    def __sklearn_tags__(self):
        """Declare that classes without an order are missed, as in common checks."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True
        return tags

    def _make_target(self, X, y, *options):
        self._order = self.categories
        dtype = getattr(y, "dtype", None)
        if self._order is None and getattr(dtype, "ordered", False):
            self._order = dtype.categories
        return super()._make_target(X, y, *options)

    def _find_labels(self, y):
        """Labels in their order."""
        order = self.categories if not hasattr(self, "_order") else self._order
        labels = OrderedLabels.in_order(y, order, self.class_weight)
        if (
            order is None
            and labels.classes.dtype.kind in "OUST"
            and len(labels.classes) > 2
        ):
            self._warn(
                f"classes are taken in the order of their names, "
                f"{labels.classes.tolist()}: give categories=, from low to high",
                SkviWarning,
            )
        return labels

    def _response(self, y):
        labels = None if self._stream is None else self._stream.response
        labels = self._find_labels(y) if labels is None else labels
        self.classes_ = labels.classes
        return labels

    def _resolve_prior(self):
        """With an entry for the distances between cutpoints."""
        prior = super()._resolve_prior()
        if isinstance(prior, Posterior) or len(self.classes_) == 2:
            return prior
        prior = prior if isinstance(prior, dict) else {"coef": prior}
        return {**prior, "distance": Normal(DISTANCE_SCALE)}

    def _is_normal_by_rows(self):
        """Not: effects depend on each other by the cutpoints as well."""
        return False

    def _assemble(self, data, labels):
        n_levels, predictor = len(labels.classes), None
        if n_levels > 2:
            predictor = OrdinalPredictor(data.X.shape[1], n_levels - 2)
        likelihood = OrdinalLikelihood(n_levels, self.link)
        return self._generalized_linear(data, labels, likelihood, predictor)

    # Cutpoints --------------------------------------------------------------------

    def _posterior_attributes(self, state):
        found = super()._posterior_attributes(state)
        for name in ("distance_", "distance_std_"):
            found.pop(name, None)
        points, weights = self._cutpoints_of(found["_coefficients"])
        mean = weights @ points
        std = (weights @ (points - mean).square()).sqrt()
        parts = {"cutpoints_": mean, "cutpoints_std_": std}
        return found | {
            k: v.numpy().astype(self._model.dtype) for k, v in parts.items()
        }

    def _cutpoints_of(self, coefficients):
        """Points that represent the posterior, (N, K - 1), and weights, (N,)."""
        if isinstance(coefficients, DrawnCoefficients):
            points = [self._cutpoints(coefficients.in_units())]
            log_w = points[0].new_zeros(1)
        else:
            points = [self._points(normal) for normal in coefficients.components]
            log_w = coefficients.log_weights
        size = len(points[0])
        return torch.cat(points), log_w.exp().repeat_interleave(size) / size

    def _points(self, normal):
        """Cutpoints at quasi-random points of a normal."""
        model, columns = self._model, self._shared_columns()
        mean, std = (part[columns] for part in model.moments_in_units(normal))
        root = normal.scale if normal.scale.ndim == 2 else normal.factor
        covariance = torch.diag(std.square())
        if root is not None:
            some = model.in_units(root.T, True)[:, columns]
            covariance = some.T @ some
            covariance.diagonal().copy_(std.square())
        z = quasi_random_rule(len(mean), N_POINTS)[0]
        return self._cutpoints_at(mean + z.T @ factorize_rows(covariance[None])[0].T)

    def _shared_columns(self):
        """Positions of intercept and distances in theta."""
        layout = self._model.predictor.layout
        names = ("intercept", "distance")
        every = torch.arange(layout.size, device="cpu")
        return torch.cat([every[layout[n].slice] for n in names if n in layout])

    def _cutpoints(self, theta):
        """Cutpoints of draws in the units of the data, (S, K - 1)."""
        return self._cutpoints_at(theta[:, self._shared_columns()])

    def _cutpoints_at(self, own):
        """Cutpoints from intercepts and distances, (S, K - 1)."""
        return torch.cat([-own[:, :1], own[:, 1:].exp()], 1).cumsum(1)

    def _in_units(self, theta):
        """Draws as blocks, with cutpoints in place of an intercept and distances."""
        blocks = super()._in_units(theta)
        cutpoints = self._cutpoints(self._model.in_units(theta)).numpy()
        return {"coef": blocks["coef"], "cutpoints": cutpoints}

    def _arviz_labels(self, posterior):
        cutpoints = posterior.pop("cutpoints")
        dims, coords = super()._arviz_labels(posterior)
        posterior["cutpoints"] = cutpoints
        coords["cutpoint"] = list(self._cutpoint_names())
        return {"coef": dims["coef"], "cutpoints": ["cutpoint"]}, coords

    def _cutpoint_names(self):
        pairs = zip(self.classes_[:-1], self.classes_[1:], strict=True)
        return tuple(f"{low}|{high}" for low, high in pairs)

    def summary(
        self,
        coverage: float = 0.9,
        feature_names: Sequence[str] | None = None,
        groups: bool = False,
    ) -> CoefficientTable:
        """Table of coefficients and cutpoints, or of scales.

        Parameters
        ----------
        coverage : float, default=0.9
            Posterior probability of each marginal interval, in (0, 1).
        feature_names : array-like of str of shape (n_features,), default=None
            None is the names of the fit, or x0, x1, ... if it had none.
        groups : bool, default=False
            Whether the rows are the scales of `column_groups`.

        Returns
        -------
        CoefficientTable
            With a row for each cutpoint, such as "low|medium", after the features.
        """
        table = super().summary(coverage, feature_names, groups)
        if groups:
            return table
        points, w = (part.numpy() for part in self._cutpoints_of(self._coefficients))
        levels = [0.5 - 0.5 * coverage, 0.5 + 0.5 * coverage]
        given = w[:, None] + 0 * points
        ends = np.quantile(points, levels, 0, weights=given, method="inverted_cdf")
        own = self.cutpoints_, self.cutpoints_std_, *ends
        headings = ("mean", "std", "lower", "upper")
        parts = {
            name: np.concatenate([getattr(table, name)[1:], part])
            for name, part in zip(headings, own, strict=True)
        }
        return replace(table, names=table.names[1:] + self._cutpoint_names(), **parts)

    # Predictions ------------------------------------------------------------------

    def _log_classes(self, f):
        return self._model.likelihood.log_levels(f)

    def _mean(self, f):
        """Class probabilities given f, (S, n, K)."""
        return self._log_classes(f).exp()

    def _drawn(self, theta=None):
        """Functions drawn from the posterior, for intervals."""
        if theta is None and not self._is_drawn():
            theta = self._draw(N_DRAWS, 0)
        return super()._drawn(theta)

    def _log_probabilities(self, X):
        """Log of averaged probabilities, (n, K)."""
        X, likelihood = self._check_X(X), self._model.likelihood

        def of_chunk(mean, spread):
            spread = spread.sqrt() if mean.ndim == 2 else spread
            flat = mean.flatten(0, 1), spread.flatten(0, 1)
            with torch.no_grad():
                p = likelihood.expected_levels(*flat).unflatten(0, mean.shape[:2])
            return torch.tensordot(self._log_weights.exp(), p, 1).log()

        if self._is_drawn():
            of_draws = lambda f: log_mean_exp(self._log_classes(f), 0)
            found = self._drawn().by_rows(X, of_draws)
        else:
            found = self._in_chunks(X, of_chunk)
        return torch.from_numpy(found), X.dtype
