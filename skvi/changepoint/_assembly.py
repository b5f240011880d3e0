"""Build a stream from the parameters of a detector."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from skvi.changepoint._counts import BernoulliTrials, PoissonCounts
from skvi.changepoint._filter import Filter
from skvi.changepoint._groups import ConjugateGroup, Group, SingleModel
from skvi.changepoint._hazards import ConstantHazard
from skvi.changepoint._judge import Judge
from skvi.changepoint._levels import LevelGroup
from skvi.changepoint._normal import KnownNoise
from skvi.changepoint._records import Records
from skvi.changepoint._regression import Regression
from skvi.changepoint._robust import RobustGroup
from skvi.changepoint._rows import BurnIn
from skvi.changepoint._scaling import Scaling, measure
from skvi.changepoint._stream import Stream
from skvi.changepoint.base import (
    Hazard,
    ObservationModel,
    RegressionModel,
    SegmentModel,
)
from skvi.divergences import KL
from skvi.exceptions import IncompatibleComponentsError
from skvi.losses import BetaLoss, LogLoss
from skvi.losses.base import Loss

__all__ = ["Settings"]

# Standard deviations from the prediction at which a row has the largest influence.
INFLUENCE_PEAK = 2.0
# Beyond it the arithmetic overflows.
LARGEST_BETA = 10.0
# The largest order of the run-length loss, of those tried on the five autoregressions
# (benchmarks/bench_changepoint_defaults.py), that finds both changes where they are.
RUN_LENGTH_BETA = 1.75

# Parameters of a level with its noise: a segment with no more of them is dropped at
# `min_probability` itself.
PARAMETERS = 2

LEVEL = "level"

MODELS = {
    "constant_mean": Regression(),
    "known_noise": KnownNoise(),
    "poisson": PoissonCounts(),
    "bernoulli": BernoulliTrials(),
    "autoregression": Regression(order=1),
    "vector_autoregression": Regression(order=1, across=True),
    "linear_regression": Regression(features=True),
    "linear_trend": Regression(trend=True),
}


def resolve_models(models: Any) -> list[SegmentModel]:
    """Return copies of the requested models, checked to be comparable."""
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


def resolve_scaling(scaling: Any, n_series: int) -> tuple | None:
    """Return location and scale if they are given."""
    if scaling is None:
        return np.zeros(n_series), np.ones(n_series)
    if isinstance(scaling, str):
        return None
    if len(scaling) != 2:
        raise ValueError("scaling must be 'auto', None or a pair (location, scale).")
    location, scale = (
        np.broadcast_to(np.asarray(part, dtype=float), (n_series,)).copy()
        for part in scaling
    )
    if not ((scale > 0) & np.isfinite(scale) & np.isfinite(location)).all():
        raise ValueError(
            "scaling must have a finite location and a positive, finite scale; got "
            f"{scaling!r}."
        )
    return location, scale


def resolve_loss(loss: str | Loss, models: Sequence[SegmentModel]) -> Loss:
    """Resolve the loss; raise if a model does not support it."""
    if isinstance(loss, str):
        found = LogLoss() if loss == "log" else BetaLoss(1 + INFLUENCE_PEAK**-2)
    else:
        loss.validate()
        found = clone(loss)
    if isinstance(found, BetaLoss):
        if found.beta > LARGEST_BETA:
            raise ValueError(
                f"loss={found!r}: with so large an order no row has any influence. A "
                "row has its largest influence at 1 / sqrt(beta - 1) standard "
                "deviations from its prediction: use a beta between 1 and 2."
            )
        for model in models:
            if not isinstance(model, RegressionModel):
                raise IncompatibleComponentsError(
                    f"loss={found!r} and {type(model).__name__} cannot be combined: "
                    "the posterior that minimizes the beta loss is known for "
                    f"regressions only. {model.instead_of_beta}"
                )
    return found


def check_losses(loss: Loss, run_length_loss: Loss) -> None:
    """Raise if the run-length loss is robust but the models are not."""
    if isinstance(run_length_loss, BetaLoss) and not isinstance(loss, BetaLoss):
        raise IncompatibleComponentsError(
            f"run_length_loss={run_length_loss!r} needs a robust loss for the "
            'parameters, too. Use loss="beta".'
        )


def resolve_run_length_loss(
    given: str | Loss, loss: str | Loss, models: Sequence[SegmentModel]
) -> Loss:
    """Return the loss that weights hypotheses: by default that of the parameters.

    By name, both orders are those at which the five autoregressions still work.
    """
    if isinstance(given, str) and given == "auto":
        given = loss
    if isinstance(given, str) and given == "beta":
        return BetaLoss(RUN_LENGTH_BETA)
    return resolve_loss(given, models)


def power_of(loss: Loss) -> float | None:
    """Return beta - 1, and None for the log loss."""
    return loss.beta - 1 if isinstance(loss, BetaLoss) else None


def resolve_divergence(divergence: str | KL, models: Sequence[SegmentModel]) -> KL:
    """Resolve the divergence; raise if a model does not support it."""
    if isinstance(divergence, str):
        return KL()
    divergence.validate()
    for model in models:
        if divergence.weight != 1 and not model.takes_parts:
            raise IncompatibleComponentsError(
                f"divergence={divergence!r} and {type(model).__name__} cannot be "
                "combined: the model has no update for a fraction of a row. Use "
                "weight=1, or give the model an update_part and takes_parts = True."
            )
    return clone(divergence)


def kind_of(model: RegressionModel, power: float | None) -> str:
    """Which arithmetic a regression uses; robust ones all use the same."""
    if power is not None:
        return "robust"
    if model.shares_design:
        return "shared"
    return LEVEL if model.is_level else "separate"


def make_groups(
    models: Sequence[SegmentModel], burn_in: BurnIn, temper: float, power: float | None
) -> list[Group]:
    """Group models of one kind."""
    groups: list[Group] = []
    regressions = [
        (i, model)
        for i, model in enumerate(models)
        if isinstance(model, RegressionModel)
    ]
    for kind in sorted({kind_of(model, power) for _, model in regressions}):
        numbers, members = zip(
            *(x for x in regressions if kind_of(x[1], power) == kind),
            strict=True,
        )
        if power is not None:
            groups.append(RobustGroup(numbers, members, burn_in, power, temper))
        elif kind == LEVEL:
            groups.append(LevelGroup(numbers, members, burn_in, temper))
        else:
            groups.append(ConjugateGroup(numbers, members, burn_in, temper))
    for i, model in enumerate(models):
        if isinstance(model, ObservationModel):
            groups.append(SingleModel(i, model, burn_in, temper))
    return groups


def log_threshold(min_probability: float, n_parameters: int) -> float:
    """Log probability below which hypotheses are dropped.

    A segment that has just begun pays a few nats for each of its parameters before it
    can gain anything: the power grows with their number.
    """
    if min_probability == 0:
        return -math.inf
    return max(1.0, n_parameters / PARAMETERS) * math.log(min_probability)


@dataclass(frozen=True)
class Settings:
    """Everything that a stream is made of, except its units.

    `history` is the rows of a look back, `n_kept` those whose results are kept.
    """

    models: Sequence[SegmentModel]
    scaling: Any
    hazard: Hazard
    model_prior: np.ndarray
    divergence: KL
    loss: Loss
    run_length_loss: Loss
    max_hypotheses: int | None
    min_probability: float
    history: int
    n_kept: int

    @classmethod
    def of(cls, detector: Any, n_series: int) -> "Settings":
        """Resolve the parameters of a detector; raise if they do not fit together."""
        models = resolve_models(detector.models)
        loss = resolve_loss(detector.loss, models)
        run_length_loss = resolve_run_length_loss(
            detector.run_length_loss, detector.loss, models
        )
        check_losses(loss, run_length_loss)
        resolve_scaling(detector.scaling, n_series)
        return cls(
            models,
            detector.scaling,
            resolve_hazard(detector.hazard),
            resolve_prior(detector.model_prior, len(models)),
            resolve_divergence(detector.divergence, models),
            loss,
            run_length_loss,
            detector.max_hypotheses,
            detector.min_probability,
            detector.history,
            detector.history,
        )

    @property
    def measures_scale(self) -> bool:
        """Whether units are measured, for real numbers only."""
        return isinstance(self.scaling, str) and self.models[0].support == "real"

    def measure(self, columns: Sequence[np.ndarray], n_features: int) -> Scaling:
        """Units of the series, from their first rows or as given."""
        given = resolve_scaling(self.scaling, len(columns))
        return measure(columns, given, self.models[0].support, n_features)

    def stream(self, scaling: Scaling) -> Stream:
        """Assemble a stream, before its first row."""
        temper = 1 / self.divergence.weight
        groups = make_groups(self.models, scaling.burn_in, temper, power_of(self.loss))
        n_parameters = max(group.n_parameters() for group in groups)
        filter_ = Filter(
            groups,
            self.hazard,
            self.model_prior,
            self.max_hypotheses,
            log_threshold(self.min_probability, n_parameters),
            max(model.order for model in self.models),
        )
        records = Records(self.hazard, self.history, self.n_kept)
        power = power_of(self.run_length_loss)
        judge = Judge(power, scaling.burn_in.noise)
        return Stream(self.models, scaling, filter_, records, judge)
