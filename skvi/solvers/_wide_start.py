"""A second start for priors that are not log-concave: where the likelihood is large."""

import math
from copy import copy
from dataclasses import replace
from typing import Any

import torch

from skvi.base import NormalForm
from skvi.solvers._alternating import Alternating
from skvi.solvers._empirical_bayes import EmpiricalBayes
from skvi.solvers._mode import DENSE_LIMIT, factorise, find_mode
from skvi.solvers._natural_gradient import NaturalGradient
from skvi.solvers._quasi_newton_solver import QuasiNewton
from skvi.solvers.base import (
    PhaseInterrupted,
    Problem,
    SolverOptions,
    no_progress,
)

__all__ = ["choose_start", "likelihood_normal"]

# The wide prior knows as much as this fraction of one row of the data.
WIDE = 0.01
# Solvers that start at their posterior's own state where they are asked to.
CONTINUING = tuple(
    s.name for s in (NaturalGradient, QuasiNewton, EmpiricalBayes, Alternating)
)
# Nats from their optima at which two starts are compared.
ROUGH_TOL = 0.01


def likelihood_normal(
    target: Any, is_diagonal: bool = False, only_hidden: bool = True
) -> NormalForm | None:
    """Normal around the mode under a prior so wide that the likelihood decides.

    Parameters
    ----------
    target : Target
        With losses of a predictor that is linear in theta, and a prior with a
        `BuiltPrior.matching_normal`.
    is_diagonal : bool, default=False
        Whether the normal is to be factorised, with the conditional variances; it
        always is above 1500 parameters.
    only_hidden : bool, default=True
        Whether to return None where the prior is at least as wide as this normal in
        every parameter, so that it hides nothing.

    Returns
    -------
    NormalForm or None
        Over all P parameters. None also where the prior is log-concave, so that there
        is nothing to find, or where the target is not of this kind.

    Examples
    --------
    >>> import torch
    >>> from skvi.likelihoods import GaussianLikelihood
    >>> from skvi.losses import LogLoss
    >>> from skvi.predictors import LinearPredictor
    >>> from skvi.priors import StudentT
    >>> from skvi.solvers import likelihood_normal
    >>> from skvi.targets import SupervisedTarget
    >>> model, X = LinearPredictor(1, fit_intercept=False), torch.ones(9, 1).double()
    >>> prior, y = StudentT(scale=1e-3).build(model.layout), 5 * torch.ones(9)
    >>> target = SupervisedTarget(model, GaussianLikelihood(), LogLoss(), prior, X, y)
    >>> round(float(likelihood_normal(target).mean), 2)
    5.0
    """
    if not target.has_design or target.prior.is_log_concave:
        return None
    prior = target.prior
    around = prior.matching_normal()
    if around is None:
        return None
    _, slope, curvature = target.loss_terms(around.mean)
    if curvature.ndim == 1:
        # A likelihood with heavy tails bends the wrong way there.
        curvature = torch.where(curvature > 0, curvature, slope.square())
    gram = target.predictor.gram_diagonal(target.X, curvature)
    precision = WIDE * gram / target.n_rows
    # Never narrower than the prior itself, which also decides on columns of zeros.
    precision = torch.minimum(precision, 1 / around.variance)
    precision = torch.where(precision > 0, precision, 1 / around.variance)
    wide = NormalForm(around.mean, precision.rsqrt())
    mode, curvature = find_mode(target, wide)
    if is_diagonal or target.layout.size > DENSE_LIMIT:
        total = target.predictor.gram_diagonal(target.X, curvature) + precision
        normal = NormalForm(mode, total.rsqrt())
    else:
        gram = target.predictor.gram(target.X, curvature)
        covariance = torch.cholesky_inverse(factorise(gram + torch.diag(precision)))
        normal = NormalForm(mode, factorise(covariance))
    is_hidden = bool((around.variance < normal.variance).any())
    return normal if is_hidden or not only_hidden else None


@torch.no_grad()
def choose_start(
    solver: Any, problem: Problem, options: SolverOptions, warm: bool = False
) -> bool:
    """Move a posterior near the better one of two optima, if there may be two.

    One is found from where the solver starts by itself, the other one from where the
    likelihood is large (`likelihood_normal`): a prior with a spike at 0 and heavy tails
    can hold a fit in its spike.

    Parameters
    ----------
    solver : Solver
    problem : Problem
        Its posterior, and hyperparameters of its target, are changed in place.
    options : SolverOptions
        Of the fit that follows, which starts at the posterior's own state if this
        returns True.
    warm : bool, default=False
        Whether that state is already where the solver is to start.

    Returns
    -------
    bool
        Whether the solver is to start at the posterior's own state.

    Raises
    ------
    KeyboardInterrupt
        On Ctrl-C; a `PhaseInterrupted` where the posterior is usable.

    Examples
    --------
    >>> import torch
    >>> from skvi.divergences import KL
    >>> from skvi.likelihoods import GaussianLikelihood
    >>> from skvi.losses import LogLoss
    >>> from skvi.objectives import ELBO
    >>> from skvi.posteriors import FullRankNormal
    >>> from skvi.predictors import LinearPredictor
    >>> from skvi.priors import StudentT
    >>> from skvi.solvers import NaturalGradient, Problem, SolverOptions, choose_start
    >>> from skvi.targets import SupervisedTarget
    >>> model, X = LinearPredictor(1, fit_intercept=False), torch.ones(9, 1).double()
    >>> prior, y = StudentT(scale=1e-3).build(model.layout), 5 * torch.ones(9)
    >>> target = SupervisedTarget(model, GaussianLikelihood(), LogLoss(), prior, X, y)
    >>> posterior = FullRankNormal().build(model.layout)
    >>> problem = Problem(target, ELBO(), KL(), posterior, None)
    >>> choose_start(NaturalGradient(), problem, SolverOptions())
    True
    >>> bool(posterior.as_normal().mean > 4)  # a cold fit ends at 0.001
    True
    """
    posterior, target = problem.posterior, problem.target
    if solver.name not in CONTINUING:
        return warm
    normal = likelihood_normal(target, posterior.is_diagonal)
    if normal is None:
        return warm
    rough = replace(options, tol=max(options.tol, ROUGH_TOL), progress=no_progress)
    second = copy(posterior)
    second.set_normal(normal)
    trials: list[tuple[float, Problem]] = []
    interrupted = False
    for start, is_warm in ((posterior, warm), (second, True)):
        trial = replace(problem, target=copy(target), posterior=copy(start))
        try:
            found = solver.solve(trial, replace(rough, warm_start=is_warm))
        except KeyboardInterrupt:
            if not trials:
                raise
            interrupted = True
            break
        except (ValueError, torch.linalg.LinAlgError):
            if not trials:
                raise
            break  # the second start is an offer, not a need
        trials.append((found.value, trial))
        interrupted = found.interrupted
        if interrupted:
            break
    _, best = min(trials, key=_finite_value)
    posterior.params = best.posterior.params
    target.hyper = best.target.hyper
    if interrupted:
        raise PhaseInterrupted
    return True


def _finite_value(trial: tuple[float, Problem]) -> float:
    value = trial[0]
    return value if math.isfinite(value) else math.inf
