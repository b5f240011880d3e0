"""Dropout with normal noise, a family for networks."""

import numpy as np
import pytest
import torch

from skvi.base import NormalForm
from skvi.divergences import KLDivergence
from skvi.likelihoods import GaussianLikelihood
from skvi.neural_network import BayesianMLPClassifier, BayesianMLPRegressor
from skvi.posteriors import Ensemble
from skvi.posteriors._ensemble import GaussianDropout
from skvi.predictors import MLPPredictor
from skvi.priors import Normal

LAYOUT = MLPPredictor(2, 1, (3,)).layout
NOISE = 0.2


def random(family, generator):
    posterior = family.build(LAYOUT)
    params = torch.randn(len(posterior.params), generator=generator).double()
    return posterior.at(params)


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


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_bounds_are_ordered_as_the_families():
    """Dropout is in mean field. Same prior and noise, so bounds of one evidence."""
    X, y = wave()
    parts = {"prior": Normal(2.0), "hidden_layer_sizes": 4}
    parts |= {"activation": "tanh", "max_iter": 60, "random_state": 0}
    parts |= {"divergence": "kl", "likelihood": GaussianLikelihood(NOISE)}
    parts["skip_connection"] = False
    fits = {
        name: BayesianMLPRegressor(posterior=name, **parts).fit(X, y)
        for name in ("mean_field", "dropout")
    }
    bounds = {name: model.lower_bound_ for name, model in fits.items()}
    assert bounds["dropout"] < bounds["mean_field"]
    for model in fits.values():
        assert model.score(X, y) > 0.85
    rates = fits["dropout"].posterior_.rates
    assert list(rates) == ["coef_0", "coef_1"]
    assert all(0 < rate < 0.5 for rate in rates.values())


def test_they_compose():
    """With minibatches, classes, other weights of the divergence, and ensembles."""
    X, y = wave(260)
    quick = {"hidden_layer_sizes": 3, "max_iter": 2, "random_state": 0}
    model = BayesianMLPClassifier(posterior=GaussianDropout(), **quick)
    with pytest.warns(UserWarning, match="max_iter"):
        model.fit(X, (y > 0).astype(int) + (y > 0.5))
    assert model.predict_proba(X).shape == (260, 3)
    mixture = Ensemble(GaussianDropout(), n_members=2)
    model = BayesianMLPRegressor(
        posterior=mixture,
        divergence=KLDivergence(0.5),
        likelihood="heteroscedastic",
        **quick,
    )
    with pytest.warns(UserWarning, match="max_iter"):
        model.fit(X, y)
    assert np.isfinite(model.predict(X)).all()
