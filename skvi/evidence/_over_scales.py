"""Evidence under a prior of unknown scale: both in whitened coordinates.

The fits at nodes of the log scale give a map under which parameters and scale together
are about N(0, I) (`UnknownScaleTarget`). What serves a known scale then serves here.
"""

import math
from collections.abc import Iterator

import torch

from skvi.base import NormalForm
from skvi.base._protocols import Proposal
from skvi.divergences import KL
from skvi.evidence._one_mode import OneMode
from skvi.evidence._proposals import Above, ProposalFamily, relative_variance
from skvi.objectives import ELBO
from skvi.posteriors import FullRankNormal, MixtureOverScales, Posterior
from skvi.sampling import (
    Chains,
    StudentT,
    WeightedDraws,
    draw_weighted,
)
from skvi.solvers import NaturalGradient, Problem, SolverOptions, over_scales
from skvi.targets import SupervisedTarget, Target
from skvi.targets._reduced import reduced
from skvi.targets._unknown_scale import UnknownScaleTarget

__all__ = ["NearLifted", "has_unknown_scale", "lift", "unit"]

# Parameters beyond which fits at all scales take too much memory, and nats that they
# may leave: they are proposals.
MAX_PARAMS, TOL = 1500, 1e-4
# Degrees of freedom that are tried where weights may be nearly constant.
DEGREES = (100, 20, 5)


def has_unknown_scale(target: Target) -> bool:
    """Whether the prior of a linear model has one unknown scale, and is else normal."""
    return target.has_design and target.reference.n_unknown_scales == 1


def lift(target: SupervisedTarget, posterior: Posterior) -> UnknownScaleTarget | None:
    """Lift a target to its unknown scale; None where no fits at scales are possible.

    With fewer rows than features it is the target of the row space. Nodes of the fitted
    posterior are used if they are normals of full rank.
    """
    small = reduced(target)
    if small is not None:
        target = small.target
    if target.layout.size > MAX_PARAMS:
        return None
    nodes = _usable(posterior) if small is None else None
    nodes = _fitted(target) if nodes is None else nodes
    if nodes is None:
        return None
    normals, z = nodes.normals(), nodes.log_scales
    pairs = zip(normals, z.tolist(), strict=True)
    slopes = torch.stack([_slope(target, normal, at) for normal, at in pairs])
    return UnknownScaleTarget(target, z, normals, nodes.log_weights, slopes, small)


def _usable(posterior: Posterior) -> MixtureOverScales | None:
    """The fitted mixture, if it is of full rank."""
    if not isinstance(posterior, MixtureOverScales) or len(posterior.nodes) < 2:
        return None
    return posterior if posterior.normals()[0].scale.ndim == 2 else None


def _fitted(target: SupervisedTarget) -> MixtureOverScales | None:
    """A mixture of full rank that is fitted here; None if the solver cannot."""
    start = FullRankNormal().build(target.layout).to(target.hyper.device)
    problem = Problem(target, ELBO(), KL(), start, None)
    if NaturalGradient.missing(problem):
        return None
    solver = over_scales(NaturalGradient(), problem)
    found = solver.solve(problem, SolverOptions(tol=TOL))
    if found.interrupted:
        raise KeyboardInterrupt
    return _usable(found.posterior)


def _slope(
    target: SupervisedTarget, normal: NormalForm, log_scale: float
) -> torch.Tensor:
    """Slope of the log density of the log scale at a fit, by the envelope theorem."""
    weights = target.prior.scale_weights()
    squares = weights @ (normal.mean.square() + normal.variance)
    size = int((weights > 0).sum())
    return math.exp(-2 * log_scale) * squares - size - math.tanh(log_scale)


def unit(lifted: UnknownScaleTarget) -> NormalForm:
    """N(0, I), which is near the lifted posterior."""
    like, size = lifted.nodes, lifted.layout.size
    return NormalForm(like.new_zeros(size), like.new_ones(size))


class NearLifted(OneMode):
    """Proposals around N(0, I); the lifted posterior is near, but not log-concave."""

    least_block = 64

    def jumps(self, target: Target) -> bool:
        """Always, so that chains move between scales."""
        return True

    def variance(self, pilot: WeightedDraws) -> float:
        """Relative variance alone: far out logs of weights fall without limit."""
        return relative_variance(pilot)

    def nearly_constant(
        self, target: Target, generator: torch.Generator, n_draws: int
    ) -> Iterator[tuple[Proposal, WeightedDraws]]:
        """Student-t, from nearly normal to heavy tails."""
        for df in (max(DEGREES[0], 10 * self.normal.size), *DEGREES[1:]):
            proposal = StudentT(self.normal, df)
            yield proposal, draw_weighted(target, proposal, n_draws, generator)

    def above_nearly_constant(self, chains: Chains) -> Above:
        """Normal of the least variance that has no tail."""
        return ProposalFamily.above_nearly_constant(self, chains)
