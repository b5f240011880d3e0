"""A Gaussian process as a linear model of its whitened inducing values."""

import torch

from skvi.base import NormalForm
from skvi.predictors._linear import LinearPredictor
from skvi.predictors.base import Predictor


class InducingPredictor(Predictor):
    """``f(x) = phi(x)' v + rest``, with K processes of one kernel.

    v are whitened values at M inducing points, normal with variance 1, and the rest is
    independent of them. X, (n, M + 1), has the features phi and the variance of the
    rest, the only thing in which this differs from a linear model: a row's f has it as
    well. Nothing else depends on it, since it is integrated out in every row.
    """

    has_design = True

    def __init__(self, n_inducing: int, n_outputs: int = 1) -> None:
        self.linear = LinearPredictor(n_inducing, n_outputs, fit_intercept=False)
        self.layout, self.n_outputs = self.linear.layout, n_outputs

    def forward(self, theta: torch.Tensor, X: torch.Tensor) -> torch.Tensor:
        """Mean of f given v; see `Predictor.forward`."""
        return self.linear.forward(theta, X[:, :-1])

    def design(self, X: torch.Tensor) -> torch.Tensor:
        """As `LinearPredictor.design`."""
        return self.linear.design(X[:, :-1])

    def project(self, X: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        """As `LinearPredictor.project`."""
        return self.linear.project(X[:, :-1], matrix)

    def pull_back(self, X: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """As `LinearPredictor.pull_back`."""
        return self.linear.pull_back(X[:, :-1], rows)

    def pull_back_draws(self, X: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """As `LinearPredictor.pull_back_draws`."""
        return self.linear.pull_back_draws(X[:, :-1], rows)

    def gram(self, X: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        """As `LinearPredictor.gram`."""
        return self.linear.gram(X[:, :-1], h)

    def gram_diagonal(self, X: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        """As `LinearPredictor.gram_diagonal`."""
        return self.linear.gram_diagonal(X[:, :-1], h)

    def moments(
        self, X: torch.Tensor, normal: NormalForm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and (co)variance of f; see `LinearPredictor.moments`.

        Differentiable in X, too, where that has a gradient.
        """
        if X.requires_grad:
            mean, variance = self._differentiable(X[:, :-1], normal)
        else:
            mean, variance = self.linear.moments(X[:, :-1], normal)
        rest = X[:, -1]
        if variance.ndim > 1:
            rest = torch.diag_embed(rest[:, None].expand_as(mean))
        return mean, variance + rest

    def _differentiable(
        self, phi: torch.Tensor, normal: NormalForm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Moments by the covariances of all pairs of processes."""
        k = self.n_outputs
        mean = phi @ normal.mean.reshape(k, -1).T
        scale = normal.scale
        root = (torch.diag(scale) if scale.ndim == 1 else scale).reshape(
            k, -1, len(scale)
        )
        pairs = [
            ((phi @ (root[a] @ root[b].T)) * phi).sum(1)
            for a in range(k)
            for b in range(k)
        ]
        if k == 1:
            return mean[:, 0], pairs[0]
        return mean, torch.stack(pairs, 1).reshape(-1, k, k)
