"""Importance sampling from proposals that are fitted to the target."""

import math
import time
from dataclasses import dataclass

import torch

from skvi._sampling._diagnostics import pareto_khat
from skvi.base import NormalForm
from skvi.base._protocols import Proposal
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
    """Multivariate Student-t proposal."""

    normal: NormalForm  # location and covariance
    df: int = DEGREES_OF_FREEDOM

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        """Independent draws, (S, P)."""
        eps = randn(generator, n_draws, self.normal.size)
        chi2 = -2 * torch.log1p(-rand(generator, n_draws, self.df // 2)).sum(1)
        if self.df % 2:
            chi2 = chi2 + randn(generator, n_draws).square()
        return self.normal.transform(eps * (self.df / chi2).sqrt()[:, None])

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        """Log density at points, (S, P) -> (S,), with the normalizing constant."""
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

    The mean of the exponentials is an unbiased estimate of Z, the evidence.
    """

    theta: torch.Tensor  # (S, P)
    log_weights: torch.Tensor  # (S,), in nats

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
        """Weighted mean and full covariance; None if degenerate. Bias of O(1/S)."""
        w = self.weights
        mean = w @ self.theta
        centered = self.theta - mean
        covariance = centered.T @ (w[:, None] * centered)
        factor, info = torch.linalg.cholesky_ex(covariance)
        return None if int(info) else NormalForm(mean, factor)


def draw_limit(n_params: int) -> int:
    """Return the maximum number of draws in memory: 131,072, and at most 1 GiB."""
    return max(min(MAX_DRAWS, MAX_ELEMENTS // n_params), MIN_DRAWS)


def draw_weighted(
    target: Target,
    proposal: Proposal,
    n_draws: int,
    generator: torch.Generator,
    deadline: float = math.inf,
) -> WeightedDraws:
    """Draw from a proposal and weight by the target's log joint density.

    Weights are ``-inf`` outside the support. No further batch is begun after the
    deadline (`time.monotonic`); there are at least 512 draws, or all of them.
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
    """Draw in batches until the deadline, whatever the weights are."""
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

    Each round takes the weighted moments of the last draws, while this increases the
    effective sample size. The returned draws chose the proposal: estimates need others.
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

    A tail of Pareto k = 1 costs as much as 2.7 times the draws: errors are unreliable.
    """
    return math.log1p(relative_variance) + max(khat, 0.0)
