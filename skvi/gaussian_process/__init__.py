"""Gaussian processes: exact when small, sparse when large."""

from skvi.gaussian_process._regressor import SparseGaussianProcessRegressor

__all__ = ["SparseGaussianProcessRegressor"]
