"""Evidence bounds of estimators: check that the data are those of the fit."""

from dataclasses import replace
from numbers import Integral, Real

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted, validate_data

from skvi._model import TrainingData
from skvi._outcome import without_rows
from skvi._progress import EvidenceProgress
from skvi.evidence import bound_evidence
from skvi.utils._interrupts import raising_interrupts
from skvi.utils._random import make_generator
from skvi.utils._threads import limit_threads
from skvi.utils._validation import Interval, StrOptions, validate_arguments

__all__ = ["EvidenceMixin"]


class EvidenceMixin:
    """Mixin of supervised estimators, before `BaseSupervised`: `evidence_bounds`."""

    _row_data = " and sample_weight"
    #: Draws evaluated at once.
    _evidence_draws = 64
    _evidence_methods = frozenset({"auto", "importance", "annealing"})

    def evidence_bounds(
        self,
        X,
        y,
        *,
        sample_weight=None,
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
            The training target.
        sample_weight : array-like of shape (n_samples,), default=None
            Needed if the fit had weights. Integer weights count repeated rows; with
            others the evidence is a generalized one. Class weights are added by the
            estimator.
        method : {"auto", "importance", "annealing"}, default="auto"
            "importance": importance sampling from a Student-t fitted to the posterior,
            and MCMC chains for the upper bound. "annealing": paths of densities from a
            normal to the posterior, and back from MCMC chains; it costs more, and works
            if no proposal fits. "auto": the first, and the second if the first is not
            reliable, or wider than 0.1 nats. Under an unknown scale, the default prior
            of some models, all of them are for parameters and scale together. "auto"
            then also takes particles that go through the rows, if there are fewer rows
            than features, and no normal is near, as with separable classes.
        n_draws : int, default=None
            Draws on each side, at least 64. None chooses as many as `precision`
            needs.
        precision : float, default=None
            Target distance of each bound from log p(D), in nats. None is 0.03, limited
            to about 130,000 (correlated) draws on each side. Not together with
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
            The data are not those of the fit, or the fit
            had weights and none are given.
        KeyboardInterrupt
            On Ctrl-C; the estimator is not changed.

        Notes
        -----
        Values are in nats, summed over the data, with all constants. With a loss
        other than log loss, or with weights, the result bounds a generalized
        evidence ``log E_prior[exp(-sum of weighted losses)]``, labeled so, which
        is comparable only within the same loss and weights. Quantities taken from y are
        conditioned on, and listed in ``plug_in``: learned hyperparameters, and location
        and scale of y with ``normalize_y=True``.
        """
        check_is_fitted(self)
        return self._check_and_bound(
            X,
            y,
            sample_weight,
            method,
            n_draws,
            precision,
            random_state,
            max_seconds=max_seconds,
        )

    def _check_and_bound(
        self,
        X,
        y,
        sample_weight,
        method,
        n_draws,
        precision,
        random_state,
        exposure=None,
        max_seconds=None,
    ):
        validate_arguments(
            type(self).__name__,
            {
                "method": method,
                "n_draws": n_draws,
                "precision": precision,
                "max_seconds": max_seconds,
            },
            {
                "method": [StrOptions(self._evidence_methods)],
                "n_draws": [None, Interval(Integral, 64, None, closed="left")],
                "precision": [None, Interval(Real, 0, None, closed="neither")],
                "max_seconds": [None, Interval(Real, 0, None, closed="neither")],
            },
        )
        if n_draws is not None and precision is not None:
            raise ValueError("Give n_draws or precision, not both.")
        model, data = self._model, self._data_of_fit(X, y, sample_weight, exposure)
        is_counted = not data.is_weighted or repeats_rows(data, sample_weight)
        plain = self.loss_function_.is_log_loss and is_counted
        target = model.target(data).at(torch.from_numpy(self._hyper.copy()))
        work = self._evidence_draws * len(data.y) * target.layout.size
        with raising_interrupts(), limit_threads(work, getattr(self, "n_jobs", None)):
            bounds = self._bound_evidence(
                target.frozen(),
                make_generator(random_state),
                method,
                n_draws,
                precision,
                "log evidence" if plain else "generalized log evidence",
                EvidenceProgress(self),
                max_seconds=max_seconds,
            )
        if self.loss_function_.is_log_loss and model.likelihood.is_discrete:
            # Also with weights: a power of a probability is at most 1.
            bounds = bounds.of_probability()
        learned = without_rows(target.learned)
        return replace(bounds, plug_in=learned + model.taken_from_y)

    def _data_of_fit(self, X, y, sample_weight, exposure):
        """Return the training data again; raise if they are different."""
        options = {**self._input, **self._input_with_target, "reset": False}
        X, y = validate_data(self, X, y, **options)
        n_rows = self._fingerprint[0]
        if X.shape[0] != n_rows:
            raise ValueError(
                f"evidence_bounds needs the {n_rows} rows of the fit; "
                f"got {X.shape[0]} rows. For other data use predict_log_density."
            )
        if self._had_weights and sample_weight is None:
            raise ValueError(
                "The model was fitted with sample_weight, which define the evidence: "
                "pass the same sample_weight to evidence_bounds."
            )
        sample_weight = self._check_weights(X, sample_weight)
        offset = self._check_exposure(X, exposure)
        response = self._model.response
        data = TrainingData.gather(response, X, y, sample_weight, offset)
        if data.fingerprint != self._fingerprint:
            raise ValueError(
                f"evidence_bounds needs the X, y{self._row_data} of the fit; these "
                "differ. For other data use predict_log_density."
            )
        return self._trained_rows(data)

    def _trained_rows(self, data):
        """The training rows among the rows of the fit: all of them by default."""
        return data

    def _bound_evidence(
        self, target, generator, method, n_draws, precision, quantity, report, **limits
    ):
        """Bound the evidence of a target, after the check that it is the fit's."""
        return bound_evidence(
            target,
            self.posterior_,
            generator,
            n_draws,
            precision,
            quantity,
            method=method,
            report=report,
            **limits,
        )


def repeats_rows(data, sample_weight):
    """Whether the weights are integers, and the user's own: no class weights."""
    if sample_weight is None:
        return False
    weight = np.asarray(sample_weight, dtype=np.float64)
    weight = weight[weight > 0] if weight.ndim else np.full(len(data.y), weight)
    is_own = np.array_equal(weight, data.weight)
    return is_own and bool((weight == np.round(weight)).all())
