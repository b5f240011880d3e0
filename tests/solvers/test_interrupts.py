"""Ctrl-C raises, and leaves an estimator that is fitted or is not, in every phase.

What a usable estimator owes is in `check`: predictions, and a `lower_bound_` that is
the ELBO of the posterior that was kept, which no fit of the table below may have left
worse than its start.
"""

import math

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import scale

from skvi import _variational
from skvi.evidence import lower_bound
from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
)
from skvi.neural_network import BayesianMLPClassifier, BayesianMLPRegressor
from skvi.objectives import ELBO
from skvi.priors import Normal
from skvi.solvers import (
    _alternating,
    _moment_matching,
    _natural_gradient,
    _quasi_newton_solver,
    _tilted,
)
from skvi.solvers._conjugate import Conjugate
from skvi.targets import SupervisedTarget

quick = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
Logistic, Linear = BayesianLogisticRegression, BayesianLinearRegression
SMALL = {"hidden_layer_sizes": (3,), "n_draws": 2, "random_state": 0}
FEW = {"max_iter": 2, "random_state": 0}


def classes():
    X, y = load_iris(return_X_y=True)
    return scale(X[50:]), y[50:]


def numbers():
    X, y = load_diabetes(return_X_y=True)
    return scale(X[:100, :4]), y[:100]


def columns():
    X, y = numbers()
    return X, np.column_stack([y, X[:, 0] + 1e-2 * y, y**2])


def counts():
    X, y = numbers()
    return X, np.floor(y / 20)


# Every solver, and every phase before one.
MODELS = {
    "natural gradient": (Logistic(), classes),
    "natural gradient of counts": (BayesianPoissonRegressor(), counts),
    "quasi-Newton": (Logistic(posterior="low_rank"), classes),
    "coordinate ascent": (Linear(), numbers),
    "coordinate ascent, ARD": (Linear(prior="ard"), numbers),
    "empirical Bayes": (Logistic(prior=Normal("learn")), classes),
    "alternating": (Linear(loss="beta"), numbers),
    "alternating, learnt noise": (
        Linear(loss="gamma", noise_scale="learn", prior="laplace"),
        numbers,
    ),
    "robust start": (Linear(loss="beta", noise_scale=20.0, prior="normal"), numbers),
    "moment matching": (Logistic(objective="eubo", random_state=0), classes),
    "tilted moments": (Logistic(objective="renyi", random_state=0), classes),
    "tilted moments, mean field": (
        Logistic(objective="renyi", posterior="mean_field", random_state=0),
        classes,
    ),
    "stochastic": (Logistic(solver="stochastic", **FEW), classes),
    "minibatches": (Logistic(batch_size=30, **FEW), classes),
    "weighted": (Logistic(objective="iwelbo", **FEW), classes),
    "weighted regression": (Linear(objective="iwelbo", **FEW), numbers),
    "network": (BayesianMLPClassifier(max_iter=10, **SMALL), classes),
    "weighted network": (
        BayesianMLPRegressor(objective="eubo", max_iter=3, **SMALL),
        numbers,
    ),
    "columns": (Linear(), columns),
}
WARM = ("natural gradient", "coordinate ascent", "alternating", "tilted moments")


# --- what is left ---------------------------------------------------------------------


def target_of(model, X, y):
    """The target of a fitted model, at its learnt scales."""
    codes = model._encode(y, reset=False)
    target = model._build_target(X, codes, None, model._fitted_predictor)
    target.hyper = torch.from_numpy(model._hyper.copy())
    return target.frozen()


def elbo(target, posterior):
    return lower_bound(target, posterior, torch.Generator().manual_seed(1))


def elbo_of_start(model, X, y):
    """ELBO of the posterior that a fit starts with, at the scales that it found."""
    target, generator = target_of(model, X, y), torch.Generator().manual_seed(0)
    posterior = model.posterior_family_.build(target.layout, generator)
    if hasattr(target.predictor, "initial_normal"):
        posterior.set_normal(target.predictor.initial_normal(generator))
    return elbo(target, posterior)[0]


def is_usable(model, X, y):
    """Whether the model is fitted; it must be one or the other, through and through."""
    assert "_problem" not in vars(model)
    if not hasattr(model, "posterior_"):
        with pytest.raises(NotFittedError):
            model.predict(X)
        return False
    assert np.isfinite(model.predict(X)).all()
    if "outputs_" in vars(model):
        pairs = zip(model.outputs_, y.T, strict=True)
        assert all(is_usable(output, X, column) for output, column in pairs)
        bounds = [output.lower_bound_ for output in model.outputs_]
        assert model.lower_bound_ == pytest.approx(sum(bounds))
        return True
    assert not model.posterior_.params.requires_grad
    assert math.isfinite(model.objective_value_)
    assert len(model.loss_curve_) >= model.n_iter_
    value, error = elbo(target_of(model, X, y), model.posterior_)
    noise = 6 * math.hypot(error, model.lower_bound_se_)
    assert model.lower_bound_ == pytest.approx(value, abs=noise + 1e-3)
    assert model.lower_bound_ > elbo_of_start(model, X, y) - noise
    return True


