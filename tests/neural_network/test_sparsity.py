"""Which weights survive: irrelevant inputs are pruned, and predictions stay."""

import pickle

import numpy as np
import pytest
import torch

from skvi.neural_network import BayesianMLPRegressor, BayesianModuleClassifier
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
}

pytestmark = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::skvi.exceptions.SkviWarning",
)


def sparse_data(n=150, seed=0):
    """Two of five features count."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 5))
    return X, np.sin(2 * X[:, 1]) + X[:, 3] + 0.1 * rng.normal(size=n)


@pytest.fixture(scope="module")
def network():
    X, y = sparse_data()
    model = BayesianMLPRegressor(
        prior="horseshoe",
        hidden_layer_sizes=8,
        solver=Stochastic(learning_rate=0.1, n_draws=4),
        max_iter=40,
        random_state=0,
        **(ONE | {"activation": "relu"}),
    )
    return model.fit(X, y)


def test_irrelevant_inputs_are_pruned_and_predictions_stay(network):
    """Wrong variant: noise to signal, which prunes what the network needs."""
    X, y = sparse_data(500, seed=1)
    report = network.sparsity_report()
    used = report.kept["coef_0"].sum(1)
    assert used[[1, 3]].min() >= 2
    assert used[[0, 2, 4]].max() <= 1
    assert report.fraction_kept < 0.6
    assert report.n_weights == {"coef_0": 40, "coef_1": 8}
    pruned = network.prune()
    errors = [np.mean((m.predict(X) - y) ** 2) for m in (network, pruned)]
    assert errors[1] < 1.2 * errors[0]
    assert errors[0] < 0.1 * y.var()
    densities = [m.predict_log_density(X, y).mean() for m in (network, pruned)]
    assert densities[1] > densities[0] - 0.2


def test_every_prediction_is_of_the_pruned_network(network):
    """And none of the original one. Wrong variant: pruned draws for `predict` only."""
    X, _ = sparse_data(5)
    before = network.predict(X)
    pruned = network.prune(2.0)
    assert np.array_equal(network.predict(X), before)
    assert np.array_equal(network.prune(0).predict(X), before)
    kept = pruned.sparsity_report(2.0).kept
    for name, draws in pruned.sample_posterior(3, random_state=0).items():
        expected = kept.get(name, np.ones(draws.shape[1:], bool))
        assert np.array_equal((draws != 0).all(0), expected)
        assert np.array_equal((draws != 0).any(0), expected)
    assert (network.sample_posterior(3)["coef_0"] != 0).all()
    again = pickle.loads(pickle.dumps(pruned))
    assert np.array_equal(again.predict(X), pruned.predict(X))
    function = pruned.sample_function(random_state=0)
    assert np.array_equal(function(X), again.sample_function(random_state=0)(X))
    refitted = pruned.set_params(max_iter=2).fit(*sparse_data())
    assert (refitted.sample_posterior(3)["coef_0"] != 0).all()


def test_members_of_a_mixture_are_pruned_on_their_own():
    """Modules too. Wrong variant: the weights that the first member keeps."""
    X, y = sparse_data(60)
    model = BayesianModuleClassifier(
        relu_network,
        posterior=Ensemble(n_members=3),
        max_iter=2,
        n_predict_draws=6,
        random_state=0,
    ).fit(X, y > 0)
    pruned = model.prune(1.5)
    masks = pruned.sparsity_report(1.5).kept["1.weight"]
    assert masks.shape == (3, 20, 5)
    assert not np.array_equal(masks[0], masks[1])
    draws = pruned.sample_posterior(6, random_state=0)["1.weight"] != 0
    found = {draw.tobytes() for draw in draws}
    assert found == {mask.tobytes() for mask in masks}
    theta = torch.from_numpy(pruned._theta)
    blocks = model.posterior_.layout.unpack(theta)
    assert {(b != 0).numpy().tobytes() for b in blocks["1.weight"]} == found


def test_thresholds_are_checked(network):
    with pytest.raises(ValueError, match="threshold"):
        network.prune(-1.0)
