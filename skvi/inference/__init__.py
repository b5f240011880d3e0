"""Variational inference for any log density."""

from skvi.inference._variational_inference import VariationalInference

__all__ = ["VariationalInference"]
