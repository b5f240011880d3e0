"""Bad input gets scikit-learn's own kind of error, or a right and finite answer."""

import re

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
import torch
from torch.utils.data import DataLoader, TensorDataset

from skvi.changepoint import BayesianChangepointDetector
from skvi.divergences import KLDivergence, RenyiDivergence
from skvi.exceptions import IncompatibleComponentsError, SkviWarning
from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
)
from skvi.neural_network import BayesianMLPClassifier, BayesianMLPRegressor
from skvi.objectives import ELBO
from skvi.posteriors import FullRankNormal
from skvi.priors import Normal
from skvi.solvers import Stochastic

# A few rows are separable, and their coefficients have no mean under the default prior.
MEDIANS = ".*does not determine the means"
pytestmark = pytest.mark.filterwarnings(f"ignore:{MEDIANS}:skvi.exceptions.SkviWarning")


def small(n=8, d=3):
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, d)), np.arange(n) % 2


def assert_sane(model, X):
    """Everything finite, deviations positive, probabilities in range."""
    for name in ("coef_", "coef_std_", "intercept_", "loss_curve_"):
        assert np.isfinite(getattr(model, name)).all(), name
    for name in ("lower_bound_", "lower_bound_se_", "objective_value_"):
        assert np.isfinite(getattr(model, name)), name
    assert (model.coef_std_ > 0).all()
    p = model.predict_proba(X)
    assert np.isfinite(p).all()
    assert (p >= 0).all()
    assert np.isfinite(model.predict_log_proba(X)).all()


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (
            {"objective": "eubo", "divergence": "renyi"},
            "EUBO RenyiDivergence() objective='elbo'",
        ),
        (
            {"objective": "eubo", "divergence": KLDivergence(2.0)},
            "EUBO KLDivergence(weight=2.0) 'kl'",
        ),
        (
            {"objective": ELBO("stl"), "divergence": "renyi"},
            "stl RenyiDivergence() 'reparam'",
        ),
        (
            {"objective": "eubo", "solver": Stochastic(n_draws=1)},
            "EUBO n_draws=1 2 objective='elbo'",
        ),
        (
            {"objective": "alpha_energy", "solver": Stochastic(n_draws=1)},
            "AlphaEnergy n_draws=1 2",
        ),
        (
            {"divergence": RenyiDivergence(-0.5)},
            "RenyiDivergence(alpha=-0.5) alpha > 0",
        ),
        ({"prior": {"intercept": Normal()}}, "intercept_prior=Normal()"),
        ({"prior": {"coef": Normal(), "bias": Normal()}}, "coef intercept bias"),
        ({"solver": "moment_matching"}, "moment_matching ELBO() 'auto'"),
        (
            {"objective": "eubo", "solver": "natural_gradient"},
            "natural_gradient EUBO() 'auto'",
        ),
    ],
)
def test_impossible_combinations(params, words, monkeypatch):
    """Refused before any training, with the parts and the remedy in the message."""
    trained = []
    monkeypatch.setattr(
        "skvi.solvers._natural_gradient.NaturalGradient.solve",
        lambda *_: trained.append(1),
    )
    with pytest.raises(IncompatibleComponentsError) as error:
        BayesianLogisticRegression(**params).fit(*small())
    for word in words.split(" "):
        assert word in str(error.value)
    assert not trained


def test_too_many_parameters_for_full_rank():
    X = np.zeros((4, 10_000))  # and the intercept
    with pytest.raises(ValueError, match=r"10001 parameters.*posterior='mean_field'"):
        BayesianLogisticRegression(posterior="full_rank").fit(X, [0, 1, 0, 1])
    assert FullRankNormal().check_size(10_000) is None
    X[:, 0] = [-1, 1, -1, 1]
    model = BayesianLogisticRegression().fit(X, [0, 1, 0, 1])  # takes "mean_field"
    assert_sane(model, X)


OTHER_CONTAINERS = {
    "dict": (lambda X, y: {"a": X[:, 0]}, "pandas.DataFrame"),
    "dataset": (
        lambda X, y: TensorDataset(torch.tensor(X), torch.tensor(y)),
        "np.stack, zip",
    ),
    "loader": (
        lambda X, y: DataLoader(TensorDataset(torch.tensor(X), torch.tensor(y))),
        "torch.cat",
    ),
}


