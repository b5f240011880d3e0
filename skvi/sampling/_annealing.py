"""Annealed importance sampling between a normal and a target, in both directions."""

import math
from dataclasses import dataclass
from itertools import pairwise

import torch

from skvi.base import NormalForm
from skvi.sampling._chains import MAX_STEP, TARGET_ACCEPTANCE
from skvi.sampling._importance import WeightedDraws
from skvi.sampling._state import Report, State, silent
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

    Annealed importance sampling (Neal 2001): a draw of the normal r is moved along
    the path by Hamiltonian trajectories, each of which leaves its density invariant.
    From draws of the posterior the same path is traversed backwards (bidirectional
    Monte Carlo; Grosse, Ghahramani and Adams 2015).

    Parameters
    ----------
    target : Target
    normal : NormalForm
        r, which also whitens the space.
    betas : tuple of float
        Ascending, from 0 to 1, T + 1 of them.
    steps : tuple of float
        Step sizes at the inner betas, T - 1 of them, in whitened units.

    Notes
    -----
    The expectation of the exponentials of forward weights is Z, that of the negative
    reverse weights 1/Z if the starts are exact draws of the posterior, at every T
    and every step size. Both require settings that do not depend on the draws:
    `tune_path` tunes a path with separate draws.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import Layout, NormalForm
    >>> from skvi.sampling import AnnealedPath
    >>> from skvi.targets import Target
    >>> class Bell(Target):  # log Z = log(2 pi) / 2 = 0.919
    ...     layout = Layout({"coef": (1,)})
    ...
    ...     def log_joint(self, theta, rows=None):
    ...         return -0.5 * theta.square().sum(1)
    >>> far = NormalForm(torch.tensor([3.0]).double(), torch.ones(1).double())
    >>> path = AnnealedPath(Bell(), far, tuple(torch.linspace(0, 1, 51)), (0.5,) * 49)
    >>> generator = torch.Generator().manual_seed(0)
    >>> draws = path.forward(500, generator)
    >>> round(float(draws.log_weights.exp().mean().log()), 1)
    0.9
    """

    target: Target
    normal: NormalForm
    betas: tuple[float, ...]
    steps: tuple[float, ...]

    @torch.no_grad()
    def forward(
        self, n_chains: int, generator: torch.Generator, report: Report = silent
    ) -> WeightedDraws:
        """Draw from the normal and move to the target.

        Parameters
        ----------
        n_chains : int
            S.
        generator : torch.Generator
        report : callable, default=silent
            Called after every level with a description and the completed fraction.

        Returns
        -------
        WeightedDraws
            Independent draws, with the weights of their entire paths.
        """
        theta = self.normal.sample(n_chains, generator)
        state = State(self.target, self.normal, theta)
        return self._along(state, range(1, len(self.betas)), generator, +1, report)

    @torch.no_grad()
    def reverse(
        self, theta: torch.Tensor, generator: torch.Generator, report: Report = silent
    ) -> torch.Tensor:
        """Move draws of the posterior back to the normal.

        Parameters
        ----------
        theta : Tensor of shape (S, P)
        generator : torch.Generator
        report : callable, default=silent
            As in `forward`.

        Returns
        -------
        Tensor of shape (S,)
            Log weights in nats, of the same sign as forward ones.
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
        """Return the path with every interval divided into equal parts.

        Parameters
        ----------
        factor : int

        Returns
        -------
        AnnealedPath
        """
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
    """Choose temperatures and step sizes with a population of draws.

    The population is resampled at each level, and levels are spaced such that 70 % of
    its draws remain effective.

    Parameters
    ----------
    target : Target
    normal : NormalForm
        Normal from which paths start, over all P parameters; factorized or full.
    generator : torch.Generator
    n_chains : int, default=128
        Size of the population.

    Returns
    -------
    path : AnnealedPath
        Coarse: the log weights vary by about 0.4 per level.
    theta : Tensor of shape (n_chains, P)
        The final population: approximate draws of the posterior.

    Raises
    ------
    ValueError
        The log joint density is not finite at any draw.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import Layout, NormalForm
    >>> from skvi.sampling import tune_path
    >>> from skvi.targets import Target
    >>> class Bell(Target):
    ...     layout = Layout({"coef": (1,)})
    ...
    ...     def log_joint(self, theta, rows=None):
    ...         return -0.5 * theta.square().sum(1)
    >>> far = NormalForm(torch.tensor([9.0]).double(), torch.ones(1).double())
    >>> path, theta = tune_path(Bell(), far, torch.Generator().manual_seed(0))
    >>> len(path.betas) > 5, abs(float(theta.mean())) < 1
    (True, True)
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
