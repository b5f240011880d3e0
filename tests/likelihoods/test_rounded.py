"""Probabilities of rounded numbers, and networks of them."""

import numpy as np
import pytest
import torch
from scipy.special import log_ndtr
from sklearn.base import clone

from skvi.exceptions import IncompatibleComponentsError
from skvi.likelihoods import (
    GaussianLikelihood,
    HeteroscedasticLikelihood,
    RoundedLikelihood,
    StudentTLikelihood,
)
from skvi.neural_network import BayesianMLPRegressor
from skvi.solvers import Stochastic
from skvi.testing._ensure import numeric_gradient

pytestmark = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::skvi.exceptions.SkviWarning",
)
SETTINGS = {
    "hidden_layer_sizes": (),
    "max_iter": 40,
    "solver": Stochastic(learning_rate=0.05),
}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 2))
LATENT = 5 + X @ [0.5, -0.3] + 0.4 * RNG.normal(size=400)


def test_tails_keep_their_digits():
    """Where both distribution functions are 1, or 0. Wrong variant: no reflection."""
    likelihood = RoundedLikelihood(GaussianLikelihood(1.0), 1.0)
    y = torch.tensor([-60.0, 12.0, 60.0]).double()
    far = np.abs(y.numpy()) - 0.5
    expected = log_ndtr(-far) + np.log1p(-np.exp(log_ndtr(-far - 1) - log_ndtr(-far)))
    found = likelihood.log_prob(torch.zeros(1, 3, 1).double(), y)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("df", [None, 4.0])
def test_derivatives(df):
    """In f and in the log of the level, against differences.

    Wrong variants: one end alone; the sign of the reflection.
    """
    inner = (
        GaussianLikelihood("learn") if df is None else StudentTLikelihood(df, "learn")
    )
    likelihood = RoundedLikelihood(HeteroscedasticLikelihood(inner), 1.0)
    y = torch.tensor([0.0, 1.0, 3.0, -2.0]).double()

    def total(x):
        f = x[:8].reshape(1, 4, 2)
        return likelihood.bind(x[8:]).log_prob(f, y).sum()

    x = torch.linspace(-0.7, 0.6, 9, dtype=torch.float64).requires_grad_()
    (found,) = torch.autograd.grad(total(x), x)
    torch.testing.assert_close(
        found, numeric_gradient(total, x.detach()), rtol=1e-6, atol=1e-8
    )


@pytest.mark.parametrize("df", [None, 2.5, 4.0])
@pytest.mark.parametrize("scale", [0.01, 0.15, 0.4, 1.0, 6.0])
def test_moments(df, scale):
    """Sums over 40,000 values, also for noise within a step.

    Wrong variants: the mean before rounding; tails without the far ones.
    """
    noise = GaussianLikelihood(scale) if df is None else StudentTLikelihood(df, scale)
    likelihood = RoundedLikelihood(noise, 0.5, 0.25)
    f = torch.tensor([0.25, 0.3, 0.45, 0.6, 0.74]).double()
    k = torch.arange(-20_000, 20_001).double()[:, None]
    y = 0.25 + 0.5 * k
    mass = 0.5 * likelihood.log_prob(f.expand(len(k), 5)[..., None], y).exp()
    mean = (mass * y).sum(0)
    found = likelihood.mean(f[None, :, None])[0]
    torch.testing.assert_close(found, mean, rtol=0, atol=5e-6)
    variance = (mass * (y - mean).square()).sum(0)
    if df is not None:
        far = torch.tensor([20_000.5 * 0.5 / scale]).double()
        tail = noise._standard_tail_moment(far) + far**2 * noise._standard_cdf(-far)
        variance = variance + 2 * scale**2 * tail
    found = likelihood.variance(f[None, :, None])[0]
    torch.testing.assert_close(found, variance, rtol=2e-4, atol=1e-12)


