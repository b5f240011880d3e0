"""Features of a Gaussian process: its covariances with inducing values, whitened."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.linalg.lapack import dpstrf

from skvi.kernels._kernels import covariance, variance
from skvi.utils._tensors import Movable

# Variance that remains at an inducing point, relative to the noise of all rows together
# or to rounding, below which the others determine its value.
NEGLIGIBLE, ROUNDING = 1e-8, 4 * np.finfo(float).eps


@dataclass(frozen=True, eq=False)
class InducingFeatures(Movable):
    """Features at given hyperparameters; see `InducingPredictor`.

    `factor`, (M, M), is the root of the covariances of the inducing points Z, (M, d).
    """

    kernel: Any
    theta: torch.Tensor
    Z: torch.Tensor
    factor: torch.Tensor

    @classmethod
    def of(
        cls, kernel: Any, theta: torch.Tensor, Z: torch.Tensor, least: float = 0.0
    ) -> "InducingFeatures":
        """Features of the points that are independent up to a variance `least`.

        By pivots: no variance is added to any point, those that others determine are
        left out.
        """
        K = covariance(kernel, theta, Z, Z).numpy()
        least = max(least, ROUNDING * len(K) * float(K.diagonal().max(initial=0.0)))
        root, order, rank, _ = dpstrf(K, lower=1, tol=least)
        kept = torch.from_numpy(order[:rank] - 1).long()
        factor = torch.from_numpy(np.tril(root[:rank, :rank]))
        return cls(kernel, theta, Z[kept], factor)

    def __call__(self, X: torch.Tensor) -> torch.Tensor:
        """Features, and the variance of what they do not determine, (n, M + 1)."""
        K = covariance(self.kernel, self.theta, self.Z, X)
        phi = torch.linalg.solve_triangular(self.factor, K, upper=False)
        total = variance(self.kernel, self.theta, X)
        rest = (total - phi.square().sum(0)).clamp(min=0)
        return torch.cat([phi, rest[None]]).T
