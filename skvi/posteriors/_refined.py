"""Samples of a normal posterior that local fits have refined."""

from copy import copy
from numbers import Integral, Real

import torch

from skvi.base import Draw, Layout
from skvi.base._protocols import JointDensity
from skvi.exceptions import IncompatibleComponentsError
from skvi.posteriors._low_rank import LowRankNormal
from skvi.posteriors._normal import FullRankNormal, MeanFieldNormal
from skvi.posteriors._refinement import Refinement, Samples
from skvi.posteriors.base import Family, Posterior
from skvi.utils._random import rand
from skvi.utils._validation import Interval

__all__ = ["RefinedNormal"]

NO_DENSITY = (
    "A refined posterior is a set of samples, whose density is unknown. Use that of "
    "the normal it started from, posterior_.unrefined.log_prob."
)


class RefinedNormal(Family):
    r"""Samples that start in a normal, and are refined one scale after the other.

    Parameters are written as a sum of auxiliary variables whose priors add up to that
    of the parameters,

    .. math:: \theta = a_1 + \dots + a_K, \qquad a_k \sim N(0, \sigma_k^2).

    The solver fits a normal q. For every sample :math:`a_1` is then drawn from q, and q
    conditioned on it and fitted again, with the prior given :math:`a_1`; and so on,
    until the sum is known. Each fit is local, so that samples have modes and
    dependencies that q has not; and none lowers the bound that `lower_bound_`
    estimates,

    .. math:: \mathrm{ELBO} \le \mathrm{E} \Big[ \log p(D, \theta) - \log p(\theta)
        - \sum_k \log \frac{q(a_k | a_{1:k-1})}{p(a_k)} \Big],

    whose left side is that of q, up to the noise of the fits.

    Parameters
    ----------
    base : MeanFieldNormal, LowRankNormal or FullRankNormal, default=None
        Family of q; None is `MeanFieldNormal`.
    n_auxiliary : int, default=5
        K. More give a higher bound, and cost proportionally more.
    n_draws : int, default=10
        Number of samples. All of them are refined at once, in `fit`, and stored:
        predictions average over them, so that log densities of test rows are better
        with 50 where functions differ by more than the noise.
    ratio : float, default=0.7
        Share that each auxiliary variable takes of the variance that is left,
        :math:`\sigma_k^2 / (\sigma_k^2 + \dots + \sigma_K^2)`; the last takes it all.

    Notes
    -----
    Where the prior is not normal, or unknown, as for a log density of one's own, a
    normal around q, three times as wide, is divided instead: the bound holds for any.

    There is no density, only one given the auxiliary variables. Draws repeat the
    samples, in random order. `posterior_.unrefined` is q: evidences and warm starts
    start from it, it is the prior of the next batch of `partial_fit`, and importance
    weights in diagnostics are its own. `posterior_.curve` is the bound at all gradient
    steps, 200 for each auxiliary variable but the last. Steps of minibatches are
    relative to a point of which all rows are known, and noise comes in opposed pairs,
    whose mean is that of q: ten samples then predict better than ten draws.

    References
    ----------
    Havasi, Snoek, Tran, Gordon and Hernández-Lobato (2021), *Sampling the variational
    posterior with local refinement*, Entropy 23.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skvi.linear_model import BayesianLogisticRegression
    >>> from skvi.posteriors import RefinedNormal
    >>> X, y = load_iris(return_X_y=True)
    >>> regression = BayesianLogisticRegression(
    ...     prior="normal", posterior=RefinedNormal(n_draws=5), random_state=0
    ... ).fit(X, y)
    >>> regression.sample_posterior(2)["coef"].shape
    (2, 3, 4)
    """

    def __init__(
        self,
        base: Family | None = None,
        n_auxiliary: int = 5,
        n_draws: int = 10,
        ratio: float = 0.7,
    ) -> None:
        self.base, self.n_auxiliary = base, n_auxiliary
        self.n_draws, self.ratio = n_draws, ratio

    _parameter_constraints: dict = {
        "base": [None, FullRankNormal, LowRankNormal, MeanFieldNormal],
        "n_auxiliary": [Interval(Integral, 2, None, closed="left")],
        "n_draws": [Interval(Integral, 2, None, closed="left")],
        "ratio": [Interval(Real, 0, 1, closed="neither")],
    }

    def _base(self) -> Family:
        return MeanFieldNormal() if self.base is None else self.base

    def build(
        self, layout: Layout, generator: torch.Generator | None = None
    ) -> Posterior:
        """Build the normal that the solver fits; see `Family.build`."""
        self.validate()
        posterior = self._base().build(layout, generator)
        posterior.refinement = _Refiner(self.n_draws, self.n_auxiliary, self.ratio)
        return posterior

    def check_size(self, n_params: int) -> None:
        """Apply the check of the family of the normal."""
        self.validate()
        self._base().check_size(n_params)


class _Refiner(Refinement):
    """A refinement of posteriors."""

    @torch.no_grad()
    def __call__(
        self, posterior: Posterior, target: JointDensity, generator: torch.Generator
    ) -> "RefinedPosterior":
        found = self.samples(target, posterior.normal(), generator)
        return RefinedPosterior(posterior, found)


class RefinedPosterior(Posterior):
    """Samples, which draws repeat. They are the variational parameters.

    `curve` has estimates of the bound at every gradient step, in nats.
    """

    side = "upper"

    def __init__(self, unrefined: Posterior, samples: Samples) -> None:
        self.layout, self.units = unrefined.layout, unrefined.units
        self._start = unrefined
        self.params = samples.theta.reshape(-1).to(unrefined.params.dtype)
        self._log_q, self.curve = samples.log_q, samples.curve

    @property
    def n_stored(self) -> int:  # type: ignore[override]
        """Number of samples."""
        return len(self._log_q)

    @property
    def unrefined(self) -> Posterior:
        start = copy(self._start)
        start.units = self.units
        return start

    def draw(self, n_draws: int, generator: torch.Generator) -> Draw:
        """Random permutations of all samples, one after the other."""
        n_runs = -(-n_draws // self.n_stored)
        keys = rand(generator, n_runs, self.n_stored)
        which = torch.argsort(keys, 1).reshape(-1)[:n_draws]
        theta = self.params.reshape(self.n_stored, -1)[which]
        return Draw(theta, self._log_q[which], self.side)

    def log_prob(
        self, theta: torch.Tensor, params: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Raise: there is no density."""
        raise IncompatibleComponentsError(NO_DENSITY)
