"""Models with fewer rows than features, in the space of the rows."""

from copy import copy
from dataclasses import dataclass, replace

import numpy as np
import torch

from skvi.predictors import LinearPredictor
from skvi.targets._hierarchical import (
    HierarchicalTarget,
    base_prior,
    with_own_prior,
)
from skvi.targets._supervised import SupervisedTarget
from skvi.utils._rows import SparseRows
from skvi.utils._tensors import randn

# Largest matrix of features that is decomposed.
MAX_ELEMENTS = 2**24


@dataclass(frozen=True, eq=False)
class ReducedTarget:
    """A target in the row space of its features, and the way back.

    f depends only on coordinates in the row space. In units of the prior it is equal in
    all directions, the others keep it, and the evidence is that of the reduced model.
    """

    target: SupervisedTarget  # over the coordinates for each output, and intercepts
    basis: torch.Tensor  # (r, d), orthonormal rows
    n_outputs: int
    relative: torch.Tensor  # (d,), prior deviations in units of the first one

    def expand(
        self, theta: torch.Tensor, scale: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor:
        """Parameters of the model itself, with the other coordinates from the prior.

        From reduced theta (S, P) and the prior deviation of the first one, (S,).
        """
        (rank, d), k = self.basis.shape, self.n_outputs
        inside = theta[:, : k * rank].reshape(-1, k, rank) / self.relative[:rank]
        noise = scale[:, None, None] * randn(generator, len(theta), k, d)
        noise = noise - (noise @ self.basis.T) @ self.basis
        coef = self.relative * (inside @ self.basis + noise)
        return torch.cat([coef.flatten(1), theta[:, k * rank :]], 1)


def reduced(target: SupervisedTarget) -> ReducedTarget | None:
    """Reduce a linear model with fewer rows than features, by a QR decomposition.

    None for other models, with at least as many rows, or if priors of the outputs
    differ. The prior is normal, or normal beside its one unknown scale.
    """
    predictor, (n, d) = target.predictor, target.X.shape
    if not isinstance(predictor, LinearPredictor):
        return None
    if n >= d or n * d > MAX_ELEMENTS or (units := _units_of(target)) is None:
        return None
    if bool((units != units[0]).any()):
        return None
    k, device = predictor.n_outputs, target.hyper.device
    relative = units[0] / units[0, 0]
    basis, root = torch.linalg.qr((features_of(target) * relative).T)
    small = LinearPredictor(n, k, predictor.fit_intercept)
    starts = torch.arange(k, device=device)[:, None] * d
    where = (starts + torch.arange(n, device=device)).flatten()
    rest = torch.arange(k * d, predictor.layout.size, device=device)
    other = copy(target)
    other.predictor_spec = small
    numbers = target.layout.only(*target.layout.positive)
    other.layout = small.layout + numbers if numbers else small.layout
    other.rows = replace(target.rows, X=root.T / relative[:n])
    if isinstance(other, HierarchicalTarget):
        other.forget_sums()
    own = base_prior(target).marginal(torch.cat([where, rest]))
    return ReducedTarget(with_own_prior(other, own), basis.T, k, relative)


def _units_of(target: SupervisedTarget) -> torch.Tensor | None:
    """Prior deviations of the coefficients at scale 1, by output, if it is normal."""
    prior, k = base_prior(target), target.predictor.n_outputs
    size = k * target.X.shape[1]
    if prior.n_unknown_scales:
        if bool((prior.scale_weights()[:size] == 0).any()):
            return None  # others of known scale, or of another one
        prior = prior.given_scale(1.0)
    normal = prior.as_normal()
    if normal is None or not normal.is_diagonal or bool(normal.mean.any()):
        return None
    return normal.scale[:size].reshape(k, -1)


def unit_of(target: SupervisedTarget) -> float | None:
    """Prior deviation of the coefficients at scale 1; None if they have several."""
    units = _units_of(target)
    if units is None or bool((units != units[0, 0]).any()):
        return None
    return float(units[0, 0])


def features_of(target: SupervisedTarget) -> torch.Tensor:
    """Features of a linear model as a dense matrix in double precision, (n, d)."""
    X = target.X
    if isinstance(X, SparseRows):
        shift = 0.0 if X.shift is None else X.shift
        return torch.from_numpy(X.matrix.toarray().astype(np.float64) + shift)
    return X.to(torch.float64)
