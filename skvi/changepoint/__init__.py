"""Changepoint detection: when, and how probably, the behavior of a series changes."""

from skvi.changepoint._counts import BernoulliTrials, PoissonCounts
from skvi.changepoint._detector import BayesianChangepointDetector
from skvi.changepoint._display import ChangepointDisplay
from skvi.changepoint._hazards import ConstantHazard
from skvi.changepoint._normal import KnownNoise
from skvi.changepoint._regression import Regression
from skvi.changepoint._rows import BurnIn, Row
from skvi.changepoint._table import ChangepointTable
from skvi.changepoint.base import (
    Hazard,
    ObservationModel,
    RegressionModel,
    SegmentModel,
)

__all__ = [
    "BayesianChangepointDetector",
    "BernoulliTrials",
    "BurnIn",
    "ChangepointDisplay",
    "ChangepointTable",
    "ConstantHazard",
    "Hazard",
    "KnownNoise",
    "ObservationModel",
    "PoissonCounts",
    "Regression",
    "RegressionModel",
    "Row",
    "SegmentModel",
]
