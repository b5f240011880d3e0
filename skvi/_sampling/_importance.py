"""Importance sampling from fitted proposals, mixtures, and its diagnostics."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from skvi.base import NormalForm
from skvi.base._component import Proposal
from skvi.targets import Target
from skvi.utils._interrupts import check_time
from skvi.utils._tensors import rand, randn

#: R-hat above which chains are said to disagree.
MAX_RHAT = 1.05


def khat_limit(n_draws: int) -> float:
    """Largest Pareto k at which standard errors from this many draws are reliable.

    ``min(0.7, 1 - 1 / log10(n_draws))``, Vehtari et al. (2024), section 3.2.4.
    """
    return min(0.7, 1 - 1 / math.log10(max(n_draws, 11)))


def pareto_khat(log_weights: torch.Tensor) -> float:
    """Shape k of the generalized Pareto tail of weights; their logs up to a constant.

    Weights have about 1/k finite moments. ``inf`` with fewer than 5 weights in the
    tail, ``-inf`` if all are equal. Zhang and Stephens (2009); Vehtari et al. (2024).
    """
    n = len(log_weights)
    n_tail = math.ceil(min(0.2 * n, 3 * math.sqrt(n)))
    ordered = np.sort(log_weights.double().cpu().numpy())  # NaN come last
    if n_tail < 5 or not math.isfinite(ordered[-1]):
        return math.inf
    top = np.exp(ordered[-n_tail - 1 :] - ordered[-1])
    x = top[1:] - top[0]
    if x[-1] - x[0] <= 1e-12:
        return -math.inf
    return _fit_pareto_shape(x.clip(min=1e-300))


def _fit_pareto_shape(x: np.ndarray) -> float:
    """Posterior mean of the shape by Zhang and Stephens' profile likelihood."""
    n = len(x)
    n_grid = 30 + int(math.sqrt(n))
    quartile = x[int(n / 4 + 0.5) - 1]
    grid = np.arange(1, n_grid + 1)
    with np.errstate(all="ignore"):
        b = 1 / x[-1] + (1 - np.sqrt(n_grid / (grid - 0.5))) / (3 * quartile)
        k = np.log1p(-b[:, None] * x).mean(1)
        log_likelihood = n * (np.log(-b / k) - k - 1)
        weights = np.exp(log_likelihood - log_likelihood.max())
        b_mean = (weights @ b) / weights.sum()
        shape = float(np.log1p(-b_mean * x).mean())
    return (n * shape + 10 * 0.5) / (n + 10)


def split_rhat(values: torch.Tensor) -> float:
    """Largest rank-normalized split-R-hat of m quantities, (n_chains, n_iter, m).

    Of the ranks, and of the ranks of distances from the median; ``inf`` for fewer than
    4 iterations. Vehtari et al. (2021), equations 13 to 15 and section 4.2.
    """
    half = values.shape[1] // 2
    if half < 2 or not bool(torch.isfinite(values).all()):
        return math.inf
    split = _halves(values)
    folded = np.abs(split - np.median(split, (0, 1)))
    worst = max(_rhat_of_ranks(split), _rhat_of_ranks(folded))
    return worst if math.isfinite(worst) else math.inf


def disagreement(values: torch.Tensor) -> float:
    """Larger one of `split_rhat` and of the same without ranks.

    Ranks of many chains hide how far away a single chain is, in a mode of its own.
    """
    ranked = split_rhat(values)
    if not math.isfinite(ranked):
        return math.inf
    plain = _largest_ratio(_halves(values))
    return max(ranked, plain) if math.isfinite(plain) else math.inf


def _halves(values: torch.Tensor) -> np.ndarray:
    half = values.shape[1] // 2
    split = torch.cat([values[:, :half], values[:, -half:]])
    return split.cpu().double().numpy()


def _rhat_of_ranks(split: np.ndarray) -> float:
    """Largest R-hat of normal scores."""
    flat = split.reshape(-1, split.shape[2])
    ranks = np.stack([_ranks(column) for column in flat.T], 1)
    levels = torch.from_numpy((ranks - 0.375) / (len(flat) + 0.25))
    return _largest_ratio(torch.special.ndtri(levels).numpy().reshape(split.shape))


