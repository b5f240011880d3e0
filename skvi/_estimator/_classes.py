"""Shared by all classifiers: labels, class weights, averaged probabilities."""

from __future__ import annotations  # short types in help()

from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from skvi._estimator._model import Response
from skvi._predictive._quantiles import log_class_probabilities
from skvi.exceptions import SkviWarning
from skvi.likelihoods import BernoulliLikelihood, Likelihood
from skvi.likelihoods._categorical import CategoricalLikelihood
from skvi.utils._blocks import by_blocks
from skvi.utils._interrupts import with_callbacks
from skvi.utils._tensors import log_mean_exp
from skvi.utils._validation import (
    StrOptions,
    _fit_context,
    as_numpy,
    column_or_1d,
    interval_levels,
)


@dataclass(frozen=True, eq=False)
class Labels(Response):
    """The sorted classes of the fit, encoded as 0.0, 1.0, ..., and their weights."""

    classes: np.ndarray
    class_weight: dict | str | None

    @classmethod
    def find(cls, y: Any, class_weight: dict | str | None) -> Labels:
        """Find the classes in targets.

        Raises ValueError if they are not labels, or all equal.
        """
        classes = np.unique(y) if _are_integers(y) else None
        if classes is None or len(classes) > 2:
            check_classification_targets(y)
            classes = np.unique(column_or_1d(y))
        if len(classes) < 2:
            raise ValueError(
                "A classifier needs rows of at least 2 classes, and y contains only "
                f"one class: {classes[:1].tolist()[0]!r}. Give rows of the others, too."
            )
        return cls(classes, deepcopy(class_weight))

    @property
    def likelihood(self) -> Likelihood:
        """Likelihood for the number of classes."""
        if len(self.classes) == 2:
            return BernoulliLikelihood()
        return CategoricalLikelihood(len(self.classes))

    def encode(self, y: Any) -> np.ndarray:
        """Return the positions of labels in `classes`; see `Response.encode`."""
        y = as_numpy(y)
        if not _are_integers(y):
            check_classification_targets(y)
            y = column_or_1d(y, warn=True)
        if not np.isin(y, self.classes).all():
            raise ValueError(
                f"y has labels that were not in the fit: "
                f"{np.setdiff1d(y, self.classes)}; known are {self.classes}."
            )
        return np.searchsorted(self.classes, y).astype(np.float64)

    def weights(
        self, targets: np.ndarray, sample_weight: np.ndarray | None
    ) -> np.ndarray | None:
        """Sample weights times class weights; see `Response.weights`."""
        if self.class_weight is None:
            return sample_weight
        codes = targets.astype(int)
        per_class = self._per_class(codes, sample_weight)
        if not np.all(np.isfinite(per_class) & (per_class >= 0)):
            raise ValueError(
                "class_weight must be finite and not negative. Got "
                f"{self.class_weight!r}."
            )
        weight = per_class[codes].astype(np.float64)
        return weight if sample_weight is None else weight * sample_weight

    def _per_class(
        self, codes: np.ndarray, sample_weight: np.ndarray | None
    ) -> np.ndarray:
        n_classes = len(self.classes)
        if not isinstance(self.class_weight, str):
            return compute_class_weight(
                self.class_weight, classes=self.classes, y=self.classes[codes]
            )
        # Weights are repetitions, and therefore also count in the balance.
        counts = np.bincount(codes, sample_weight, minlength=n_classes)
        present = counts > 0
        per_class = np.zeros(n_classes)
        per_class[present] = counts.sum() / (n_classes * counts[present])
        return per_class


def _are_integers(y: Any) -> bool:
    """Whether y is a column of integers, valid labels without further checks."""
    return isinstance(y, np.ndarray) and y.ndim == 1 and y.dtype.kind in "biu"


