"""What tests of Ctrl-C share: fits of every phase, and what may be left of them."""

import math
import signal
import time

import numpy as np
import pytest
import torch
from sklearn import get_config, set_config
from sklearn.datasets import load_diabetes, load_iris
from sklearn.exceptions import NotFittedError
from sklearn.preprocessing import scale

from skvi._estimator._evidence import data_of_fit
from skvi.evidence._summarize import lower_bound
from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
)
from skvi.neural_network import (
    BayesianMLPClassifier,
    BayesianMLPRegressor,
    BayesianModuleRegressor,
)
from skvi.posteriors import FullRankNormal, MeanFieldNormal
from skvi.posteriors._mixture import MixtureOverScales, leading
from skvi.priors import Normal
from skvi.solvers import Stochastic
from skvi.targets._numbers import bound_at, numbers_of
from skvi.utils._tensors import make_generator
from tests.modules import relu_network

quick = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::skvi.exceptions.SkviWarning",
    # Python swallows what comes in a callback of its own; fits raise it at their end.
    "ignore::pytest.PytestUnraisableExceptionWarning",
)
unix = pytest.mark.skipif(
    not hasattr(signal, "setitimer"), reason="needs a timer that sends signals"
)
Logistic, Linear = BayesianLogisticRegression, BayesianLinearRegression
SMALL = {"hidden_layer_sizes": (3,), "solver": Stochastic(n_draws=2), "random_state": 0}
FEW = {"max_iter": 1, "random_state": 0}


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
    "natural gradient of counts": (BayesianPoissonRegressor(prior="normal"), counts),
    "noise and scale": (Linear(posterior="full_rank"), numbers),
    "noise, ARD": (Linear(prior="ard"), numbers),
    "empirical Bayes": (Logistic(prior=Normal("learn")), classes),
    "robust noise": (Linear(loss="beta"), numbers),
    "learned noise": (Linear(loss="beta", noise_scale="learn"), numbers),
    "robust start": (Linear(loss="beta", noise_scale=20.0, prior="normal"), numbers),
    "moment matching": (Logistic(objective="eubo", random_state=0), classes),
    "tilted moments": (Logistic(objective="renyi", random_state=0), classes),
    "tilted moments, mean field": (
        Logistic(objective="renyi", posterior="mean_field", random_state=0),
        classes,
    ),
    "stochastic": (Logistic(solver="stochastic", **FEW), classes),
    "minibatches": (Logistic(solver=Stochastic(batch_size=30), **FEW), classes),
    "weighted": (Logistic(objective="iwelbo", **FEW), classes),
    "semi-implicit": (Logistic(posterior="semi_implicit", **FEW), classes),
    "semi-implicit network": (
        BayesianMLPRegressor(posterior="semi_implicit", max_iter=2, **SMALL),
        numbers,
    ),
    "multiplicative network": (
        BayesianMLPRegressor(posterior="multiplicative_flow", max_iter=2, **SMALL),
        numbers,
    ),
    "weighted regression": (Linear(objective="iwelbo", **FEW), numbers),
    "network": (
        BayesianMLPClassifier(
            skip_connection=False,
            divergence="kl",
            posterior="mean_field",
            max_iter=10,
            **SMALL,
        ),
        classes,
    ),
    "weighted network": (
        BayesianMLPRegressor(
            skip_connection=False,
            likelihood="gaussian",
            activation="softplus",
            divergence="kl",
            posterior="mean_field",
            objective="eubo",
            max_iter=2,
            **SMALL,
        ),
        numbers,
    ),
    "ensemble of networks": (
        BayesianMLPClassifier(posterior="ensemble", max_iter=3, **SMALL),
        classes,
    ),
    "network by autograd": (
        BayesianModuleRegressor(
            relu_network,
            deterministic="1.bias",
            max_iter=3,
            solver=Stochastic(n_draws=2),
            random_state=0,
        ),
        numbers,
    ),
    "columns": (Linear(posterior="full_rank"), columns),
}
# One for every loop; the others are for the slow tests.
PHASES = (
    "natural gradient",
    "noise and scale",
    "robust noise",
    "tilted moments",
    "minibatches",
    "network",
)
WARM = ("natural gradient", "noise and scale", "moment matching")