def test_a_network_of_integers():
    """Scale and score are right, draws on the grid; quantiles share numbers evenly.

    Wrong variants: quantiles before rounding; the next number on the grid.
    """
    y = np.round(LATENT)
    model = BayesianMLPRegressor(
        skip_connection=False,
        activation="softplus",
        divergence="kl",
        posterior="mean_field",
        likelihood="rounded",
        random_state=0,
        **SETTINGS,
    )
    model.fit(X, y)
    assert model.noise_scale_ == pytest.approx(0.4, abs=0.06)
    each = np.stack([model.predict_log_density(X, y + k) for k in range(-4, 5)])
    grid = [model.predict_log_density(X[:1], [k])[0] for k in range(-5, 15)]
    assert np.exp(grid).sum() == pytest.approx(1.0, abs=1e-9)
    assert each.max() < 0
    probability = np.exp([model.predict_log_density(X[:1], [k])[0] for k in range(15)])
    for level in (0.03, 0.5, 0.9):
        quantile = model.predict_quantiles(X[:1], level).item()
        below = int(np.floor(quantile + 0.5))
        inside = probability[below] * (quantile + 0.5 - below)
        assert probability[:below].sum() + inside == pytest.approx(level, abs=1e-9)
    ends = model.predict_interval(X, 0.8)
    spread = y + RNG.uniform(-0.5, 0.5, size=len(y))
    cover = np.mean((ends[:, 0] <= spread) & (spread <= ends[:, 1]))
    assert cover == pytest.approx(0.8, abs=0.08)
    draws = model.sample_y(X, 20, random_state=0)
    assert np.array_equal(draws, np.round(draws))
    assert model.lower_bound_ < model.predict_log_density(X, y).sum() < 0


@pytest.mark.parametrize("normalize_y", [True, False])
@pytest.mark.parametrize(("step", "origin"), [(0.25, 0.0), (10.0, 5.0)])
def test_the_step_is_found(normalize_y, step, origin):
    """Also with an origin, of columns, and in units of y.

    Wrong variants: the smallest difference; no Jacobian of the units.
    """
    y = origin + step * np.round(LATENT)
    both = np.c_[y, np.round(3 * LATENT) / 10]
    options = {**SETTINGS, "max_iter": 2, "normalize_y": normalize_y}
    model = BayesianMLPRegressor(
        skip_connection=False,
        activation="softplus",
        divergence="kl",
        posterior="mean_field",
        likelihood="rounded",
        random_state=0,
        **options,
    )
    draws = model.fit(X, both).sample_y(X[:50], 3, random_state=0)
    steps = (draws[:, 0] - origin) / step
    assert np.array_equal(steps, np.round(steps))
    np.testing.assert_allclose(10 * draws[:, 1], np.round(10 * draws[:, 1]), atol=1e-9)
    alone = model.fit(X, y).predict_log_density(X, y)
    again = clone_with_step(model, step, origin).fit(X, y)
    np.testing.assert_allclose(again.predict_log_density(X, y), alone, rtol=1e-6)
    grid = origin + step * np.arange(-60, 70)
    mass = again.predict_log_density(np.repeat(X[:1], 130, 0), grid)
    assert step * np.exp(mass).sum() == pytest.approx(1.0, abs=1e-6)


def clone_with_step(model, step, origin):
    likelihood = RoundedLikelihood(step=step, origin=origin)
    return clone(model).set_params(likelihood=likelihood)


def test_what_has_no_step():
    """Wrong variant: a step of rounding errors."""
    model = BayesianMLPRegressor(
        skip_connection=False,
        activation="softplus",
        divergence="kl",
        posterior="mean_field",
        likelihood="rounded",
        **SETTINGS,
    )
    with pytest.raises(ValueError, match="finds no step of y"):
        model.fit(X, LATENT)
    with pytest.raises(ValueError, match="need not show the step"):
        model.partial_fit(X, np.round(LATENT))
    with pytest.raises(IncompatibleComponentsError, match="needs loss='log'"):
        model.set_params(loss="beta").fit(X, np.round(LATENT))


@pytest.mark.parametrize(
    "noise", [GaussianLikelihood(1.0), StudentTLikelihood(10.0, 1.0)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_far_and_narrow_intervals_have_the_density_of_their_middle(noise, dtype):
    """Values and slopes, where distribution functions of both ends agree.

    Wrong variant: always their difference, which has no logarithm there.
    """
    y = torch.tensor([0.5, 3e3, 3e5, 1e6], dtype=dtype)
    f = torch.zeros(1, 4, 1, dtype=dtype, requires_grad=True)
    found = RoundedLikelihood(noise, 1e-4).log_prob(f, y)
    expected = noise.log_prob(f, y)
    slopes = (torch.autograd.grad(x.sum(), f)[0] for x in (found, expected))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(*slopes, rtol=1e-3, atol=1e-4)
