"""Ctrl-C while evidences are bounded, and in searches: the best so far, or nothing."""

import math
import pickle

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from skvi._estimator._model import Model
from skvi._sampling._chains import HamiltonianChains
from skvi.evidence import _bounds
from skvi.linear_model import _regression
from skvi.model_selection import EvidenceSearch, _candidates, _race, _search
from skvi.priors import GammaHyperprior, Normal
from tests.interrupts import (
    Linear,
    Logistic,
    Timer,
    check_process,
    classes,
    duration,
    interrupt,
    moments,
    numbers,
    unix,
)


def state_of(model):
    return pickle.dumps(vars(model))


@pytest.mark.parametrize(
    ("owner", "method"),
    [
        (Model, "_columns"),
        (_regression, "bound_evidence"),
        (HamiltonianChains, "run"),
    ],
)
def test_interrupted_evidence_bounds(owner, method, monkeypatch):
    """Nothing is returned, and the estimator is as before.

    Wrong variant: a target that is built from the estimator, which it changes.
    """
    X, y = numbers()
    model = Linear(prior="laplace", noise_scale=50.0).fit(X, y)
    before, predictions = state_of(model), model.predict(X)
    interrupt(monkeypatch, owner, method)
    with pytest.raises(KeyboardInterrupt):
        model.evidence_bounds(X, y, n_draws=64)
    monkeypatch.undo()
    np.testing.assert_array_equal(model.predict(X), predictions)
    assert state_of(model) == before


def make_search():
    model = Logistic()
    return EvidenceSearch(model, {"prior__scale": [0.5, 2.0]}, random_state=0)


def is_fitted_search(search, X):
    if hasattr(search, "results_"):
        assert search.predict(X).shape == (len(X),)
        assert search.best_index_ in (0, 1)
        assert math.isfinite(search.best_score_)
        return True
    assert not [name for name in vars(search) if name.endswith("_")]
    with pytest.raises(NotFittedError):
        search.predict(X)
    return False


@pytest.mark.parametrize(
    ("owner", "method", "number", "message"),
    [
        (_candidates, "_fit", 1, "nothing to keep yet"),
        (
            _candidates,
            "_fit",
            2,
            "of 1 models, 0 of which have bounds; 1 of 2 candidates",
        ),
        (_bounds, "importance_sides", 1, "of 2 models, 0 of which have bounds; 0 of 2"),
        (_bounds, "importance_sides", 2, "of 2 models, 1 of which have bounds; 0 of 2"),
        (_race, "check_quantities", 1, "of 2 models, 2 of which have bounds; 0 of 2"),
        (_search, "describe", 1, "of 2 models, 2 of which have bounds; 0 of 2"),
    ],
)
def test_an_interrupted_search(owner, method, number, message, monkeypatch):
    """What has been fitted is compared, whatever the search was before.

    By ELBOs where there are no bounds; nothing is decided. Wrong variants: attributes
    are set one by one; those of the last fit stay; the only fit so far is the best of
    all candidates.
    """
    X, y = classes()
    search = make_search().fit(X, y)
    assert is_fitted_search(search, X)
    interrupt(monkeypatch, owner, method, number)
    with pytest.raises(KeyboardInterrupt, match=message):
        search.fit(X, y)
    monkeypatch.undo()
    assert is_fitted_search(search, X) == ("nothing" not in message)
    if "nothing" in message:
        return
    assert not search.decided_
    assert "interrupted by Ctrl-C" in search.verdict_
    if "0 of which" in message:
        known = np.isfinite(search.results_["training_bound"])
        np.testing.assert_array_equal(search.results_["contender"], known)
        elbos = np.nan_to_num(search.results_["training_bound"], nan=-np.inf)
        assert search.best_index_ == elbos.argmax()
        assert search.best_score_ == elbos.max()
        assert all("Ctrl-C" in reason for reason in search.results_["reason"])


@unix
@pytest.mark.parametrize(
    "method",
    ["exact", "importance", pytest.param("tempering", marks=pytest.mark.slow)],
)
def test_evidence_bounds_at_random_moments(method):
    """Nothing of the estimator changes. Wrong variants: those of the tests above."""
    X, y = numbers()
    prior = Normal(GammaHyperprior(1.0, 1.0)) if method == "exact" else "laplace"
    model = Linear(prior=prior, noise_scale=50.0).fit(X, y)
    before = state_of(model)

    def work():
        return model.evidence_bounds(X, y, method=method, n_draws=64, random_state=0)

    with Timer() as timer:
        for moment in moments(duration(work), 5):
            timer.interrupts(work, moment)
            assert state_of(model) == before
            check_process()


@unix
def test_searches_at_random_moments():
    """Each keeps a comparison. Wrong variants: those of the tests above."""
    X, y = numbers()
    model = Linear(prior=Normal(), noise_scale=50.0)
    search = EvidenceSearch(model, {"prior__scale": [0.5, 2.0]})
    with Timer() as timer:
        for moment in moments(duration(lambda: search.fit(X, y)), 10):
            came = timer.interrupts(lambda: search.fit(X, y), moment)
            assert is_fitted_search(search, X) or came
            check_process()
