"""Predictors against explicit design matrices and explicit loops."""

import pytest
import torch
from torch.nn.functional import softplus

from skvi.predictors import MLPPredictor
from tests.densities import randn

N, D = 13, 3


@pytest.fixture
def two_samplers(make_normal, generator):
    """Draws of f for 4 rows, with local activations and with weights."""
    X, predictor = randn(4, D), MLPPredictor(D, 1, (6,), "tanh", skip_outputs=[0])
    normal = make_normal(predictor.layout.size, "diag", width=0.6)
    eps = torch.randn(
        200_000, predictor.layout.size, generator=generator, dtype=torch.float64
    )
    weights = predictor.forward(normal.transform(eps), X)[..., 0]
    return predictor.sample_locally(normal, X, 200_000, generator)[..., 0], weights


def test_local_reparameterization_keeps_every_row(two_samplers, z_score):
    """Expectations of each row agree.

    Wrong variants: |h| for h squared; a noiseless intercept; the variance for its root.
    """
    local, weights = two_samplers
    for function in (lambda f: f, torch.square, softplus, lambda f: (f - 1).exp()):
        assert z_score(function(local) - function(weights), 0.0) < 5
    assert z_score(local**2 - 1.05 * weights**2, 0.0) > 5


def test_orbits_of_two_layers():
    """All weights between hidden layers are alike. Wrong variant: one layer alone."""
    predictor = MLPPredictor(2, 1, (3, 2), "tanh")
    orbits = predictor.symmetry.orbits(predictor.layout.size)
    blocks = {name: orbits[predictor.layout[name].slice] for name in predictor.layout}
    assert blocks["coef_0"].reshape(2, 3).unique(dim=1).shape == (2, 1)
    assert [len(blocks[name].unique()) for name in blocks] == [2, 1, 1, 1, 1, 1]
    assert len(orbits.unique()) == 7
