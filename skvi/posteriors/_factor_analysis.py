"""Factor analysis: the low-rank normal closest to a given covariance."""

import numpy as np
import torch
from scipy.linalg import eigh
from scipy.optimize import minimize
from scipy.sparse.linalg import eigsh

__all__ = ["fit_factors"]

# Smallest uniqueness, as a fraction of the variance (Heywood cases).
MIN_SHARE = 1e-5
# Above this number of parameters only the leading eigenvectors are computed.
DENSE_LIMIT = 500


def fit_factors(
    covariance: torch.Tensor, rank: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Minimize KL(N(0, covariance) || N(0, diag(scale^2) + factor factor')).

    Scale is (P,), factor (P, r). Given the scale it follows from eigenvectors (Joreskog
    1967, eqs. 17 and 26). A local optimum, to about 1e-6 nats; exact if r = P.
    """
    s = covariance.double().cpu().numpy()
    std = np.sqrt(s.diagonal())
    correlation = s / np.outer(std, std)
    conditional = 1 / np.linalg.inv(correlation).diagonal()
    if rank == len(s):
        # For any uniquenesses below the smallest eigenvalue the fit is exact.
        own = np.sqrt(conditional)
        smallest = eigh(correlation / np.outer(own, own), eigvals_only=True)[0]
        log_own = np.log(0.5 * min(smallest, 1.0) * conditional)
    else:
        log_own = _search(correlation, conditional, rank)
    values, vectors = _leading(correlation, log_own, rank)
    own = np.exp(0.5 * log_own)
    factor = own[:, None] * vectors * np.sqrt(np.maximum(values - 1, 0))
    scaled = torch.from_numpy(std * own), torch.from_numpy(std[:, None] * factor)
    return scaled[0].to(covariance), scaled[1].to(covariance)


def _search(correlation: np.ndarray, conditional: np.ndarray, rank: int) -> np.ndarray:
    """Log uniquenesses that minimize the KL, by a quasi-Newton method."""

    def objective(u: np.ndarray) -> tuple[float, np.ndarray]:
        # A square attains its minimum if the best uniqueness is zero; a logarithm would
        # never get there.
        own = MIN_SHARE + u**2
        values, vectors = _leading(correlation, np.log(own), rank)
        values, ratio = np.maximum(values, 1), 1 / own
        value = (np.log(values) - values + 1).sum() + (ratio + np.log(own)).sum()
        explained = vectors**2 @ (values - 1)
        return value / 2, (1 + explained - ratio) * ratio * u

    start = (1 - 0.5 * rank / len(correlation)) * conditional
    options = {"maxiter": 2000, "maxfun": 5000, "maxcor": 30, "ftol": 0, "gtol": 1e-9}
    start = np.sqrt(np.maximum(start - MIN_SHARE, MIN_SHARE))
    found = minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
    return np.log(MIN_SHARE + found.x**2)


def _leading(
    correlation: np.ndarray, log_own: np.ndarray, rank: int
) -> tuple[np.ndarray, np.ndarray]:
    """Leading eigenpairs of the correlations, scaled by the uniquenesses."""
    root = np.exp(-0.5 * log_own)
    scaled, size = correlation * np.outer(root, root), len(root)
    if size <= DENSE_LIMIT or rank > size // 5:
        return eigh(scaled, subset_by_index=[size - rank, size - 1])
    return eigsh(scaled, rank, v0=root)
