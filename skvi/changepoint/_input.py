"""Parameters and columns of a detector, checked before the first row."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from skvi.changepoint._models import (
    BernoulliTrials,
    PoissonCounts,
    Regression,
    RegressionModel,
)
from skvi.changepoint._units import LEAST_ROWS, dispersion_of
from skvi.changepoint.base import ConstantHazard, Hazard, ObservationModel, SegmentModel
from skvi.divergences import KLDivergence
from skvi.exceptions import IncompatibleComponentsError
from skvi.losses import BetaLoss, LogLoss
from skvi.losses.base import Loss
from skvi.utils._validation import did_you_mean

# A row has the largest influence at 2 standard deviations from its prediction.
LOSSES = {"log": LogLoss(), "beta": BetaLoss(1 + 2.0**-2)}
# The largest order of those tried on the five autoregressions (benchmarks/
# changepoints.py) that finds both changes where they are.
RUN_LENGTH_LOSSES = {"log": LogLoss(), "beta": BetaLoss(1.75)}
# What "auto" chooses from, for parameters and run lengths. Orders of 1.06 to 1.44 for
# both, and larger ones for run lengths, never predicted better than the better of these
# (benchmarks/changepoints.py).
AUTO_LOSSES = LOSSES["log"], LOSSES["beta"]
# Autoregressions leave out the rows after missing values: too many if more are missing.
MOST_MISSING = 0.1
# Beyond it the arithmetic overflows.
LARGEST_BETA = 10.0

MODELS = {
    "constant_mean": Regression(),
    "known_noise": Regression(noise_df=math.inf),
    "poisson": PoissonCounts(),
    "bernoulli": BernoulliTrials(),
    "autoregression": Regression(order=1),
    "vector_autoregression": Regression(order=1, across=True),
    "linear_regression": Regression(features=True),
    "linear_trend": Regression(trend=True),
}
# If two rows are equal with more than this probability, the default model reports false
# changes: series rounded to steps of one and two standard deviations have 0.28 and
# 0.51, Poisson counts with means 1 and 0.2 have 0.31 and 0.68.
MOST_TIES = 1 / 3
# Variance of counts beyond the mean, relative to it, that is no mixture with zeros.
MOST_DISPERSED = 1.0
# Rows that the prior of the noise is worth, so that equal rows do not outweigh it.
ENOUGH_NOISE_DF = 20.0

NO_DENSITY = (
    "the models have densities, in which a run of equal values is a segment without "
    "noise: changes and log_evidence_ mean little, and log_evidence_ is not comparable "
    "with that of probabilities. "
)


def resolve_models(models: Any) -> list[SegmentModel]:
    """Return copies of the requested models, checked to be comparable."""
    if isinstance(models, str) and models == "auto":
        models = "constant_mean", "autoregression"
    given = [models] if isinstance(models, (str, SegmentModel)) else list(models)
    if not given:
        raise ValueError("models is empty. Give at least one, such as Regression().")
    found = []
    for model in given:
        if isinstance(model, str):
            if model not in MODELS:
                raise ValueError(
                    f"models has {model!r}, which is not one of {sorted(MODELS)}."
                    f"{did_you_mean(model, MODELS)}"
                )
            model = MODELS[model]
        elif not isinstance(model, SegmentModel):
            raise TypeError(
                f"models has a {type(model).__name__}. Give names or models, such as "
                "Regression(); a custom model extends ObservationModel."
            )
        model.validate()
        found.append(clone(model))
    supports = sorted({model.support for model in found})
    if len(supports) > 1:
        raise IncompatibleComponentsError(
            "A comparison of models",
            f"values with a common unit; got {', '.join(supports)}",
            "models of one kind",
        )
    return found


def resolve_prior(prior: Any, n_models: int) -> np.ndarray:
    """Probabilities of the models at the start of a segment."""
    if prior is None:
        return np.full(n_models, 1 / n_models)
    found = np.asarray(prior, dtype=float)
    if found.shape != (n_models,) or not (found >= 0).all() or found.sum() <= 0:
        raise ValueError(
            f"model_prior must have one probability for each of the {n_models} "
            f"model(s); got {prior!r}."
        )
    return found / found.sum()


def resolve_scaling(
    scaling: Any, n_series: int, support: str
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return location and scale; None if they are measured, of real numbers only."""
    if scaling is None or (isinstance(scaling, str) and support != "real"):
        scaling = 0.0, 1.0
    if isinstance(scaling, str):
        return None
    if len(scaling) != 2:
        raise ValueError("scaling must be 'auto', None or a pair (location, scale).")
    location, scale = (np.full(n_series, part, dtype=float) for part in scaling)
    if not ((scale > 0) & np.isfinite(scale) & np.isfinite(location)).all():
        raise ValueError(
            "scaling must have a finite location and a positive, finite scale; got "
            f"{scaling!r}."
        )
    return location, scale


