"""Families for networks: correlations in the last layer, and dropout."""

import numpy as np
import pytest
import torch

from skvi.base import NormalForm
from skvi.divergences import KL
from skvi.neural_network import BayesianMLPClassifier, BayesianMLPRegressor
from skvi.posteriors import Ensemble, GaussianDropout, LastLayerNormal
from skvi.predictors import MLPPredictor
from skvi.priors import Normal

LAYOUT = MLPPredictor(2, 1, (3,)).layout  # 6 + 3 hidden numbers, 3 + 1 last ones
HIDDEN = 9
NOISE = 0.2


def random(family, generator):
    posterior = family.build(LAYOUT)
    params = torch.randn(len(posterior.params), generator=generator).double()
    return posterior.at(params)


def test_correlations_are_those_of_the_last_layer(generator):
    """Its covariance is any, hidden weights are independent of all.

    Wrong variant: the loadings in the rows of the first layer.
    """
    posterior = random(LastLayerNormal(), generator)
    covariance = posterior.as_normal().covariance()
    hidden = covariance[:HIDDEN].clone()
    hidden[:, :HIDDEN].fill_diagonal_(0.0)
    assert not hidden.any()
    last = covariance[HIDDEN:, HIDDEN:]
    assert (last != 0).all()
    draw = posterior.draw(50, generator)
    normal = posterior.as_normal()
    dense = torch.distributions.MultivariateNormal(normal.mean, covariance)
    torch.testing.assert_close(draw.log_q, dense.log_prob(draw.theta))


@pytest.mark.parametrize("kind", ["own", "full", "diag"])
def test_a_normal_keeps_its_last_covariance(kind, generator, make_normal):
    """Hidden variances, too. Wrong variants: own variances of the whole covariance;
    the inverse."""
    if kind == "own":
        normal = random(LastLayerNormal(), generator).as_normal()
    else:
        normal = make_normal(LAYOUT.size, kind)
    found = LastLayerNormal().build(LAYOUT).near(normal).as_normal()
    last = slice(HIDDEN, None)
    expected, covariance = normal.covariance(), found.covariance()
    torch.testing.assert_close(
        covariance[last, last], expected[last, last], rtol=1e-6, atol=1e-6
    )
    torch.testing.assert_close(found.variance, normal.variance)
    torch.testing.assert_close(found.mean, normal.mean)


def test_large_last_layers_are_refused():
    with pytest.raises(ValueError, match="last layer has 1100 weights"):
        LastLayerNormal().build(MLPPredictor(2, 100, (10,)).layout)


def test_standard_deviations_follow_the_means(generator):
    """Those of weights, by layer; and the rates are those of dropout.

    Wrong variants: one rate for all layers; deviations that are alpha times the mean.
    """
    posterior = random(GaussianDropout(), generator)
    normal, ratios = posterior.as_normal(), posterior.params[-2:].exp()
    mean, std = (LAYOUT.unpack(x[None]) for x in (normal.mean, normal.scale))
    for i in range(2):
        name = f"coef_{i}"
        expected = ratios[i] * mean[name].square()
        floor = (1e-3 * LAYOUT[name].scale) ** 2
        torch.testing.assert_close(std[name].square(), expected + floor)
        noise = 1 + ratios[i].sqrt() * torch.randn(10**6, generator=generator)
        kept = 1 - posterior.rates[name]  # dropout's noise is (0 or 1) / kept
        assert float(noise.var()) == pytest.approx((1 - kept) / kept, rel=0.02)
    free = torch.cat([std["intercept_0"], std["intercept_1"]], 1)[0]
    torch.testing.assert_close(free, posterior.params[-6:-2].exp())


