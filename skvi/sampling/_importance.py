"""Importance sampling from proposals that are fitted to the target."""

import math
import time
from dataclasses import dataclass

import torch

from skvi.base import NormalForm
from skvi.base._protocols import Proposal
from skvi.sampling._diagnostics import pareto_khat
from skvi.targets import Target
from skvi.utils._random import rand, randn

__all__ = [
    "StudentT",
    "WeightedDraws",
    "adapt_proposal",
    "draw_limit",
    "draw_weighted",
]

MAX_DRAWS, MIN_DRAWS, MAX_ELEMENTS = 2**17, 2**10, 2**27
# Draws between two looks at the clock.
BATCH = 512
# Heavier than the tails of a posterior with a normal or a Laplace prior.
DEGREES_OF_FREEDOM = 12
# Degrees of freedom and inflations tried after location and scale have been found;
# wider ones only while the weights are heavy-tailed, as for skewed posteriors.
SHAPES = ((5, 1.0), (40, 1.0), (12, 1.25), (5, 1.25), (5, 1.5))


@dataclass(frozen=True, eq=False)
class StudentT:
    """Multivariate Student-t proposal.

    Parameters
    ----------
    normal : NormalForm
        Location and covariance.
    df : int, default=12
        Degrees of freedom.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import NormalForm
    >>> from skvi.sampling import StudentT
    >>> proposal = StudentT(NormalForm(torch.zeros(2), torch.ones(2)))
    >>> round(float(proposal.log_prob(torch.zeros(1, 2))[0]), 4)
    -1.8379
    """

    normal: NormalForm
    df: int = DEGREES_OF_FREEDOM

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        """Draw from the proposal.

        Parameters
        ----------
        n_draws : int
            S.
        generator : torch.Generator

        Returns
        -------
        Tensor of shape (S, P)
            Independent draws.
        """
        eps = randn(generator, n_draws, self.normal.size)
        chi2 = -2 * torch.log1p(-rand(generator, n_draws, self.df // 2)).sum(1)
        if self.df % 2:
            chi2 = chi2 + randn(generator, n_draws).square()
        return self.normal.transform(eps * (self.df / chi2).sqrt()[:, None])

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        """Log density at points.

        Parameters
        ----------
        theta : Tensor of shape (S, P)

        Returns
        -------
        Tensor of shape (S,)
            In nats, with the normalizing constant.
        """
        df, size = self.df, self.normal.size
        squared = self.normal.whiten(theta - self.normal.mean).square().sum(1)
        constant = (
            math.lgamma((df + size) / 2)
            - math.lgamma(df / 2)
            - 0.5 * size * math.log(df * math.pi)
        )
        kernel = 0.5 * (df + size) * torch.log1p(squared / df)
        return constant - self.normal.half_log_det - kernel


@dataclass(frozen=True, eq=False)
class WeightedDraws:
    """Draws of a proposal with their log weights ``log_joint - log_proposal``.

    Parameters
    ----------
    theta : Tensor of shape (S, P)
    log_weights : Tensor of shape (S,)
        In nats. The mean of their exponentials is an unbiased estimate of Z, the
        integral of the joint density.

    Examples
    --------
    >>> import torch
    >>> from skvi.sampling import WeightedDraws
    >>> draws = WeightedDraws(torch.zeros(4, 1), torch.zeros(4))
    >>> draws.ess
    4.0
    """

    theta: torch.Tensor
    log_weights: torch.Tensor

    @property
    def weights(self) -> torch.Tensor:
        """Self-normalized weights, of shape (S,) and sum 1."""
        return torch.softmax(self.log_weights, 0)

    @property
    def ess(self) -> float:
        """Effective sample size ``(sum w)^2 / sum w^2``."""
        return float(1 / self.weights.square().sum())

    @property
    def khat(self) -> float:
        """Pareto k of the weights."""
        return pareto_khat(self.log_weights)

    def moments(self) -> NormalForm | None:
        """Weighted mean and full covariance.

        Returns
        -------
        NormalForm or None
            Self-normalized estimates: consistent, with a bias of O(1/S). None if the
            covariance is degenerate.
        """
        w = self.weights
        mean = w @ self.theta
        centered = self.theta - mean
        covariance = centered.T @ (w[:, None] * centered)
        factor, info = torch.linalg.cholesky_ex(covariance)
        return None if int(info) else NormalForm(mean, factor)


def draw_limit(n_params: int) -> int:
    """Return the maximum number of draws in memory: 131,072, and at most 1 GiB.

    Parameters
    ----------
    n_params : int
        P.

    Returns
    -------
    int

    Examples
    --------
    >>> from skvi.sampling import draw_limit
    >>> draw_limit(31), draw_limit(50_000)
    (131072, 2684)
    """
    return max(min(MAX_DRAWS, MAX_ELEMENTS // n_params), MIN_DRAWS)


def draw_weighted(
    target: Target,
    proposal: Proposal,
    n_draws: int,
    generator: torch.Generator,
    deadline: float = math.inf,
) -> WeightedDraws:
    """Draw from a proposal and weight by the target's log joint density.

    Parameters
    ----------
    target : Target
    proposal : StudentT or another density with `sample`
    n_draws : int
        S.
    generator : torch.Generator
    deadline : float, default=inf
        Reading of `time.monotonic` after which no further batch is begun: there are
        then fewer draws, at least 512 of them or S.

    Returns
    -------
    WeightedDraws
        Log weights in nats, with all constants; ``-inf`` outside the support.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import Layout, NormalForm
    >>> from skvi.sampling import StudentT, draw_weighted
    >>> from skvi.targets import Target
    >>> class Bell(Target):  # log Z = log(2 pi) / 2 = 0.919
    ...     layout = Layout({"coef": (1,)})
    ...
    ...     def log_joint(self, theta, rows=None):
    ...         return -0.5 * theta.square().sum(1)
    >>> generator = torch.Generator().manual_seed(0)
    >>> proposal = StudentT(NormalForm(torch.zeros(1), torch.ones(1)))
    >>> draws = draw_weighted(Bell(), proposal, 4000, generator)
    >>> round(float(draws.log_weights.exp().mean().log()), 1)
    0.9
    """
    if deadline < math.inf and n_draws > BATCH:
        return _in_batches(target, proposal, n_draws, generator, deadline)
    theta = proposal.sample(n_draws, generator)
    log_weights = target.log_joint_batched(theta) - proposal.log_prob(theta)
    log_weights = torch.nan_to_num(log_weights, nan=-math.inf, posinf=math.inf)
    return WeightedDraws(theta, log_weights)


def _in_batches(
    target: Target,
    proposal: Proposal,
    n_draws: int,
    generator: torch.Generator,
    deadline: float,
) -> WeightedDraws:
    """Draw until the clock says so, whatever the weights are."""
    parts: list[WeightedDraws] = []
    for start in range(0, n_draws, BATCH):
        if parts and time.monotonic() > deadline:
            break
        size = min(BATCH, n_draws - start)
        parts.append(draw_weighted(target, proposal, size, generator))
    theta, log_weights = zip(*((p.theta, p.log_weights) for p in parts), strict=True)
    return WeightedDraws(torch.cat(theta), torch.cat(log_weights))


def adapt_proposal(
    target: Target,
    normal: NormalForm,
    generator: torch.Generator,
    n_draws: int = 4096,
    n_rounds: int = 3,
    deadline: float = math.inf,
) -> tuple[StudentT, WeightedDraws]:
    """Fit a Student-t to the target, from a normal near it.

    Each round moves location and covariance to the weighted moments of the last draws,
    as long as this increases the effective sample size.

    Parameters
    ----------
    target : Target
    normal : NormalForm
        Start, over all P parameters.
    generator : torch.Generator
    n_draws : int, default=4096
        Number of draws per round.
    n_rounds : int, default=3
        At most.
    deadline : float, default=inf
        Reading of `time.monotonic` after which no other proposal is tried.

    Returns
    -------
    proposal : StudentT
    pilot : WeightedDraws
        Draws from this proposal; used in the fit, and therefore not for estimates.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import Layout, NormalForm
    >>> from skvi.sampling import adapt_proposal
    >>> from skvi.targets import Target
    >>> class Bell(Target):  # log Z = log(2 pi) / 2 = 0.919
    ...     layout = Layout({"coef": (1,)})
    ...
    ...     def log_joint(self, theta, rows=None):
    ...         return -0.5 * theta.square().sum(1)
    >>> generator = torch.Generator().manual_seed(0)
    >>> far = NormalForm(torch.tensor([2.0]).double(), torch.tensor([3.0]).double())
    >>> proposal, pilot = adapt_proposal(Bell(), far, generator)
    >>> round(abs(float(proposal.normal.mean)), 1), pilot.ess > 3000
    (0.0, True)
    """
    best = StudentT(normal)
    pilot = draw_weighted(target, best, n_draws, generator)
    for _ in range(n_rounds):
        # Moments from few effective draws are worse than the current ones.
        moments = pilot.moments() if pilot.ess > 4 * normal.size else None
        if moments is None or time.monotonic() > deadline:
            break
        trial = StudentT(moments)
        draws = draw_weighted(target, trial, n_draws, generator)
        if badness(draws) >= badness(pilot):
            break
        best, pilot = trial, draws
    for df, inflation in SHAPES:
        is_light = inflation > 1 and pilot.khat <= 0
        if is_light or time.monotonic() > deadline:
            break
        wider = NormalForm(best.normal.mean, inflation * best.normal.scale)
        trial = StudentT(wider, df)
        draws = draw_weighted(target, trial, n_draws, generator)
        if badness(draws) < badness(pilot):
            best, pilot = trial, draws
    return best, pilot


def badness(draws: WeightedDraws) -> float:
    """Score of weighted draws, lower is better."""
    return tail_score(len(draws.theta) / draws.ess - 1, draws.khat)


def tail_score(relative_variance: float, khat: float) -> float:
    """Score weights, lower is better: a log cost in draws, plus one for the tail.

    A tail of Pareto k = 1 counts as much as 2.7 times the draws: a light tail is worth
    some efficiency, since standard errors are reliable only with it.
    """
    return math.log1p(relative_variance) + max(khat, 0.0)