def resolve_loss(
    loss: str | Loss,
    given: str,
    by_name: Mapping[str, Loss],
    models: Sequence[SegmentModel],
) -> Loss:
    """Resolve a loss, given in these words; raise if a model does not support it."""
    found = by_name[loss] if isinstance(loss, str) else loss
    found.validate()
    if isinstance(found, BetaLoss):
        if found.beta > LARGEST_BETA:
            raise ValueError(
                f"{given}: with so large an order no row has any influence. A "
                "row has its largest influence at 1 / sqrt(beta - 1) standard "
                "deviations from its prediction: use a beta between 1 and 2."
            )
        for model in models:
            if model.instead_of_beta:
                raise IncompatibleComponentsError(
                    given,
                    f"a regression with unknown noise; got {model!r}",
                    model.instead_of_beta,
                )
    return clone(found)


def resolve_losses(
    loss: str | Loss, run_length_loss: str | Loss, models: Sequence[SegmentModel]
) -> list[tuple[Loss, Loss]]:
    """Pairs of losses, of the parameters and of the run lengths, to choose from."""
    follows = isinstance(run_length_loss, str) and run_length_loss == "auto"
    if isinstance(loss, str) and loss == "auto":
        if not follows:
            raise IncompatibleComponentsError(
                "loss='auto'", "run_length_loss='auto'", "loss='log' or loss='beta'"
            )
        pairs = [(one, one) for one in AUTO_LOSSES]
    else:
        pairs = [(loss, loss if follows else run_length_loss)]
    found = [
        (
            resolve_loss(own, f"loss={loss!r}", LOSSES, models),
            resolve_loss(run, f"run_length_loss={run!r}", RUN_LENGTH_LOSSES, models),
        )
        for own, run in pairs
    ]
    for own, run in found:
        if isinstance(run, BetaLoss) and not isinstance(own, BetaLoss):
            raise IncompatibleComponentsError(
                f"run_length_loss={run!r}",
                "a robust loss for the parameters, too",
                'loss="beta"',
            )
    return found


def power_of(loss: Loss) -> float | None:
    """The order of a beta loss less 1; None of the log loss."""
    return loss.beta - 1 if isinstance(loss, BetaLoss) else None


def resolve_divergence(
    divergence: str | KLDivergence, models: Sequence[SegmentModel]
) -> KLDivergence:
    """Resolve the divergence; raise if a model does not support it."""
    if isinstance(divergence, str):
        return KLDivergence()
    divergence.check_regularizer()
    for model in models:
        own = getattr(type(model), "update_part", None)  # regressions need none
        if divergence.weight != 1 and own is ObservationModel.update_part:
            raise IncompatibleComponentsError(
                f"divergence={divergence!r}",
                f"an update_part in {type(model).__name__}, for a fraction of a row",
                "weight=1",
            )
    return clone(divergence)


