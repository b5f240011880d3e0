"""Evidence bounds of estimators: check that the data are those of the fit."""

from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from skvi._estimator._model import TrainingData
from skvi._estimator._outcome import without_rows
from skvi._estimator._progress import EvidenceProgress
from skvi.evidence import EvidenceBounds
from skvi.utils._interrupts import raising_interrupts
from skvi.utils._random import make_generator
from skvi.utils._threads import limit_threads
from skvi.utils._validation import (
    Interval,
    StrOptions,
    validate_arguments,
    validate_data,
)

__all__ = ["data_of_fit", "evidence_bounds", "evidence_of"]

# Draws evaluated at once.
N_DRAWS = 64


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
        Time limit of all phases, checked between batches of draws and independently
        of their values. Bounds that it cuts short are wider, and otherwise as
        valid; if too little time is left to assess them, ``reliable`` is False, and
        without any bounds ``method`` is "none". None is no limit, but 120 seconds for
        the tempering of ``method="auto"``.
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


def evidence_of(
    estimator: Any, X: Any, y: Any, rows: dict, random_state: Any, options: dict
) -> EvidenceBounds:
    """Bounds of a fitted estimator; `rows` are "sample_weight" and "exposure"."""
    positive = [None, Interval(Real, 0, None, closed="neither")]
    allowed = {
        "method": [StrOptions(estimator._evidence_methods)],
        "n_draws": [None, Interval(Integral, 64, None, closed="left")],
        "precision": positive,
        "max_seconds": positive,
    }
    validate_arguments(type(estimator).__name__, options, allowed)
    if options["n_draws"] is not None and options["precision"] is not None:
        raise ValueError("Give n_draws or precision, not both.")
    data = data_of_fit(estimator, X, y, **rows)
    is_log_loss = estimator.loss_function_.is_log_loss
    is_counted = not data.is_weighted or repeats_rows(data, rows["sample_weight"])
    plain = is_log_loss and is_counted
    model, hyper = estimator._model, torch.from_numpy(estimator._hyper.copy())
    target = model.target(data).at(hyper)
    work = N_DRAWS * len(data.y) * target.layout.size
    n_jobs = getattr(estimator, "n_jobs", None)
    with raising_interrupts(), limit_threads(work, n_jobs):
        bounds = estimator._bound_evidence(
            target.frozen(),
            make_generator(random_state),
            quantity="log evidence" if plain else "generalized log evidence",
            report=EvidenceProgress(estimator),
            **options,
        )
    if is_log_loss and model.likelihood.is_discrete:
        # Also with weights: a power of a probability is at most 1.
        bounds = bounds.of_probability()
    learned = without_rows(target.learned)
    return replace(bounds, plug_in=learned + model.taken_from_y)


def data_of_fit(
    estimator: Any, X: Any, y: Any, sample_weight: Any, exposure: Any
) -> TrainingData:
    """The training data again; ValueError if they are different."""
    options = {**estimator._input, **estimator._input_with_target, "reset": False}
    X, y = validate_data(estimator, X, y, **options)
    n_rows = estimator._fingerprint[0]
    if X.shape[0] != n_rows:
        raise ValueError(
            f"X and y must be the {n_rows} rows of the fit; "
            f"got {X.shape[0]} rows. For other data use predict_log_density."
        )
    if estimator._had_weights and sample_weight is None:
        raise ValueError(
            "The model was fitted with sample_weight, which define the evidence: "
            "pass the same sample_weight again."
        )
    sample_weight = estimator._check_weights(X, sample_weight)
    offset = estimator._check_exposure(X, exposure)
    response = estimator._model.response
    data = TrainingData.gather(response, X, y, sample_weight, offset)
    if data.fingerprint != estimator._fingerprint:
        raise ValueError(
            f"Give the X, y{estimator._row_data} of the fit; these "
            "differ. For other data use predict_log_density."
        )
    return estimator._trained_rows(data)


def repeats_rows(data: TrainingData, sample_weight: Any) -> bool:
    """Whether the weights are integers, and the user's own: no class weights."""
    if sample_weight is None:
        return False
    weight = np.asarray(sample_weight, dtype=np.float64)
    weight = weight[weight > 0] if weight.ndim else np.full(len(data.y), weight)
    is_own = np.array_equal(weight, data.weight)
    return is_own and bool((weight == np.round(weight)).all())
