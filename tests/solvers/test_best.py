"""The best state that a training has passed through."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from skvi.neural_network import BayesianMLPRegressor
from skvi.priors import Normal
from skvi.solvers import SolverOptions, Stochastic
from skvi.solvers._stochastic._ends import FAR, divergence_at
from skvi.targets import SupervisedTarget
from tests.solvers.test_members import make_problem

RATE = 0.05


def make_training(**options):
    """A training whose steps are made by hand: an iteration is a sweep."""
    options = {"early_stopping": False, "steps_per_iter": 100, **options}
    solver = Stochastic(learning_rate=RATE)
    return solver._train(make_problem(0), SolverOptions(**options))


def sweep(training, values, state):
    """A sweep with these values, or with these mean values, that ends at a state."""
    values = torch.as_tensor(values, dtype=torch.float64)
    noise = torch.linspace(-1, 1, 100, dtype=torch.float64)
    training.params.copy_(state)
    training.optimizer.first.fill_(float(values.mean()))
    training.record(values + noise, state.expand(101, -1).clone(), True)


def at(training, number):
    return torch.full_like(training.params, number)


def test_a_lost_training_goes_back_to_its_best_state():
    """With half the step size, and the moments of then.

    Wrong variants: it goes on from where it is; with the step size that it had; with
    the moments of the lost sweep; every rise is one too many.
    """
    training = make_training()
    for level, number in ((90.0, 0.3), (50.0, 0.2), (53.0, 0.4)):
        sweep(training, level, at(training, number))
    assert training.optimizer.rate == RATE
    far = 50.0 + 2 * FAR * training.n_terms + 10
    sweep(training, far, at(training, 9.0))
    torch.testing.assert_close(training.params, at(training, 0.2))
    assert training.optimizer.rate == RATE / 2
    assert float(training.optimizer.first[0]) == 50.0
    assert training.history[-1] == pytest.approx(far)
    torch.testing.assert_close(training._best.end.state, at(training, 0.2))
    sweep(training, 49.0, at(training, 0.1))
    torch.testing.assert_close(training.kept, at(training, 0.1))


def test_a_start_is_not_lost():
    """Wrong variant: the first sweep is the best, wherever it leads."""
    training = make_training()
    start = training.params.clone()
    values = torch.full((100,), 1e4)
    values[:5] = 20.0
    sweep(training, values, at(training, 9.0))
    torch.testing.assert_close(training.params, start)
    training.settle(20)
    torch.testing.assert_close(training.kept, start)


@pytest.mark.parametrize("is_better", [False, True])
def test_the_better_state_is_the_result_whatever_averages_say(is_better):
    """Sweeps are noisy: both states are judged on the same draws.

    Wrong variants: the last state; the one with the lower average.
    """
    training = make_training()
    states = at(training, 0.2), at(training, 0.4)
    values = training._compared(states, 20)
    assert values[0] < values[1] - 10
    if not is_better:
        states = states[::-1]
    sweep(training, 90.0, at(training, 0.3))
    sweep(training, 50.0, states[0])
    sweep(training, 58.0, states[1])
    training.settle(20)
    torch.testing.assert_close(training.kept, at(training, 0.2))


def test_a_first_sweep_that_goes_non_finite_is_not_the_result():
    """But the start, if that is better. Wrong variant: the last finite epoch."""
    training = make_training(steps_per_iter=10)
    start = training.params.clone()
    values = torch.full((20,), 1e6, dtype=torch.float64)
    values[:5], values[12] = 20.0, torch.inf
    training.record(values, at(training, 9.0).expand(21, -1).clone(), False)
    assert "non-finite" in training.message
    torch.testing.assert_close(training.kept, at(training, 9.0))
    training.settle(20)
    torch.testing.assert_close(training.kept, start)


def test_averages_without_noise_are_not_judged(monkeypatch):
    """Up to five nats apart the last state is the result. Wrong variant: always."""
    training = make_training()
    for level, number in ((90.0, 0.3), (50.0, 0.2), (54.0, 0.4)):
        sweep(training, level, at(training, number))
    monkeypatch.setattr(training, "_compared", None)
    training.settle(20)
    torch.testing.assert_close(training.kept, at(training, 0.4))
    value, _ = training._value()
    assert value == pytest.approx(54.0)


def test_the_value_is_that_of_the_end_of_a_fall():
    """Where the last state is the result. Wrong variant: the mean of the sweep."""
    training = make_training()
    falling = torch.full((100,), 20.0, dtype=torch.float64)
    falling[:40] = torch.linspace(1e4, 20.0, 40, dtype=torch.float64)
    sweep(training, falling, at(training, 0.2))
    value, error = training._value()
    assert value == pytest.approx(20.0, abs=1.0)
    assert error < 0.5


def test_a_weight_counts_as_so_many_rows():
    """Wrong variant: rows for their weights, so that heavy ones are soon lost."""
    problem = make_problem(0)
    target = problem.target
    parts = target.predictor, target.likelihood, target.loss, target.prior
    weight = torch.full_like(target.y, 3.0)
    weighted = SupervisedTarget(*parts, target.X, target.y, weight)
    twice = [
        tensor.repeat(3, *[1] * (tensor.ndim - 1)) for tensor in (target.X, target.y)
    ]
    repeated = SupervisedTarget(*parts, *twice)
    found = [
        Stochastic()._train(replace(problem, target=other), SolverOptions()).n_terms
        for other in (weighted, repeated)
    ]
    assert found[0] == found[1] > 2 * make_training().n_terms


def test_a_single_huge_value_is_no_reason_to_go_back():
    """Wrong variant: means for medians."""
    training = make_training()
    for level in (90.0, 50.0):
        sweep(training, level, at(training, 0.2))
    values = torch.full((100,), 50.0)
    values[50] = 1e9
    sweep(training, values, at(training, 0.4))
    assert training.optimizer.rate == RATE
    torch.testing.assert_close(training.params, at(training, 0.4))


def test_the_warm_up_is_judged_by_what_it_minimizes():
    """A loss that falls, at the expense of the divergence. Wrong variant: the whole
    objective, which rises."""
    training = make_training(warm_up=0.5)
    assert training.schedule.share == pytest.approx(0.01)
    near, far = at(training, 0.1), at(training, 2.0)
    levels = [float(divergence_at(training._at(state))) for state in (near, far)]
    rise = levels[1] - levels[0]
    assert rise > 10 * (FAR * training.n_terms + 5)
    for level in (1e6, 50.0):
        sweep(training, level, near)
    rate = training.optimizer.rate
    sweep(training, 50.0 + 0.8 * rise, far)
    torch.testing.assert_close(training.params, far)
    assert training.optimizer.rate == rate


def test_a_divergence_that_falls_within_a_sweep_is_no_reason_to_go_back():
    """Most of its steps have a larger rest than its end. Wrong variant: the rest of
    the end for all of them, so that long fits of wide networks start over for ever."""
    training = make_training(warm_up=0.5)
    near, far = at(training, 0.1), at(training, 2.0)
    low, high = (float(divergence_at(training._at(state))) for state in (near, far))
    sweep(training, 50.0 + high, far)
    rate = training.optimizer.rate
    falling = torch.linspace(high, low, 100, dtype=torch.float64)
    sweep(training, 50.0 + falling, near)
    torch.testing.assert_close(training.params, near)
    assert training.optimizer.rate == rate


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("seed", [1, 2])
def test_heteroscedastic_fits_with_long_steps(seed):
    """Noise that grows with x. Wrong variant: gradients as long as they are, and the
    last state for the best one."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(250, 1))
    y = np.sin(2 * X[:, 0]) + np.exp(X[:, 0] - 2) * rng.normal(size=250)
    model = BayesianMLPRegressor(
        skip_connection=False,
        likelihood="heteroscedastic",
        activation="softplus",
        divergence="kl",
        posterior="mean_field",
        hidden_layer_sizes=20,
        prior={name: Normal("learn") for name in ("coef_0", "coef_1", "intercept")},
        solver=Stochastic(learning_rate=0.1, tol=0.1),
        max_iter=500,
        random_state=seed,
    ).fit(X, y)
    loss = np.convolve(model.loss_curve_, np.ones(25) / 25, "valid")
    assert -model.objective_value_ < loss.min() + 5
    error = model.predict(X) - np.sin(2 * X[:, 0])
    assert np.sqrt(np.mean(error**2)) < 0.1
