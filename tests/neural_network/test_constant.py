"""No fit is worse than a constant, in density and in what it minimizes."""

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.exceptions import ConvergenceWarning
from torch import nn

from skvi.base import NormalForm
from skvi.divergences import KL
from skvi.neural_network import (
    BayesianMLPClassifier,
    BayesianMLPRegressor,
    BayesianModuleClassifier,
    BayesianModuleRegressor,
)
from skvi.neural_network._constant import SMALL_LOSS, at_least_constant
from skvi.posteriors import Ensemble
from skvi.solvers._solution import Ending, Solution, State

N_ROWS = 80
#: Steps that leave every network, at once.
FAR = {"learning_rate": 30.0, "max_iter": 3, "random_state": 0}
UNITS = {**FAR, "hidden_layer_sizes": (10, 10)}
KEPT = "worse than a constant, which is what was kept"


class Residual(nn.Module):
    """The last layer is not the last parameter."""

    def __init__(self, n_outputs):
        super().__init__()
        self.into, self.out = nn.Linear(3, 8), nn.Linear(8, n_outputs)
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        h = self.into(x)
        return self.out(h + torch.relu(self.inner(h)))


def make_data():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N_ROWS, 3))
    y = 5 + X[:, 0] + 0.3 * rng.standard_normal(N_ROWS)
    return X, y, rng.choice(3, N_ROWS, p=[0.7, 0.2, 0.1])


def of_constant(y):
    return norm.logpdf(y, y.mean(), y.std()).mean()


@pytest.mark.parametrize(
    "model",
    [
        BayesianMLPRegressor(posterior="mean_field", **UNITS),
        BayesianMLPRegressor(posterior="low_rank", **UNITS),
        BayesianMLPRegressor(posterior="dropout", prior="normal", **UNITS),
        BayesianMLPRegressor(posterior="flow", **UNITS),
        BayesianMLPRegressor(
            posterior=Ensemble(n_members=2),
            noise="heteroscedastic",
            prior="laplace",
            **UNITS,
        ),
        BayesianMLPRegressor(
            posterior="mean_field",
            early_stopping=True,
            validation_fraction=0.1,
            **UNITS,
        ),
        BayesianModuleRegressor(Residual, module__n_outputs=1, **FAR),
    ],
    ids=["mean field", "low rank", "dropout", "flow", "members", "score", "module"],
)
def test_numbers(model):
    """A diverged training leaves a constant, and says so.

    Wrong variants: the last finite state; an intercept with the width of its prior;
    the noise of the diverged fit.
    """
    X, y, _ = make_data()
    with pytest.warns(ConvergenceWarning, match=f"{KEPT}; .*went non-finite"):
        model.fit(X, y)
    found = model.predict_log_density(X, y).mean()
    # Beside the networks' own variance: rows held out, and noise of 100 draws.
    assert found == pytest.approx(of_constant(y), abs=1.5 * SMALL_LOSS)
    assert not model.converged_
    assert model.lower_bound_ > -N_ROWS * 3.5
    assert abs(model.objective_value_ - model.lower_bound_) < 100


@pytest.mark.parametrize(
    "model",
    [
        BayesianMLPClassifier(posterior="mean_field", **UNITS),
        BayesianModuleClassifier(Residual, module__n_outputs=3, **FAR),
    ],
    ids=["units", "module"],
)
def test_classes(model):
    """Their frequencies are not equal. Wrong variant: outputs of 0."""
    X, _, y = make_data()
    with pytest.warns(ConvergenceWarning, match=KEPT):
        model.fit(X, y)
    log_p = model.predict_log_proba(X)[np.arange(N_ROWS), y].mean()
    frequency = np.bincount(y) / N_ROWS
    entropy = -frequency @ np.log(frequency)
    assert -log_p == pytest.approx(entropy, abs=SMALL_LOSS)


def ended(model, change):
    """The problem of a fit, and a solution at its state with changed components."""
    X, y, _ = make_data()
    target, _ = model._make_target(X, y)
    problem, _ = model._pose(target)
    state = State(model.posterior_, target.at(torch.from_numpy(model._hyper)))
    components = [
        change(k, component) for k, component in enumerate(state.posterior.components)
    ]
    state = State(state.posterior.with_components(components), state.target)
    return problem, Solution("adam", state, 0.0, [0.0], 1, Ending.CONVERGED)


@pytest.fixture(scope="module")
def fitted():
    X, y, _ = make_data()
    model = BayesianMLPRegressor(
        hidden_layer_sizes=10,
        posterior=Ensemble(n_members=3),
        divergence=KL(0.3),
        max_iter=60,
        random_state=0,
    )
    with pytest.warns(ConvergenceWarning):
        return model.fit(X, y)


def test_one_lost_member(fitted):
    """The others, and the noise that they share, stay. Wrong variant: all or none."""

    def lose_the_second(k, component):
        return component.at(component.params + (20.0 if k == 1 else 0.0))

    problem, solution = ended(fitted, lose_the_second)
    found = at_least_constant(problem, solution)
    assert "some members" in found.message
    before, after = (s.posterior.components for s in (solution, found))
    pairs = zip(before, after, strict=True)
    assert [torch.equal(a.params, b.params) for a, b in pairs] == [True, False, True]
    torch.testing.assert_close(found.target.hyper, solution.target.hyper)
    f = found.target.predictor.forward(after[1].normal().mean[None], found.target.X)
    assert float(f.std(1).max()) < 0.01


def test_what_minimizes_less_stays(fitted):
    """Narrow networks with the same density. Wrong variant: only the objective."""

    def narrow(k, component):
        mean, log_std = component.params.chunk(2)
        return component.at(torch.cat([mean, log_std - 60.0]))

    problem, solution = ended(fitted, narrow)
    assert at_least_constant(problem, solution) is solution


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_what_has_less_density_stays():
    """The prior of many units, which costs nothing: a constant has 0.2 nats a row more
    density, and a lower bound by 60. Wrong variant: only the density."""
    X, y, _ = make_data()
    model = BayesianMLPRegressor(
        hidden_layer_sizes=100, posterior="mean_field", prior="normal", max_iter=1
    ).fit(X, y)
    prior = model.posterior_.layout.natural_scales()
    prior[model.posterior_.layout["intercept_1"].slice] = 0.1
    model._hyper[:] = 0.0

    def at_prior(k, component):
        return component.near(NormalForm(torch.zeros_like(prior), prior))

    problem, solution = ended(model, at_prior)
    assert at_least_constant(problem, solution) is solution
    theta = solution.posterior.draw(100, torch.Generator().manual_seed(0)).theta
    losses = -solution.target.pointwise(theta)
    density = (torch.logsumexp(losses, 0) - np.log(100)).mean()
    assert density < of_constant((y - y.mean()) / y.std()) - 2 * SMALL_LOSS
