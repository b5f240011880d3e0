"""Bayesian linear models."""

from skvi.linear_model._base import BayesianLinearModel
from skvi.linear_model._counts import BayesianPoissonRegressor
from skvi.linear_model._groups import GroupedFeatures
from skvi.linear_model._linear import BayesianLinearRegression
from skvi.linear_model._logistic import BayesianLogisticRegression
from skvi.linear_model._targets import (
    BayesianBetaRegressor,
    BayesianGammaRegressor,
    BayesianTweedieRegressor,
)

__all__ = [
    "BayesianBetaRegressor",
    "BayesianGammaRegressor",
    "BayesianLinearModel",
    "BayesianLinearRegression",
    "BayesianLogisticRegression",
    "BayesianPoissonRegressor",
    "BayesianTweedieRegressor",
    "GroupedFeatures",
]
