"""Solvers return a new state, leave the old one, and show the one that they are at."""

import pytest
import torch

from skvi.divergences import KLDivergence
from skvi.likelihoods import GaussianLikelihood
from skvi.losses import LogLoss, Loss
from skvi.objectives import ELBO, EUBO, RenyiBound
from skvi.posteriors import FullRankNormal
from skvi.posteriors._whitened import Exact
from skvi.predictors import LinearPredictor
from skvi.priors import GammaHyperprior, Normal
from skvi.priors._blocks import build_prior
from skvi.solvers import Problem, SolverOptions
from skvi.solvers._choice import SOLVERS
from skvi.solvers._moment_matching import MomentMatching
from skvi.targets import SupervisedTarget
from skvi.targets._hierarchical import HierarchicalTarget

GAMMA = GammaHyperprior(1.0, 1.0)
MODEL = LinearPredictor(2)


def make_target(noise=0.5, prior=None):
    X = torch.randn(30, 2, generator=torch.Generator().manual_seed(0)).double()
    prior = (prior or Normal()).build(MODEL.layout)
    likelihood = GaussianLikelihood(noise)
    return SupervisedTarget(MODEL, likelihood, LogLoss(), prior, X, X.sum(1) + 1)


def make_hierarchy():
    data, specs = make_target(), {"coef": Normal(GammaHyperprior(1.0, 1.0))}
    prior = build_prior(specs | {"intercept": Normal()}, MODEL.layout)
    rows, likelihood = (data.X - data.X.mean(0), data.y), GaussianLikelihood("learn")
    parts = MODEL, likelihood, LogLoss(), prior
    return HierarchicalTarget(*parts, *rows, noise_hyperprior=GAMMA)


def make_cases():
    """Solver: target, objective, family."""
    learned, full = make_target("learn", Normal("learn")), FullRankNormal()
    return {
        "exact": (make_hierarchy(), ELBO(), Exact()),
        "natural_gradient": (make_target(), ELBO(), full),
        "empirical_bayes": (learned, ELBO(), full),
        "moment_matching": (make_target(), RenyiBound(0.5), full),
        "stochastic": (learned, ELBO("reparam"), full),
    }


def make_problem(target, objective, family):
    generator = torch.Generator().manual_seed(0)
    return Problem(
        target, objective, KLDivergence(), family.build(target.layout), generator
    )


def test_every_solver_is_there():
    assert make_cases().keys() == SOLVERS.keys()


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_problem_is_not_changed(solver):
    """Wrong variant: `near` moves the posterior that it is asked of."""
    problem = make_problem(*make_cases()[solver])
    assert not SOLVERS[solver].missing(problem)
    held = problem.posterior.params, problem.target.hyper
    before = [tensor.clone() for tensor in held]
    seen = []

    def progress(value, state):
        seen.append(state())
        return False

    options = SolverOptions(max_iter=3, progress=progress)
    solution = SOLVERS[solver]().solve(problem, options)
    assert problem.posterior.params is held[0]
    assert problem.target.hyper is held[1]
    assert all(torch.equal(a, b) for a, b in zip(held, before, strict=True))
    is_same = torch.equal(solution.posterior.params, before[0])
    assert is_same is (solver == "exact")  # which has no parameters
    assert torch.equal(solution.target.hyper, before[1]) != bool(problem.target.learned)
    # A later iteration does not write into the state of an earlier one.
    places = {state.posterior.params.data_ptr() for state in seen}
    assert len(places) == len(seen) > 0


@pytest.mark.parametrize("solver", ["natural_gradient", "empirical_bayes"])
def test_callbacks_see_the_state_of_the_value(solver):
    """What is reported is the objective at what is shown.

    Wrong variant: the state from which the run began.
    """
    problem, pairs = make_problem(*make_cases()[solver]), []

    def progress(value, state):
        pairs.append((value, state()))
        return False

    SOLVERS[solver]().solve(problem, SolverOptions(max_iter=3, progress=progress))
    assert pairs
    for value, state in pairs:
        at = problem.at(state)
        parts = at.target, at.posterior, at.divergence, None, 1, problem.generator
        assert float(at.objective.surrogate(*parts)[1]) == pytest.approx(value)


class LogCosh(Loss):
    """A loss whose expectations need automatic differentiation."""

    def __call__(self, likelihood, f, y):
        return torch.log(torch.cosh(f[..., 0] - y))


@pytest.mark.parametrize("loss", [LogLoss(), LogCosh()])
def test_natural_gradients_leave_tensors_for_graphs(loss):
    """Callbacks and solutions hold no tensors of inference mode, and it has an end.

    Wrong variants: the posterior is moved, or callbacks are called, inside the mode;
    derivatives of losses are taken inside it.
    """
    target = make_target()
    target.loss = loss
    modes = []

    def progress(value, state):
        modes.append(torch.is_inference_mode_enabled())
        modes.append(state().posterior.params.is_inference())
        return False

    problem = make_problem(target, ELBO(), FullRankNormal())
    solver = SOLVERS["natural_gradient"]()
    found = solver.solve(problem, SolverOptions(progress=progress))
    assert found.converged
    assert bool(((found.posterior.as_normal().mean - 1).abs() < 0.3).all())
    assert modes
    assert not any(modes)
    params = found.posterior.params.requires_grad_()
    found.target.expected_loss(found.posterior.normal(params)).backward()
    assert bool(torch.isfinite(params.grad).all())


def test_draws_need_a_source():
    target = make_target()
    posterior = FullRankNormal().build(target.layout)
    problem = Problem(target, EUBO(), KLDivergence(), posterior, None)
    with pytest.raises(ValueError, match="give Problem a generator"):
        MomentMatching().solve(problem, SolverOptions(max_iter=1))
