"""Choice of a solver."""

from skvi.exceptions import IncompatibleComponentsError
from skvi.solvers._empirical_bayes import EmpiricalBayes
from skvi.solvers._exact import ExactSolver
from skvi.solvers._moment_matching import MomentMatching
from skvi.solvers._natural_gradient import NaturalGradient
from skvi.solvers._stochastic._solver import Stochastic
from skvi.solvers.base import Problem, Solver

#: From the most exact to the most general.
SOLVERS: dict[str, type[Solver]] = {
    s.name: s
    for s in (
        ExactSolver,
        EmpiricalBayes,
        NaturalGradient,
        MomentMatching,
        Stochastic,
    )
}


def choose_solver(problem: Problem, solver: str | Solver = "auto") -> Solver:
    """Return the first solver that can solve a problem, or the requested one.

    Parameters
    ----------
    problem : Problem
    solver : str or Solver, default="auto"
        "auto", the name of a solver, or a solver.

    Returns
    -------
    Solver

    Raises
    ------
    IncompatibleComponentsError
        The requested solver cannot solve the problem, or none can. The message names
        what is missing, and the solvers that can.

    Examples
    --------
    >>> from skvi.base import Layout
    >>> from skvi.divergences import KLDivergence
    >>> from skvi.objectives import ELBO
    >>> from skvi.posteriors import MeanFieldNormal
    >>> from skvi.solvers import Problem
    >>> from skvi.solvers._choice import choose_solver
    >>> from skvi.targets import Target
    >>> posterior = MeanFieldNormal().build(Layout({"coef": (1, 3)}))
    >>> target = Target()  # a density of which nothing else is known
    >>> choose_solver(Problem(target, ELBO(), KLDivergence(), posterior, None)).name
    'stochastic'
    """
    if isinstance(solver, Solver):
        candidates = [solver]
    else:
        candidates = [SOLVERS[n]() for n in (SOLVERS if solver == "auto" else [solver])]
    reasons = []
    for candidate in candidates:
        missing = candidate.missing(problem)
        if not missing:
            return candidate
        reasons.append(f"{candidate.name}: {missing}" if candidates[1:] else missing)
    able = [s.name for s in SOLVERS.values() if not s.missing(problem)]
    raise IncompatibleComponentsError(
        f"solver={solver!r}",
        f"a problem that it can solve: {'; '.join(reasons)}",
        f"solver='auto' or one of {able}"
        if able
        else "posterior='mean_field', or a family with an exact density",
    )