def target_of(model, X, y):
    """The target of a fitted model, at its learned scales."""
    target = model._model.target(data_of_fit(model, X, y, None))
    target.hyper = torch.from_numpy(model._hyper.copy())
    return target.frozen()


def elbo(target, posterior):
    return lower_bound(target, posterior, torch.Generator().manual_seed(1))


def elbo_with_numbers(target, mixture):
    """ELBO of parameters and unknown numbers together, each node a fit at its own.

    Nodes are weighted as they are: as large as the fit says only if they are the best.
    """
    plain, numbers = numbers_of(target)
    places, log_weights = mixture.places(), mixture.log_weights
    axes = [axis.unique() for axis in places.T]
    assert all(torch.allclose(axis.diff(), axis.diff()[:1]) for axis in axes)
    total = sum(float(axis.diff()[0].log()) for axis in axes if len(axis) > 1)
    inner = []
    for z, normal in zip(places.tolist(), mixture.normals(), strict=True):
        known = bound_at(plain, numbers, z)
        q = FullRankNormal().build(known.layout)
        if normal.is_diagonal:
            q = MeanFieldNormal().build(known.layout)
        value = elbo(known, q.near(leading(normal, known.layout.size))).value
        pairs = zip(numbers, z, strict=True)
        inner.append(value + sum(number.log_density(at) for number, at in pairs))
    inner = torch.tensor(inner, dtype=torch.float64) + total - log_weights
    return float(log_weights.exp() @ inner), 0.0


def elbo_of_start(model, X, y):
    """ELBO of the posterior that a fit starts with, at the scales that it found."""
    target, generator = target_of(model, X, y), make_generator(model.random_state)
    posterior = model.posterior_family_.build(target.layout, generator)
    start = target.initial_normal(generator)
    if start is not None:
        posterior = posterior.near(start)
    return elbo(target, posterior)[0]


def is_usable(model, X, y):
    """Whether the model is fitted; it must be one or the other, through and through."""
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
    posterior, bound = model.posterior_, elbo
    if isinstance(posterior, MixtureOverScales) and model.lower_bound_se_ == 0:
        if len(posterior.nodes) > 1:
            bound = elbo_with_numbers
        elif posterior.layout.positive:  # by a width of the numbers alone
            return True
        else:  # independent of the scale
            posterior = posterior.nodes[0]
    value, error = bound(target_of(model, X, y), posterior)
    noise = 6 * math.hypot(error, model.lower_bound_se_)
    assert model.lower_bound_ == pytest.approx(value, abs=noise + 1e-3)
    assert model.lower_bound_ > elbo_of_start(model, X, y) - noise - 1e-6
    return True


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


def stop(model, X, y):
    """Fit, and expect Ctrl-C, which says whether something was kept."""
    with pytest.raises(KeyboardInterrupt) as caught:
        model.fit(X, y)
    kept = hasattr(model, "posterior_") or hasattr(model, "outputs_")
    assert ("was kept" if kept else "nothing is fitted yet") in str(caught.value)
    if hasattr(model, "posterior_") and "outputs_" not in vars(model):
        assert not model.converged_
        assert model.diagnostics_["ending"] == "interrupted"
        assert "interrupted" in model.diagnostics_["message"]


# --- at random moments ----------------------------------------------------------------


class Timer:
    """Sends SIGINT after so many seconds of processor time, and counts what came."""

    def __enter__(self):
        self.before, self.fired = signal.signal(signal.SIGPROF, self.fire), False
        self.config = get_config()
        return self

    def __exit__(self, *_):
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, self.before)
        # A signal inside scikit-learn's own context manager leaves its setting behind.
        set_config(**self.config)

    def fire(self, *_):
        self.fired = True
        signal.raise_signal(signal.SIGINT)

    def interrupts(self, work, moment):
        """Whether the work was interrupted; it must be where the signal came."""
        self.fired = False
        try:
            try:
                signal.setitimer(signal.ITIMER_PROF, max(moment, 1e-6))
                work()
                came = self.fired
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
        except KeyboardInterrupt:
            return True
        assert not came
        return False


def duration(work):
    work()
    start = time.process_time()
    work()
    return time.process_time() - start


def moments(seconds, n):
    return np.random.default_rng(0).uniform(0, seconds, n)


def check_process():
    assert torch.is_grad_enabled()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
