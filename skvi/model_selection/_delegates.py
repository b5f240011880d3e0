"""Methods that a search delegates to its best estimator."""

from sklearn import get_config
from sklearn.utils.metadata_routing import process_routing
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

__all__ = ["ROUTED", "Delegates"]

ROUTED = (
    "predict",
    "predict_proba",
    "predict_log_proba",
    "decision_function",
    "score",
)


CLASSES = "ndarray of shape (n_samples, n_classes)"


def _best_has(name):
    """Whether the best estimator, or before `fit` the given one, has a method."""

    def check(search):
        if not search.refit:
            raise AttributeError(
                f"This EvidenceSearch has refit=False, which keeps no estimator: use "
                f"refit=True to have {name}."
            )
        getattr(getattr(search, "best_estimator_", search.estimator), name)
        return True

    return check


def _call(search, name, X, *args, **params):
    check_is_fitted(search)
    if name in ROUTED and get_config()["enable_metadata_routing"]:
        params = process_routing(search, name, **params)["estimator"][name]
    return getattr(search.best_estimator_, name)(X, *args, **params)


def _delegate(name, what, returns):
    """Make a method that calls that of the best estimator, if it has one."""

    def method(self, X, *args, **params):
        return _call(self, name, X, *args, **params)

    method.__name__, method.__qualname__ = name, f"Delegates.{name}"
    method.__doc__ = f"""{what} of the best estimator.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        *args : tuple
            Such as y, or quantiles, of the estimator's method of this name.
        **params : dict
            Such as ``return_std=True``.

        Returns
        -------
        {returns}
        """
    return available_if(_best_has(name))(method)


class Delegates:
    """Mixin: predictions and scores of `best_estimator_`."""

    predict = _delegate("predict", "Predictions", "ndarray or tuple of ndarray")
    predict_proba = _delegate("predict_proba", "Class probabilities", CLASSES)
    predict_log_proba = _delegate("predict_log_proba", "Log probabilities", CLASSES)
    decision_function = _delegate("decision_function", "Decision function", "ndarray")
    predict_interval = _delegate("predict_interval", "Prediction intervals", "ndarray")
    predict_quantiles = _delegate("predict_quantiles", "Quantiles", "ndarray")
    predict_uncertainty = _delegate(
        "predict_uncertainty", "Parts of the uncertainty", "dict of str to ndarray"
    )
    predict_log_density = _delegate("predict_log_density", "Log densities", "ndarray")
    sample_y = _delegate("sample_y", "Draws of new targets", "ndarray")

    @available_if(_best_has("score"))
    def score(self, X, y=None, **params):
        """Score of the best estimator, as it defines it: accuracy or R².

        `best_score_` is the log evidence of the training data.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,), default=None
        **params : dict
            Such as ``sample_weight``.

        Returns
        -------
        float
        """
        return _call(self, "score", X, y, **params)

    @property
    def classes_(self):
        """Class labels of the best estimator."""
        _best_has("classes_")(self)
        return self.best_estimator_.classes_

    @property
    def n_features_in_(self):
        """Number of features of `fit`."""
        if not hasattr(self, "best_estimator_"):
            raise AttributeError(f"{type(self).__name__} has no best_estimator_ yet.")
        return self.best_estimator_.n_features_in_