class BayesianClassifierMixin(ClassifierMixin):
    """Mixin of classifiers, with all predictions.

    A subclass must implement `_log_probabilities(X)`, logs of posterior mean
    probabilities, (n, K), with the dtype of results; and `_drawn`, functions for
    intervals.
    """

    #: What adds classes that the first batch had not; None if no batch may have more.
    _with_new_classes = None
    _instead = {
        "return_std": " predict_proba_interval(X) says how accurately probabilities "
        "are known, and predict_uncertainty(X) how much of it more rows would remove."
    }
    _parameter_constraints: dict = {
        "class_weight": [dict, StrOptions({"balanced"}), None]
    }

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(
        self,
        X: Any,
        y: Any,
        *,
        sample_weight: ArrayLike | None = None,
        classes: ArrayLike | None = None,
        forgetting: float = 1.0,
    ) -> Self:
        """Learn from a batch: the current posterior is the prior for the next batch.

        The first call is a `fit`; after a `fit` the next call continues it. Networks
        train for `max_iter` epochs of the batch, from where the last one ended.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
            Some of the classes.
        sample_weight : array-like of shape (n_samples,), default=None
        classes : array-like of shape (n_classes,), default=None
            All classes; required in the first call, and equal in every other. Only an
            MLP takes more of them later: it gets new outputs, with the first prior.
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
        ValueError
            `classes` is missing in the first call, or different in a later one, or
            ``class_weight="balanced"``, which would need all rows.
        KeyboardInterrupt
            On Ctrl-C. As after every error the estimator is what it was before the
            call: the batch can be given again.

        Notes
        -----
        The features of linear models stay in the units of the first batch in which
        they vary, with the origin of the first: let it be large, and typical. Under a
        prior of unknown scale the posteriors at all scales are carried, with their
        weights, and further scales are added as they become likely.

        `lower_bound_` and `evidence_bounds` are those of the last batch given the
        previous ones: of log p(batch) under the posterior that was its prior. Their
        sum, ``diagnostics_["sum_of_bounds"]``, estimates the evidence of all rows, but
        is not a bound, since that posterior is an approximation. A factorized one
        forgets: every batch should be representative of all rows. Shuffle rows that are
        sorted by class: no normal is near the posterior of rows of one class, and a
        first batch without some class is followed by a warning.
        """
        is_first = not self.__sklearn_is_fitted__()
        labels = self._labels(classes)
        self._learn_batch(X, y, sample_weight, response=labels, forgetting=forgetting)
        missing = np.setdiff1d(self.classes_, y) if is_first else ()
        if len(missing):
            self._warn(
                f"the first batch has no row of the classes {missing.tolist()}. No "
                "normal is near the posterior of the others alone, and what follows "
                "starts at it: shuffle the rows, or begin with some of each class",
                SkviWarning,
            )
        return self

    def _labels(self, classes):
        """Labels of a stream of batches."""
        if isinstance(self.class_weight, str):
            raise ValueError(
                f"class_weight={self.class_weight!r} needs all rows, but "
                "partial_fit sees only a batch. Give the weights as a dict."
            )
        found = None if classes is None else np.unique(classes)
        if self.__sklearn_is_fitted__():
            if found is None or np.array_equal(found, np.unique(self.classes_)):
                return None
            if not (self._with_new_classes and np.isin(self.classes_, found).all()):
                raise ValueError(
                    f"classes={classes!r} is not the same as on last call to "
                    f"partial_fit, was: {self.classes_!r}"
                )
            return self._find_labels(found)
        if found is None:
            raise ValueError("classes must be passed on the first call to partial_fit.")
        return self._find_labels(found)

    def _find_labels(self, y):
        return Labels.find(y, self.class_weight)

    def _log_classes(self, f):
        """Log probabilities of the classes given f, (S, n, K)."""
        return log_class_probabilities(f)

    @by_blocks
    def predict(self, X: Any) -> np.ndarray:
        """Most probable class, by `predict_proba`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        check_is_fitted(self)
        log_p, _ = self._log_probabilities(X)
        return self.classes_[log_p.argmax(1).numpy()]

    @by_blocks
    def predict_proba(self, X: Any) -> np.ndarray:
        """Class probabilities, averaged over the posterior.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            In the order of ``classes_``; rows sum to 1, and do not depend on the
            other rows.
        """
        log_p, dtype = self._log_probabilities(X)
        return log_p.exp().numpy().astype(dtype)

    @by_blocks
    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithm of `predict_proba`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
        """
        log_p, dtype = self._log_probabilities(X)
        return log_p.numpy().astype(dtype)

    def predict_proba_interval(self, X: Any, coverage: float = 0.9) -> np.ndarray:
        """Credible intervals of class probabilities.

        While `predict_proba` averages over the posterior, these are central posterior
        intervals: they show how accurately the probability of a row is known. They
        shrink as rows are added, and do not describe the randomness of the class
        itself.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        coverage : float, default=0.9
            Posterior probability of the interval of a class probability, in (0, 1).

        Returns
        -------
        ndarray of shape (n_samples, 2, n_classes)
            Lower and upper end, for each class separately. They are exact for linear
            models with two classes, and computed from 2,048 quasi-random points for
            more; models that predict by draws use the quantiles of these draws.
        """
        check_is_fitted(self)
        levels = interval_levels(type(self).__name__, coverage)
        return self._probability_quantiles(X, levels)

    def _probability_quantiles(self, X, levels):
        """Quantiles of class probabilities over draws, (n, q, K)."""
        X = self._check_X(X)

        def of_block(f):
            q = torch.tensor(levels, dtype=f.dtype, device=f.device)
            p = self._log_classes(f).exp()
            return torch.quantile(p, q, dim=0).movedim(0, 1)

        return self._drawn().by_rows(X, of_block).astype(X.dtype)

    def predict_uncertainty(self, X: Any) -> dict[str, np.ndarray]:
        """Predict how uncertain a new label is, and how much of it is for lack of rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        dict of str to ndarray of shape (n_samples,)
            In nats: "entropy" of `predict_proba`, and "mutual_information" of label and
            parameters, the part of it that more rows would remove ("epistemic"). The
            rest is the entropy given the parameters, averaged over them ("aleatoric").

        References
        ----------
        Depeweg et al. (2018), *Decomposition of uncertainty in Bayesian deep learning*.
        """
        log_p, dtype = self._log_probabilities(X)
        entropy = torch.special.entr(log_p.exp()).sum(1).numpy()
        gain = np.asarray(self._information(X, log_p))
        found = {"entropy": entropy, "mutual_information": gain}
        return {name: values.astype(dtype) for name, values in found.items()}

    def _observations(self, X, theta, random_state):
        """One position in `classes_` given each draw, (n, S)."""

        def of_block(f):
            return self._log_classes(f).exp().cumsum(2)[..., :-1].movedim(0, 1)

        limits = self._drawn(theta).by_rows(X, of_block)
        u = check_random_state(random_state).random_sample(limits.shape[:2])
        return (u[..., None] > limits).sum(2)

    def _information(self, X, log_p):
        """Mean divergence of probabilities from their averages over draws, (n,).

        The draws' own: log_p may come from nodes, which miss what a draw reaches.
        """

        def of_block(f):
            given = self._log_classes(f)
            return divergence(given.exp(), log_mean_exp(given, 0)).mean(0)

        return self._drawn().by_rows(self._check_X(X), of_block)

    def predict_log_density(self, X: Any, y: Any) -> np.ndarray:
        """Log predictive probability of each label: the proper score of a forecast.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)

        Returns
        -------
        ndarray of shape (n_samples,)
            In nats, each row given the training data alone.
        """
        log_proba = self.predict_log_proba(X)
        column = self._model.response.encode(y).astype(int)
        if len(column) != len(log_proba):
            raise ValueError(f"X has {len(log_proba)} rows, but y has {len(column)}.")
        return log_proba[np.arange(len(column)), column]


def class_divergences(f: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    """Divergences from log probabilities, (n, K), of those given f, (S, n)."""
    return divergence(log_class_probabilities(f).exp(), log_q)


def divergence(p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    """KL(p | q) over the last axis."""
    # Beside a probability of 0 there is no other.
    cross = (p * log_q).where(p > 0, 0.0)
    return -(torch.special.entr(p) + cross).sum(-1)
