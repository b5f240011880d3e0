"""The training bound as a scorer."""

from typing import Any, ClassVar

from skvi.base import Layout
from skvi.metrics._base import Scorer
from skvi.priors import Prior
from skvi.utils._transformers import samplers, supervised_transformers
from skvi.utils._unwrap import unwrap

__all__ = ["TrainingBound"]


class TrainingBound(Scorer):
    """Scorer: the ELBO of the fit, a score of the TRAINING rows, not a test score.

    The X and y that a search passes to it are **ignored**: it returns the estimator's
    ``lower_bound_``, the lower bound on the log evidence log p(D) of the rows that
    `fit` was given, in nats, summed over them. The evidence is a score of a model that
    needs no held-out rows, so that a single fit per candidate suffices::

        everything = np.arange(len(y))
        GridSearchCV(
            model, grid, scoring=training_bound_scorer, cv=[(everything, everything)]
        )

    Under k-fold cross-validation it is the mean bound of the training parts.

    Ready for use as ``scoring=training_bound_scorer``.

    See Also
    --------
    LogPredictiveDensity : A score of new rows.
    skvi.evidence_bounds : Both sides of the evidence, with diagnostics.

    Notes
    -----
    It is a *lower* bound: the distance to the evidence, KL(q || posterior), differs
    between candidates. Between posterior families of one model the larger ELBO is the
    better fit. Between models the largest bound can belong to the wrong one; only
    `skvi.evidence_bounds` can decide. A learned noise or prior scale is conditioned on,
    which makes the bound optimistic. It has a standard error, ``lower_bound_se_``, if
    it is estimated from draws.

    Not comparable, and refused: losses other than log loss, class weights, and improper
    priors, whose bounds have no common unit; and pipelines whose transformers use y, as
    in `skvi.evidence_bounds`.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.model_selection import GridSearchCV
    >>> from skvi.linear_model import BayesianLinearRegression
    >>> from skvi.metrics import training_bound_scorer
    >>> X, y = load_diabetes(return_X_y=True)
    >>> search = GridSearchCV(
    ...     BayesianLinearRegression(),
    ...     {"posterior": ["mean_field", "full_rank"]},
    ...     scoring=training_bound_scorer,
    ...     cv=[(np.arange(len(y)), np.arange(len(y)))],
    ... ).fit(X, y)
    >>> search.best_params_
    {'posterior': 'full_rank'}
    >>> bool(search.best_score_ == search.best_estimator_.lower_bound_)
    True
    """

    metadata: ClassVar[tuple[str, ...]] = ("sample_weight", "exposure")

    def __call__(
        self,
        estimator: Any,
        X: object = None,
        y: object = None,
        sample_weight: object = None,
        exposure: object = None,
    ) -> float:
        """Return the estimator's ``lower_bound_``: X, y and the rest are ignored.

        Parameters
        ----------
        estimator : estimator, Pipeline or search, fitted
        X, y, sample_weight, exposure : object, default=None
            Ignored; scikit-learn passes them.

        Returns
        -------
        float
            In nats, summed over the rows of the fit.

        Raises
        ------
        TypeError
            The estimator has no ``lower_bound_`` in nats.
        ValueError
            The bounds of such estimators cannot be compared.
        """
        advice = "Pass an estimator of skvi, or a Pipeline or search that ends in one."
        found, _ = unwrap(estimator, None, "lower_bound_", advice, transform=False)
        if not hasattr(found, "loss_function_"):
            raise TypeError(
                f"The lower_bound_ of {type(found).__name__} is not a sum over rows. "
                + advice
            )
        for reason in _obstacles(estimator, found):
            raise ValueError(
                f"{reason}: the training bounds of candidates cannot be compared. "
                "Use a score of new rows, such as LogPredictiveDensity()."
            )
        return float(found.lower_bound_)


def _obstacles(estimator: Any, fitted: Any) -> list[str]:
    """Reasons why the bound is not one of the evidence."""
    found = []
    if names := samplers(estimator):
        found.append(f"The rows of the fit were made by {', '.join(names)}")
    supervised = supervised_transformers(estimator)
    if supervised:
        found.append(f"The features were made from y, by {', '.join(supervised)}")
    if not fitted.loss_function_.is_log_loss:
        found.append(f"The fit used {fitted.loss_function_!r} instead of log loss")
    if getattr(fitted, "class_weight", None) is not None:
        found.append("The fit used class weights")
    prior = fitted.prior_
    for part in prior.values() if isinstance(prior, dict) else [prior]:
        if not isinstance(part, Prior):
            continue
        if not part.build(Layout({"coef": (1,)})).is_proper:
            found.append(f"{part!r} is improper, with an arbitrary constant")
    return found
