"""Evidence of wide models of unknown scale: particles that go through the rows.

Given the scale of the prior, f of all rows is normal, whatever the number of features.
A particle draws f of one row after the other, each given those before; its weight is
the likelihood of the row, and particles are resampled by it (Gordon, Salmond and Smith
1993). The product of the mean weights has the expectation p(D | scale), so that such a
run, with its scale drawn from a density near the posterior's, is one draw with a weight
of importance sampling in a larger space. Chains that are offered runs (particle
independent Metropolis-Hastings: Andrieu, Doucet and Holenstein 2010) have exact draws
of the posterior, and the weights that the upper bound needs. No mode and no normal is
assumed: a posterior at the edge of separable classes is as easy as any.

Between neighbors the ratio of integrals is an expectation under either of them. Each
function sums the logarithms of all these ratios; `log_weights` has the shape (L, M, T):
L densities, M independent systems, T draws of each.
"""

import math
import time
from dataclasses import dataclass

import torch

from skvi._sampling._chains import Chains, Report
from skvi._sampling._importance import (
    WeightedDraws,
    effective_sample_size,
    khat_limit,
    pareto_khat,
)
from skvi.evidence._estimates import (
    Estimate,
    Sides,
    block_size,
    bridge_estimate,
    error_of,
)
from skvi.evidence._near_normal import relative_variance, variance_of_logs
from skvi.targets import SupervisedTarget
from skvi.targets._numbers import ScaleScore
from skvi.targets._reduced import features_of, unit_of
from skvi.utils._interrupts import Clock, check_time
from skvi.utils._tensors import LOG_2PI, log_mean_exp, rand, randn

# Rows beyond which too many particles die out.
MAX_ROWS = 300
# Log scales of the pilot runs, runs at each, and particles of a run: twice as many
# until the logs of its estimates vary less than this.
GRID, N_PILOT, MOST_VARIANCE = (-9.0, 9.0, 25), 16, 0.5
LEAST_PARTICLES, MAX_PARTICLES = 256, 8192
# Nats below the highest of these scales at which others are left out, and fewest.
DEEP, LEAST_NODES = 20.0, 3
# Chains, offers to each before draws count and after, and runs for the lower bound.
N_CHAINS, N_FORGET, N_ITER, MIN_RUNS = 16, 8, 100, 128
# Target distance of each bound from log Z, in nats: a run takes milliseconds.
DEFAULT_PRECISION = 0.08
# Elements that a batch of runs holds.
BATCH_ELEMENTS = 2**24
# Relative jitter of covariances.
JITTER = 1e-9


@dataclass(frozen=True, eq=False)
class _Runs:
    """Particle estimates of p(D | scale) with their scales."""

    log_scale: torch.Tensor  # (R,)
    estimate: torch.Tensor  # (R,), logs; exp has expectation p(D | scale)
    noise: torch.Tensor  # (R, K, n), a whitened particle of each run

    def take(self, index: torch.Tensor) -> "_Runs":
        return _Runs(self.log_scale[index], self.estimate[index], self.noise[index])


