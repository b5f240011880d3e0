"""Normal distributions over theta, and products of powers of their densities."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from skvi.utils._tensors import LOG_2PI, Movable, randn


@dataclass(frozen=True, eq=False)
class NormalForm(Movable):
    """A normal distribution over theta, in the common representation of all components.

    With leading axes it is a batch, such as one normal for each draw of an auxiliary
    variable. Points and noise broadcast against these axes: (B, P) of them belong to
    the B normals one by one, (S, B, P) are S for each.

    Parameters
    ----------
    mean : Tensor of shape (P,) or (..., P)
    scale : Tensor of the shape of `mean`, or (..., P, P)
        Standard deviations of a factorized normal, or the lower Cholesky factor
        of the covariance.
    factor : Tensor of shape (..., P, r), default=None
        Only with a diagonal `scale`: the covariance is then ``diag(scale^2) + factor @
        factor.T``.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import NormalForm
    >>> normal = NormalForm(torch.zeros(2), torch.tensor([1.0, 2.0]))
    >>> normal.variance
    tensor([1., 4.])
    >>> NormalForm(normal.mean, normal.scale, torch.ones(2, 1)).covariance()
    tensor([[2., 1.],
            [1., 5.]])
    >>> many = NormalForm(torch.zeros(3, 2), torch.ones(3, 2))
    >>> many.log_prob(torch.zeros(3, 2)).shape, many.batch_shape
    (torch.Size([3]), torch.Size([3]))
    """

    mean: torch.Tensor
    scale: torch.Tensor
    factor: torch.Tensor | None = None
    #: What knows the variances of f of the rows of a fit.
    rows: ClassVar[Any] = None

    def __getitem__(self, which: Any) -> "NormalForm":
        """Return one normal of a batch, or a batch of some."""
        factor = None if self.factor is None else self.factor[which]
        return NormalForm(self.mean[which], self.scale[which], factor)

    @property
    def size(self) -> int:
        """Number of parameters, P."""
        return self.mean.shape[-1]

    @property
    def batch_shape(self) -> torch.Size:
        """Leading axes; empty for one normal."""
        return self.mean.shape[:-1]

    @property
    def is_diagonal(self) -> bool:
        """Whether the parameters are independent."""
        return self.factor is None and not self._has_matrix

    @property
    def _has_matrix(self) -> bool:
        return self.scale.ndim > self.mean.ndim

    @property
    def variance(self) -> torch.Tensor:
        """Marginal variances, of shape (..., P)."""
        squared = self.scale.square()
        if self.factor is not None:
            return squared + self.factor.square().sum(-1)
        return squared.sum(-1) if self._has_matrix else squared

    @property
    def half_log_det(self) -> torch.Tensor:
        """Half the log determinant of the covariance, of shape (...)."""
        matrix = self._has_matrix
        diagonal = self.scale.diagonal(dim1=-2, dim2=-1) if matrix else self.scale
        value = diagonal.log().sum(-1)
        if self.factor is None:
            return value
        capacity = _capacity_factor(self.factor / self.scale[..., None])
        return value + capacity.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    @property
    def n_noise(self) -> int:
        """Standard normal values that make one draw: P, or P + r with a factor."""
        return self.size + (0 if self.factor is None else self.factor.shape[-1])

    def covariance(self) -> torch.Tensor:
        """Compute the covariance matrix.

        Returns
        -------
        Tensor of shape (..., P, P)
            Also if the normal is factorized or of low rank.
        """
        if self._has_matrix:
            return self.scale @ self.scale.mT
        diagonal = torch.diag_embed(self.scale.square())
        if self.factor is None:
            return diagonal
        return diagonal + self.factor @ self.factor.mT

    def marginal(self, where: torch.Tensor) -> "NormalForm":
        """Normal of some of the parameters.

        Parameters
        ----------
        where : Tensor of int of shape (p,)
            Their positions, in the desired order.

        Returns
        -------
        NormalForm
            Over p parameters, of the same shape: factorized, full or with a factor.
        """
        mean = self.mean[..., where]
        if not self._has_matrix:
            factor = None if self.factor is None else self.factor[..., where, :]
            return NormalForm(mean, self.scale[..., where], factor)
        covariance = self.covariance()[..., where, :][..., where]
        return NormalForm(mean, torch.linalg.cholesky(covariance))

    def entropy(self) -> torch.Tensor:
        """Compute the differential entropy.

        Returns
        -------
        Tensor of shape (...)
            In nats, exact.
        """
        return self.half_log_det + 0.5 * self.size * (1 + LOG_2PI)

    def transform(self, eps: torch.Tensor) -> torch.Tensor:
        """Map standard normal values to draws.

        Parameters
        ----------
        eps : Tensor of shape (S, n_noise) or (..., n_noise)
            Whitened coordinates; with a factor its own noise comes last.

        Returns
        -------
        Tensor of shape (S, P) or (..., P)
            ``mean + scale @ eps`` for each draw, differentiable.
        """
        if self.factor is not None:
            own, shared = eps.split([self.size, self.factor.shape[-1]], -1)
            return self.mean + self.scale * own + _times(shared, self.factor)
        if self.is_diagonal:
            return self.mean + self.scale * eps
        return self.mean + _times(eps, self.scale)

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        """Draw from the normal.

        Parameters
        ----------
        n_draws : int
            S.
        generator : torch.Generator

        Returns
        -------
        Tensor of shape (S, P) or (S, ..., P)
            Independent draws, S of each normal, differentiable in mean, scale and
            factor.
        """
        shape = (n_draws, *self.batch_shape, self.n_noise)
        eps = randn(generator, *shape, dtype=self.mean.dtype)
        return self.transform(eps)

    def whiten(self, deviation: torch.Tensor) -> torch.Tensor:
        """Divide deviations from the mean by a root of the covariance.

        Parameters
        ----------
        deviation : Tensor of shape (S, P) or (..., P)
            ``theta - mean``.

        Returns
        -------
        Tensor of the same shape
            Coordinates in which the normal is standard; without a factor, the
            inverse of `transform`.
        """
        if self.factor is not None:
            # D^-1/2 first, then the symmetric root (I + G G')^-1/2 of what is left.
            unit, z = self.factor / self.scale[..., None], deviation / self.scale
            basis, size, _ = torch.linalg.svd(unit, full_matrices=False)
            shrink = 1 - (1 + size.square()).rsqrt()
            return z - _times(_times(z, basis.mT) * shrink, basis)
        if self.is_diagonal:
            return deviation / self.scale
        return _solve_lower(self.scale, deviation)

    def squared_distance(self, deviation: torch.Tensor) -> torch.Tensor:
        """Squared Mahalanobis distance from the mean.

        Parameters
        ----------
        deviation : Tensor of shape (S, P) or (..., P)
            ``theta - mean``.

        Returns
        -------
        Tensor of shape (S,) or (...)
            ``d' cov^-1 d`` for each row, differentiable.
        """
        if self.factor is None:
            return self.whiten(deviation).square().sum(-1)
        # Woodbury: cov^-1 = D^-1 - D^-1 F (I + F' D^-1 F)^-1 F' D^-1.
        unit, z = self.factor / self.scale[..., None], deviation / self.scale
        inner = _solve_lower(_capacity_factor(unit), _times(z, unit.mT))
        return z.square().sum(-1) - inner.square().sum(-1)

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        """Log density at points.

        Parameters
        ----------
        theta : Tensor of shape (S, P) or (..., P)

        Returns
        -------
        Tensor of shape (S,) or (...)
            In nats, with the normalizing constant.
        """
        return -0.5 * self.squared_distance(theta - self.mean) - self._log_norm()

    def log_prob_terms(self, theta: torch.Tensor) -> torch.Tensor:
        """Log density of every coordinate, of a diagonal normal.

        Parameters
        ----------
        theta : Tensor of shape (S, P) or (..., P)

        Returns
        -------
        Tensor of the same shape
            In nats, with the constants; the sum over coordinates is `log_prob`.
        """
        z = (theta - self.mean) / self.scale
        return -0.5 * z.square() - torch.log(self.scale * math.sqrt(2 * math.pi))

    def log_prob_whitened(self, eps: torch.Tensor) -> torch.Tensor:
        """Log density at ``transform(eps)``, without a solve.

        Parameters
        ----------
        eps : Tensor of shape (S, P) or (..., P)
            Whitened coordinates; not for a normal with a factor, whose draws have
            more noise than coordinates.

        Returns
        -------
        Tensor of shape (S,) or (...)
            In nats: the density in theta, not the one in `eps`.
        """
        return -0.5 * eps.square().sum(-1) - self._log_norm()

    def _log_norm(self) -> torch.Tensor:
        return self.half_log_det + 0.5 * self.size * LOG_2PI


def _capacity_factor(unit: torch.Tensor) -> torch.Tensor:
    """Lower Cholesky factor of ``I + G' G``, (..., r, r); NaN if G is not finite."""
    identity = torch.eye(unit.shape[-1], dtype=unit.dtype, device=unit.device)
    factor, failed = torch.linalg.cholesky_ex(identity + unit.mT @ unit)
    return factor.masked_fill((failed > 0)[..., None, None], torch.nan)


def _times(rows: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """``matrix @ row`` of each row; one matrix for all rows, or one for each."""
    if matrix.ndim == 2:
        return rows @ matrix.T
    return (matrix @ rows[..., None])[..., 0]


def _solve_lower(factor: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """``factor^-1 @ row`` of each row, for lower triangular ones; as `_times`."""
    solve = torch.linalg.solve_triangular
    if factor.ndim == 2:
        return solve(factor, rows.mT, upper=False).mT
    return solve(factor, rows[..., None], upper=False)[..., 0]


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
