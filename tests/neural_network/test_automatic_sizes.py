"""What "auto" stands for in the training of networks, by the number of rows."""

import numpy as np
import pytest

from skvi.neural_network import BayesianMLPClassifier, BayesianMLPRegressor
from skvi.solvers import Stochastic

SHORT = {"divergence": "kl", "posterior": "mean_field", "max_iter": 1}
SHORT |= {"hidden_layer_sizes": 5, "random_state": 0}
SOURCE = np.random.default_rng(0)
X = SOURCE.standard_normal((2001, 2))
y = np.sin(X[:, 0]) + 0.3 * SOURCE.standard_normal(2001)


def fit(model, n_rows, target=y):
    with pytest.warns(UserWarning, match="max_iter|gradients"):
        return model.fit(X[:n_rows], target[:n_rows])


@pytest.mark.parametrize(
    ("n_rows", "params", "n_draws"),
    [
        (2000, {}, 10),
        (2001, {}, 4),
        # Without minibatches draws are the only noise, and weights compare them.
        (2001, {"batch_size": 3000}, 10),
        (2001, {"objective": "eubo"}, 10),
    ],
)
@pytest.mark.parametrize("model", [BayesianMLPRegressor, BayesianMLPClassifier])
def test_draws_of_a_step(model, n_rows, params, n_draws):
    # Fails if a threshold or a number of draws is another one.
    target = y if model is BayesianMLPRegressor else y > 0
    chosen = fit(model(**SHORT, **params), n_rows, target)
    given = fit(
        model(**SHORT, **params, solver=Stochastic(n_draws=n_draws)), n_rows, target
    )
    np.testing.assert_array_equal(chosen.predict(X[:5]), given.predict(X[:5]))
    assert chosen.lower_bound_ == given.lower_bound_
    assert chosen.activation_ == "relu"


@pytest.mark.parametrize("name", ["hidden_layer_sizes", "activation", "batch_size"])
def test_other_strings_are_refused(name):
    with pytest.raises(ValueError, match=rf"(?s)'{name}' parameter.*'auto'"):
        BayesianMLPRegressor(**{name: "automatic"}).fit(X, y)
