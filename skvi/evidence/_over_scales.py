"""Evidence under a prior of unknown scale: both in whitened coordinates.

The fits at nodes of the log scale give a map under which parameters and scale together
are about N(0, I) (`LiftedTarget`). What serves a known scale then serves here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from skvi._sampling._chains import Chains
from skvi._sampling._importance import StudentT, WeightedDraws, draw_weighted
from skvi.base import NormalForm
from skvi.base._protocols import Proposal
from skvi.divergences import KLDivergence
from skvi.evidence._one_mode import OneMode
from skvi.evidence._proposals import Above, ProposalFamily, relative_variance
from skvi.objectives import ELBO
from skvi.posteriors import FullRankNormal, Posterior
from skvi.posteriors._over_scales import MixtureOverScales, leading
from skvi.solvers import Problem, SolverOptions
from skvi.solvers._natural_gradient import NaturalGradient
from skvi.solvers._nodes import Nodes
from skvi.targets import SupervisedTarget, Target
from skvi.targets._lifted import LiftedTarget, NodeGrid
from skvi.targets._numbers import (
    LikelihoodNumber,
    Number,
    Scale,
    bound_at,
    numbers_of,
)
from skvi.targets._precisions import UnknownNumber
from skvi.targets._reduced import reduced

__all__ = ["NearLifted", "has_unknowns", "lift", "unit"]

# Parameters beyond which fits at all scales take too much memory, and the tolerance of
# these: their errors differ from node to node, and distort the map.
MAX_PARAMS, TOL = 1500, 1e-6
# Degrees of freedom that are tried where weights may be nearly constant.
DEGREES = (100, 20, 5)


def has_unknowns(target: Target) -> bool:
    """Whether a linear model has one unknown scale, beside which its prior is normal.

    Or a number of its likelihood, beside which it is log-concave.
    """
    if target.prior is None or not isinstance(target, SupervisedTarget):
        return False
    plain, numbers = numbers_of(target)
    has_scale = plain.has_design and plain.reference.n_unknown_scales == 1
    if _own(numbers) is None:
        return has_scale
    likelihood = plain.likelihood_spec
    if not (likelihood.is_discrete and likelihood.is_log_concave):
        return False
    is_concave = has_scale or plain.prior.is_log_concave
    return is_concave and plain.has_design and plain.loss.is_log_loss


def _own(numbers: Sequence[Number]) -> UnknownNumber | None:
    """That of the likelihood.

    Near 0 its score has the density of the prior, as a dispersion of counts has, but
    not the precision of noise.
    """
    return next((n.number for n in numbers if isinstance(n, LikelihoodNumber)), None)


def lift(target: Target, posterior: Posterior) -> LiftedTarget | None:
    """The target beside its unknowns; None where no fits at nodes are possible.

    With fewer rows than features it is that of the row space. Nodes of the fitted
    posterior are used if they are normals of full rank.
    """
    plain, numbers = numbers_of(target)
    small = reduced(plain)
    if small is not None:
        plain, numbers = small.target, _numbers_in(small.target, numbers)
    if plain.layout.size > MAX_PARAMS:
        return None
    places = _places(posterior, plain.layout.size) if small is None else None
    if places is None:
        places = _fitted(plain, numbers)
    if places is None:
        return None
    return LiftedTarget(plain, _grid(plain, numbers, places), _own(numbers), small)


def _numbers_in(
    target: SupervisedTarget, numbers: Sequence[Number]
) -> tuple[Number, ...]:
    """The numbers of a model in the row space."""
    return tuple(Scale(target) if isinstance(n, Scale) else n for n in numbers)


#: Numbers, the normal given them, and the log integrand, up to a constant.
Place = tuple[list[float], NormalForm, float]


def _grid(
    target: SupervisedTarget, numbers: Sequence[Number], places: Sequence[Place]
) -> NodeGrid:
    """Nodes of a scale, of a number, or both, with the slopes in each."""
    slopes = []
    for z, normal, _ in places:
        known = bound_at(target, numbers, z)
        pairs = zip(numbers, z, strict=True)
        slopes.append([number.slope(known, at, normal, 1.0) for number, at in pairs])
    like = places[0][1].mean.new_tensor
    axes = [
        like(sorted(set(axis))) for axis in zip(*(z for z, *_ in places), strict=True)
    ]
    shape = [len(axis) for axis in axes]
    tables = [like(column).reshape(shape) for column in zip(*slopes, strict=True)]
    normals = [normal for _, normal, _ in places]
    values = like([value for *_, value in places]).reshape(shape)
    if len(numbers) == 2:
        return NodeGrid(normals, values, axes[0], tables[0], axes[1], tables[1])
    if isinstance(numbers[0], Scale):
        return NodeGrid(normals, values[:, None], axes[0], tables[0][:, None])
    return NodeGrid(normals, values[None], None, None, axes[0], tables[0][None])


def _places(posterior: Posterior, size: int) -> list[Place] | None:
    """Those of the fitted mixture, if it is of full rank."""
    if not isinstance(posterior, MixtureOverScales) or len(posterior.nodes) < 2:
        return None
    normals = [leading(normal, size) for normal in posterior.normals()]
    if normals[0].scale.ndim == 1:
        return None
    parts = posterior.places().tolist(), normals, posterior.log_weights.tolist()
    return list(zip(*parts, strict=True))


def _fitted(target: SupervisedTarget, numbers: Sequence[Number]) -> list[Place] | None:
    """Those of full rank that are fitted here; None if the solver cannot."""
    start = FullRankNormal().build(target.layout).to(target.hyper.device)
    problem = Problem(target, ELBO(), KLDivergence(), start, None)
    known = bound_at(target, numbers, [number.start for number in numbers])
    if NaturalGradient.missing(replace(problem, target=known)):
        return None
    nodes = Nodes(problem, SolverOptions(tol=TOL), (target, numbers))
    if nodes.run().interrupted:
        raise KeyboardInterrupt
    fits = sorted(nodes.fits.values(), key=lambda fit: fit.z)
    return [(list(f.z), f.normal, f.value) for f in fits] if len(fits) > 1 else None


def unit(lifted: LiftedTarget) -> NormalForm:
    """The normal that the lifted posterior is near."""
    like, size = lifted.log_widths, lifted.layout.size
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
