"""Annealed importance sampling between a normal and a target, in both directions."""

import math
from dataclasses import dataclass
from itertools import pairwise

import torch

from skvi._sampling._chains import MAX_STEP, TARGET_ACCEPTANCE
from skvi._sampling._importance import WeightedDraws
from skvi._sampling._state import Report, State, silent
from skvi.base import NormalForm
from skvi.targets import Target
from skvi.utils._random import rand

__all__ = ["AnnealedPath", "tune_path"]

# Fraction of effective draws between neighbors of the coarse path, and its length.
KEPT_FRACTION, MAX_LEVELS = 0.7, 200
# Average length of a trajectory in whitened units, and the maximum of leapfrog steps: a
# path that is twice as fine mixes as well as one with trajectories twice as long.
PATH_LENGTH, MAX_STEPS = 1.0, 8
# Moves at every level of the pilot run.
N_MOVES = 3


@dataclass(frozen=True, eq=False)
class AnnealedPath:
    """Densities ``r^(1 - beta) p(D, theta)^beta`` and moves between them, frozen.

    Annealed importance sampling (Neal 2001) and its reverse (Grosse, Ghahramani and
    Adams 2015). Unbiased for Z only if the path does not depend on the draws.
    """

    target: Target
    normal: NormalForm  # r, which also whitens the space
    betas: tuple[float, ...]  # T + 1, ascending from 0 to 1
    steps: tuple[float, ...]  # T - 1 step sizes at the inner betas, whitened

    @torch.no_grad()
    def forward(
        self, n_chains: int, generator: torch.Generator, report: Report = silent
    ) -> WeightedDraws:
        """Move independent draws of the normal to the target; path weights."""
        theta = self.normal.sample(n_chains, generator)
        state = State(self.target, self.normal, theta)
        return self._along(state, range(1, len(self.betas)), generator, +1, report)

    @torch.no_grad()
    def reverse(
        self, theta: torch.Tensor, generator: torch.Generator, report: Report = silent
    ) -> torch.Tensor:
        """Move draws of the posterior, (S, P), back to the normal: log weights, (S,).

        With the sign of forward ones: exp(-log weights) has mean 1/Z for exact draws.
        """
        state = State(self.target, self.normal, theta)
        levels = range(len(self.betas) - 1, 0, -1)
        return self._along(state, levels, generator, -1, report).log_weights

    def _along(
        self,
        state: State,
        levels: range,
        generator: torch.Generator,
        sign: int,
        report: Report,
    ) -> WeightedDraws:
        total = torch.zeros_like(state.value)
        what = "paths to the posterior" if sign > 0 else "paths back from it"
        for i, t in enumerate(levels):
            report(what, i / len(levels))
            total = total + (self.betas[t] - self.betas[t - 1]) * state.log_weights()
            inner = t if sign > 0 else t - 1
            if 0 < inner < len(self.betas) - 1:
                state.beta = self.betas[inner]
                _move(state, self.steps[inner - 1], generator)
        total = torch.nan_to_num(total, nan=-math.inf, neginf=-math.inf)
        return WeightedDraws(state.theta(), total)

    def refined(self, factor: int) -> "AnnealedPath":
        """Return the path with every interval divided into equal parts."""
        betas = _divide(self.betas, factor)
        # The end points take the step sizes of their neighbors.
        steps = (self.steps[:1] or (0.5,)) + self.steps + (self.steps[-1:] or (0.5,))
        return AnnealedPath(
            self.target, self.normal, betas, _divide(steps, factor)[1:-1]
        )


def _divide(values: tuple[float, ...], factor: int) -> tuple[float, ...]:
    inner = [
        a + (b - a) * i / factor for a, b in pairwise(values) for i in range(factor)
    ]
    return (*inner, values[-1])


def _move(state: State, step: float, generator: torch.Generator) -> float:
    """One trajectory of a random length; return the mean acceptance."""
    length = PATH_LENGTH * (0.5 + float(rand(generator, 1)))
    n_steps = min(max(1, round(length / step)), MAX_STEPS)
    return state.move(step, n_steps, generator)


@torch.no_grad()
def tune_path(
    target: Target, normal: NormalForm, generator: torch.Generator, n_chains: int = 128
) -> tuple[AnnealedPath, torch.Tensor]:
    """Choose temperatures and step sizes with a population, resampled at each level.

    Returns a coarse path, whose log weights vary by about 0.4 per level, and the last
    population, (n_chains, P): approximate draws of the posterior.
    """
    state = State(target, normal, normal.sample(n_chains, generator))
    betas, steps, log_step = [0.0], [], math.log(0.5)
    while betas[-1] < 1 and len(betas) < MAX_LEVELS:
        log_weights = state.log_weights()
        if not bool(torch.isfinite(log_weights).any()):
            raise ValueError(
                "The log joint density is not finite at any draw of the posterior that "
                "annealing starts from. Check that the prior has support there."
            )
        state.beta = _next_beta(betas[-1], log_weights)
        weights = torch.softmax((state.beta - betas[-1]) * log_weights, 0)
        _resample(state, weights, generator)
        for _ in range(N_MOVES):
            accepted = _move(state, math.exp(log_step), generator)
            log_step += accepted - TARGET_ACCEPTANCE
            log_step = min(log_step, math.log(MAX_STEP))
        betas.append(state.beta)
        steps.append(math.exp(log_step))
    if betas[-1] < 1:
        betas.append(1.0)
        steps.append(steps[-1])
    return AnnealedPath(target, normal, tuple(betas), tuple(steps[:-1])), state.theta()


def _next_beta(beta: float, log_weights: torch.Tensor) -> float:
    """Farthest beta at which the fraction of effective draws stays above a limit."""

    def fraction(trial: float) -> float:
        w = torch.softmax((trial - beta) * log_weights, 0)
        return float(1 / w.square().sum()) / len(w)

    if fraction(1.0) >= KEPT_FRACTION:
        return 1.0
    low, high = beta, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        kept = fraction(middle) >= KEPT_FRACTION
        low, high = (middle, high) if kept else (low, middle)
    # The limit may be unattainable if some draws have zero density.
    return high if low <= beta else low


def _resample(state: State, weights: torch.Tensor, generator: torch.Generator) -> None:
    """Systematic resampling."""
    n = len(weights)
    order = torch.arange(n, dtype=torch.float64, device=weights.device)
    points = (order + rand(generator, 1)) / n
    chosen = torch.searchsorted(weights.double().cumsum(0), points).clamp(max=n - 1)
    state.position = state.position[chosen]
    state.value, state.slope = state.value[chosen], state.slope[chosen]
