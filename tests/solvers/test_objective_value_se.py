"""The standard error of `objective_value_` is that of repeated values."""

import numpy as np
import pytest
from sklearn.base import clone

from skvi.divergences import RenyiDivergence
from skvi.linear_model import BayesianLinearRegression, BayesianLogisticRegression
from skvi.objectives import ELBO, IWELBO, RenyiBound
from skvi.solvers import Stochastic

N_REPEATS = 16


def make_data(n=20):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    return X, (X[:, 0] + rng.normal(size=n) > 0).astype(int)


def repeat(weight=None, **options):
    """Values and their errors, of fits that differ in nothing but their draws."""
    X, y = make_data()
    found = []
    for seed in range(N_REPEATS):
        model = BayesianLogisticRegression(
            random_state=seed, **{"prior": "normal", **options}
        )
        model.fit(X, y, sample_weight=weight)
        found.append((model.objective_value_, model.objective_value_se_))
    return np.array(found).T


# At a step size of almost nothing every fit stays where it starts.
STILL = {"solver": Stochastic(learning_rate=1e-12, n_draws=4), "max_iter": 1}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "options",
    [
        {"objective": IWELBO(n_importance=4), **STILL, "prior": "normal"},
        {"objective": "eubo", "prior": "normal"},
        {"objective": RenyiBound(0.5), "prior": "normal"},
    ],
    ids=["stochastic", "moments", "tilted"],
)
def test_repeated_values_vary_as_their_errors_say(options):
    """The variance of z-scores is 1: chi-square with 15 degrees of freedom.

    Its 1e-4 quantiles are 0.16 and 3.0. Wrong variants: the standard deviation of one
    value in place of the error of their mean (z 10 times too small), no error at all.
    """
    values, errors = repeat(**options)
    assert (errors > 0).all()
    z = (values - values.mean()) / errors
    assert 0.16 < z.var(ddof=1) < 3.0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_minibatches_of_an_epoch_are_not_independent():
    """Wrong variant: every minibatch counts as independent of the others.

    Rows differ more than draws here: the sum over an epoch has all of them once, and
    its error is far below that of as many rows drawn anew.
    """
    options = {"max_iter": 50, "solver": clone(STILL["solver"])}
    options["solver"].set_params(n_draws=1000, batch_size=10)
    options["objective"] = ELBO(gradient="reparam")
    weight = np.where(np.arange(20) < 3, 100.0, 1.0)
    values, errors = repeat(weight, **options, prior="normal")
    z = (values - values.mean()) / errors
    assert 0.16 < z.var(ddof=1) < 3.0


@pytest.mark.parametrize(
    "model",
    [
        BayesianLogisticRegression(prior="normal"),
        BayesianLogisticRegression(divergence=RenyiDivergence(0.5), prior="normal"),
        BayesianLinearRegression(),
        BayesianLinearRegression(prior="laplace"),
    ],
)
def test_values_without_draws_have_no_error(model):
    X, y = make_data()
    assert model.fit(X, y).objective_value_se_ == 0.0


def test_errors_of_several_targets_add_as_if_independent():
    X, y = make_data()
    model = BayesianLinearRegression(
        prior="normal", noise_scale=1.0, objective="eubo", random_state=0
    )
    model.fit(X, np.column_stack([y, 1 - y]))
    parts = [output.objective_value_se_ for output in model.outputs_]
    assert model.objective_value_se_ == pytest.approx(np.linalg.norm(parts))
    assert model.objective_value_se_ > 0