@dataclass(frozen=True)
class Settings:
    """Everything that a stream is made of, except its units.

    `scaling` is None if the units are measured; `losses` are pairs of one for the
    parameters and one for the run lengths, of which a stream chooses.
    """

    models: Sequence[SegmentModel]
    scaling: tuple[np.ndarray, np.ndarray] | None
    hazard: Hazard
    model_prior: np.ndarray
    divergence: KLDivergence
    losses: Sequence[tuple[Loss, Loss]]
    max_hypotheses: int | None
    min_probability: float
    history: int
    normalizes: bool
    n_series: int

    @classmethod
    def of(cls, detector: Any, series: np.ndarray) -> "Settings":
        """Resolve the parameters of a detector; raise if they do not fit together.

        Takes the first rows of the series, (n, n_series).
        """
        given = detector.models
        loss = detector.loss
        is_robust = loss in ("auto", "beta") or isinstance(loss, BetaLoss)
        is_auto = isinstance(given, str) and given == "auto"
        if is_auto and (is_robust or np.isnan(series).mean(0).max() > MOST_MISSING):
            given = "constant_mean"
        models = resolve_models(given)
        hazard = detector.hazard
        if isinstance(hazard, Hazard):
            hazard.validate()
            hazard = clone(hazard)
        else:
            hazard = ConstantHazard(float(hazard))
        return cls(
            models,
            resolve_scaling(detector.scaling, series.shape[1], models[0].support),
            hazard,
            resolve_prior(detector.model_prior, len(models)),
            resolve_divergence(detector.divergence, models),
            resolve_losses(loss, detector.run_length_loss, models),
            detector.max_hypotheses,
            detector.min_probability,
            detector.history,
            is_auto and not is_robust and isinstance(detector.scaling, str),
            series.shape[1],
        )

    def log_least(self, n_parameters: int) -> float:
        """Log probability below which hypotheses are dropped.

        A segment that has just begun pays a few nats for each of its parameters before
        it can gain anything: the power grows with their number. It is 1 for a level and
        its noise.
        """
        if self.min_probability == 0:
            return -math.inf
        return max(1.0, n_parameters / 2) * math.log(self.min_probability)


