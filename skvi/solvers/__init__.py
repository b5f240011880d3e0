"""Solvers: target + objective + divergence + posterior -> fitted posterior."""

from skvi.exceptions import IncompatibleComponentsError
from skvi.solvers._alternating import Alternating
from skvi.solvers._chain_starts import dispersed_starts
from skvi.solvers._checkpoint import Checkpoint, CheckpointFile
from skvi.solvers._coordinate_ascent import CoordinateAscent
from skvi.solvers._empirical_bayes import EmpiricalBayes
from skvi.solvers._exact import ExactSolver
from skvi.solvers._moment_matching import MomentMatching, fit_proposal_normal
from skvi.solvers._natural_gradient import NaturalGradient
from skvi.solvers._quasi_newton_solver import QuasiNewton
from skvi.solvers._scale_nodes import over_scales
from skvi.solvers._solution import (
    INTERRUPTED,
    PhaseInterrupted,
    Solution,
    State,
)
from skvi.solvers._stochastic import Ivon, Stochastic
from skvi.solvers._unknown_scale import implied_scale
from skvi.solvers._wide_start import choose_start, likelihood_normal, solve_from_best
from skvi.solvers.base import Problem, Solver, SolverOptions

__all__ = [
    "INTERRUPTED",
    "SOLVERS",
    "Alternating",
    "Checkpoint",
    "CheckpointFile",
    "CoordinateAscent",
    "EmpiricalBayes",
    "Ivon",
    "MomentMatching",
    "NaturalGradient",
    "PhaseInterrupted",
    "Problem",
    "QuasiNewton",
    "Solution",
    "Solver",
    "SolverOptions",
    "State",
    "Stochastic",
    "choose_solver",
    "choose_start",
    "dispersed_starts",
    "fit_proposal_normal",
    "implied_scale",
    "likelihood_normal",
    "over_scales",
    "solve_from_best",
]

#: From the most exact to the most general.
SOLVERS: dict[str, type[Solver]] = {
    s.name: s
    for s in (
        ExactSolver,
        CoordinateAscent,
        EmpiricalBayes,
        NaturalGradient,
        QuasiNewton,
        Alternating,
        MomentMatching,
        Stochastic,
        Ivon,
    )
}


def choose_solver(problem: Problem, name: str = "auto") -> type[Solver]:
    """Return the first solver that can solve a problem, or the requested one ("auto").

    An IncompatibleComponentsError names what is missing, and the solvers that can.
    """
    candidates = SOLVERS.values() if name == "auto" else [SOLVERS[name]]
    reasons = []
    for solver in candidates:
        missing = solver.missing(problem)
        if not missing:
            return solver
        reasons.append(f"solver={solver.name!r} cannot be used: {missing}")
    able = [s.name for s in SOLVERS.values() if not s.missing(problem)]
    remedy = (
        f"Use solver='auto' or one of {able}."
        if able
        else "Use posterior='mean_field', or a family with an exact density."
    )
    raise IncompatibleComponentsError(f"{'; '.join(reasons)}. {remedy}")
