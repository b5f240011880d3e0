"""Normal posteriors: factorized, of full and of low rank."""

from numbers import Integral
from typing import Self

import numpy as np
import torch
from scipy.linalg import eigh
from scipy.optimize import minimize
from scipy.sparse.linalg import eigsh

from skvi.base import Draw, Layout, NormalForm
from skvi.posteriors.base import Family, Posterior
from skvi.utils._tensors import CPU, randn
from skvi.utils._validation import Interval

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
        if normal.n_noise > normal.size:
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


# Loadings in place of zero, in units of the unique standard deviations: a factor of
# exactly zero is a saddle point that gradients do not leave, and one of this size
# changes the covariance by a relative 1e-8 at most.
SMALL_LOADING = 1e-4


class LowRankNormal(Family):
    r"""A normal with the covariance ``diag(d^2) + U U'``: P (r + 2) numbers.

    Between `MeanFieldNormal` and `FullRankNormal`: it models the r strongest directions
    of correlation between parameters, and memory and time grow with P rather than its
    square or cube. It is for thousands of parameters.

    Parameters
    ----------
    rank : int, default=10
        r, the number of columns of U. A larger rank comes closer to the full
        covariance, which r = P reaches; larger values mean P. The default costs little,
        and captures most of the correlation of a few groups of features.

    References
    ----------
    Ong, Nott and Smith (2018), *Gaussian variational approximation with a factor
    covariance structure*.

    Examples
    --------
    >>> from skvi.base import Layout
    >>> from skvi.posteriors import LowRankNormal
    >>> posterior = LowRankNormal(rank=2).build(Layout({"coef": (1, 100)}))
    >>> posterior.params.shape
    torch.Size([400])
    >>> posterior.as_normal().factor.shape
    torch.Size([100, 2])
    """

    _parameter_constraints: dict = {
        "rank": [Interval(Integral, 1, None, closed="left")]
    }

    def __init__(self, rank: int = 10) -> None:
        self.rank = rank

    def build(
        self, layout: Layout, generator: torch.Generator | None = None
    ) -> Posterior:
        """Build the posterior at mean 0; see `Family.build`."""
        return _LowRankPosterior(layout, min(self.rank, layout.size))


class _LowRankPosterior(NormalPosterior):
    """Variational parameters: means, log unique standard deviations d, loadings U / d.

    With the loadings W the covariance is ``d (I + W W') d``: in units of d a gradient
    step has the same relative size for narrow and for wide parameters.
    """

    def __init__(self, layout: Layout, rank: int) -> None:
        self.rank = rank
        super().__init__(layout)

    def normal(self, params: torch.Tensor | None = None) -> NormalForm:
        params = self.params if params is None else params
        size = self.layout.size
        mean, log_scale, loadings = params.split([size, size, size * self.rank])
        scale = log_scale.exp()
        return NormalForm(mean, scale, scale[:, None] * loadings.reshape(size, -1))

    def _params_of(self, normal: NormalForm) -> torch.Tensor:
        scale, factor = self._nearest(normal)
        loadings, scale = _avoid_zero(factor / scale[:, None], scale)
        return torch.cat([normal.mean, scale.log(), loadings.reshape(-1)])

    def _nearest(self, normal: NormalForm) -> tuple[torch.Tensor, torch.Tensor]:
        """Unique deviations and factor of the q with the smallest KL(normal || q)."""
        if normal.is_diagonal:
            return normal.scale, normal.scale.new_zeros(len(normal.scale), self.rank)
        if normal.factor is not None:
            missing = self.rank - normal.factor.shape[1]
            if missing >= 0:
                factor = torch.nn.functional.pad(normal.factor, (0, missing))
                return normal.scale, factor
        return fit_factors(normal.covariance(), self.rank)


def _avoid_zero(
    loadings: torch.Tensor, scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Replace columns of zeros without changing the variances."""
    empty = loadings.abs().amax(0) < SMALL_LOADING
    if not bool(empty.any()):
        return loadings, scale
    variance = scale.square() * (1 + loadings.square().sum(1))
    # The same numbers every time: the direction out of the saddle need not be random.
    generator = torch.Generator(loadings.device).manual_seed(0)
    signs = torch.rand(loadings.shape, generator=generator, device=loadings.device)
    small = SMALL_LOADING * torch.where(signs < 0.5, -1.0, 1.0).to(loadings.dtype)
    loadings = torch.where(empty, small, loadings)
    return loadings, (variance / (1 + loadings.square().sum(1))).sqrt()