def find_columns(
    columns: Sequence[int | str] | None, n_columns: int, names: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the columns that are series, and of features, by number or name."""
    found = []
    for column in [] if columns is None else columns:
        if isinstance(column, str):
            known = [] if names is None else names.tolist()
            if column not in known:
                raise ValueError(
                    f"feature_columns has {column!r}, which is not a column of X. "
                    f"Columns: {known or 'X has no names, give numbers'}."
                )
            found.append(known.index(column))
        elif not 0 <= column < n_columns:
            raise ValueError(
                f"feature_columns has {column}, but X has {n_columns} column(s), "
                f"numbered from 0."
            )
        else:
            found.append(int(column))
    series = np.setdiff1d(np.arange(n_columns), found)
    if not len(series):
        raise ValueError(
            "feature_columns contains every column of X, and leaves no series to model."
        )
    return series, np.array(found, dtype=int)


def check_values(series: np.ndarray, support: str) -> None:
    """Raise if values do not suit the models."""
    seen = series[np.isfinite(series)]
    allowed, advice = {
        "real": (np.abs(seen) < 1e100, "values must be smaller than 1e100."),
        "count": (
            (seen >= 0) & (seen == np.floor(seen)),
            "the models are of counts: 0, 1, 2, ... Use models of real numbers, such "
            "as Regression, or mark it as missing (NaN).",
        ),
        "binary": (
            (seen == 0) | (seen == 1),
            "the models are of zeros and ones. Use PoissonCounts or Regression, or "
            "mark it as missing (NaN).",
        ),
    }[support]
    if not allowed.all():
        raise ValueError(f"X has the value {seen[~allowed][0]:g}, but {advice}")


def as_table(X: Any, is_series: bool) -> Any:
    """Return a one-dimensional container as a column, if it can only be one series."""
    if isinstance(X, (list, tuple)):
        is_flat = all(value is None or np.isscalar(value) for value in X)
    else:
        is_flat = len(getattr(X, "shape", ())) == 1
    if not (is_flat and is_series):
        return X
    if hasattr(X, "to_frame") and hasattr(X, "index"):
        return X.to_frame(0)  # pandas: its missing values are kept
    return np.reshape(np.asarray(X), (-1, 1))


def labels_of(X: Any) -> np.ndarray | None:
    """Index of a pandas container, such as dates; None where it only counts rows."""
    index = getattr(X, "index", None)
    if index is None or callable(index):  # lists have a method of that name
        return None
    # Every batch of a stream is counted from 0 by default.
    is_count = type(index).__name__ == "RangeIndex" and index.start == 0
    return None if is_count and index.step == 1 else index.to_numpy()


def times_of(labels: np.ndarray | None) -> np.ndarray | None:
    """Labels as numbers, if they are times or numbers; raise if they decrease."""
    if labels is None:
        return None
    first = labels[0] if len(labels) else None
    if hasattr(first, "ordinal"):  # periods of pandas
        labels = np.array([label.ordinal for label in labels])
    elif hasattr(first, "timestamp"):  # dates with a time zone
        labels = np.array([label.timestamp() for label in labels])
    if labels.dtype.kind not in "Mmiuf":
        return None
    times = labels.astype("int64" if labels.dtype.kind in "Mm" else float) * 1.0
    if labels.dtype.kind in "Mm":
        times[np.isnat(labels)] = np.nan
    if not np.isfinite(times).all():
        return None
    check_order(times)
    return times


def check_order(times: np.ndarray) -> None:
    """Raise if times decrease."""
    if (np.diff(times) < 0).any():
        raise ValueError(
            "The index of X decreases, and rows must be in the order of time. Sort "
            "them, X.sort_index(); or reset_index(drop=True), if it is no time."
        )


def misfits(
    columns: Sequence[np.ndarray],
    names: Sequence[str],
    models: Sequence[SegmentModel],
    is_complete: bool,
) -> str | None:
    """One message about all columns, (n,) with NaN where missing, or None.

    A column without values is reported only if the series is complete.
    """
    found, has_ties = [], models[0].support == "real"
    # Whether no segment can be without noise, whatever its rows.
    has_noise = all(
        isinstance(model, RegressionModel)
        and model.noise_scale != "auto"
        and model.noise_df >= ENOUGH_NOISE_DF
        for model in models
    )
    for column, name in zip(columns, names, strict=True):
        seen = column[np.isfinite(column)]
        if is_complete and not len(seen):
            found.append(f"{name} has no observed value: nothing is learned from it.")
        elif has_ties and len(seen) >= LEAST_ROWS:
            if (advice := tied(seen, has_noise)) is not None:
                found.append(f"{name} {advice}")
    if not found:
        return None
    more = len(found) - 1
    return found[0] + (f" There are {more} more such columns." if more else "")


def tied(column: np.ndarray, has_noise: bool) -> str | None:
    """Advice on a column with two values, or in which most rows are equal."""
    values, counts = np.unique(column, return_counts=True)
    n_values, fraction = len(values), counts / len(column)
    if n_values == 1 or (n_values > 2 and (fraction**2).sum() < MOST_TIES):
        return None
    if n_values == 2:
        first = f"holds only {values[0]:g} and {values[1]:g}; {NO_DENSITY}"
        if values.tolist() == [0, 1]:
            return first + 'Use models="bernoulli".'
        return f'{first}Use models="bernoulli" for X == {values[1]:g}.'
    top = values[counts.argmax()] + 0.0
    first = f"holds {top:g} in {fraction.max():.0%} of the rows; {NO_DENSITY}"
    are_counts = values[0] >= 0 and (values == np.floor(values)).all()
    if are_counts and dispersion_of(column) * column.mean() < MOST_DISPERSED:
        return first + 'Use models="poisson".'
    gaps = np.diff(values)
    if not are_counts and np.allclose(gaps, gaps.min() * np.rint(gaps / gaps.min())):
        if has_noise:
            return None
        return (
            f"{first}If it is rounded to steps of {gaps.min():g}, use "
            f"Regression(noise_scale=1.0, noise_df={ENOUGH_NOISE_DF})."
        )
    return (
        f'{first}Use models="bernoulli" for X != {top:g}, and the values themselves '
        f"with NaN for {top:g}."
    )
