"""Torch modules as predictors: the same numbers, roles, buffers, refusals."""

import math
import pickle

import pytest
import torch
from torch import nn
from torch.func import functional_call

from skvi.exceptions import IncompatibleComponentsError
from skvi.likelihoods import GaussianLikelihood, HeteroscedasticLikelihood
from skvi.losses import LogLoss
from skvi.predictors import MLPPredictor, ModulePredictor, _module
from skvi.predictors._module import PartialPredictor
from skvi.priors import Normal
from skvi.priors._blocks import build_prior
from skvi.targets import SupervisedTarget
from tests.densities import randn


def mlp(*sizes):
    return nn.Sequential(
        nn.Linear(sizes[0], sizes[1]), nn.ReLU(), nn.Linear(sizes[1], sizes[2])
    )


class Residual(nn.Module):
    """Convolutions around which the input goes, and frozen batch statistics."""

    def __init__(self, n_outputs=2):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.batch = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, n_outputs)
        self.register_buffer("shift", torch.tensor(0.5))

    def forward(self, x):
        h = torch.relu(self.norm(self.conv1(x)))
        h = h + self.batch(self.conv2(h)) + self.shift
        return self.head(h.mean((2, 3)))


def residual():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = Residual().eval()
        module.batch.running_mean += 0.3
        return module


def test_the_same_network_as_the_mlp():
    """With the same weights, whose matrices torch has transposed.

    Wrong variants: blocks in another order; the gain of a hidden layer for the last.
    """
    module, reference = mlp(3, 5, 2), MLPPredictor(3, 2, (5,))
    X = randn(6, 3)
    predictor = ModulePredictor(module, X, 2)
    theta = randn(4, reference.layout.size, seed=1)
    blocks = reference.layout.unpack(theta)
    own = {
        "0.weight": blocks["coef_0"].mT,
        "0.bias": blocks["intercept_0"],
        "2.weight": blocks["coef_1"].mT,
        "2.bias": blocks["intercept_1"],
    }
    assert list(predictor.layout) == list(own)
    moved = torch.cat([values.flatten(1) for values in own.values()], 1)
    found = predictor.forward(moved, X)
    torch.testing.assert_close(found, reference.forward(theta, X))
    for name, other in zip(own, reference.layout.values(), strict=True):
        block = predictor.layout[name]
        assert block.scale == pytest.approx(other.scale)
        assert block.role == other.role
    values = []
    for net, draws in ((reference, theta), (predictor, moved)):
        prior = build_prior({"coef": Normal(), "intercept": Normal(3.0)}, net.layout)
        parts = net, HeteroscedasticLikelihood(), LogLoss(), prior
        values.append(SupervisedTarget(*parts, X, randn(6)).log_joint(draws))
    torch.testing.assert_close(*values)
    block_forward = predictor.block_forward(theta, 8)
    assert block_forward(X).shape == (4, 8, 2)


def test_every_draw_is_a_functional_call(monkeypatch):
    """Buffers included, in chunks of draws. Wrong variant: those of a fresh module."""
    module, X = residual(), randn(5, 1, 6, 6)
    predictor = ModulePredictor(module, X, 2)
    theta = predictor._start + 0.1 * randn(3, predictor.layout.size)
    double = module.double()
    expected = torch.stack(
        [
            functional_call(double, {k: v[s] for k, v in blocks.items()}, (X,))
            for blocks in [predictor.layout.unpack(theta)]
            for s in range(3)
        ]
    )
    torch.testing.assert_close(predictor.forward(theta, X), expected)
    torch.testing.assert_close(predictor.forward(theta[:1], X), expected[:1])
    monkeypatch.setattr(_module, "MAX_ELEMENTS", 2 * 5 * predictor.row_width)
    torch.testing.assert_close(predictor.forward(theta, X), expected)
    assert predictor.row_width == 4 * 36
    start = predictor.initial_normal(torch.Generator())
    torch.testing.assert_close(predictor.forward(start.mean[None], X)[0], double(X))
    assert predictor.forward(theta.float(), X).dtype == torch.float32


