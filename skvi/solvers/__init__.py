"""Solvers: target + objective + divergence + posterior -> fitted posterior."""

from skvi.solvers._stochastic._solver import Stochastic
from skvi.solvers.base import Problem, Solver, SolverOptions

__all__ = [
    "Problem",
    "Solver",
    "SolverOptions",
    "Stochastic",
]
