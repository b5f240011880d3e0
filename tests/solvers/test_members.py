"""Members of a stochastic fit: each gets what it would get alone."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.base import clone

from skvi.divergences import KLDivergence
from skvi.likelihoods import GaussianLikelihood
from skvi.losses import LogLoss
from skvi.objectives import ELBO
from skvi.objectives._steps import SurrogateSteps
from skvi.posteriors import MeanFieldNormal
from skvi.predictors import MLPPredictor
from skvi.priors import Normal
from skvi.priors._blocks import build_prior
from skvi.solvers import Problem, SolverOptions, Stochastic
from skvi.solvers._stochastic._optimizers import Adam, AdamStack
from skvi.solvers._stochastic._solver import solve_members
from skvi.targets import SupervisedTarget
from tests.processes import all_fits

SOLVER = Stochastic(batch_size=20, learning_rate=0.02, n_draws=4)
OPTIONS = SolverOptions(max_iter=30)
LONG = replace(OPTIONS, long_steps=True)


def make_problem(seed, n=60, dtype=torch.float64, hidden=(5,), **parts):
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    y = torch.sin(2 * X[:, 0]) + 0.3 * X[:, 1]
    likelihood = parts.get("likelihood", GaussianLikelihood("learn"))
    if likelihood.is_discrete:
        y = (y > 0).double() + (y > 0.5).double()
    predictor = MLPPredictor(2, likelihood.n_outputs, hidden)
    prior = build_prior(parts.get("prior", Normal()), predictor.layout)
    target = SupervisedTarget(predictor, likelihood, LogLoss(), prior, X.to(dtype), y)
    posterior = parts.get("family", MeanFieldNormal()).build(predictor.layout)
    posterior = posterior.near(predictor.initial_normal(generator))
    posterior = posterior.at(posterior.params.to(dtype))
    divergence = parts.get("divergence", KLDivergence())
    objective = parts.get("objective", ELBO())
    return Problem(target, objective, divergence, posterior, generator)


def solve(problems, options, solvers=None):
    solvers = solvers or [SOLVER] * len(problems)
    return solve_members(list(zip(solvers, problems, options, strict=True)))


def with_rate(rate):
    return clone(SOLVER).set_params(learning_rate=rate)


def assert_same(found, alone, rtol=1e-7):
    assert found.n_iter == alone.n_iter
    assert found.ending == alone.ending
    assert found.message == alone.message
    pairs = [
        (found.posterior.params, alone.posterior.params),
        (found.target.hyper, alone.target.hyper),
        (torch.tensor(found.history), torch.tensor(alone.history)),
    ]
    for own, expected in pairs:
        torch.testing.assert_close(own, expected, rtol=rtol, atol=rtol)
    assert found.value == pytest.approx(alone.value, rel=1e-6)


@pytest.mark.parametrize("batch_size", [20, 200])
def test_local_draws_are_those_of_a_member_alone(batch_size):
    """With fewer rows than others, which finish first.

    Wrong variants: noise of as many rows as the largest batch has; of all that began.
    """
    solver = clone(SOLVER).set_params(batch_size=batch_size)
    options = [replace(OPTIONS, max_iter=5), OPTIONS]

    def make():
        parts = {"hidden": (3,), "objective": ELBO("local")}
        return [make_problem(0, n=65, **parts), make_problem(1, n=45, **parts)]

    together = solve(make(), options, [solver] * 2)
    for found, problem, option in zip(together, make(), options, strict=True):
        assert_same(found, solver.solve(problem, option))


def test_step_sizes_follow_from_the_width():
    """Half of one over the largest number of inputs, at most 0.05.

    Wrong variants: one for all; the root of it.
    """
    for hidden, rate in (((5,), 0.05), ((20,), 0.025), ((50, 100), 0.005)):
        training = Stochastic()._train(make_problem(0, hidden=hidden), OPTIONS)
        assert training.optimizer.rate == pytest.approx(rate)


def test_steps_of_means_follow_from_the_width():
    """Two over the number of inputs, at most 0.1; 0.05 for all that has no width.

    Over the size of features beyond 1. Wrong variants: the root of the width; features
    of any size; deviations and learned scales as slow as means.
    """
    problem = make_problem(0, hidden=(5, 50), prior=Normal("learn"))
    features = float(problem.target.X.square().mean(0).max().sqrt())
    assert features > 1.05
    adam = Stochastic()._train(problem, LONG).optimizer
    steps, size = adam.rate * adam.pace, problem.target.layout.size
    blocks = problem.target.layout.unpack(steps[None, :size])
    # Gains of two before relu: 2, 5, and 50 inputs without one.
    expected = {"coef_0": 0.1, "coef_1": 0.1, "coef_2": 0.04, "intercept_1": 0.1}
    for name, of_width in expected.items():
        step = of_width / features
        torch.testing.assert_close(blocks[name], torch.full_like(blocks[name], step))
    rest = steps[size:]
    assert len(rest) == size + 2  # deviations, the noise and a scale
    torch.testing.assert_close(rest, torch.full_like(rest, 0.05))
    wide = make_problem(0, hidden=(100, 100))
    layout, adam = wide.target.layout, Stochastic()._train(wide, LONG).optimizer
    hidden = layout.unpack(adam.rate * adam.pace[None, : layout.size])["coef_1"]
    torch.testing.assert_close(hidden, torch.full_like(hidden, 0.04 / features))


def test_a_given_step_is_that_of_all_parameters():
    """Wrong variant: paces whatever is given."""
    adam = with_rate(0.02)._train(make_problem(0, hidden=(50,)), LONG).optimizer
    assert adam.pace is None


def test_automatic_gradients_weigh_the_divergence():
    """Those of a fraction are those of KL with that weight; values are the whole.

    Wrong variants: the fraction is left out; it is what is subtracted.
    """
    problem, weak = (
        make_problem(0),
        make_problem(0, divergence=KLDivergence(weight=0.3)),
    )
    found = []
    for one, share in ((problem, 0.3), (weak, 1.0), (problem, 1.0)):
        generator = torch.Generator().manual_seed(1)
        steps = SurrogateSteps(
            ELBO(),
            [replace(one, generator=generator)],
            one.params[None].clone(),
            3,
        )
        assert steps.weigh_divergence([share])
        steps.prepare([[None]])
        steps.differentiate(0)
        found.append((steps.gradient.clone(), float(steps.values(None, None))))
    torch.testing.assert_close(found[0][0], found[1][0])
    assert not torch.allclose(found[0][0], found[2][0], rtol=1e-3)
    assert found[0][1] == found[2][1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_fused_adam_is_adam(dtype):
    """Kingma and Ba's algorithm 1, written again, with shortened gradients.

    Wrong variants: the moments are not corrected; epsilon inside of the root; a step
    size that is not read again; long gradients as they are; or shortened to what is
    usual for the first steps, whose mean square starts at 0.
    """
    generator = torch.Generator().manual_seed(0)
    params = torch.randn(7, generator=generator).to(dtype)
    expected, m, v = params.double().clone(), 0.0, torch.zeros(7).double()
    lengths = []
    adam = Adam(params, 0.1)
    for t in range(1, 30):
        gradient = torch.randn(7, generator=generator).to(dtype) * 10.0 ** (t % 7 - 8)
        adam.rate = 0.1 / t
        g = gradient.double()
        for update in AdamStack([adam], params[None], gradient[None]).updates(1):
            update()
        if t > 1:
            usual = (v.sum() / (1 - 0.999 ** (t - 1))).sqrt()
            lengths.append(float(g.norm() / usual))
            g = g * min(1.0, 5.0 / lengths[-1])
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        root = (v / (1 - 0.999**t)).sqrt()
        expected -= adam.rate * m / (1 - 0.9**t) / (root + 1e-8)
    assert 1 < sum(length > 5 for length in lengths) < len(lengths) / 2
    rtol = 1e-12 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(params.double(), expected, rtol=rtol, atol=rtol)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::skvi.exceptions.SkviWarning")
def test_processes_share_rows(tmp_path):
    """Two processes find what one does, to the rounding of Adam in single precision.

    Wrong variants: noise of its own for each process; shares of 51 and 50 rows with
    weights of their own numbers; gradients that are summed.
    """
    file, root = tmp_path / "found.npy", Path(__file__).parents[2]
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    run += ["--nproc-per-node=2", "-m", "tests.processes", str(file)]
    subprocess.run(run, check=True, cwd=root, capture_output=True)
    np.testing.assert_allclose(np.load(file), all_fits(), atol=2e-4)
    with pytest.raises(RuntimeError, match="no process group"):
        all_fits(is_distributed=True)