def test_roles_and_natural_scales():
    """Wrong variants: outputs for inputs; weights of a normalization as weights."""
    layout = ModulePredictor(residual(), randn(2, 1, 6, 6), 2).layout
    roles = {name: block.role for name, block in layout.items()}
    assert roles == {
        "conv1.weight": "weight",
        "conv1.bias": "intercept",
        "norm.weight": "affine",
        "norm.bias": "affine",
        "conv2.weight": "weight",
        "batch.weight": "affine",
        "batch.bias": "affine",
        "head.weight": "weight",
        "head.bias": "intercept",
    }
    assert layout["conv1.weight"].scale == pytest.approx(math.sqrt(2) / 3)
    assert layout["conv2.weight"].scale == pytest.approx(math.sqrt(2) / 6)
    assert layout["head.weight"].scale == pytest.approx(0.5)
    assert layout["norm.weight"].scale == 1.0


def test_frozen_and_tied_parameters():
    """What needs no gradient stays; what is used twice is there once."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
            self.second.weight = self.first.weight
            self.second.bias.requires_grad_(False).fill_(2.0)

        def forward(self, x):
            return self.second(torch.tanh(self.first(x)))

    module, X = Tied(), randn(4, 3)
    predictor = ModulePredictor(module, X, 3)
    assert list(predictor.layout) == ["first.weight", "first.bias"]
    theta = randn(2, 12, seed=3)
    W, b = theta[:, :9].reshape(2, 3, 3), theta[:, None, 9:]
    expected = torch.tanh(X @ W.mT + b) @ W.mT + 2.0
    torch.testing.assert_close(predictor.forward(theta, X), expected)


def test_gradients_in_theta(numeric_gradient):
    X, predictor = randn(3, 1, 4, 4), ModulePredictor(residual(), randn(2, 1, 4, 4), 2)
    theta = predictor._start + 0.1 * randn(predictor.layout.size)

    def total(vector):
        return predictor.forward(vector.expand(2, -1), X).square().sum()

    leaf = theta.clone().requires_grad_()
    (found,) = torch.autograd.grad(total(leaf), leaf)
    # Finite differences of a few: there are kinks.
    torch.testing.assert_close(
        found, numeric_gradient(total, theta, 1e-7), rtol=1e-4, atol=1e-4
    )


def test_pickles_and_starts():
    """Wrong variants: pickles with the weights twice; equal starts of an ensemble."""
    X = randn(2, 64)
    module = mlp(64, 400, 2)
    predictor = ModulePredictor(module, X, 2, shuffle=True)
    stored = pickle.dumps(predictor)
    assert len(stored) < 1.2 * 8 * predictor.layout.size + 10_000
    theta = randn(2, predictor.layout.size)
    again = pickle.loads(stored).forward(theta, X)
    assert torch.equal(again, predictor.forward(theta, X))
    generator = torch.Generator().manual_seed(0)
    first, second = (predictor.initial_normal(generator).mean for _ in range(2))
    weight = predictor.layout["0.weight"].slice
    assert not torch.equal(first[weight], second[weight])
    assert torch.equal(first[weight].sort().values, second[weight].sort().values)
    assert next(module.parameters()).device == torch.device("cpu")  # as it was


class Centered(nn.Linear):
    def forward(self, x):
        return super().forward(x - x.mean(0))


@pytest.mark.parametrize(
    ("module", "error", "message"),
    [
        (nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), None, "GroupNorm"),
        (
            nn.Sequential(
                nn.Linear(3, 3), nn.BatchNorm1d(3, track_running_stats=False)
            ).eval(),
            None,
            "GroupNorm",
        ),
        (nn.Sequential(nn.Dropout(0.1), nn.Linear(3, 3)), None, r"module\.eval\(\)"),
        (Centered(3, 3), None, "other rows of a batch"),
        (nn.Linear(3, 2), ValueError, r"needs \(4, 3\)"),
        (nn.Linear(4, 3), ValueError, r"fails on rows of shape \(3,\)"),
        (nn.Flatten(), ValueError, "nothing to learn"),
    ],
    ids=[
        "batch norm",
        "no statistics",
        "dropout",
        "centered",
        "outputs",
        "inputs",
        "0",
    ],
)
def test_refused(module, error, message):
    """Wrong variants: batch normalization without statistics let through; no probe."""
    with pytest.raises(error or IncompatibleComponentsError, match=message):
        ModulePredictor(module, randn(6, 3), 3)


def test_dropout_in_eval_mode_is_fine():
    module = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 3)).eval()
    predictor = ModulePredictor(module, randn(6, 3), 3)
    theta = randn(5, predictor.layout.size)
    first = predictor.forward(theta, randn(6, 3))
    assert torch.equal(first, predictor.forward(theta, randn(6, 3)))


def test_points_of_a_module():
    """The posterior holds the others. Wrong variant: points that q holds as well."""
    module, X = residual(), randn(6, 1, 4, 4)
    full = ModulePredictor(module, X, 2)
    names = ["norm.weight", "norm.bias"]
    partial = PartialPredictor(full, names)
    prior = build_prior({"coef": Normal(), "intercept": Normal()}, partial.layout)
    parts = partial, GaussianLikelihood(1.0), LogLoss(), prior
    target = SupervisedTarget(*parts, X, randn(6))
    assert target.learned == ("norm.weight", "norm.bias")
    assert not set(names) & set(target.layout)
    # They start where the module has them: scale 1, shift 0.
    assert target.hyper.tolist() == [1.0] * 4 + [0.0] * 4


class Recurrent(nn.Module):
    """Columns as a sequence."""

    def __init__(self, kind):
        super().__init__()
        self.cell = kind(1, 4, batch_first=True)
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.cell(x[..., None])[0][:, -1])


def attention():
    layers = nn.Linear(1, 4), nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)
    return nn.Sequential(
        nn.Unflatten(1, (3, 1)), *layers, nn.Flatten(), nn.Linear(12, 1)
    )


def normalized():
    norm = nn.utils.parametrizations.weight_norm(nn.Linear(3, 4))
    return nn.Sequential(norm, nn.Tanh(), nn.Linear(4, 1))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Recurrent(nn.LSTM),
        lambda: Recurrent(nn.GRU),
        lambda: Recurrent(nn.RNN),
        attention,
        normalized,
    ],
)
def test_layers_without_batching_rules(make):
    """Draws one after the other, with the gradients of each.

    Wrong variants: torch's error; its warnings; the first draw for all.
    """
    module, X = make(), randn(5, 3)
    predictor = ModulePredictor(module, X)
    theta = predictor._start + 0.3 * randn(3, predictor.layout.size)
    theta.requires_grad_()
    found = predictor.forward(theta, X)
    gradient = torch.autograd.grad(found.square().sum(), theta)[0]
    module.double()
    for s in range(3):
        own = theta[s].detach().requires_grad_()
        blocks = {k: v[0] for k, v in predictor.layout.unpack(own[None]).items()}
        f = functional_call(module, blocks, (X,))
        torch.testing.assert_close(found[s], f)
        expected = torch.autograd.grad(f.square().sum(), own)[0]
        torch.testing.assert_close(gradient[s], expected)
    with torch.no_grad():
        torch.testing.assert_close(predictor.forward(theta, X), found.detach())


def test_buffers_that_change():
    """Refused where an evaluation changes the next one; fixed in eval mode."""
    norm = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 1))
    for module in (norm, nn.utils.spectral_norm(nn.Linear(3, 1))):
        with pytest.raises(IncompatibleComponentsError, match="changes its buffers"):
            ModulePredictor(module, randn(4, 3))
        predictor = ModulePredictor(module.eval(), randn(4, 3))
        theta = randn(3, predictor.layout.size)
        first = predictor.forward(theta, randn(4, 3))
        torch.testing.assert_close(predictor.forward(theta, randn(4, 3)), first)
