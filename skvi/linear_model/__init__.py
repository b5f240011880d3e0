"""Bayesian linear models."""

from skvi.linear_model._base import BayesianLinearModel
from skvi.linear_model._binomial import BayesianBinomialRegressor
from skvi.linear_model._counts import BayesianPoissonRegressor
from skvi.linear_model._groups import GroupedFeatures
from skvi.linear_model._linear import BayesianLinearRegression
from skvi.linear_model._logistic import BayesianLogisticRegression
from skvi.linear_model._ordinal import BayesianOrdinalClassifier
from skvi.linear_model._targets import (
    BayesianBetaRegressor,
    BayesianGammaRegressor,
    BayesianTweedieRegressor,
)

__all__ = [
    "BayesianBetaRegressor",
    "BayesianBinomialRegressor",
    "BayesianGammaRegressor",
    "BayesianLinearModel",
    "BayesianLinearRegression",
    "BayesianLogisticRegression",
    "BayesianOrdinalClassifier",
    "BayesianPoissonRegressor",
    "BayesianTweedieRegressor",
    "GroupedFeatures",
]
