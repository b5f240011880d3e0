"""Groups that leave networks unchanged."""

import math

import pytest
import torch

from skvi.predictors import LinearPredictor, MLPPredictor
from skvi.predictors._mlp import ACTIVATIONS
from tests.groups import random_copy


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("hidden", [(3,), (3, 2)])
def test_functions_stay(hidden, activation, generator):
    """Wrong variants: intercepts or outgoing weights stay; signs flipped for relu."""
    predictor = MLPPredictor(2, 2, hidden, activation)
    size = predictor.layout.size
    theta = torch.randn(5, size, generator=generator, dtype=torch.float64)
    X = torch.randn(7, 2, generator=generator, dtype=torch.float64)
    moved = theta
    for _ in range(4):
        moved = random_copy(predictor.symmetry, moved, generator)
    assert not torch.equal(moved, theta)
    torch.testing.assert_close(predictor.forward(moved, X), predictor.forward(theta, X))
    is_odd = activation in ("tanh", "identity")
    assert predictor.symmetry.flips == is_odd
    expected = sum(math.lgamma(h + 1) + is_odd * h * math.log(2) for h in hidden)
    assert predictor.symmetry.log_order == pytest.approx(expected)


def test_orbits_of_two_layers():
    """All weights between hidden layers are alike. Wrong variant: one layer alone."""
    predictor = MLPPredictor(2, 1, (3, 2), "tanh")
    orbits = predictor.symmetry.orbits(predictor.layout.size)
    blocks = {name: orbits[predictor.layout[name].slice] for name in predictor.layout}
    assert blocks["coef_0"].reshape(2, 3).unique(dim=1).shape == (2, 1)
    assert [len(blocks[name].unique()) for name in blocks] == [2, 1, 1, 1, 1, 1]
    assert len(orbits.unique()) == 7


def test_none_without_hidden_units():
    assert MLPPredictor(2, 1, ()).symmetry is None
    assert LinearPredictor(2).symmetry is None
