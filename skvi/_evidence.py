"""Evidence bounds of estimators: check that the data are those of the fit."""

from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import validate_data

from skvi._model import TrainingData
from skvi._outcome import without_rows
from skvi._progress import EvidenceProgress
from skvi.evidence import EvidenceBounds
from skvi.utils._interrupts import raising_interrupts
from skvi.utils._random import make_generator
from skvi.utils._threads import limit_threads
from skvi.utils._validation import Interval, StrOptions, validate_arguments

__all__ = ["evidence_of"]

# Draws evaluated at once.
N_DRAWS = 64


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
    data = _data_of_fit(estimator, X, y, **rows)
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


def _data_of_fit(
    estimator: Any, X: Any, y: Any, sample_weight: Any, exposure: Any
) -> TrainingData:
    """The training data again; ValueError if they are different."""
    options = {**estimator._input, **estimator._input_with_target, "reset": False}
    X, y = validate_data(estimator, X, y, **options)
    n_rows = estimator._fingerprint[0]
    if X.shape[0] != n_rows:
        raise ValueError(
            f"evidence_bounds needs the {n_rows} rows of the fit; "
            f"got {X.shape[0]} rows. For other data use predict_log_density."
        )
    if estimator._had_weights and sample_weight is None:
        raise ValueError(
            "The model was fitted with sample_weight, which define the evidence: "
            "pass the same sample_weight to evidence_bounds."
        )
    sample_weight = estimator._check_weights(X, sample_weight)
    offset = estimator._check_exposure(X, exposure)
    response = estimator._model.response
    data = TrainingData.gather(response, X, y, sample_weight, offset)
    if data.fingerprint != estimator._fingerprint:
        raise ValueError(
            f"evidence_bounds needs the X, y{estimator._row_data} of the fit; these "
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
