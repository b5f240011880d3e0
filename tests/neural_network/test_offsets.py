"""Networks know no origin and no unit of y: everything they say moves with it."""

from itertools import cycle

import numpy as np
import pytest

from skvi.neural_network import BayesianMLPRegressor, BayesianModuleRegressor
from skvi.posteriors import Ensemble
from skvi.solvers import Stochastic
from tests.modules import relu_network

#: One network with the whole divergence and the plainest noise.
ONE = {
    "divergence": "kl",
    "posterior": "mean_field",
    "likelihood": "gaussian",
    "activation": "softplus",
    "skip_connection": False,
    "hidden_layer_sizes": 20,
}

pytestmark = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::skvi.exceptions.SkviWarning",
)
FAST = {
    "max_iter": 3,
    "solver": Stochastic(learning_rate=0.03),
    "n_predict_draws": 20,
    "random_state": 0,
}
NETWORKS = {
    "normal": BayesianMLPRegressor(**(ONE | FAST)),
    "heteroscedastic": BayesianMLPRegressor(
        **(ONE | {"likelihood": "heteroscedastic"} | FAST)
    ),
    "student": BayesianMLPRegressor(**(ONE | {"likelihood": "student_t"} | FAST)),
    "ensemble": BayesianMLPRegressor(
        posterior=Ensemble(n_members=2),
        hidden_layer_sizes=20,
        activation="softplus",
        divergence="kl",
        **FAST,
    ),
    "robust": BayesianMLPRegressor(loss="beta", **(ONE | FAST)),
    "module": BayesianModuleRegressor(relu_network, **FAST),
}
UNITS = [
    (0.0, 1e-6),
    (0.0, 1e6),
    (5412345.678, 1.0),
    (-5412345.678, 1e-3),
    (1e9, 1e6),
    (1e9, 1e-1),
]
# Rounding of y is .2 and 20 % of the scale.
ROUNDED = [(1e9, 1e-4), (1e9, 1e-6)]


def rows(n_targets, n=100):
    rng = np.random.default_rng(n_targets)
    X = rng.normal(size=(n, 2))
    y = X @ rng.normal(size=(2, n_targets)) + 0.1 * rng.normal(size=(n, n_targets))
    return X, y[:, 0] if n_targets == 1 else y


def answers(model, X, y, offset, scale):
    """Everything that a network says of y, where the origin is 0 and the scale 1."""
    mean, std = model.predict(X, return_std=True)
    draws = model.sample_y(X, 3, random_state=0)
    moved = [mean, model.predict_quantiles(X, [0.05, 0.5]), draws]
    moved.append(model.sample_function(random_state=0)(X))
    n_targets = 1 if y.ndim == 1 else y.shape[1]
    density = model.predict_log_density(X, y) + n_targets * np.log(scale)
    return [(part - offset) / scale for part in moved] + [std / scale, density]


KINDS = cycle([(np.float32, 1), (np.float64, 2)])


@pytest.mark.parametrize(("name", "kind"), list(zip(NETWORKS, KINDS, strict=False)))
def test_offsets_and_scales(name, kind):
    """Training enlarges rounding, by 1,000 times at most.

    Wrong variants: the origin in single precision; results in that of X.
    """
    dtype, n_targets = kind
    X, base = rows(n_targets)
    X, model = X.astype(dtype), NETWORKS[name]
    expected = answers(model.fit(X, base), X, base, 0.0, 1.0)
    for offset, scale in UNITS:
        y = offset + scale * base
        found = answers(model.fit(X, y), X, y, offset, scale)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, atol=0.02)
        ends = model.predict_interval(X, 0.99)
        assert ((ends[:, 0] <= y) & (y <= ends[:, 1])).mean() > 0.9


@pytest.mark.parametrize("name", NETWORKS)
def test_offsets_that_round_y(name):
    """Another rounding is another training; what is said of y agrees with y.

    Wrong variants: those above; a target with a scale of 1e-13 of its origin is
    constant.
    """
    X, base = rows(1)
    model = NETWORKS[name]
    expected = answers(model.fit(X, base), X, base, 0.0, 1.0)
    for offset, scale in ROUNDED:
        y = offset + scale * base
        mean, *_, density = answers(model.fit(X, y), X, y, offset, scale)
        worse = np.std(mean - base) / np.std(expected[0] - base)
        assert 0.7 < worse < 1.3
        assert abs(density.mean() - expected[-1].mean()) < 0.3
        ends = model.predict_interval(X, 0.99)
        assert ((ends[:, 0] <= y) & (y <= ends[:, 1])).mean() > 0.9
