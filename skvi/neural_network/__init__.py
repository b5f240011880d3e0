"""Bayesian neural networks."""

from skvi.neural_network._classifier import BayesianMLPClassifier
from skvi.neural_network._distill import DistilledRegressor, distill
from skvi.neural_network._module_classifier import BayesianModuleClassifier
from skvi.neural_network._module_regressor import BayesianModuleRegressor
from skvi.neural_network._regressor import BayesianMLPRegressor
from skvi.neural_network._sparsity import SparsityReport

__all__ = [
    "BayesianMLPClassifier",
    "BayesianMLPRegressor",
    "BayesianModuleClassifier",
    "BayesianModuleRegressor",
    "DistilledRegressor",
    "SparsityReport",
    "distill",
]
