"""Build a stream from the parameters of a detector."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from skvi.changepoint._conjugate import ConjugateGroup
from skvi.changepoint._counts import BernoulliTrials, PoissonCounts
from skvi.changepoint._filter import Filter
from skvi.changepoint._groups import Group, SingleModel
from skvi.changepoint._records import Records
from skvi.changepoint._regression import Regression, RegressionModel
from skvi.changepoint._robust import RobustGroup
from skvi.changepoint._scaling import Scaling
from skvi.changepoint._stream import Stream
from skvi.changepoint.base import ConstantHazard, Hazard, ObservationModel, SegmentModel
from skvi.divergences import KL
from skvi.exceptions import IncompatibleComponentsError
from skvi.losses import BetaLoss, LogLoss
from skvi.losses.base import Loss

__all__ = ["Settings"]

# A row has the largest influence at 2 standard deviations from its prediction.
LOSSES = {"log": LogLoss(), "beta": BetaLoss(1 + 2.0**-2)}
# The largest order of those tried on the five autoregressions (benchmarks/
# changepoints.py) that finds both changes where they are.
RUN_LENGTH_LOSSES = {"log": LogLoss(), "beta": BetaLoss(1.75)}
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
            f"The models are of different kinds of values ({', '.join(supports)}): "
            "densities and probabilities have no common unit and cannot be compared. "
            "Use models of one kind."
        )
    return found


def resolve_hazard(hazard: float | Hazard) -> Hazard:
    """Return a constant hazard for a mean length, or a copy of a given hazard."""
    if not isinstance(hazard, Hazard):
        return ConstantHazard(float(hazard))
    hazard.validate()
    return clone(hazard)


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
    loss: str | Loss, by_name: Mapping[str, Loss], models: Sequence[SegmentModel]
) -> Loss:
    """Resolve a loss; raise if a model does not support it."""
    found = by_name[loss] if isinstance(loss, str) else loss
    found.validate()
    if isinstance(found, BetaLoss):
        if found.beta > LARGEST_BETA:
            raise ValueError(
                f"loss={found!r}: with so large an order no row has any influence. A "
                "row has its largest influence at 1 / sqrt(beta - 1) standard "
                "deviations from its prediction: use a beta between 1 and 2."
            )
        for model in models:
            if model.instead_of_beta:
                raise IncompatibleComponentsError(
                    f"loss={found!r} and {model!r} cannot be combined: the posterior "
                    "that minimizes the beta loss is known for regressions with "
                    f"unknown noise only. {model.instead_of_beta}"
                )
    return clone(found)


def power_of(loss: Loss) -> float | None:
    """Return beta - 1, and None for the log loss."""
    return loss.beta - 1 if isinstance(loss, BetaLoss) else None


def resolve_divergence(divergence: str | KL, models: Sequence[SegmentModel]) -> KL:
    """Resolve the divergence; raise if a model does not support it."""
    if isinstance(divergence, str):
        return KL()
    divergence.check_regularizer()
    for model in models:
        if divergence.weight != 1 and not model.takes_parts:
            raise IncompatibleComponentsError(
                f"divergence={divergence!r} and {type(model).__name__} cannot be "
                "combined: the model has no update for a fraction of a row. Use "
                "weight=1, or give the model an update_part and takes_parts = True."
            )
    return clone(divergence)


def log_threshold(min_probability: float, n_parameters: int) -> float:
    """Log probability below which hypotheses are dropped.

    A segment that has just begun pays a few nats for each of its parameters before it
    can gain anything: the power grows with their number. It is 1 for a level and its
    noise.
    """
    if min_probability == 0:
        return -math.inf
    return max(1.0, n_parameters / 2) * math.log(min_probability)


@dataclass(frozen=True)
class Settings:
    """Everything that a stream is made of, except its units.

    `scaling` is None if the units are measured.
    """

    models: Sequence[SegmentModel]
    scaling: tuple[np.ndarray, np.ndarray] | None
    hazard: Hazard
    model_prior: np.ndarray
    divergence: KL
    loss: Loss
    run_length_loss: Loss
    max_hypotheses: int | None
    min_probability: float
    history: int
    normalizes: bool

    @classmethod
    def of(cls, detector: Any, series: np.ndarray) -> "Settings":
        """Resolve the parameters of a detector; raise if they do not fit together.

        Takes the first rows of the series, (n, n_series).
        """
        given = detector.models
        is_robust = detector.loss == "beta" or isinstance(detector.loss, BetaLoss)
        is_auto = isinstance(given, str) and given == "auto"
        if is_auto and (is_robust or np.isnan(series).mean(0).max() > MOST_MISSING):
            given = "constant_mean"
        models = resolve_models(given)
        loss = resolve_loss(detector.loss, LOSSES, models)
        given = detector.run_length_loss
        given = detector.loss if isinstance(given, str) and given == "auto" else given
        run_length_loss = resolve_loss(given, RUN_LENGTH_LOSSES, models)
        if isinstance(run_length_loss, BetaLoss) and not isinstance(loss, BetaLoss):
            raise IncompatibleComponentsError(
                f"run_length_loss={run_length_loss!r} needs a robust loss for the "
                'parameters, too. Use loss="beta".'
            )
        return cls(
            models,
            resolve_scaling(detector.scaling, series.shape[1], models[0].support),
            resolve_hazard(detector.hazard),
            resolve_prior(detector.model_prior, len(models)),
            resolve_divergence(detector.divergence, models),
            loss,
            run_length_loss,
            detector.max_hypotheses,
            detector.min_probability,
            detector.history,
            is_auto and not is_robust and isinstance(detector.scaling, str),
        )

    def stream(self, scaling: Scaling, n_kept: int) -> Stream:
        """Assemble a stream before its first row; results of `n_kept` rows are kept."""
        groups = self._groups(scaling)
        n_parameters = max(group.n_parameters() for group in groups)
        filter_ = Filter(
            groups,
            self.hazard,
            self.model_prior,
            self.max_hypotheses,
            log_threshold(self.min_probability, n_parameters),
            max(model.order for model in self.models),
        )
        records = Records(self.hazard, self.history, n_kept)
        run_power = power_of(self.run_length_loss)
        return Stream(self.models, scaling, filter_, records, run_power)

    def _groups(self, scaling: Scaling) -> list[Group]:
        """Models of one kind share their arithmetic."""
        temper, power = 1 / self.divergence.weight, power_of(self.loss)
        kinds: dict[bool | None, list[int]] = {}
        groups: list[Group] = []
        for i, model in enumerate(self.models):
            if isinstance(model, ObservationModel):
                groups.append(SingleModel(i, model, scaling.burn_in, temper))
            elif isinstance(model, RegressionModel):
                key = model.shares_design if power is None else None
                kinds.setdefault(key, []).append(i)
        for numbers in kinds.values():
            members = [self.models[i] for i in numbers]
            given = numbers, members, scaling.burn_in, temper
            if power is None:
                groups.append(ConjugateGroup(*given))
            else:
                run_power = power_of(self.run_length_loss)
                robust = RobustGroup(*given, power=power, run_power=run_power)
                groups.append(robust)
        return groups
