"""Models with fewer rows than features, in the space of the rows."""

from copy import copy
from dataclasses import dataclass, replace

import numpy as np
import torch

from skvi.predictors import LinearPredictor
from skvi.targets._supervised import SupervisedTarget
from skvi.utils._random import randn
from skvi.utils._sparse import SparseRows

__all__ = ["ReducedTarget", "features_of", "reduced", "unit_of"]

# Largest matrix of features that is decomposed, and the smallest singular value that
# counts, relative to the largest.
MAX_ELEMENTS, RANK_TOL = 2**24, 1e-12


@dataclass(frozen=True, eq=False)
class ReducedTarget:
    """A target in the row space of its features, and the way back.

    f depends on the coefficients only through their coordinates in the row space.
    Where the prior is the same in all directions, the other coordinates keep it, and
    the evidence is that of the model of the coordinates.

    Parameters
    ----------
    target : SupervisedTarget
        Over the coordinates of each column of f, and the intercepts.
    basis : Tensor of shape (r, d)
        Orthonormal rows.
    n_outputs : int
        Columns of f.
    """

    target: SupervisedTarget
    basis: torch.Tensor
    n_outputs: int

    def expand(
        self, theta: torch.Tensor, scale: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor:
        """Parameters of the model itself, with the other coordinates from the prior.

        Parameters
        ----------
        theta : Tensor of shape (S, P)
            Of the reduced target.
        scale : Tensor of shape (S,)
            Prior standard deviation of the coefficients.
        generator : torch.Generator

        Returns
        -------
        Tensor
            With d coefficients for each column of f.
        """
        (rank, d), k = self.basis.shape, self.n_outputs
        inside = theta[:, : k * rank].reshape(-1, k, rank)
        noise = scale[:, None, None] * randn(generator, len(theta), k, d)
        noise = noise - (noise @ self.basis.T) @ self.basis
        coef = inside @ self.basis + noise
        return torch.cat([coef.flatten(1), theta[:, k * rank :]], 1)


def reduced(target: SupervisedTarget) -> ReducedTarget | None:
    """Reduce a linear model with fewer rows than features.

    Parameters
    ----------
    target : SupervisedTarget
        With a prior that has one unknown scale.

    Returns
    -------
    ReducedTarget or None
        None with as many rows as features, or a prior that prefers directions.
    """
    predictor, (n, d) = target.predictor, target.X.shape
    if n >= d or n * d > MAX_ELEMENTS or unit_of(target) is None:
        return None
    k, device = predictor.n_outputs, target.hyper.device
    left, size, right = torch.linalg.svd(features_of(target), full_matrices=False)
    rank = max(int((size > RANK_TOL * size[0]).sum()), 1)
    small = LinearPredictor(rank, k, predictor.fit_intercept)
    starts = torch.arange(k, device=device)[:, None] * d
    where = (starts + torch.arange(rank, device=device)).flatten()
    rest = torch.arange(k * d, predictor.layout.size, device=device)
    other = copy(target)
    other._predictor, other.layout = small, small.layout
    other.rows = replace(target.rows, X=left[:, :rank] * size[:rank])
    other._prior = target.prior.marginal(torch.cat([where, rest]))
    return ReducedTarget(other, right[:rank], k)


def unit_of(target: SupervisedTarget) -> float | None:
    """Prior deviation of the coefficients at scale 1; None if they have several.

    Parameters
    ----------
    target : SupervisedTarget
        With a prior that has one unknown scale.

    Returns
    -------
    float or None
    """
    size = target.predictor.n_outputs * target.X.shape[1]
    unit = target.prior.given_scale(1.0).as_normal().scale[:size]
    return float(unit[0]) if bool((unit == unit[0]).all()) else None


def features_of(target: SupervisedTarget) -> torch.Tensor:
    """Features of a linear model as a matrix in double precision.

    Parameters
    ----------
    target : SupervisedTarget

    Returns
    -------
    Tensor of shape (n, d)
    """
    X = target.X
    if isinstance(X, SparseRows):
        shift = 0.0 if X.shift is None else X.shift
        return torch.from_numpy(X.matrix.toarray().astype(np.float64) + shift)
    return X.to(torch.float64)
