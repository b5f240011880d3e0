"""Covariance functions: scikit-learn's kernels, evaluated and differentiated in torch."""

from skvi.kernels._kernels import register_kernel

__all__ = ["register_kernel"]