def interrupted(model, X, y):
    """Fit, and expect Ctrl-C; return whether the model is usable."""
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    usable = is_usable(model, X, y)
    if usable and "outputs_" not in vars(model):
        assert not model.converged_
        assert model.diagnostics_["ending"] == "interrupted"
    return usable


def interrupt(monkeypatch, owner, name, number=1):
    """Make one call of a function raise KeyboardInterrupt, as Ctrl-C would."""
    calls, original = [], getattr(owner, name)

    def counted(*args, **kwargs):
        calls.append(None)
        if len(calls) == number:
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, counted)
    return calls


# --- at a chosen call -----------------------------------------------------------------


def test_a_grid_search_stops(monkeypatch):
    """Wrong variant: the fit returns as if nothing had been (`raise` in `_solve`)."""
    calls = interrupt(monkeypatch, _natural_gradient._Iteration, "_iterate", 2)
    search = GridSearchCV(Logistic(), {"prior": ["normal", "laplace"]})
    with pytest.raises(KeyboardInterrupt):
        search.fit(*classes())
    assert len(calls) == 2


PLACES = {
    # Before there is anything to keep.
    "mode": ("natural gradient", _natural_gradient, "find_mode", 1, False),
    "first mode": ("alternating, learnt noise", _natural_gradient, "find_mode", 1, 0),
    "first state": ("coordinate ascent", Conjugate, "evaluate", 1, False),
    # In the middle of a step, which is then undone.
    "natural step": ("natural gradient", SupervisedTarget, "expected_loss_terms", 4, 1),
    "update": ("coordinate ascent", Conjugate, "evaluate", 4, True),
    "whitening": ("quasi-Newton", _quasi_newton_solver, "LBFGS", 3, True),
    "search": ("quasi-Newton", SupervisedTarget, "expected_loss_at", 25, True),
    "first scales": ("empirical Bayes", _natural_gradient, "point_at", 3, True),
    "shifted scales": ("empirical Bayes", SupervisedTarget, "frozen", 2, True),
    "trial scales": ("empirical Bayes", SupervisedTarget, "frozen", 3, True),
    "half-step": ("alternating", _alternating.GammaSteps, "step", 2, True),
    "other half-step": ("alternating", _natural_gradient, "point_at", 20, True),
    "learnt noise": ("alternating, learnt noise", _alternating, "minimize", 1, True),
    "first noise": ("robust start", SupervisedTarget, "expected_loss_terms", 3, True),
    "draws": ("moment matching", _moment_matching, "draw_weighted", 1, True),
    "tilt": ("tilted moments", _tilted._Sample, "moments", 5, True),
    "gradient": ("stochastic", ELBO, "surrogate", 150, True),
    "first gradients": ("network", ELBO, "surrogate", 30, True),
    # While the result is judged.
    "quadrature": ("natural gradient", _natural_gradient, "refined_value", 1, True),
    "verdict": ("quasi-Newton", _quasi_newton_solver, "judge_quadrature", 1, True),
    "message": ("coordinate ascent", Conjugate, "is_at_limit", 1, False),
    "gain": ("stochastic", ELBO, "remaining_gain", 1, True),
    "weights": ("natural gradient", _variational, "weight_diagnostics", 1, True),
    "bound": ("weighted", _variational, "lower_bound", 1, True),
    "existence": ("network", _variational, "judge_existence", 1, True),
}


@quick
@pytest.mark.parametrize("place", list(PLACES))
def test_an_interrupted_call(place, monkeypatch):
    """Wrong variants: none but the last statement of `_solve`; `lbfgs` apart from its
    coordinates; learnt scales without the posterior at them; the attributes one by
    one; no `except` around what comes after the last iteration."""
    name, owner, method, number, usable = PLACES[place]
    model, data = MODELS[name]
    X, y = data()
    model = clone(model)
    interrupt(monkeypatch, owner, method, number)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    monkeypatch.undo()
    assert is_usable(model, X, y) == bool(usable)
    if usable:
        assert not model.converged_
        assert model.diagnostics_["ending"] == "interrupted"
