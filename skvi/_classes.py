"""What all classifiers share: labels, class weights, averaged probabilities."""

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from skvi.likelihoods import BernoulliLikelihood, CategoricalLikelihood
from skvi.utils._validation import StrOptions

__all__ = ["BayesianClassifierMixin"]


class BayesianClassifierMixin(ClassifierMixin):
    """Mixin of classifiers: a subclass owes `_log_probabilities(X)`.

    It returns the log of the class probabilities, averaged over the posterior, as
    a tensor of shape (n, K), and the dtype of what the user gets.
    """

    _parameter_constraints: dict = {
        "class_weight": [dict, StrOptions({"balanced"}), None]
    }

    def _likelihood(self):
        n_classes = len(self.classes_)
        if n_classes == 2:
            return BernoulliLikelihood()
        return CategoricalLikelihood(n_classes)

    def _encode(self, y, reset=True):
        """Labels as 0.0, 1.0, ..., in the order of `classes_`."""
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        if reset:
            classes = np.unique(y)
            if len(classes) < 2:
                raise ValueError(
                    "This solver needs samples of at least 2 classes in the data, but "
                    f"the data contains only one class: {classes[0]!r}"
                )
            self.classes_ = classes
        elif not np.isin(y, self.classes_).all():
            raise ValueError(
                f"y has labels that were not in the fit: "
                f"{np.setdiff1d(y, self.classes_)}; known are {self.classes_}."
            )
        return np.searchsorted(self.classes_, y).astype(np.float64)

    def _row_weights(self, codes, sample_weight):
        """Sample weights times class weights; None where all are 1."""
        if self.class_weight is None:
            return sample_weight
        codes, n_classes = codes.astype(int), len(self.classes_)
        if isinstance(self.class_weight, str):
            # As weights equal repetition, they count in the balance as well.
            counts = np.bincount(codes, sample_weight, minlength=n_classes)
            present = counts > 0
            per_class = np.zeros(n_classes)
            per_class[present] = counts.sum() / (n_classes * counts[present])
        else:
            per_class = compute_class_weight(
                self.class_weight, classes=self.classes_, y=self.classes_[codes]
            )
        if not np.all(np.isfinite(per_class) & (per_class >= 0)):
            raise ValueError(
                "class_weight must be finite and not negative. Got "
                f"{self.class_weight!r}."
            )
        weight = per_class[codes].astype(np.float64)
        return weight if sample_weight is None else weight * sample_weight

    def _check_weighted(self, codes):
        if len(np.unique(codes)) < 2:
            raise ValueError(
                "The rows with a positive sample_weight contain only one class; the "
                "fit needs at least two."
            )

    def predict(self, X):
        """Most probable class, by `predict_proba`.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        ndarray of shape (n,)
        """
        check_is_fitted(self)
        log_p, _ = self._log_probabilities(X)
        return self.classes_[log_p.argmax(1).numpy()]

    def predict_proba(self, X):
        """Class probabilities, averaged over the posterior.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        ndarray of shape (n, K)
            In the order of ``classes_``; rows sum to 1, and do not depend on the
            other rows.
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
        ndarray of shape (n, K)
        """
        log_p, dtype = self._log_probabilities(X)
        return log_p.numpy().astype(dtype)

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
