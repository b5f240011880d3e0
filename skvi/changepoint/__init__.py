"""Changepoint detection: when, and how probably, the behavior of a series changes."""

from skvi.changepoint._detector import BayesianChangepointDetector
from skvi.changepoint._display import ChangepointDisplay
from skvi.changepoint._models import (
    BernoulliTrials,
    PoissonCounts,
    Regression,
    RegressionModel,
)
from skvi.changepoint._results import ChangepointTable
from skvi.changepoint.base import (
    BurnIn,
    ConstantHazard,
    Hazard,
    ObservationModel,
    Row,
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
    "ObservationModel",
    "PoissonCounts",
    "Regression",
    "RegressionModel",
    "Row",
    "SegmentModel",
]
