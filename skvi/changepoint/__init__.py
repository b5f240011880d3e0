"""Changepoint detection: when, and how probably, the behavior of a series changes."""

from skvi.changepoint._detector import BayesianChangepointDetector
from skvi.changepoint._display import ChangepointDisplay
from skvi.changepoint._models import (
    BernoulliTrials,
    PoissonCounts,
    Regression,
    RegressionModel,
)
from skvi.changepoint.base import Hazard, ObservationModel

__all__ = [
    "BayesianChangepointDetector",
    "BernoulliTrials",
    "ChangepointDisplay",
    "Hazard",
    "ObservationModel",
    "PoissonCounts",
    "Regression",
    "RegressionModel",
]
