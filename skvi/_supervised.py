"""Supervised estimators: from X, y and weights to a fitted posterior."""

from numbers import Integral

import numpy as np
import torch
from sklearn.base import is_regressor
from sklearn.utils.validation import check_is_fitted, validate_data

from skvi._evidence import evidence_of
from skvi._model import Numbers, TrainingData
from skvi._variational import BaseVariational
from skvi.evidence import bound_evidence
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
    #: What evidences need besides X and y, for messages; their methods.
    _row_data = " and sample_weight"
    _evidence_methods = frozenset({"auto", "importance", "tempering"})

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
        if exposure is not None:
            raise TypeError(f"{type(self).__name__} takes no exposure; counts do.")
        return None

    def _trained_rows(self, data):
        """The training rows among the rows of the fit: all of them by default."""
        return data

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

    def evidence_bounds(
        self,
        X,
        y,
        *,
        sample_weight=None,
        exposure=None,
        method="auto",
        n_draws=None,
        precision=None,
        max_seconds=None,
        random_state=None,
    ):
        """Bound the log evidence log p(D) of the model from below and above.

        The evidence is the probability (density) that the model (likelihood, prior,
        features) assigned to these data before it saw them: the number by which
        Bayesian models are compared. It does not depend on objective, divergence or
        posterior family.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The training features.
        y : array-like of shape (n_samples,)
            The training target; with several columns the evidence of all of them.
        sample_weight : array-like of shape (n_samples,), default=None
            Needed if the fit had weights. Integer weights count repeated rows; with
            others the evidence is a generalized one. Class weights are added by the
            estimator.
        exposure : array-like of shape (n_samples,), default=None
            Of counts alone; needed if the fit had it.
        method : {"auto", "exact", "importance", "tempering"}, default="auto"
            "exact", of linear regression: closed forms, with quadrature over at most
            two precisions with hyperpriors. "importance": importance sampling from a
            Student-t fitted to the posterior, and MCMC chains for the upper bound.
            "tempering": chains at all temperatures between posterior and prior, or a
            normal around the posterior, which are exchanged; it costs more, and works
            if no proposal fits. Hidden units of networks can be permuted, and chains
            from the prior reach all equivalent modes. "auto": "exact" where it exists,
            tempering with hidden units, otherwise importance sampling, and tempering if
            that is not reliable, or wider than 0.1 nats. Under an unknown scale, the
            default prior of some models, all of them are for parameters and scale
            together. "auto" then also takes particles that go through the rows, if
            there are fewer rows than features, and no normal is near, as with separable
            classes.
        n_draws : int, default=None
            Draws on each side, at least 64. None chooses as many as `precision`
            needs.
        precision : float, default=None
            Target distance of each bound from log p(D), in nats. None is 0.03, limited
            to about 130,000 (correlated) draws on each side; with tempering 0.25,
            limited to 3,000 sweeps of 16 systems of chains. Not together with
            `n_draws`.
        max_seconds : float, default=None
            Approximate time limit, checked between batches of draws and independently
            of their values. Bounds that it cuts short are wider, and otherwise as
            valid; if too little time is left to assess them, ``reliable`` is False.
        random_state : int, RandomState instance or None, default=None

        Returns
        -------
        EvidenceBounds
            With ``lower``, ``upper``, their standard errors, ``estimate``,
            ``reliable`` and ``reason``; ``print(bounds)`` shows the
            interval, ``print(bounds.table)`` every bound.

        Raises
        ------
        ValueError
            The data are not those of the fit, the fit had weights and none are given,
            or y is of rates instead of counts.
        IncompatibleComponentsError
            "exact" for a model without closed forms.
        KeyboardInterrupt
            On Ctrl-C; the estimator is not changed.

        Notes
        -----
        Values are in nats, summed over the data, with all constants. With a loss
        other than log loss, or with weights, the result bounds a generalized
        evidence ``log E_prior[exp(-sum of weighted losses)]``, labeled so, which
        is comparable only within the same loss and weights. Quantities taken from y are
        conditioned on, and listed in ``plug_in``: learned hyperparameters, with which
        the evidence is an optimistic score of the model, and location and scale of y
        with ``normalize_y=True``, with which it is not a probability density of y.

        With tempering both bounds are valid if the chains have mixed. Mixing is
        assessed by fitted values and by the log joint density, which are equal for
        equivalent networks, and by how often replicas came from the prior to the
        posterior; half of the chains start from annealed draws of the prior. The row
        "particles" of the table needs no such condition: it is below log p(D) in
        expectation, whatever is found. `khat` is that of weights between neighboring
        temperatures whose variance is not finite by construction (-inf if there are
        none), and `ess` that of the log joint density in the chains.
        """
        check_is_fitted(self)
        options = {"method": method, "n_draws": n_draws, "precision": precision}
        options["max_seconds"] = max_seconds
        rows = {"sample_weight": sample_weight, "exposure": exposure}
        return self._evidence(X, y, rows, random_state, options)

    def _evidence(self, X, y, rows, random_state, options):
        return evidence_of(self, X, y, rows, random_state, options)

    def _bound_evidence(self, target, generator, **options):
        """Bound the evidence of a target, after the check that it is the fit's."""
        return bound_evidence(target, self.posterior_, generator, **options)