@pytest.mark.parametrize("kind", OTHER_CONTAINERS)
def test_other_containers_name_the_way_to_arrays(kind):
    """Which leads there. Wrong variant: float() argument must be a string."""
    X, y = np.arange(12.0).reshape(6, 2), np.arange(6.0)
    make, way = OTHER_CONTAINERS[kind]
    for model in (BayesianLinearRegression(), BayesianMLPRegressor()):
        for target in (y, None):
            with pytest.raises(TypeError, match=re.escape(way)):
                model.fit(make(X, y), target)
    if kind == "dataset":
        found = map(np.stack, zip(*make(X, y), strict=True))
    elif kind == "loader":
        found = (torch.cat(parts) for parts in zip(*make(X, y), strict=True))
    else:
        return
    for array, expected in zip(found, (X, y), strict=True):
        np.testing.assert_array_equal(array, expected)


def test_label_matrices_name_the_way():
    """Wrong variant: y should be a 1d array."""
    X, labels = np.arange(12.0).reshape(6, 2), np.array([0, 1, 2, 0, 1, 2])
    one_hot = np.eye(3)[labels]
    several = np.maximum(one_hot, one_hot[::-1])
    for model in (BayesianLogisticRegression(), BayesianMLPClassifier()):
        with pytest.raises(ValueError, match=r"one-hot.*y\.argmax\(axis=1\)"):
            model.fit(X, one_hot)
        for y in (several, [["a", "b"], ["c"]] * 3, one_hot + 1):
            with pytest.raises(ValueError, match="MultiOutputClassifier"):
                model.fit(X, y)


@pytest.mark.parametrize("dispatch", [False, True])
@pytest.mark.parametrize(
    "model",
    [
        BayesianLinearRegression(),
        BayesianLogisticRegression(prior="normal"),
        BayesianPoissonRegressor(),
        BayesianMLPRegressor(
            divergence="kl", hidden_layer_sizes=2, max_iter=2, random_state=0
        ),
        BayesianChangepointDetector(),
    ],
    ids=lambda model: type(model).__name__,
)
@pytest.mark.filterwarnings("ignore")
def test_tensors_are_arrays(model, dispatch):
    """Wrong variant: scikit-learn asks torch for a dtype of numpy."""

    def answer(X, y):
        model.fit(X, y)
        is_series = hasattr(model, "log_densities_")
        return model.log_densities_ if is_series else model.predict_log_density(X, y)

    data = small(40)
    expected = answer(*data)
    with sklearn.config_context(array_api_dispatch=dispatch):
        found = answer(*map(torch.from_numpy, data))
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_text_is_named_by_its_column(frame):
    """Wrong variant: scikit-learn names the text alone."""
    columns = {"size": [1.0, 2.0, 3.0], "city": ["Rome", "Bari", "Rome"]}
    X, y = frame(columns | {"code": ["1", "2", "3"]}), [0.0, 1.0, 2.0]
    with pytest.raises(ValueError, match=r"text in 1 column.*'city'.*OneHotEncoder"):
        BayesianLinearRegression().fit(X, y)


@pytest.mark.parametrize(
    ("parameter", "given", "meant"),
    [
        ("prior", "gausian", "normal"),
        ("prior", {"coef": "l1"}, "laplace"),
        ("likelihood", "normal", "gaussian"),
        ("posterior", "FULL_RANK", "full_rank"),
        ("divergence", "ridge", None),
    ],
)
def test_messages_name_the_word_that_is_meant(parameter, given, meant):
    """Wrong variant: a word that is known elsewhere and not allowed here, "ridge"."""
    with pytest.raises(ValueError, match="Got ") as error:
        BayesianLinearRegression(**{parameter: given}).fit(*small())
    hint = f" Did you mean {meant!r}?"
    assert str(error.value).endswith(hint if meant else "instead.")


def test_data_of_rows_are_given_by_name():
    """Wrong variant: an exposure that is taken for weights."""
    X, y = small()
    counts = BayesianPoissonRegressor().fit(X, np.round(y**2))
    for method in (counts.fit, counts.partial_fit, counts.score):
        with pytest.raises(TypeError, match="3 positional arguments"):
            method(X, np.round(y**2), np.ones(len(y)))
    model = BayesianLogisticRegression().fit(X, y > 0)
    instead = "LogisticRegression.predict takes no 'return_std'. predict_proba"
    with pytest.raises(TypeError, match=instead):
        model.predict(X, return_std=True)


def test_one_row_tells_nothing_of_the_noise():
    """Wrong variant: a warning where the noise is known."""
    X, y = small(1, 1)
    with pytest.raises(SkviWarning, match="one row tells nothing of the scale"):
        BayesianLinearRegression().fit(X, y)
    BayesianLinearRegression(noise_scale=1.0).fit(X, y)
