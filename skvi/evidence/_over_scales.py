"""Evidence under a prior of unknown scale: both in whitened coordinates.

The fits at nodes of the log scale give a map under which parameters and scale together
are about N(0, I) (`LiftedTarget`). What serves a known scale then serves here.
"""

from collections.abc import Iterator
from typing import cast

import torch

from skvi._sampling._chains import Chains
from skvi._sampling._importance import StudentT, WeightedDraws, draw_weighted
from skvi.base import NormalForm
from skvi.base._protocols import Proposal
from skvi.divergences import KL
from skvi.evidence._one_mode import OneMode
from skvi.evidence._proposals import Above, ProposalFamily, relative_variance
from skvi.objectives import ELBO
from skvi.posteriors import FullRankNormal, MixtureOverScales, Posterior
from skvi.solvers import NaturalGradient, Problem, SolverOptions
from skvi.solvers._number_nodes import Axis, grid_of_fits
from skvi.solvers._scale_nodes import over_scales, slope_of_scale
from skvi.solvers._solution import State
from skvi.targets import HierarchicalTarget, SupervisedTarget, Target
from skvi.targets._hierarchical import beside_number
from skvi.targets._lifted import LiftedTarget, NodeGrid
from skvi.targets._precisions import UnknownNumber
from skvi.targets._reduced import reduced

__all__ = ["NearLifted", "has_unknowns", "lift", "unit"]

# Parameters beyond which fits at all scales take too much memory, and nats that they
# may leave: they are proposals.
MAX_PARAMS, TOL = 1500, 1e-4
# Degrees of freedom that are tried where weights may be nearly constant.
DEGREES = (100, 20, 5)


def has_unknowns(target: Target) -> bool:
    """Whether a linear model has one unknown scale, beside which its prior is normal.

    Or a number of its likelihood, beside which it is log-concave.
    """
    plain, number = _plain(target)
    if not plain.has_design:
        return False
    has_scale = plain.reference.n_unknown_scales == 1
    if number is None:
        return has_scale
    likelihood = plain.likelihood_spec
    is_concave = plain.loss.is_log_loss and likelihood.is_log_concave
    return is_concave and (has_scale or plain.prior.is_log_concave)


def _plain(target: Target) -> tuple[SupervisedTarget, UnknownNumber | None]:
    """The target of the coefficients alone, and the dispersion that it learns.

    Near 0 its score has the density of the prior, as a dispersion of counts has, but
    not the precision of noise.
    """
    if not isinstance(target, HierarchicalTarget) or not target.is_extended:
        return cast(SupervisedTarget, target), None
    if not target.likelihood_spec.is_discrete:
        return target, None
    return beside_number(target) or (target, None)


def lift(target: Target, posterior: Posterior) -> LiftedTarget | None:
    """The target beside its unknowns; None where no fits at nodes are possible.

    With fewer rows than features it is that of the row space. Nodes of the fitted
    posterior are used if they are normals of full rank.
    """
    plain, number = _plain(target)
    small = reduced(plain)
    target = plain if small is None else small.target
    if target.layout.size > MAX_PARAMS:
        return None
    if number is not None:
        grid = _grid_of(target, number, posterior)
    else:
        nodes = _usable(posterior) if small is None else None
        grid = _row_of(target, _fitted(target) if nodes is None else nodes)
    return None if grid is None else LiftedTarget(target, grid, number, small)


def _row_of(
    target: SupervisedTarget, nodes: MixtureOverScales | None
) -> NodeGrid | None:
    """Nodes of the scale alone."""
    if nodes is None:
        return None
    normals, z = nodes.normals(), nodes.log_scales
    pairs = zip(normals, z.tolist(), strict=True)
    slopes = [slope_of_scale(target.prior, normal, at) for normal, at in pairs]
    slopes_at = z.new_tensor(slopes)[:, None]
    return NodeGrid(normals, nodes.log_weights[:, None], z, slopes_at)


def _grid_of(
    target: SupervisedTarget, number: UnknownNumber, posterior: Posterior
) -> NodeGrid | None:
    """Nodes of the number, and of a scale if it is unknown."""
    (name,) = posterior.layout.positive
    gamma = posterior.part(name).as_gamma()
    if gamma is None:
        return None
    numbers, scales = Axis.of_number(gamma), None
    start = FullRankNormal().build(target.layout).to(target.hyper.device)
    problem = Problem(target, ELBO(), KL(), start, None)
    if target.prior.n_unknown_scales == 1:
        place = target.hyper.new_tensor([number.power * numbers.middle])
        nodes = _fitted(target.at(place).frozen())
        if nodes is None:
            return None
        z = nodes.log_scales
        scales = Axis(float(z[nodes.log_weights.argmax()]), float(z[1] - z[0]))
        problem = problem.at(State(nodes.likeliest, target))
    return grid_of_fits(problem, number, numbers, scales, SolverOptions(tol=TOL))


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
