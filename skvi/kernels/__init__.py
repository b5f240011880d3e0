"""Covariance functions: kernels of scikit-learn, in torch."""

from skvi.kernels._kernels import register_kernel

__all__ = ["register_kernel"]
