"""Predictors: f(theta, X), the only place that knows how parameters meet features."""

from skvi.predictors._linear import LinearPredictor
from skvi.predictors._mlp import ACTIVATIONS, MLPPredictor

__all__ = ["ACTIVATIONS", "LinearPredictor", "MLPPredictor"]
