"""Gaussian processes: exact when small, sparse when large."""

from skvi.gaussian_process._classifier import SparseGaussianProcessClassifier
from skvi.gaussian_process._regressor import SparseGaussianProcessRegressor

__all__ = ["SparseGaussianProcessClassifier", "SparseGaussianProcessRegressor"]
