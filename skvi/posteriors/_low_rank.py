"""Normal posteriors whose covariance is diagonal plus low rank."""

from numbers import Integral

import torch

from skvi.base import Layout, NormalForm
from skvi.posteriors._factor_analysis import fit_factors
from skvi.posteriors._normal import NormalPosterior
from skvi.posteriors.base import Family, Posterior
from skvi.utils._validation import Interval

__all__ = ["LowRankNormal"]

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
