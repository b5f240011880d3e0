"""Fitted estimators are stored without pickle, and loaded with skvi's own types."""

import numpy as np
import pytest
import skops.io
from sklearn.base import is_classifier
from torch import nn

import skvi
from skvi.gaussian_process import SparseGaussianProcessRegressor
from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
)
from skvi.neural_network import (
    BayesianMLPClassifier,
    BayesianMLPRegressor,
    BayesianModuleClassifier,
    BayesianModuleRegressor,
)
from skvi.solvers import Stochastic

NETWORK = {"hidden_layer_sizes": 3, "max_iter": 10, "solver": Stochastic(tol=1.0)}
TEMPLATE = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1))
ESTIMATORS = [
    BayesianLinearRegression(),
    BayesianLinearRegression(prior="ard", posterior="mean_field"),
    BayesianLinearRegression(prior="laplace", noise_scale=1.0, loss="beta"),
    BayesianLinearRegression(likelihood="student_t"),
    BayesianPoissonRegressor(likelihood="negative_binomial"),
    BayesianLogisticRegression(),
    BayesianLogisticRegression(
        prior={"coef": "laplace"}, intercept_prior="normal", class_weight="balanced"
    ),
    BayesianPoissonRegressor(posterior="mean_field"),
    SparseGaussianProcessRegressor(),
    BayesianMLPRegressor(**NETWORK, divergence="kl", posterior="low_rank"),
    BayesianMLPClassifier(
        skip_connection=False,
        divergence="kl",
        posterior="mean_field",
        **NETWORK,
        activation="tanh",
    ),
    BayesianModuleClassifier(TEMPLATE, max_iter=3),
    BayesianModuleRegressor(module=TEMPLATE, max_iter=3, deterministic="2"),
]


@pytest.mark.filterwarnings("ignore::skvi.exceptions.SkviWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("model", ESTIMATORS, ids=repr)
def test_only_own_types_need_trust(model):
    """Of torch only the layers of a module, whose tensors are stored as arrays.

    Wrong variant: a function of torch, or a dtype, in what is stored.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3))
    y = rng.poisson(np.exp(X[:, 0]))
    y = (y > 1).astype(int) if is_classifier(model) else y
    model.set_params(random_state=0).fit(X, y)
    stored = skops.io.dumps(model)
    loaded = skops.io.loads(stored, trusted=skvi.trusted_types())
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    draws = loaded.sample_posterior(2, random_state=1)
    for name, values in model.sample_posterior(2, random_state=1).items():
        np.testing.assert_array_equal(draws[name], values)


def absolute(f, y):
    return (f - y).abs()


def test_code_of_ones_own_is_not_trusted():
    """Wrong variant: all that is in the file is trusted."""
    model = BayesianLinearRegression(loss=absolute, noise_scale=1.0)
    stored = skops.io.dumps(model)
    with pytest.raises(skops.io.exceptions.UntrustedTypesFoundException, match="absol"):
        skops.io.loads(stored, trusted=skvi.trusted_types())
