"""Networks in blocks of rows of one size, against the network that is one product."""

import pytest
import torch

from skvi._predictive._quantiles import ROW_BLOCK
from skvi.predictors import LinearPredictor, MLPPredictor, _mlp
from skvi.predictors._mlp import ACTIVATIONS

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
layers = pytest.mark.parametrize("hidden", [(), (11,), (20, 7)])


def draw(hidden, activation="relu", dtype=torch.float64, n_draws=9, n_outputs=3):
    skip_outputs = range(0, n_outputs, 2)
    predictor = MLPPredictor(
        5, n_outputs, hidden, activation, skip_outputs=skip_outputs
    )
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(n_draws, predictor.layout.size, generator=generator)
    X = torch.randn(40, 5, generator=generator)
    return predictor, theta.to(dtype), X.to(dtype)


@layers
@dtypes
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_blocks_agree_with_the_network(hidden, activation, dtype, monkeypatch):
    """Whatever came before. Wrong variants: no intercepts; rows left from a block."""
    monkeypatch.setattr(_mlp, "CACHE_ELEMENTS", 4 * 64 * 20)
    predictor, theta, X = draw(hidden, activation, dtype)
    forward = predictor.block_forward(theta, 64)
    rtol = 1e-5 if dtype == torch.float32 else 1e-12
    for block in (X, X[:7]):
        f = forward(block)
        assert f.shape == (9, 64, 3)
        expected = predictor.forward(theta, block)
        torch.testing.assert_close(f[:, : len(block)], expected, rtol=rtol, atol=rtol)
        nothing = predictor.forward(theta, torch.zeros(1, 5, dtype=dtype))
        rest = f[:, len(block) :]
        torch.testing.assert_close(rest, nothing.expand_as(rest), rtol=rtol, atol=rtol)


@layers
@dtypes
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_all_places_in_a_block_are_equal(hidden, dtype, n_outputs):
    """To the last bit. Wrong variant: blocks of 256 rows, for float64."""
    for n_draws in (1, 9, 40):
        predictor, theta, X = draw(hidden, "relu", dtype, n_draws, n_outputs)
        f = predictor.block_forward(theta, ROW_BLOCK)(X[:1].expand(ROW_BLOCK, 5))
        assert torch.equal(f, f[:, :1].expand_as(f))


def test_any_predictor_has_blocks():
    """Wrong variant: a short block is not filled up."""
    predictor, X = LinearPredictor(5, 2), torch.randn(3, 5, dtype=torch.float64)
    theta = torch.randn(4, predictor.layout.size, dtype=torch.float64)
    f = predictor.block_forward(theta, 8)(X)
    assert f.shape == (4, 8, 2)
    assert torch.allclose(f[:, :3], predictor.forward(theta, X), rtol=1e-12)


@pytest.mark.parametrize("hidden", [(4,), (6, 3)])
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_passes_differentiate_skip_connections(hidden, n_outputs):
    """Of several members and draws, beside automatic differentiation.

    Wrong variants: connections to the first outputs; slopes of all outputs; sums over
    the draws of a member.
    """
    predictor, theta, X = draw(hidden, "tanh", n_draws=6, n_outputs=n_outputs)
    theta, X = theta.reshape(2, 3, -1), X.reshape(2, 20, 5)
    passes = predictor.passes(2, 3, 20, theta)
    for block, own in zip(passes.weights, passes.blocks(theta), strict=True):
        block.copy_(own)
    f = passes.forward(torch.cat([X, torch.ones(2, 20, 1).to(X)], 2).mT)
    leaf = theta.clone().requires_grad_()
    members = zip(leaf, X, strict=True)
    expected = torch.stack([predictor.forward(own, rows) for own, rows in members])
    torch.testing.assert_close(f, expected.detach(), rtol=1e-12, atol=1e-12)
    slope = torch.randn(f.shape, generator=torch.Generator().manual_seed(1)).to(f)
    (gradient,) = torch.autograd.grad((expected * slope).sum(), leaf)
    passes.slope.copy_(slope)
    passes.pull_back()
    pairs = zip(passes.gradients, passes.blocks(gradient), strict=True)
    for (found, _), own in pairs:
        torch.testing.assert_close(found, own, rtol=1e-10, atol=1e-12)
