"""Supervised estimators: from X, y and weights to a fitted posterior."""

from numbers import Integral

import numpy as np
import torch
from sklearn.base import is_regressor
from sklearn.utils.validation import check_is_fitted, validate_data

from skvi._model import Numbers, TrainingData
from skvi._variational import BaseVariational
from skvi.exceptions import SkviWarning
from skvi.utils._interrupts import raising_interrupts
from skvi.utils._random import make_generator
from skvi.utils._threads import limit_threads
from skvi.utils._validation import (
    Interval,
    _check_sample_weight,
    refuse_dates,
    refuse_dates_as_target,
    validate_arguments,
)

__all__ = ["BaseSupervised"]


class BaseSupervised(BaseVariational):
    """Base class of estimators with features and targets.

    A subclass must implement `_assemble(data, response)`, its `Model`, `_work(target)`,
    the multiply-adds of a pass, and if targets are not plain numbers `_response(y)`.
    """

    _input: dict = {"dtype": [np.float64, np.float32]}
    #: Whether a fit is a single solve, so that many can be members of one stack.
    _fits_in_stacks = False
    #: Further arguments of `validate_data` if there is a target.
    _input_with_target: dict = {}

    def _fit(self, X, y, sample_weight=None, exposure=None):
        """Validate, assemble the model, solve."""
        with raising_interrupts():
            before = self._forget()
            target, data = self._make_target(X, y, sample_weight, exposure)
            with limit_threads(self._work(target), getattr(self, "n_jobs", None)):
                self._solve(target, before, **data)
        return self

    def _make_target(self, X, y, sample_weight=None, exposure=None):
        """Validate, assemble the model; return the target, and data for callbacks."""
        checks = {**self._input, **self._input_with_target}
        refuse_dates(X)
        if is_regressor(self):
            refuse_dates_as_target(y)
        X, y = validate_data(self, X, y, reset=not self._continues, **checks)
        response = self._response(y)
        self._resolve_all()
        sample_weight = self._check_weights(X, sample_weight)
        offset = self._check_exposure(X, exposure)
        data = TrainingData.gather(response, X, y, sample_weight, offset)
        self._warn(data.few_rows_message(), SkviWarning)
        self._choose_family(data, response)
        data = self._hold_out(data)
        model = self._assemble(data, response)
        self.loss_function_.check(model.likelihood)
        target = model.target(data)
        # Set at once; evidence and predictions use only this.
        self._model, self._fingerprint = model, data.fingerprint
        self._had_weights = sample_weight is not None
        self._had_exposure = offset is not None and bool(offset.any())
        return target, {"X": X, "y": y, "metadata": {"sample_weight": sample_weight}}

    def _hold_out(self, data):
        """Rows of the fit, with held-out ones; all of them by default."""
        return data

    def _choose_family(self, data, response):
        """Replace `posterior_family_` where it depends on the sizes of the data."""

    def _response(self, y):
        """Return the encoding of the targets: numbers, by default."""
        return Numbers()

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
        """Offset of f, the log of the exposure; None if there is none."""
        return None

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
            For linear models "coef" of shape (n_samples, n_outputs, n_features), with
            as many outputs as `coef_` has rows, and "intercept" of shape (n_samples,
            n_outputs). For networks "coef_0" of shape (n_samples, n_features, n_units),
            "intercept_0" of shape (n_samples, n_units), and so on for every layer.
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
        return self._sample(n_samples, make_generator(random_state))

    def _sample(self, n_samples, generator):
        """Draws of what predictions come from: the fitted posterior, by default."""
        return self.posterior_.draw(n_samples, generator).theta
