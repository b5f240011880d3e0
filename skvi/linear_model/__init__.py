"""Bayesian linear models."""

from skvi.linear_model._logistic import BayesianLogisticRegression

__all__ = ["BayesianLogisticRegression"]
