"""Predictors: f(theta, X), the only place that combines parameters and features."""

from skvi.predictors._linear import LinearPredictor
from skvi.predictors._mlp import ACTIVATIONS, MLPPredictor
from skvi.predictors._module import ModulePredictor
from skvi.predictors._partial import PartialPredictor
from skvi.predictors._symmetry import Symmetry
from skvi.predictors.base import Predictor

__all__ = [
    "ACTIVATIONS",
    "LinearPredictor",
    "MLPPredictor",
    "ModulePredictor",
    "PartialPredictor",
    "Predictor",
    "Symmetry",
]
