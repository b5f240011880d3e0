"""Predictors: f(theta, X), the only place that combines parameters and features."""

from skvi.predictors._linear import LinearPredictor
from skvi.predictors._mlp import MLPPredictor
from skvi.predictors._module import ModulePredictor
from skvi.predictors.base import Predictor

__all__ = [
    "LinearPredictor",
    "MLPPredictor",
    "ModulePredictor",
    "Predictor",
]