class _Rows:
    """A linear model in terms of f of its rows; `unit` is the deviation at scale 1."""

    def __init__(self, target: SupervisedTarget, unit: float) -> None:
        self.target, self.X = target, features_of(target)
        self.unit, self.k = unit, target.predictor.n_outputs
        prior = target.prior.given_scale(1.0).as_normal()
        has_intercept = target.predictor.fit_intercept
        self.width = float(prior.scale[-1]) if has_intercept else 0.0
        self.gram = self.unit**2 * self.X @ self.X.T
        self.n_rows = len(self.X)

    def roots(self, log_scale: torch.Tensor) -> torch.Tensor:
        """Roots of the covariances of f at scales, (R, n, n)."""
        cov = torch.exp(2 * log_scale)[:, None, None] * self.gram + self.width**2
        diagonal = cov.diagonal(dim1=1, dim2=2)
        return torch.linalg.cholesky(cov + torch.diag_embed(JITTER * diagonal))

    def run(
        self, log_scale: torch.Tensor, n_particles: int, generator: torch.Generator
    ) -> _Runs:
        """Run particles through the rows at each scale, in batches."""
        size = max(1, BATCH_ELEMENTS // (n_particles * self.k * self.n_rows))
        parts = [self._run(z, n_particles, generator) for z in log_scale.split(size)]
        return _Runs(log_scale, *(torch.cat(p) for p in zip(*parts, strict=True)))

    def _run(
        self, log_scale: torch.Tensor, n_particles: int, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        roots, n_runs = self.roots(log_scale), len(log_scale)
        shape = n_runs, n_particles, self.k
        noise = randn(generator, *shape, self.n_rows)
        total = torch.zeros_like(log_scale)
        for i in range(self.n_rows):
            check_time()
            row = roots[:, i, : i + 1, None]
            f = (noise[..., : i + 1].flatten(1, 2) @ row).reshape(shape)
            log_w = self._log_likelihood(i, f)
            total = total + log_mean_exp(log_w)
            kept = _resample(log_w, generator)[..., None, None]
            before = noise[..., : i + 1]
            noise[..., : i + 1] = before.gather(1, kept.expand_as(before))
        return total, noise[:, 0].clone()

    def _log_likelihood(self, i: int, f: torch.Tensor) -> torch.Tensor:
        """Minus the loss of a row, (R, N)."""
        target, row = self.target, slice(i, i + 1)
        if target.rows.offset is not None:
            f = f + target.rows.offset[i]
        losses = target.loss(target.likelihood, f.flatten(0, 1)[:, None], target.y[row])
        losses = losses[:, 0].reshape(f.shape[:2])
        return (
            -losses if target.rows.weight is None else -target.rows.weight[i] * losses
        )

    def theta(self, runs: _Runs, generator: torch.Generator) -> torch.Tensor:
        """Draw the parameters of the target given f (Matheron's rule), (R, P)."""
        roots, n_runs = self.roots(runs.log_scale), len(runs.log_scale)
        f = runs.noise @ roots.mT
        width = self.unit * runs.log_scale.exp()[:, None, None]
        coef = width * randn(generator, n_runs, self.k, self.X.shape[1])
        intercept = self.width * randn(generator, n_runs, self.k, 1)
        lack = (f - coef @ self.X.T - intercept).mT
        lack = torch.cholesky_solve(lack, roots).mT
        coef = coef + width**2 * lack @ self.X
        parts = [coef.flatten(1)]
        if self.width:
            parts.append(
                (intercept + self.width**2 * lack.sum(2, keepdim=True)).flatten(1)
            )
        return torch.cat(parts, 1)


def row_particle_sides(
    target: SupervisedTarget,
    generator: torch.Generator,
    n_draws: int | None,
    precision: float | None,
    report: Report,
    clock: Clock,
) -> Sides | None:
    """Log weights of runs of particles, and of chains that are offered them.

    None if estimates vary too much, or with more rows than features or than 300.
    """
    n, d = target.X.shape
    unit = unit_of(target)
    if n > min(d + 1, MAX_ROWS) or unit is None:
        return None
    rows = _Rows(target, unit)
    found = _tune(rows, generator, clock)
    if found is None:
        return None
    score, n_particles, seconds = found

    def draw(size: int) -> tuple[_Runs, torch.Tensor]:
        u = randn(generator, size)
        z, log_slope, _ = score.at(u)
        runs = rows.run(z, n_particles, generator)
        log_q = -0.5 * (u.square() + LOG_2PI) - log_slope
        prior = target.prior.log_density_of_scale(z)
        return runs, runs.estimate + prior - log_q + target.constant

    error = error_of(DEFAULT_PRECISION if precision is None else precision)
    report("particles", 0.2)
    _, pilot = draw(8 * N_PILOT)
    variance = max(_relative(pilot), variance_of_logs(pilot))
    wanted = variance / error**2
    n_below = n_draws or int(min(max(wanted, 512), 8192))
    # How many runs there is time for is known before the first of them.
    affordable = clock.affordable(seconds, 0.4)
    is_cut = affordable < n_below
    n_below = max(int(min(n_below, affordable)), MIN_RUNS)
    n_iter = max(math.ceil(n_below / N_CHAINS), 8 if is_cut else N_ITER)
    below = draw(n_below)[1]
    report("particles", 0.5)
    runs, offered = draw(N_CHAINS * (N_FORGET + n_iter))
    states = _accepted(offered.reshape(N_CHAINS, -1), generator)[:, N_FORGET:]
    report("particles", 0.9)
    theta = rows.theta(runs.take(states.flatten()), generator)
    log_joint = target.log_joint_batched(theta).reshape(states.shape)
    weights = offered[states]
    return Sides(
        method="particles",
        forward=below,
        reverse=weights,
        bridge=weights,
        k_below=block_size(variance, n_below),
        k_above=block_size(variance, weights.numel()),
        chains=Chains(theta.reshape(*states.shape, -1), log_joint, 1.0),
        error=math.inf if n_draws is not None else error,
        is_cut=is_cut,
    )


def _tune(
    rows: _Rows, generator: torch.Generator, clock: Clock
) -> tuple[ScaleScore, int, float] | None:
    """Density of the log scale, particles per run, and seconds of one run.

    As many particles as make estimates nearly constant.
    """
    low, high, n_nodes = GRID
    like = rows.gram
    nodes = torch.linspace(low, high, n_nodes, dtype=like.dtype, device=like.device)
    n_particles = LEAST_PARTICLES
    while n_particles <= MAX_PARTICLES and clock.left() != 0.0:
        begin = time.monotonic()
        runs = rows.run(nodes.repeat_interleave(N_PILOT), n_particles, generator)
        estimates = runs.estimate.reshape(n_nodes, N_PILOT)
        values = log_mean_exp(estimates) + rows.target.prior.log_density_of_scale(nodes)
        # Beyond, rates overflow; tails of the density of scales are heavier than that.
        likely = (values > values.max() - DEEP).nonzero()[:, 0]
        if len(likely) < LEAST_NODES:
            return None
        z, values = nodes[likely], values[likely]
        if float(values.softmax(0) @ estimates[likely].var(1)) <= MOST_VARIANCE:
            slopes = torch.gradient(values, spacing=(z,))[0]
            seconds = (time.monotonic() - begin) / (n_nodes * N_PILOT)
            return ScaleScore(z, values, slopes), n_particles, seconds
        n_particles *= 2
    return None


def _resample(log_w: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Systematic resampling: indices of particles, (R, N), rotated at random."""
    n_runs, n = log_w.shape
    ends = torch.softmax(log_w, 1).cumsum(1)
    line = torch.arange(n, dtype=log_w.dtype, device=log_w.device)
    points = (line + rand(generator, n_runs, 1)) / n * ends[:, -1:]
    index = torch.searchsorted(ends, points).clamp(max=n - 1)
    # The first particle is the one that is kept: any of them, equally likely.
    turn = (rand(generator, n_runs, 1) * n).long()
    return index.gather(1, (turn + line.long()) % n)


def _accepted(log_w: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """States of chains that are offered draws one by one: indices into all, (M, T)."""
    n_chains, n_iter = log_w.shape
    first = torch.arange(n_chains, device=log_w.device) * n_iter
    state, kept = first, []
    flat, log_u = log_w.flatten(), rand(generator, n_chains, n_iter).log()
    for i in range(n_iter):
        takes = log_u[:, i] < flat[first + i] - flat[state]
        state = torch.where(takes, first + i, state)
        kept.append(state)
    return torch.stack(kept, 1)


def _relative(log_weights: torch.Tensor) -> float:
    """Relative variance of weights."""
    return relative_variance(WeightedDraws(log_weights[:, None], log_weights))


# Ratio of neighbors up to which weights have finite variances, plus rounding.
SAFE_RATIO = 2.0 * (1 + 1e-9)


def ladder_upper(
    log_weights: torch.Tensor, betas: torch.Tensor, n_blocks: int = 1
) -> torch.Tensor:
    """Upper bounds on log Z, (M,), in nats, from log weights of systems, (L, M, T).

    By Jensen's inequality above log Z in expectation, if each draw is exact, even if
    draws are dependent; farther above with more blocks, with hardly more noise.
    """
    increments = betas.diff()[:, None, None] * log_weights[1:]
    return -_mean_of_blocks(-increments, n_blocks)


def ladder_lower(
    log_weights: torch.Tensor, betas: torch.Tensor, n_blocks: int = 1
) -> torch.Tensor:
    """Lower bounds on log Z, (M,), one for each system; see `ladder_upper`."""
    increments = betas.diff()[:, None, None] * log_weights[:-1]
    return _mean_of_blocks(increments, n_blocks)


def _mean_of_blocks(increments: torch.Tensor, n_blocks: int) -> torch.Tensor:
    """Sum over the ladder of log mean exp, averaged over blocks of draws, (M,)."""
    size, n_systems, n_draws = increments.shape
    length = n_draws // n_blocks
    used = increments[..., : length * n_blocks]
    blocks = used.reshape(size, n_systems, n_blocks, length)
    return log_mean_exp(blocks).mean(2).sum(0)


def ladder_bridge(log_weights: torch.Tensor, betas: torch.Tensor) -> Estimate:
    """Bridge estimate of every ratio, consistent if the chains have mixed.

    The error is that of the mean over systems of the midpoint between the bounds.
    """
    total = 0.0
    for k, width in enumerate(betas.diff()):
        below, above = width * log_weights[k], width * log_weights[k + 1]
        ess = [float(effective_sample_size(w[..., None])[0]) for w in (below, above)]
        # Draws at both ends have the same autocorrelation: only their ratio matters.
        n_above = below.numel() * max(ess[1], 1.0) / max(ess[0], 1.0)
        total += bridge_estimate(below.flatten(), above, n_above).value
    bounds = ladder_upper(log_weights, betas) + ladder_lower(log_weights, betas)
    return Estimate(total, float(bounds.std()) / 2 / math.sqrt(len(bounds)))


def tail_shape(log_weights: torch.Tensor, betas: torch.Tensor) -> float:
    """Largest Pareto k of weights behind both bounds whose variance may be infinite.

    Left out are nearly constant weights, and those back to a beta of at least half:
    their second moment is an integral of another density of the path.
    """
    worst = -math.inf
    for k, width in enumerate(betas.diff()):
        sides = [width * log_weights[k].flatten()]
        if float(betas[k + 1]) > SAFE_RATIO * float(betas[k]):
            sides.append(-width * log_weights[k + 1].flatten())
        for signed in sides:
            largest = float(signed.max() - log_mean_exp(signed, 0))
            if not largest < math.log(2.0):
                worst = max(worst, pareto_khat(signed))
    return worst


def tail_limit(log_weights: torch.Tensor) -> float:
    """Largest Pareto k at which this number of draws is reliable."""
    return khat_limit(log_weights[0].numel())
