"""Predictors: f(theta, X), the only place that knows how parameters meet features."""

from skvi.predictors._centred import CentredLinearPredictor
from skvi.predictors._linear import LinearPredictor
from skvi.predictors._mlp import ACTIVATIONS, MLPPredictor

__all__ = ["ACTIVATIONS", "CentredLinearPredictor", "LinearPredictor", "MLPPredictor"]
