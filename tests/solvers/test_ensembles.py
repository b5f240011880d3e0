"""Training of ensembles: each member gets what it would get alone."""

from dataclasses import replace

import pytest
import torch

from skvi.likelihoods import GaussianLikelihood
from skvi.neural_network import BayesianMLPRegressor
from skvi.objectives._analytic import AnalyticSteps
from skvi.posteriors import Ensemble, MeanFieldNormal
from skvi.solvers import Problem
from skvi.utils._tensors import spawn
from tests.neural_network.test_truth import NOISE, closed_form, make_data
from tests.solvers.test_members import (
    OPTIONS,
    SOLVER,
    assert_same,
    make_problem,
    solve,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::skvi.exceptions.SkviWarning",
)


def ensemble_problem(base, n_members=3, seed=0, **parts):
    """A problem whose members start apart, and the problems of the members."""
    problem = make_problem(seed, family=Ensemble(base, n_members), **parts)
    starts = torch.Generator().manual_seed(100)
    components = [
        c.at(c.params + 0.1 * torch.randn(len(c.params), generator=starts).double())
        for c in problem.posterior.components
    ]
    posterior = problem.posterior.with_components(components)

    def make():
        generator = torch.Generator().manual_seed(seed)
        return Problem(
            problem.target, problem.objective, problem.divergence, posterior, generator
        )

    sources = spawn(torch.Generator().manual_seed(seed), n_members)
    alone = [
        Problem(problem.target, problem.objective, problem.divergence, c, source)
        for c, source in zip(components, sources, strict=True)
    ]
    return make(), alone


def test_one_scale_of_the_noise_in_one_stack(monkeypatch):
    """Members of a learned noise: one target; and ensembles of a search in one stack.

    Wrong variant: a stack for each ensemble.
    """
    counts = []
    original = AnalyticSteps.__init__

    def count(self, members, *args, **kwargs):
        counts.append(len(members))
        original(self, members, *args, **kwargs)

    monkeypatch.setattr(AnalyticSteps, "__init__", count)
    lengths = [2, 4]

    def make():
        return [ensemble_problem(MeanFieldNormal(), 3, seed)[0] for seed in (0, 1)]

    options = [replace(OPTIONS, max_iter=n) for n in lengths]
    together = solve(make(), options)
    assert counts[0] == 6
    assert counts[-1] == 3  # who is done leaves with all components
    for problem, option, found in zip(make(), options, together, strict=True):
        assert len(found.target.hyper) == 1
        assert_same(found, SOLVER.solve(problem, option))


SMALL = {"hidden_layer_sizes": (5,), "max_iter": 20, "random_state": 0}
SMALL |= {"activation": "relu", "divergence": "kl"}  # the fewest iterations


@pytest.mark.slow
def test_the_evidence_of_an_ensemble():
    """Without hidden layers the evidence is known."""
    X, y = make_data()
    model = BayesianMLPRegressor(
        posterior=Ensemble(n_members=2),
        divergence="kl",
        likelihood=GaussianLikelihood(NOISE),
        hidden_layer_sizes=(),
        max_iter=60,
        random_state=0,
    ).fit(X, y)
    evidence = closed_form(X, y, NOISE)[2]
    assert model.lower_bound_ < evidence + 4 * model.lower_bound_se_
    bounds = model.evidence_bounds(X, y, random_state=0)
    low, high = bounds.interval()
    assert low < evidence < high
    assert high - low < 0.2
