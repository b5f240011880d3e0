"""Normal posteriors: factorized, and with a full covariance."""

from typing import Self

import torch

from skvi.base import Draw, Layout, NormalForm
from skvi.posteriors.base import Family, Posterior
from skvi.utils._device import CPU
from skvi.utils._random import randn

__all__ = ["INITIAL_SCALE", "FullRankNormal", "MeanFieldNormal", "NormalPosterior"]

# Standard deviation of an initial posterior, for solvers that need a start.
INITIAL_SCALE = 0.1


class MeanFieldNormal(Family):
    """Independent normals, one for each parameter: 2 P numbers.

    Fast and small. It ignores correlations between parameters, so that its standard
    deviations are too small if features are correlated.

    Examples
    --------
    >>> from skvi.posteriors import MeanFieldNormal
    >>> MeanFieldNormal()
    MeanFieldNormal()
    """

    def build(
        self, layout: Layout, generator: torch.Generator | None = None
    ) -> Posterior:
        """Build the posterior at mean 0; see `Family.build`."""
        return _DiagonalPosterior(layout)


class FullRankNormal(Family):
    """One normal with a full covariance matrix: P + P (P + 1) / 2 numbers.

    The most accurate normal. Memory grows with the square and time with the cube
    of the number of parameters.

    Examples
    --------
    >>> from skvi.posteriors import FullRankNormal
    >>> FullRankNormal()
    FullRankNormal()
    """

    max_params = 10_000

    def build(
        self, layout: Layout, generator: torch.Generator | None = None
    ) -> Posterior:
        """Build the posterior at mean 0; see `Family.build`."""
        return _FullPosterior(layout)

    def check_size(self, n_params: int) -> None:
        """Refuse more than 10,000 parameters."""
        if n_params > self.max_params:
            raise ValueError(
                f"A full-rank posterior over {n_params} parameters needs "
                f"{8 * n_params**2 / 2**30:.0f} GiB for one covariance matrix; at "
                f"most {self.max_params} parameters are allowed. "
                "Use posterior='low_rank' or posterior='mean_field'."
            )


class NormalPosterior(Posterior):
    """A normal posterior; a subclass must implement `normal` and `_params_of`."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        size = layout.size
        scale = torch.full((size,), INITIAL_SCALE, dtype=torch.float64, device=CPU)
        self.params = self._params_of(NormalForm(torch.zeros_like(scale), scale))

    def normal(self, params: torch.Tensor | None = None) -> NormalForm:
        """Return the normal of these variational parameters, differentiable."""
        raise NotImplementedError

    def _params_of(self, normal: NormalForm) -> torch.Tensor:
        """Variational parameters of a normal, or of the closest one in the family."""
        raise NotImplementedError

    def paces(self, of_theta: torch.Tensor) -> torch.Tensor:
        """Those of theta for the means, which come first; the rest has no units."""
        rest = of_theta.new_ones(len(self.params) - len(of_theta))
        return torch.cat([of_theta, rest])

    def near(self, normal: NormalForm) -> Self:
        """Posterior with a normal's mean, and its covariance as far as possible."""
        return self.at(self._params_of(normal).to(self.params.device))

    def draw(self, n_draws: int, generator: torch.Generator) -> Draw:
        normal = self.normal()
        eps = randn(generator, n_draws, normal.n_noise, dtype=self.params.dtype)
        theta = normal.transform(eps)
        if normal.factor is not None:  # more noise than coordinates
            log_q = normal.log_prob(theta)
        else:
            log_q = normal.log_prob_whitened(eps)
        return Draw(theta, log_q, self.side, noise=eps)

    def log_prob(
        self, theta: torch.Tensor, params: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self.normal(params).log_prob(theta)

    def as_normal(self) -> NormalForm:
        return self.normal(self.params.detach())


class _DiagonalPosterior(NormalPosterior):
    """Variational parameters: means, log standard deviations."""

    is_diagonal = True
    is_mean_field = True
    has_log_prob_terms = True

    def log_prob_terms(
        self, theta: torch.Tensor, params: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self.normal(params).log_prob_terms(theta)

    def normal(self, params: torch.Tensor | None = None) -> NormalForm:
        params = self.params if params is None else params
        mean, log_std = params.split(self.layout.size)
        return NormalForm(mean, log_std.exp())

    def _params_of(self, normal: NormalForm) -> torch.Tensor:
        return torch.cat([normal.mean, 0.5 * normal.variance.log()])


class _FullPosterior(NormalPosterior):
    """Variational parameters: means, log diagonal and rest of the Cholesky factor.

    The rest of a row is in units of its diagonal element: a step then has the same
    relative size for narrow and for wide parameters.
    """

    is_diagonal = False

    def normal(self, params: torch.Tensor | None = None) -> NormalForm:
        params = self.params if params is None else params
        size = self.layout.size
        mean, log_diagonal, rest = params.split([size, size, size * (size - 1) // 2])
        identity = torch.eye(size, dtype=params.dtype, device=params.device)
        unit = identity.index_put(_below_diagonal(identity), rest)
        return NormalForm(mean, log_diagonal.exp()[:, None] * unit)

    def _params_of(self, normal: NormalForm) -> torch.Tensor:
        scale = torch.diag(normal.scale) if normal.is_diagonal else normal.scale
        if normal.factor is not None:
            scale = torch.linalg.cholesky(normal.covariance())
        diagonal = scale.diagonal()
        unit = scale / diagonal[:, None]
        rest = unit[_below_diagonal(scale)]
        return torch.cat([normal.mean, diagonal.log(), rest])


def _below_diagonal(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    size = len(matrix)
    rows, columns = torch.tril_indices(size, size, offset=-1, device=matrix.device)
    return rows, columns