def test_dropout_keeps_means_and_mean_variances(generator):
    """Its own normals come back. Wrong variant: the mean of the ratios, which a weight
    next to 0 decides."""
    posterior = random(GaussianDropout(), generator)
    back = posterior.near(posterior.as_normal())
    torch.testing.assert_close(back.params, posterior.params)
    mean = torch.ones(LAYOUT.size).double()
    mean[0] = 1e-6
    found = posterior.near(NormalForm(mean, 0.3 * torch.ones_like(mean))).as_normal()
    assert float(found.scale[:6].square().mean()) == pytest.approx(0.09, rel=0.01)


def wave(n=80):
    source = np.random.default_rng(0)
    X = source.uniform(-2, 2, (n, 1))
    return X, np.sin(2 * X[:, 0]) + NOISE * source.normal(size=n)


@pytest.fixture(scope="module")
def fits():
    """One function, three families, the same prior and the same noise."""
    X, y = wave()
    parts = {"prior": Normal(2.0), "noise_scale": NOISE, "hidden_layer_sizes": 4}
    parts |= {"activation": "tanh", "max_iter": 60, "random_state": 0}
    return {
        name: BayesianMLPRegressor(posterior=name, **parts).fit(X, y)
        for name in ("mean_field", "last_layer", "dropout")
    }


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_bounds_are_ordered_as_the_families(fits):
    """Each family is in the next: dropout in mean field in the last layer's normal.

    Bounds of one evidence. Wrong variant: the divergence from the prior of the
    independent part only, which puts the bound above the evidence.
    """
    bounds = {name: model.lower_bound_ for name, model in fits.items()}
    assert bounds["dropout"] < bounds["mean_field"] < bounds["last_layer"]
    assert bounds["last_layer"] < bounds["mean_field"] + 30
    X, y = wave()
    for model in fits.values():
        assert model.score(X, y) > 0.85
    rates = fits["dropout"].posterior_.rates
    assert list(rates) == ["coef_0", "coef_1"]
    assert all(0 < rate < 0.5 for rate in rates.values())


def test_last_covariance_is_that_of_a_linear_model(fits, generator):
    """Its optimum: the inverse of E[units' units] / noise + the prior's precision.

    Wrong variants: mean field, whose correlations are 0; the covariance of the hidden
    means alone.
    """
    X, _ = wave()
    model = fits["last_layer"]
    posterior, layout = model.posterior_, model._model.predictor.layout
    blocks = layout.unpack(posterior.draw(1000, generator).theta)
    shift = blocks["intercept_0"][:, None]
    units = torch.tanh(torch.as_tensor(X) @ blocks["coef_0"] + shift)
    design = torch.cat([units, torch.ones_like(units[..., :1])], 2)
    noise = (NOISE / float(np.squeeze(model._model.units.y_scale))) ** 2
    precision = (2.0 * layout.natural_scales()[-5:]) ** -2
    exact = (design.mT @ design).mean(0) / noise + torch.diag(precision)
    covariance = torch.linalg.inv(exact)
    scale = covariance.diagonal().sqrt()
    gap = posterior.as_normal().covariance()[-5:, -5:] - covariance
    assert float((gap / torch.outer(scale, scale)).abs().max()) < 0.2
    correlations = covariance / torch.outer(scale, scale)
    assert float(correlations.fill_diagonal_(0.0).abs().max()) > 0.5


def test_they_compose():
    """With minibatches, classes, other weights of the divergence, and ensembles."""
    X, y = wave(260)
    quick = {"hidden_layer_sizes": 3, "max_iter": 2, "random_state": 0}
    for family in (LastLayerNormal(), GaussianDropout()):
        model = BayesianMLPClassifier(posterior=family, **quick)
        with pytest.warns(UserWarning, match="max_iter"):
            model.fit(X, (y > 0).astype(int) + (y > 0.5))
        assert model.predict_proba(X).shape == (260, 3)
        mixture = Ensemble(family, n_members=2)
        model = BayesianMLPRegressor(
            posterior=mixture, divergence=KL(0.5), noise="heteroscedastic", **quick
        )
        with pytest.warns(UserWarning, match="max_iter"):
            model.fit(X, y)
        assert np.isfinite(model.predict(X)).all()
