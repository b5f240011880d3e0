"""Solvers: target + objective + divergence + posterior -> fitted posterior."""

from skvi.solvers._choice import choose_solver
from skvi.solvers._moment_matching import MomentMatching
from skvi.solvers._natural_gradient import NaturalGradient
from skvi.solvers._solution import Solution
from skvi.solvers._stochastic._solver import Stochastic
from skvi.solvers.base import Problem, Solver, SolverOptions

__all__ = [
    "MomentMatching",
    "NaturalGradient",
    "Problem",
    "Solution",
    "Solver",
    "SolverOptions",
    "Stochastic",
    "choose_solver",
]
