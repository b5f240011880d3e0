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


class Delegates:
    """Mixin: predictions and scores of `best_estimator_`."""

    def _best(self, method, *arguments, **params):
        check_is_fitted(self)
        if method in ROUTED and get_config()["enable_metadata_routing"]:
            params = process_routing(self, method, **params)["estimator"][method]
        return getattr(self.best_estimator_, method)(*arguments, **params)

    @available_if(_best_has("predict"))
    def predict(self, X, **params):
        """Predict with the best estimator.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        **params : dict
            Such as ``return_std=True``.

        Returns
        -------
        ndarray or tuple of ndarray
        """
        return self._best("predict", X, **params)

    @available_if(_best_has("predict_proba"))
    def predict_proba(self, X, **params):
        """Class probabilities of the best estimator.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        **params : dict

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
        """
        return self._best("predict_proba", X, **params)

    @available_if(_best_has("predict_log_proba"))
    def predict_log_proba(self, X, **params):
        """Logarithms of the class probabilities of the best estimator.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        **params : dict

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
        """
        return self._best("predict_log_proba", X, **params)

    @available_if(_best_has("decision_function"))
    def decision_function(self, X, **params):
        """Decision function of the best estimator.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        **params : dict

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_classes)
        """
        return self._best("decision_function", X, **params)

    @available_if(_best_has("score"))
    def score(self, X, y=None, **params):
        """Score of the best estimator, as the estimator defines it: accuracy or R².

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
        **params : dict
            Such as ``sample_weight``.

        Returns
        -------
        float
            The score of X and y; `best_score_` is the log evidence of the training
            data.
        """
        return self._best("score", X, y, **params)

    @available_if(_best_has("predict_interval"))
    def predict_interval(self, X, **params):
        """Prediction intervals of the best estimator.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        **params : dict
            Such as ``coverage=0.9``.

        Returns
        -------
        ndarray of shape (n_samples, 2)
        """
        return self._best("predict_interval", X, **params)

    @available_if(_best_has("predict_quantiles"))
    def predict_quantiles(self, X, quantiles, **params):
        """Predictive quantiles of the best estimator.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        quantiles : float or array-like of shape (n_quantiles,)
        **params : dict
            Such as ``exposure``.

        Returns
        -------
        ndarray of shape (n_samples, n_quantiles)
        """
        return self._best("predict_quantiles", X, quantiles, **params)

    @available_if(_best_has("predict_log_density"))
    def predict_log_density(self, X, y, **params):
        """Log predictive density of each target under the best estimator.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
        **params : dict
            Such as ``exposure``.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return self._best("predict_log_density", X, y, **params)

    @available_if(_best_has("sample_y"))
    def sample_y(self, X, **params):
        """Draws of new targets from the best estimator.

        Parameters
        ----------
        X : array-like of shape (n_samples_X, n_features)
        **params : dict
            Such as ``n_samples``, ``random_state``.

        Returns
        -------
        ndarray
        """
        return self._best("sample_y", X, **params)

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
