"""Bayesian neural networks."""

from skvi.neural_network._classifier import BayesianMLPClassifier
from skvi.neural_network._distill import distill
from skvi.neural_network._module_classifier import BayesianModuleClassifier
from skvi.neural_network._module_regressor import BayesianModuleRegressor
from skvi.neural_network._regressor import BayesianMLPRegressor

__all__ = [
    "BayesianMLPClassifier",
    "BayesianMLPRegressor",
    "BayesianModuleClassifier",
    "BayesianModuleRegressor",
    "distill",
]
