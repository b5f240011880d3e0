"""Data frames in, data frames out, and no warning that is none of the user's."""

import json
import pickle
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from skvi.evidence._table import BoundsTable, NamedBound
from skvi.linear_model import BayesianLinearRegression, BayesianPoissonRegressor
from skvi.neural_network import BayesianMLPRegressor

QUICK = BayesianLinearRegression(prior="normal", noise_scale=0.5)


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    return pd.DataFrame(rng.normal(size=(20, 2)), columns=["a", "b"])


@pytest.fixture
def all_warnings():
    """What torch says once is said every time, and is an error."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    torch.set_warn_always(before)


def test_a_table_is_a_frame(frame):
    """One column for each bound. On the old code a ValueError: "all scalar values"."""
    y = frame["a"]
    table = QUICK.fit(frame, y).evidence_bounds(frame, y).table
    found = pd.DataFrame(table)
    assert list(found.columns) == list(table) == ["ELBO of q", "exact"]
    assert found.loc["value", "exact"] == table["exact"].value
    assert found.loc["direction", "ELBO of q"] == "lower"
    assert list(found.index) == [
        *("value", "standard_error", "direction", "certifies", "exists", "holds", "k")
    ]
    assert json.loads(json.dumps(table))["exact"]["value"] == table["exact"].value


def test_a_row_stays_what_it_was():
    """Wrong variant: a row whose dict is not that of its fields, after `replace`."""
    row = NamedBound(-1.0, 0.1, "upper", "something", None, k=3)
    assert dict(row) == {name: getattr(row, name) for name in row}
    other = replace(row, value=-2.0)
    assert (other["value"], other.value, row["value"]) == (-2.0, -2.0, -1.0)
    assert other != row == replace(other, value=-1.0)
    assert len({row, replace(other, value=-1.0)}) == 1
    assert pickle.loads(pickle.dumps(row)) == row
    assert dict(pickle.loads(pickle.dumps(row))) == dict(row)
    assert repr(row).startswith("NamedBound(value=-1.0, standard_error=0.1, direction=")
    assert BoundsTable(a=row).to_dict()["bound"] == ["a"]


def test_several_targets_know_their_features(frame, all_warnings):
    """Wrong variant: the frame itself goes to models that were fitted to an array."""
    y = frame.to_numpy() @ [[1.0, 0.5], [0.0, 2.0]]
    y = pd.DataFrame(y, columns=["u", "v"])
    bounds = QUICK.fit(frame, y).evidence_bounds(frame, y)
    single = [QUICK.fit(frame, y[name]).lower_bound_ for name in y]
    assert bounds.estimate == pytest.approx(sum(single))
    with pytest.raises(ValueError, match="feature names should match"):
        QUICK.fit(frame, y).evidence_bounds(frame[["b", "a"]], y)


@pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::skvi.exceptions.SkviWarning",
)
@pytest.mark.parametrize(
    "model",
    [
        QUICK,
        BayesianPoissonRegressor(prior="normal"),
        BayesianMLPRegressor(
            skip_connection=False,
            likelihood="gaussian",
            activation="softplus",
            divergence="kl",
            posterior="mean_field",
            hidden_layer_sizes=(2,),
            max_iter=1,
        ),
    ],
    ids=lambda model: type(model).__name__,
)
def test_read_only_columns_are_no_news(frame, model, all_warnings):
    """pandas gives read-only arrays. Wrong variant: `torch.from_numpy` of them."""
    y = pd.Series(np.arange(20.0) % 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(frame, y)
    fixed = np.array(y)
    expected = model.predict_log_density(frame, fixed)
    fixed.setflags(write=False)
    for targets in (y, fixed):
        found = model.predict_log_density(frame, targets)
        np.testing.assert_array_equal(found, expected)
