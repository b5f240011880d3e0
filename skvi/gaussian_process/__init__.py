"""Gaussian processes: exact when small, sparse when large, or in layers."""

from skvi.gaussian_process._classifier import SparseGaussianProcessClassifier
from skvi.gaussian_process._deep_classifier import DeepGaussianProcessClassifier
from skvi.gaussian_process._deep_regressor import DeepGaussianProcessRegressor
from skvi.gaussian_process._regressor import SparseGaussianProcessRegressor

__all__ = [
    "DeepGaussianProcessClassifier",
    "DeepGaussianProcessRegressor",
    "SparseGaussianProcessClassifier",
    "SparseGaussianProcessRegressor",
]
