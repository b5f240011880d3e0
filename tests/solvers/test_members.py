"""Members of a stochastic fit: each gets what it would get alone."""

import math
from dataclasses import replace

import pytest
import torch
from sklearn.base import clone

from skvi.divergences import KLDivergence
from skvi.likelihoods import GaussianLikelihood
from skvi.likelihoods._categorical import CategoricalLikelihood
from skvi.losses import LogLoss
from skvi.objectives import ELBO, EUBO
from skvi.objectives._analytic import AnalyticSteps
from skvi.objectives._steps import SurrogateSteps
from skvi.posteriors import FullRankNormal, MeanFieldNormal
from skvi.predictors import MLPPredictor
from skvi.priors import Normal
from skvi.priors._blocks import build_prior
from skvi.solvers import Problem, SolverOptions, Stochastic
from skvi.solvers._solution import Ending
from skvi.solvers._stochastic._optimizers import Adam, AdamStack
from skvi.solvers._stochastic._solver import solve_members
from skvi.targets import SupervisedTarget

SOLVER = Stochastic(batch_size=20, learning_rate=0.02, n_draws=4)
OPTIONS = SolverOptions(max_iter=30, early_stopping=False)
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


STACKS = {
    # Rows of folds, whose batches are not of one size: the first has the smallest.
    "folds": [{"n": 61}, {"n": 60}, {"n": 59}],
    # Epochs and sweeps that end at other steps.
    "sizes": [{"n": 60}, {"n": 170}, {"n": 40}],
    "weights": [{"divergence": KLDivergence(w)} for w in (0.1, 1.0, 3.0)],
    "priors": [{"prior": Normal(s)} for s in (0.3, 1.0)],
    "classes": [{"likelihood": CategoricalLikelihood(3)}] * 2,
    "learned": [{"prior": Normal("learn")}, {"prior": Normal("learn")}],
    # Not of one structure: side by side all the same.
    "mixed": [{}, {"hidden": (3,)}, {"family": FullRankNormal()}, {}],
}


@pytest.mark.parametrize("name", STACKS)
def test_members_get_what_they_get_alone(name):
    """Wrong variants: one generator for the noise of all; all that are left end with
    the first; scales of the first member for all."""
    parts = STACKS[name]
    options = [replace(OPTIONS, max_iter=6)] * len(parts)

    def make():
        return [make_problem(seed, **part) for seed, part in enumerate(parts)]

    together = solve(make(), options)
    for problem, option, found in zip(make(), options, together, strict=True):
        assert_same(found, SOLVER.solve(problem, option))


def test_options_of_their_own():
    """Step sizes, lengths and schedules; who is done leaves the stack.

    Wrong variants: the step size of the first; noise that starts anew when a member
    leaves.
    """
    options = [
        replace(OPTIONS, max_iter=3),
        replace(OPTIONS, max_iter=45),
        replace(OPTIONS, early_stopping=True, tol=1e9, n_iter_no_change=1),
        replace(OPTIONS, max_iter=45, warm_up=0.6),
    ]
    solvers = [SOLVER, with_rate(0.1), SOLVER, with_rate(0.005)]
    together = solve([make_problem(seed) for seed in range(4)], options, solvers)
    assert len({found.n_iter for found in together}) > 2
    for seed, (option, found) in enumerate(zip(options, together, strict=True)):
        assert_same(found, solvers[seed].solve(make_problem(seed), option))


def test_warm_ups_end(monkeypatch):
    """A hundredth of the divergence, rising, for a share of the iterations of each.

    Wrong variants: shares by the block of steps, not by the stretch; a member that
    leaves takes the shares of the others with it.
    """
    seen, original = [], AnalyticSteps.differentiate

    def differentiate(self, step):
        seen.append(
            tuple(self.divergence.shares[0][:, 0] / self.divergence.precision[:, 0])
        )
        original(self, step)

    monkeypatch.setattr(AnalyticSteps, "differentiate", differentiate)
    # Stretches of 34 epochs of 3 steps.
    options = [
        replace(OPTIONS, max_iter=340, warm_up=0.3),
        replace(OPTIONS, max_iter=68, warm_up=0.5, long_steps=True),
        replace(OPTIONS, max_iter=34, warm_up=0.5),
        replace(OPTIONS, max_iter=34, warm_up=0.5, early_stopping=True),
    ]
    solve([make_problem(seed) for seed in range(4)], options)
    found = torch.tensor([row[0] for row in seen]).double()
    assert len(found) == 1020
    expected = torch.ones(1020).double()
    expected[:204], expected[204:306] = 0.01, 0.01 ** (2 / 3)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(
        torch.stack(seen[0]).double(), torch.tensor([0.01, 0.03, 1.0, 1.0]).double()
    )
    assert len(seen[150]) == 2
    assert float(seen[150][1]) == 1.0


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