def _largest_ratio(scores: np.ndarray) -> float:
    """Largest R-hat; quantities that never change agree."""
    n = scores.shape[1]
    within = scores.var(1, ddof=1).mean(0)
    between = scores.mean(1).var(0, ddof=1)
    ratio = (n - 1) / n + between / within.clip(min=1e-300)
    return float(np.sqrt(np.where(within + between > 0, ratio, 1.0)).max())


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1, which equal values share: rejected moves repeat some."""
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (counts.cumsum() - 0.5 * (counts - 1))[where]


def effective_sample_size(values: torch.Tensor) -> torch.Tensor:
    """Effective number of independent draws of chains, (m,), at most all of them.

    Ratio of the pooled variance to that of the chain means: many chains are needed.
    """
    n_chains, n_iter = values.shape[:2]
    total = values.reshape(-1, values.shape[2]).var(0)
    between = values.mean(1).var(0)
    # Constants, such as weights of an exact posterior, are as good as independent.
    ess = torch.where(between > 0, n_chains * total / between, torch.inf)
    return ess.clamp(max=n_chains * n_iter)


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


# Minimum (defensive) fraction of draws from each component.
LEAST_WEIGHT = 0.02
N_EM, EM_TOL = 300, 1e-6


@dataclass(frozen=True, eq=False)
class Mixture:
    """Mixture of densities, whose weights, (K,), are positive and have sum 1."""

    components: Sequence[Proposal]
    weights: torch.Tensor

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        """Independent draws, (S, P), in random order of the components."""
        edges = self.weights.cumsum(0)[:-1].contiguous()
        chosen = torch.searchsorted(edges, rand(generator, n_draws))
        parts = []
        for k, component in enumerate(self.components):
            parts.append(component.sample(int((chosen == k).sum()), generator))
        theta = torch.cat(parts)
        found = torch.empty_like(theta)
        found[torch.argsort(chosen, stable=True)] = theta
        return found

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        """Log density at points, (S,)."""
        return torch.logsumexp(self.log_terms(theta) + self.weights.log(), 1)

    def log_terms(self, theta: torch.Tensor) -> torch.Tensor:
        """Log densities of the components, (S, K)."""
        found = []
        for component in self.components:
            check_time()
            found.append(component.log_prob(theta))
        return torch.stack(found, 1)


def fit_weights(
    log_terms: torch.Tensor, log_importance: torch.Tensor | None = None
) -> torch.Tensor:
    """Weights of maximum (weighted) likelihood, (K,), by expectation maximization.

    From log densities of the components at draws, (S, K).
    """
    n, n_components = log_terms.shape
    importance = log_terms.new_full((n,), 1 / n, dtype=torch.float64)
    if log_importance is not None:
        importance = torch.softmax(log_importance, 0)
    weights = importance.new_full((n_components,), 1 / n_components)
    terms = torch.exp(log_terms - log_terms.amax(1, keepdim=True))
    for _ in range(N_EM):
        last = weights
        weights = last * (terms.T @ (importance / (terms @ last)))
        weights = weights.clamp(min=1e-12) / weights.sum()
        if float((weights - last).abs().max()) < EM_TOL:
            break
    return weights


def fitted_mixture(components: Sequence[Proposal], theta: torch.Tensor) -> Mixture:
    """Mixture with the weights of maximum likelihood at draws, (S, P)."""
    equal = theta.new_ones(len(components), dtype=torch.float64)
    terms = Mixture(components, equal).log_terms(theta)
    return Mixture(components, fit_weights(terms))


def adapt_mixture(
    target: Target,
    components: Sequence[Proposal],
    generator: torch.Generator,
    n_draws: int = 4096,
    n_rounds: int = 2,
) -> tuple[Mixture, WeightedDraws]:
    """Fit the weights of a mixture to a target, each at least 0.02.

    Population Monte Carlo (Cappé, Douc, Guillin, Marin and Robert 2008). The draws were
    used in the fit, so that they must not be used for estimates.
    """
    n, device = len(components), generator.device
    equal = torch.full((n,), 1 / n, dtype=torch.float64, device=device)
    mixture = Mixture(components, equal)
    pilot = draw_weighted(target, mixture, n_draws, generator)
    for _ in range(n_rounds):
        terms = mixture.log_terms(pilot.theta)
        weights = fit_weights(terms, pilot.log_weights).clamp(min=LEAST_WEIGHT)
        mixture = Mixture(components, weights / weights.sum())
        pilot = draw_weighted(target, mixture, n_draws, generator)
    return mixture, pilot
