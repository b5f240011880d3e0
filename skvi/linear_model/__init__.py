"""Bayesian linear models."""

from skvi.linear_model._base import BayesianLinearModel
from skvi.linear_model._linear import BayesianLinearRegression
from skvi.linear_model._logistic import BayesianLogisticRegression
from skvi.linear_model._poisson import BayesianPoissonRegressor

__all__ = [
    "BayesianLinearModel",
    "BayesianLinearRegression",
    "BayesianLogisticRegression",
    "BayesianPoissonRegressor",
]
