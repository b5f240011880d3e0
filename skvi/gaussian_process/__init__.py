"""Gaussian processes: exact when small, sparse when large, or in layers."""

from skvi.gaussian_process._classifier import SparseGaussianProcessClassifier
from skvi.gaussian_process._deep import DeepGaussianProcessRegressor
from skvi.gaussian_process._regressor import SparseGaussianProcessRegressor

__all__ = [
    "DeepGaussianProcessRegressor",
    "SparseGaussianProcessClassifier",
    "SparseGaussianProcessRegressor",
]
