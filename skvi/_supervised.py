"""Glue of supervised estimators: from X, y and weights to a fitted posterior."""

from copy import copy, deepcopy
from numbers import Integral

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted, validate_data

from skvi._variational import BaseVariational
from skvi.priors import build_prior
from skvi.targets import SupervisedTarget
from skvi.utils._arrays import as_tensor
from skvi.utils._interrupts import raising_interrupts
from skvi.utils._random import make_generator
from skvi.utils._sparse import as_rows
from skvi.utils._threads import limit_threads
from skvi.utils._validation import Interval, _check_sample_weight, validate_arguments

__all__ = ["BaseSupervised"]

# Parameters that say what the model is, beside the parts that a fit resolves.
MODEL_PARAMS = ("fit_intercept", "noise_scale", "normalize_y", "class_weight")


class BaseSupervised(BaseVariational):
    """Base class of estimators with features and targets.

    A subclass owes `_encode(y)`, `_predictor()`, `_likelihood()` and `_work(target)`,
    and may replace the other steps of a fit.
    """

    _input: dict = {"dtype": [np.float64, np.float32]}
    #: Added to the log joint density: the Jacobian of standardised targets.
    _constant = 0.0

    def _fit(self, X, y, sample_weight, exposure=None):
        """Validate, build the target, solve."""
        with raising_interrupts():
            before = self._forget()
            X, y = validate_data(self, X, y, **self._input)
            targets, self._dtype = self._encode(y), X.dtype
            self._resolve_all()
            self._model_params = {
                name: deepcopy(value)
                for name, value in self.get_params(deep=False).items()
                if name in MODEL_PARAMS
            }
            sample_weight = self._check_weights(X, sample_weight)
            weight = self._row_weights(targets, sample_weight)
            offset = self._check_exposure(X, exposure)
            target = self._build_target(X, targets, weight, offset=offset)
            self.loss_function_.check(target.likelihood_spec)
            self._remember(X, targets, sample_weight, weight, offset)
            with limit_threads(self._work(target), getattr(self, "n_jobs", None)):
                metadata = {"sample_weight": sample_weight}
                self._solve(target, before, X=X, y=y, metadata=metadata)
        return self

    def _remember(self, X, targets, sample_weight, weight, offset):
        """Keep of the data what tells others apart; nothing here."""

    def _check_weights(self, X, sample_weight):
        if sample_weight is None:
            return None
        sample_weight = _check_sample_weight(
            sample_weight, X, dtype=np.float64, ensure_non_negative=True
        )
        if not sample_weight.any():  # newer scikit-learn says so itself
            raise ValueError(
                "Sample weights must contain at least one non-zero number. Got only "
                "zeros: leave sample_weight out to count every row once."
            )
        return sample_weight

    def _check_exposure(self, X, exposure):
        """Offset of f, the log of the exposure; None where there is none."""
        return None

    def _row_weights(self, targets, sample_weight):
        """Weights that the loss of every row gets; classifiers add class weights."""
        return sample_weight

    def _check_weighted(self, targets):
        """Raise where the rows with a positive weight cannot be fitted."""

    def _standardize(self, targets, weight):
        """Return the targets in the units of the fit."""
        return targets

    def _build_target(self, X, targets, weight, predictor=None, offset=None):
        if weight is not None:
            # Rows of weight zero must not influence anything: nodes, batches, units.
            keep = weight > 0
            self._check_weighted(targets[keep])
            if not keep.all():
                X, targets, weight = X[keep], targets[keep], weight[keep]
                offset = None if offset is None else offset[keep]
        targets = self._standardize(targets, weight)
        predictor = self._predictor() if predictor is None else predictor
        return SupervisedTarget(
            predictor,
            self._likelihood(),
            self.loss_function_,
            build_prior(self.prior_, predictor.layout),
            as_rows(X),
            as_tensor(targets),
            None if weight is None else as_tensor(weight),
            self._constant,
            None if offset is None else as_tensor(offset),
        )

    def _posterior_attributes(self):
        found = super()._posterior_attributes()
        # Parameters may be set to other values after the fit: predictions do not care.
        return found | {"_fitted_predictor": self._problem.target.predictor}

    def _as_fitted(self):
        """Copy with the model parameters of the fit, for queries that need the target.

        They see no parameter that was set later, and what they set is not kept.
        """
        check_is_fitted(self)
        fitted = copy(self)
        vars(fitted).update(self._model_params)
        return fitted

    def _check_X(self, X):
        check_is_fitted(self)
        return validate_data(self, X, **self._input, reset=False)

    def sample_posterior(self, n_samples=1, random_state=None):
        """Draw parameters from the fitted posterior.

        Parameters
        ----------
        n_samples : int, default=1
        random_state : int, RandomState instance or None, default=None

        Returns
        -------
        dict of str to ndarray
            For linear models "coef" of shape (n_samples, K, d), with as many columns
            K as `coef_` has rows, and "intercept" of shape (n_samples, K). For
            networks "coef_0" of shape (n_samples, d, units), "intercept_0" of shape
            (n_samples, units), and so on for every layer.
        """
        theta = self._draw(n_samples, random_state)
        blocks = self.posterior_.layout.unpack(theta)
        return {name: block.numpy().copy() for name, block in blocks.items()}

    @torch.no_grad()
    def _draw(self, n_samples, random_state):
        """Fresh draws of the fitted posterior, (n_samples, P)."""
        check_is_fitted(self)
        validate_arguments(
            type(self).__name__,
            {"n_samples": n_samples},
            {"n_samples": [Interval(Integral, 1, None, closed="left")]},
        )
        generator = make_generator(random_state)
        return self.posterior_.draw(n_samples, generator).theta
