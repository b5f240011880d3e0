"""Activations that are drawn for each row, against weights that all rows share."""

import numpy as np
import pytest
import torch

from skvi.base import NormalForm
from skvi.divergences import KLDivergence
from skvi.exceptions import IncompatibleComponentsError
from skvi.likelihoods import BernoulliLikelihood
from skvi.linear_model import BayesianLogisticRegression
from skvi.losses import LogLoss
from skvi.neural_network import BayesianMLPClassifier, BayesianMLPRegressor
from skvi.objectives import ELBO
from skvi.posteriors import MeanFieldNormal
from skvi.predictors import MLPPredictor
from skvi.priors import Laplace, Normal
from skvi.solvers import Stochastic
from skvi.targets import SupervisedTarget


def make_problem(prior, n=150, d=4):
    rng = np.random.default_rng(0)
    X = torch.from_numpy(rng.normal(size=(n, d)))
    y = torch.from_numpy((rng.random(n) < 0.5).astype(float))
    predictor = MLPPredictor(d, 1, (20,), "softplus")
    built = prior.build(predictor.layout)
    target = SupervisedTarget(predictor, BernoulliLikelihood(), LogLoss(), built, X, y)
    size = predictor.layout.size
    mean = torch.from_numpy(rng.normal(size=size)) * 0.5
    scale = torch.full((size,), 0.4, dtype=torch.float64)
    return target, MeanFieldNormal().build(predictor.layout).near(
        NormalForm(mean, scale)
    )


def gradients(gradient, target, posterior, n, rows=None):
    """Values and gradients from one draw each, (n,) and (n, D)."""
    generator = torch.Generator().manual_seed(0)
    values, slopes = [], []
    for _ in range(n):
        params = posterior.params.detach().requires_grad_()
        at = posterior.at(params)
        parts = target, at, KLDivergence(), rows, 1, generator
        surrogate, value = ELBO(gradient).surrogate(*parts)
        slopes.append(torch.autograd.grad(surrogate, params)[0])
        values.append(value)
    return torch.stack(values), torch.stack(slopes)


@pytest.mark.parametrize("prior", [Normal(), Laplace()])
def test_means_are_equal_and_noise_is_less(prior):
    """Wrong variants: deviations of activations without those of intercepts; values
    whose rows share their noise (as large a variance as that of drawn weights).
    """
    target, posterior = make_problem(prior)
    rows = torch.arange(0, 150, 3)
    local = gradients("local", target, posterior, 500, rows)
    drawn = gradients("reparam", target, posterior, 2000, rows)
    for own, other in zip(local, drawn, strict=True):
        own, other = own.reshape(len(own), -1), other.reshape(len(other), -1)
        error = (own.var(0) / len(own) + other.var(0) / len(other)).sqrt()
        distance = ((own.mean(0) - other.mean(0)) / error).abs()
        assert float(distance.max()) < 4.5  # of up to 121 coordinates
    assert float(local[0].var()) < 0.2 * float(drawn[0].var())
    assert float(local[1].var(0).sum()) < 0.5 * float(drawn[1].var(0).sum())


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_networks_take_it():
    """In minibatches of one draw, where noise is largest."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2))
    y = X[:, 0] + 0.1 * rng.normal(size=200)
    model = BayesianMLPRegressor(
        objective=ELBO("local"),
        posterior="mean_field",
        divergence="kl",
        hidden_layer_sizes=5,
        batch_size=50,
        max_iter=25,
        random_state=0,
        solver=Stochastic(learning_rate=0.05, n_draws=1),
    )
    assert model.fit(X, y).score(X, y) > 0.9


@pytest.mark.parametrize(
    "model",
    [
        BayesianMLPClassifier(posterior="low_rank", objective=ELBO("local")),
        BayesianLogisticRegression(objective=ELBO("local"), posterior="mean_field"),
    ],
)
def test_what_has_no_activations_of_independent_weights(model):
    X = np.arange(12.0)[:, None]
    with pytest.raises(IncompatibleComponentsError, match=r"gradient='local'.*auto"):
        model.fit(X, X[:, 0] > 5)
