"""What "auto" stands for in networks, by the number of rows."""

import numpy as np
import pytest

from skvi.neural_network import BayesianMLPClassifier, BayesianMLPRegressor

FEW = {"hidden_layer_sizes": 20, "activation": "softplus", "n_draws": 10}
MANY = {"hidden_layer_sizes": (50,), "activation": "relu", "n_draws": 4}
SHORT = {"max_iter": 1, "random_state": 0}
SOURCE = np.random.default_rng(0)
X = SOURCE.standard_normal((2001, 2))
y = np.sin(X[:, 0]) + 0.3 * SOURCE.standard_normal(2001)


def fit(model, n_rows, target=y):
    with pytest.warns(UserWarning, match="max_iter"):
        return model.fit(X[:n_rows], target[:n_rows])


@pytest.mark.parametrize(
    ("n_rows", "params", "same"),
    [
        (2000, {}, FEW),
        (2001, {}, MANY),
        # Without minibatches draws are the only noise, and weights compare them.
        (2001, {"batch_size": 3000}, MANY | {"n_draws": 10}),
        (2001, {"objective": "eubo"}, MANY | {"n_draws": 10}),
    ],
)
def test_fits_are_those_of_the_values(n_rows, params, same):
    # Fails if a threshold, a size or a number of draws is another one.
    chosen = fit(
        BayesianMLPRegressor(
            skip_connection=False,
            noise="constant",
            likelihood="gaussian",
            activation="softplus",
            divergence="kl",
            posterior="mean_field",
            **SHORT,
            **params,
        ),
        n_rows,
    )
    given = fit(
        BayesianMLPRegressor(
            skip_connection=False,
            noise="constant",
            likelihood="gaussian",
            activation="softplus",
            divergence="kl",
            posterior="mean_field",
            **SHORT,
            **params,
            **same,
        ),
        n_rows,
    )
    np.testing.assert_array_equal(chosen.predict(X[:5]), given.predict(X[:5]))
    assert chosen.lower_bound_ == given.lower_bound_
    assert chosen.hidden_layer_sizes_ == given.hidden_layer_sizes_
    assert chosen.activation_ == given.activation_ == same["activation"]


def test_classes():
    for n_rows, size, n_draws in ((2000, 20, 10), (2001, 50, 4)):
        chosen = fit(
            BayesianMLPClassifier(
                skip_connection=False, divergence="kl", posterior="mean_field", **SHORT
            ),
            n_rows,
            y > 0,
        )
        given = BayesianMLPClassifier(
            skip_connection=False,
            divergence="kl",
            posterior="mean_field",
            **SHORT,
            hidden_layer_sizes=size,
            n_draws=n_draws,
            activation="relu",
        )
        given = fit(given, n_rows, y > 0)
        np.testing.assert_array_equal(
            chosen.predict_proba(X[:5]), given.predict_proba(X[:5])
        )


@pytest.mark.parametrize(("first", "second"), [(200, 2001), (2001, 200)])
def test_fits_that_continue_keep_the_network(first, second):
    # Fails if a later fit chooses again: its posterior would have another size.
    model = fit(
        BayesianMLPRegressor(
            skip_connection=False,
            noise="constant",
            likelihood="gaussian",
            activation="softplus",
            divergence="kl",
            posterior="mean_field",
            **SHORT,
            warm_start=True,
        ),
        first,
    )
    sizes, activation = model.hidden_layer_sizes_, model.activation_
    fit(model, second)
    assert (model.hidden_layer_sizes_, model.activation_) == (sizes, activation)
    assert model.set_params(warm_start=False) is model
    fit(model, second)
    assert model.hidden_layer_sizes_ != sizes
    with pytest.warns(UserWarning, match="max_iter"):
        model.partial_fit(X[:first], y[:first])
    assert model.hidden_layer_sizes_ != sizes


@pytest.mark.parametrize("name", ["hidden_layer_sizes", "activation", "n_draws"])
def test_other_strings_are_refused(name):
    with pytest.raises(ValueError, match=rf"(?s)'{name}' parameter.*'auto'"):
        BayesianMLPRegressor(
            skip_connection=False,
            noise="constant",
            likelihood="gaussian",
            activation="softplus",
            divergence="kl",
            posterior="mean_field",
            **{name: "automatic"},
        ).fit(X, y)
