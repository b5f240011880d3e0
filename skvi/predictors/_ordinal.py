"""A linear model beside numbers that all rows share."""

import torch

from skvi.base import Layout, NormalForm
from skvi.predictors._linear import LinearPredictor
from skvi.predictors.base import Predictor
from skvi.utils._rows import Features


class OrdinalPredictor(Predictor):
    """f has the column of a linear model, and m columns of numbers, "distance".

    The latter are the same in every row. The design matrix has one column for each of
    them, of ones; see `LinearPredictor` for its methods.
    """

    has_design = True
    fit_intercept = True

    def __init__(self, n_features: int, n_shared: int) -> None:
        self.linear = LinearPredictor(n_features)
        self.layout = self.linear.layout + Layout({"distance": (n_shared,)})
        self.n_features, self.n_outputs = n_features, 1 + n_shared
        self.size = self.linear.layout.size

    def forward(self, theta: torch.Tensor, X: Features) -> torch.Tensor:
        """f, (S, n, 1 + m); see `Predictor.forward`."""
        own = self.linear.forward(theta[:, : self.size], X)
        shared = theta[:, None, self.size :].expand(-1, own.shape[1], -1)
        return torch.cat([own, shared], 2)

    def project(self, X: Features, matrix: torch.Tensor) -> torch.Tensor:
        """Return ``A @ matrix``, (n, 1 + m, columns)."""
        own = self.linear.project(X, matrix[: self.size])
        shared = matrix[None, self.size :].expand(len(own), -1, -1)
        return torch.cat([own[:, None], shared], 1)

    def pull_back(self, X: Features, rows: torch.Tensor) -> torch.Tensor:
        """Return ``A' rows``, (P,), for a value of each f, (n, 1 + m)."""
        return self.pull_back_draws(X, rows[None])[0]

    def pull_back_draws(self, X: Features, rows: torch.Tensor) -> torch.Tensor:
        """Return ``rows @ A``, (S, P)."""
        own = self.linear.pull_back_draws(X, rows[..., 0])
        return torch.cat([own, rows[..., 1:].sum(1)], 1)

    def gram(self, X: Features, h: torch.Tensor) -> torch.Tensor:
        """Return ``A' H A``, (P, P), with a block of H for each row."""
        out = h.new_empty(self.layout.size, self.layout.size)
        own, between = slice(self.size), slice(self.size, None)
        out[own, own] = self.linear.gram(X, h[:, 0, 0])
        out[between, own] = self.linear.pull_back_draws(X, h[:, 0, 1:].T)
        out[own, between] = out[between, own].T
        out[between, between] = h[:, 1:, 1:].sum(0)
        return out

    def gram_diagonal(self, X: Features, h: torch.Tensor) -> torch.Tensor:
        """Diagonal of `gram`, (P,)."""
        diagonal = h.diagonal(dim1=1, dim2=2)
        own = self.linear.gram_diagonal(X, diagonal[:, 0])
        return torch.cat([own, diagonal[:, 1:].sum(0)])

    def moments(
        self, X: Features, normal: NormalForm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Means, (n, 1 + m), and covariances of f when theta is normal."""
        k, parts = self.size, (normal.scale, normal.factor)
        is_full = normal.scale.ndim == 2
        scale = normal.scale[:k, :k] if is_full else normal.scale[:k]
        factor = None if normal.factor is None else normal.factor[:k]
        own = NormalForm(normal.mean[:k], scale, factor)
        mean, variance = self.linear.moments(X, own)
        shared = normal.mean[k:].expand(len(mean), -1)
        covariance = normal.mean.new_zeros(len(normal.mean), self.n_outputs - 1)
        for root in parts:
            if root is not None and root.ndim == 2:
                covariance = root @ root[k:].T
        if not is_full:
            between = torch.diag_embed(normal.scale[k:].square())
            covariance = torch.cat([covariance[:k], covariance[k:] + between])
        beside = self.linear.project(X, covariance[:k])[:, None]
        rest = covariance[k:].expand(len(mean), -1, -1)
        right = torch.cat([beside, rest], 1)
        left = torch.cat([variance[:, None, None], beside.mT], 1)
        return torch.cat([mean[:, None], shared], 1), torch.cat([left, right], 2)
