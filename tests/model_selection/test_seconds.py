"""Fits of a search end when their part of `max_seconds` is over."""

import time

import numpy as np
import pytest
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skvi.linear_model import BayesianLogisticRegression
from skvi.model_selection._candidates import fit_all
from skvi.neural_network import BayesianMLPRegressor
from skvi.utils._interrupts import UNLIMITED, Clock


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    return X, X[:, 0] + 0.1 * rng.normal(size=40)


def fits(candidates, X, y, clock):
    done = []
    return fit_all(candidates, X, y, {}, None, True, done.append, clock)


def test_fits_share_half_of_the_seconds(data, monkeypatch):
    """In equal parts; what a quick one leaves, the next one has.

    Wrong variants: every fit may take all of them; what is left is lost.
    """
    now, ends = [5.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    class Quick(BaseEstimator):
        def fit(self, X, y):
            ends.append(vars(self).get("_deadline"))
            now[0] += 1.0
            return self

    found = fits([Quick() for _ in range(4)], *data, Clock(80.0))
    assert ends == [15.0, 25.0, 35.0, 45.0]
    assert not any("_deadline" in vars(outcome.value) for outcome in found)
    fits([Quick()], *data, UNLIMITED)
    assert ends[-1] is None


@pytest.mark.parametrize(
    "model",
    [
        BayesianMLPRegressor(
            skip_connection=False,
            likelihood="gaussian",
            activation="softplus",
            divergence="kl",
            posterior="mean_field",
            hidden_layer_sizes=2,
            random_state=0,
        ),
        BayesianLogisticRegression(prior="normal"),
    ],
    ids=["network", "linear"],
)
def test_a_fit_that_is_late_ends_and_says_so(data, model):
    """After the iteration that it is in, also in a pipeline.

    Wrong variants: it goes on to its end; it ends in silence.
    """
    X, y = data
    y = y > 0 if isinstance(model, BayesianLogisticRegression) else y
    pipe = make_pipeline(StandardScaler(), model)
    with pytest.warns(ConvergenceWarning, match="max_seconds ended the fit after"):
        (outcome,) = fits([pipe], X, y, Clock(1e-9))
    fitted = outcome.value[-1]
    assert not fitted.converged_
    steps_of_network = 30  # those of a block, which spans epochs
    assert fitted.n_iter_ <= steps_of_network
    assert np.isfinite(fitted.lower_bound_)
