"""Predictors: f(theta, X), the only place that combines parameters and features."""

from skvi.predictors._linear import LinearPredictor as LinearPredictor
from skvi.predictors._mlp import MLPPredictor as MLPPredictor
from skvi.predictors._module import ModulePredictor as ModulePredictor
from skvi.predictors._ordinal import OrdinalPredictor as OrdinalPredictor
from skvi.predictors.base import Predictor

# The others are made by the estimators.
__all__ = ["Predictor"]
