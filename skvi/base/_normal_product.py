"""Products of powers of normal densities, which are normal."""

import torch

from skvi.base._normal_form import NormalForm

__all__ = ["normal_product"]


def normal_product(
    *factors: tuple[NormalForm, float],
) -> tuple[NormalForm, torch.Tensor]:
    """The normal proportional to a product of powers, and the log of its integral.

    Parameters
    ----------
    *factors : tuple of NormalForm and float
        Normals and their powers, which may be negative; the sum of the precisions
        must be positive definite.

    Returns
    -------
    tuple of NormalForm and Tensor of shape ()
    """
    if all(normal.is_diagonal for normal, _ in factors):
        parts = [(power / n.variance, n.mean) for n, power in factors]
        precision = torch.stack([part for part, _ in parts]).sum(0)
        linear = torch.stack([part * mean for part, mean in parts]).sum(0)
        found = NormalForm(linear / precision, precision.rsqrt())
    else:
        parts = [
            (power * torch.linalg.inv(n.covariance()), n.mean) for n, power in factors
        ]
        precision = torch.stack([part for part, _ in parts]).sum(0)
        linear = torch.stack([part @ mean for part, mean in parts]).sum(0)
        covariance = torch.linalg.inv(precision)
        root = torch.linalg.cholesky(0.5 * (covariance + covariance.T))
        found = NormalForm(covariance @ linear, root)
    place = found.mean[None]
    logs = [power * normal.log_prob(place)[0] for normal, power in factors]
    return found, torch.stack(logs).sum() - found.log_prob(place)[0]