def test_paces_multiply_steps():
    """Steps of Adam do not depend on the parameters: each is one of Adam, multiplied.

    Wrong variants: paces of the first member for all; steps that add up.
    """
    gradients = torch.randn(6, 2, 4, generator=torch.Generator().manual_seed(0))
    pace = torch.tensor([[1.0, 0.1, 2.0, 1.0], [0.5, 1.0, 1.0, 0.2]])
    for rates in ((0.1, 0.1), (0.1, 0.02)):  # one operation, or one for each member
        paths = []
        for paces_of in ((None, None), pace, (None, pace[1])):
            params, gradient = torch.zeros(2, 4), torch.zeros(2, 4)
            triples = zip(params, rates, paces_of, strict=True)
            adams = [Adam(row, rate, own) for row, rate, own in triples]
            stack, path = AdamStack(adams, params, gradient), []
            updates = stack.updates(len(gradients))
            for given in gradients:
                gradient.copy_(given)
                for update in updates:
                    update()
                path.append(params.clone())
            paths.append(torch.stack(path))
        torch.testing.assert_close(paths[1], pace * paths[0])
        # A member without paces in a stack of another one that has some.
        mixed = torch.stack([torch.ones(4), pace[1]])
        torch.testing.assert_close(paths[2], mixed * paths[0])


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
        assert steps.weighs_divergence
        steps.weigh_divergence([share])
        steps.prepare([[None]])
        steps.differentiate(0)
        found.append((steps.gradient.clone(), float(steps.values(None, None))))
    torch.testing.assert_close(found[0][0], found[1][0])
    assert not torch.allclose(found[0][0], found[2][0], rtol=1e-3)
    assert found[0][1] == found[2][1]


def test_stacks_are_used(monkeypatch):
    """Wrong variant: the members one after the other."""
    counts = []
    original = AnalyticSteps.__init__

    def count(self, members, *args, **kwargs):
        counts.append(len(members))
        original(self, members, *args, **kwargs)

    monkeypatch.setattr(AnalyticSteps, "__init__", count)
    problems = [make_problem(seed) for seed in range(3)]
    solve(problems, [replace(OPTIONS, max_iter=2)] * 3)
    assert counts == [3]


def test_problems_are_not_changed():
    """Wrong variant: the posterior is trained in place."""
    problem = make_problem(0)
    before = problem.posterior.params.clone(), problem.target.hyper.clone()
    found = SOLVER.solve(problem, OPTIONS)
    assert torch.equal(problem.posterior.params, before[0])
    assert torch.equal(problem.target.hyper, before[1])
    assert not torch.equal(found.posterior.params, before[0])


@pytest.mark.parametrize("objective", [ELBO(), ELBO("reparam"), EUBO()], ids=repr)
def test_a_callback_ends_its_own_member_only(objective):
    """At the epoch where it says so, with the state of that epoch.

    Wrong variant: the state at the end of the steps that were made at once.
    """
    states = []

    def stop(value, state):
        states.append(state())
        return len(states) == 4

    size = "auto" if objective.kind == "weights" else 20
    solver = clone(SOLVER).set_params(batch_size=size)
    options = replace(OPTIONS, max_iter=8, steps_per_iter=3)
    problems = [make_problem(seed, objective=objective) for seed in range(2)]
    both = [replace(options, progress=stop), options]
    found = solve(problems, both, [solver, solver])
    assert found[0].ending is Ending.STOPPED
    assert found[0].n_iter == len(states) == 4
    assert torch.equal(found[0].posterior.params, states[-1].posterior.params)
    problem = make_problem(0, objective=objective)
    shorter = solver.solve(problem, replace(options, max_iter=4))
    torch.testing.assert_close(found[0].posterior.params, shorter.posterior.params)
    assert found[1].n_iter == 8
    problem = make_problem(1, objective=objective)
    assert_same(found[1], solver.solve(problem, options))


def test_a_member_that_goes_non_finite_leaves_the_others_alone():
    """Wrong variants: its last state is returned; all members end."""
    options = [OPTIONS, replace(OPTIONS, max_iter=12)]
    problems, solvers = [make_problem(0), make_problem(1)], [with_rate(1e200), SOLVER]
    found = solve(problems, options, solvers)
    assert "went non-finite" in found[0].message
    assert not found[0].converged
    assert torch.isfinite(found[0].posterior.params).all()
    assert_same(found[1], SOLVER.solve(make_problem(1), options[1]))


def test_ctrl_c_keeps_what_every_member_has(monkeypatch):
    """One is done, the others are interrupted. Wrong variant: nothing is returned."""
    original, calls = AnalyticSteps.differentiate, []

    def differentiate(self, step):
        calls.append(len(self.members))
        if len(calls) == 210:
            raise KeyboardInterrupt
        original(self, step)

    monkeypatch.setattr(AnalyticSteps, "differentiate", differentiate)
    options = [replace(OPTIONS, max_iter=5), OPTIONS, replace(OPTIONS, max_iter=80)]
    found = solve(
        [make_problem(seed) for seed in range(3)],
        [replace(option, max_iter=10 * option.max_iter) for option in options],
    )
    assert calls[0] == 3
    assert calls[209] == 2
    assert not found[0].interrupted
    assert all(solution.interrupted for solution in found[1:])
    assert all(math.isfinite(solution.value) for solution in found)


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
