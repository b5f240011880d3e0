"""Layers of Gaussian processes against the sparse process and closed forms.

Each test has been seen to fail on the wrong variant that it names.
"""

import numpy as np
import pytest
import torch
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from torch.distributions import MultivariateNormal, kl_divergence

from skvi.divergences import KLDivergence
from skvi.exceptions import SkviWarning
from skvi.gaussian_process import (
    DeepGaussianProcessRegressor,
    SparseGaussianProcessRegressor,
)
from skvi.gaussian_process._layers import (
    BlocksPosterior,
    LayersPredictor,
    LayersTarget,
)

SMALL = {"n_inducing": 12, "random_state": 0}


def steps(n=80):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (n, 1))
    return X, np.sign(X[:, 0]) + 0.05 * rng.normal(size=n)


def layers_of(model, X, y, weight=None):
    """Target of a fit, and its posterior, for rows in the units of the fit."""
    y = (torch.as_tensor(y) - model._model.units.y_mean) / model._model.units.y_scale
    parts = model._model.likelihood, model.loss_function_, torch.as_tensor(X), y
    return LayersTarget(model._layers, *parts, weight), model.posterior_


def test_one_layer_is_the_sparse_process():
    """Wrong: one layer that is trained by steps."""
    X, y = steps()
    deep = DeepGaussianProcessRegressor(n_layers=1, **SMALL).fit(X, y)
    sparse = SparseGaussianProcessRegressor(**SMALL).fit(X, y)
    assert deep.lower_bound_ == sparse.lower_bound_
    np.testing.assert_array_equal(deep.predict(X), sparse.predict(X))
    assert deep.evidence_bounds(X, y).upper == sparse.evidence_bounds(X, y).upper


@pytest.mark.filterwarnings("ignore:.*the layers ended:skvi.exceptions.SkviWarning")
@pytest.mark.parametrize(
    "options", [{}, {"likelihood": "student_t"}, {"loss": "gamma"}], ids=str
)
def test_layers_start_at_the_bound_of_the_sparse_process(options):
    """Wrong: a last layer that starts at its prior; the other sign of the loss."""
    X, y = steps(40)
    kernel = ConstantKernel(1.0, "fixed") * RBF(0.5, "fixed")
    options |= {"alpha": 0.01, "max_iter": 2} | SMALL
    model = DeepGaussianProcessRegressor(kernel, **options).fit(X, y)
    found = model.diagnostics_
    assert -0.1 * len(y) < found["start_gain"] < 0.5
    assert model.objective_value_ == found["sparse_objective_value"]


def test_further_points_change_no_layers():
    """Wrong: inducing values of no variance; points that the first layer leaves."""
    Z, one = torch.linspace(-1, 1, 6)[:, None].double(), torch.ones(1, 1).double()
    kernels = [ConstantKernel(0.3) * RBF(0.8), ConstantKernel(1.0) * RBF(0.3)]
    layers = LayersPredictor(kernels, [Z, Z], one[0], one, 1)
    q = BlocksPosterior(layers.layout, 2)
    random = torch.randn(len(q.params), generator=torch.Generator().manual_seed(0))
    q = q.at(0.3 * random.double())
    others = torch.linspace(-0.9, 0.75, 4)[:, None].double()
    more, grown = layers.with_points(q, others, kernels[0])
    assert len(list(more.layers())[1][2]) == 10
    assert not torch.equal(*(points for *_, points in more.layers()))
    at = torch.linspace(-1.5, 1.5, 9)[:, None].double(), one[None, None]
    before, after = (
        layers.moments(layers.values(q), *at),
        more.moments(more.values(grown), *at),
    )
    for known, found in zip(before, after, strict=True):
        np.testing.assert_allclose(found, known, atol=1e-5)


def test_bound_has_the_divergence_of_every_layer_and_weights_are_repetitions():
    """Wrong: the divergence of the last layer alone; losses without weights.

    Also the bounds of a kernel (wrong: layers without limits).
    """
    X, y = steps()
    kernel = RBF(0.3, (0.29, 0.31))
    model = DeepGaussianProcessRegressor(kernel, max_iter=100, **SMALL).fit(X, y)
    assert model.diagnostics_["n_layers"] == 2
    assert 0.29 <= model.kernel_.k1.length_scale <= 0.31
    target, posterior = layers_of(model, X, y)
    blocks = posterior.blocks()
    assert blocks.mean.shape == (1 + 1, 12)
    q = MultivariateNormal(blocks.mean, scale_tril=blocks.scale)
    prior = MultivariateNormal(torch.zeros(12).double(), torch.eye(12).double())
    known = float(kl_divergence(q, prior).sum())
    assert known == pytest.approx(float(target.divergence(KLDivergence(), posterior)))
    counts = np.random.default_rng(1).integers(1, 4, len(y))
    weighted = layers_of(model, X, y, torch.as_tensor(counts).double())[0]
    index = np.repeat(np.arange(len(y)), counts)
    repeated = layers_of(model, X[index], y[index])[0]
    generator = torch.Generator().manual_seed(0)
    draws = [t.elbo_draws(posterior, 400, generator) for t in (weighted, repeated)]
    error = float(sum(d.var() / 400 for d in draws)) ** 0.5
    assert abs(float(draws[0].mean() - draws[1].mean())) < 4 * error < 10


def test_a_step_is_fitted_better_than_by_one_layer():
    """Wrong: rows that do not move; the variance of f left out of predictions."""
    X, y = steps(120)
    deep = DeepGaussianProcessRegressor(max_iter=200, **SMALL).fit(X[:80], y[:80])
    sparse = SparseGaussianProcessRegressor(**SMALL).fit(X[:80], y[:80])
    assert deep.lower_bound_ > sparse.lower_bound_ + 20
    scores = [m.predict_log_density(X[80:], y[80:]).mean() for m in (deep, sparse)]
    assert scores[0] > scores[1] + 0.2
    far = np.array([[1.5], [3.0]])
    mean, std = deep.predict(far, return_std=True)
    draws = deep.sample_y(far, 500, random_state=0)
    np.testing.assert_allclose(draws.std(1), std, rtol=0.2)
    assert (np.abs(draws.mean(1) - mean) < 0.25 * std).all()


def test_layers_do_not_depend_on_the_unit_of_y():
    """Wrong: a start with few points whose bound is that of the standardized target."""
    X, y = steps()
    fits = [DeepGaussianProcessRegressor(max_iter=20, **SMALL) for _ in range(2)]
    for model, unit in zip(fits, (1.0, 1024.0), strict=True):
        with pytest.warns(SkviWarning, match="nats below one layer, which is kept"):
            model.fit(X, unit * y)
    gains = [model.diagnostics_["gain"] for model in fits]
    assert gains[1] == pytest.approx(gains[0], rel=1e-6)
    np.testing.assert_allclose(fits[1].predict(X), 1024 * fits[0].predict(X), rtol=1e-6)
