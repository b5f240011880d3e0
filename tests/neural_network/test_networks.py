"""Networks of numbers and classes: defaults, noise and evidence."""

import math
import warnings

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.stats import norm
from sklearn.exceptions import ConvergenceWarning

from skvi._estimator._regressors import coarse_grid
from skvi.divergences import RenyiDivergence
from skvi.exceptions import IncompatibleComponentsError, SkviWarning
from skvi.likelihoods import (
    GaussianLikelihood,
    HeteroscedasticLikelihood,
    RoundedLikelihood,
)
from skvi.neural_network import BayesianMLPRegressor
from skvi.priors import Normal
from skvi.solvers import Stochastic
from skvi.solvers._stochastic._ends import Validation
from skvi.solvers._stochastic._optimizers import Adam
from skvi.solvers._stochastic._schedules import Patience, StableDecay

#: One network with the whole divergence and the plainest noise.
ONE = {
    "divergence": "kl",
    "posterior": "mean_field",
    "likelihood": "gaussian",
    "activation": "softplus",
    "skip_connection": False,
}

quick = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::skvi.exceptions.SkviWarning",
)
FAST = {"hidden_layer_sizes": (4,), "max_iter": 10, "random_state": 0}


def known(scale):
    return {"likelihood": GaussianLikelihood(scale)}


def wave(n=300, seed=0, noise=0.2):
    """One feature, a sine, and units far from standard: y is about 30 to 70.

    (Far fewer rows than 300 make the bound prefer a straight line with more noise.)
    """
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 1))
    return X, 50 + 20 * (np.sin(2 * X[:, 0]) + noise * rng.standard_normal(n))


@pytest.fixture(scope="module")
def fitted():
    X, y = wave()
    model = BayesianMLPRegressor(
        hidden_layer_sizes=10,
        solver=Stochastic(learning_rate=0.03),
        random_state=0,
        max_iter=60,
        **(ONE | {"activation": "relu"}),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", SkviWarning)
        return model.fit(X, y), X, y


def mixture(model, X):
    """Means of the drawn networks in units of y, (S, n)."""
    return model._drawn().by_rows(X, lambda f: model._mean(f).T).T


@quick
def test_quantiles_invert_the_mixture(fitted):
    """F(quantile) = level. Wrong variant: the normal with the same two moments."""
    model, X, _ = fitted
    levels = [0.01, 0.5, 0.9]
    found = model.predict_quantiles(X, levels)
    means = mixture(model, X)
    for column, level in zip(found.T, levels, strict=True):
        cdf = norm.cdf((column - means) / model.noise_scale_).mean(0)
        assert np.allclose(cdf, level, atol=1e-9)
    interval = model.predict_interval(X, coverage=0.8)
    assert np.allclose(interval, model.predict_quantiles(X, [0.1, 0.9]), rtol=1e-9)
    assert model.predict_quantiles(X, 0.5).shape == (len(X), 1)


@quick
def test_log_density_is_that_of_the_mixture(fitted):
    """Integrates to 1 over y. Wrong variant: the mean of log densities."""
    model, X, y = fitted
    grid = np.linspace(-150, 250, 4001)
    row = np.repeat(X[:1], len(grid), 0)
    density = np.exp(model.predict_log_density(row, grid))
    assert abs(density.sum() * (grid[1] - grid[0]) - 1) < 1e-6
    expected = norm.pdf(y, mixture(model, X), model.noise_scale_).mean(0)
    assert np.allclose(model.predict_log_density(X, y), np.log(expected))


@quick
def test_bounds_are_on_the_density_of_y():
    """ELBO(10 y + 3) = ELBO(y) - n log 10. Wrong variant: the Jacobian left out.

    With a fixed noise scale the fit in standardized units is the same.
    """
    X, y = wave(40)
    first = BayesianMLPRegressor(**(ONE | FAST | known(4.0))).fit(X, y)
    other = BayesianMLPRegressor(**(ONE | FAST | known(40.0))).fit(X, 10 * y + 3)
    shift = len(y) * math.log(10)
    assert math.isclose(other.lower_bound_, first.lower_bound_ - shift, rel_tol=1e-6)
    value = other.objective_value_, first.objective_value_ - shift
    assert math.isclose(*value, rel_tol=1e-6)
    assert np.allclose(other.predict(X), 10 * first.predict(X) + 3)
    weighted = BayesianMLPRegressor(**(ONE | FAST | known(4.0)))
    weighted.fit(X, y, sample_weight=np.full(40, 2.0))
    again = BayesianMLPRegressor(**(ONE | FAST | known(40.0)))
    again.fit(X, 10 * y + 3, sample_weight=np.full(40, 2.0))
    assert math.isclose(
        again.lower_bound_, weighted.lower_bound_ - 2 * shift, rel_tol=1e-6
    )


@quick
def test_bad_arguments(fitted):
    model, X, y = fitted
    for levels in (0, 1.5, [[0.5]]):
        with pytest.raises(ValueError, match="quantiles"):
            model.predict_quantiles(X, levels)
    with pytest.raises(ValueError, match="coverage"):
        model.predict_interval(X, coverage=1)
    with pytest.raises(ValueError, match="rows"):
        model.predict_log_density(X, y[:-1])
    for sizes in ((0,), (2.5,), -1, [[2]]):
        with pytest.raises(ValueError, match="hidden_layer_sizes"):
            BayesianMLPRegressor(hidden_layer_sizes=sizes, **ONE).fit(X, y)
    with pytest.raises(ValueError, match=r"validation_fraction=0\.1"):
        BayesianMLPRegressor(early_stopping=True, **ONE).fit(X, y)
    with pytest.raises(ValueError, match="full-rank"):
        BayesianMLPRegressor(hidden_layer_sizes=(200, 200), posterior="full_rank").fit(
            X, y
        )


def test_early_stops_count_from_the_end_of_the_warm_up():
    """Wrong variants: they count from the first observation; the divergence has its
    whole weight at once."""
    optimizer, validation = Adam(torch.zeros(1), 1.0), Validation(lambda state: 0.0, 0)
    schedule, shares = Patience(optimizer, validation, 5, warm_up=7), []
    while not schedule.done:
        shares.append(schedule.share)
        validation.judge(None, schedule.share == 1.0)
        schedule.observe(torch.tensor([1.0, 1.1]))
        assert not schedule.converged or len(shares) > 7
    # A hundredth for the first half, then by equal factors.
    rising = 0.01 ** (1 - np.arange(0.5, 3.5) / 3.5)
    assert shares[:4] == [0.01] * 4
    assert shares[4:7] == pytest.approx(rising)
    # The first of them is progress.
    assert shares[7:] == [1.0] * (1 + 5)


def test_a_start_that_is_wide_beside_the_prior():
    """Wrong variant: limits after steps only, so that the first one ends the fit."""
    source = np.random.default_rng(0)
    X = source.standard_normal((40, 2))
    model = BayesianMLPRegressor(
        posterior="mean_field",
        hidden_layer_sizes=(5,),
        divergence=RenyiDivergence(1.5),
        prior=Normal(1.0),
        max_iter=10,
        warm_start=True,
        random_state=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, X[:, 0]).set_params(prior=Normal(0.02)).fit(X, X[:, 0])
    assert model.n_iter_ == 10
    assert np.isfinite(model.lower_bound_)


@pytest.mark.parametrize(("slope", "held", "end"), [(0, 17, 53), (-2, 50, 100)])
def test_steps_decrease_three_times_as_long_as_they_were_constant(slope, held, end):
    """From 12 level observations after the warm-up on, or from half of all.

    Wrong variants: the warm-up counts as constant; the smallest step is 0.
    """
    schedule, rates = StableDecay(Adam(torch.zeros(1), 1.0), 100, 1.0, warm_up=5), []
    while not schedule.done:
        schedule.observe(torch.full((2,), float(slope * len(rates))))
        rates.append(schedule.optimizer.rate)
    assert schedule.converged == (slope == 0)
    assert rates[:held] == [1.0] * held
    falling = 1 - np.arange(1, end - held + 1) / (end - held)
    assert rates[held:] == pytest.approx(falling.clip(1 / 32))


SETTINGS = {
    "hidden_layer_sizes": 20,
    "activation": "relu",  # needs the fewest iterations
    "likelihood": "heteroscedastic",
    "solver": Stochastic(learning_rate=0.02),
    "max_iter": 150,
    "random_state": 0,
}


def varying(scale):
    """Normal noise of a known level, of which the scales of rows are multiples."""
    return {"likelihood": HeteroscedasticLikelihood(GaussianLikelihood(scale))}


def spread(X):
    """Scale of the noise, which doubles seven times from left to right."""
    return 10 * np.exp(-1 + 0.8 * X[:, 0])


def make_data(n, seed, heavy=False):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 1))
    noise = rng.standard_t(3, n) if heavy else rng.standard_normal(n)
    return X, 30 + 10 * np.sin(2 * X[:, 0]) + spread(X) * noise


@pytest.fixture(scope="module")
def fitted_noise():
    X, y = make_data(600, 0)
    return (
        BayesianMLPRegressor(**(ONE | SETTINGS)).fit(X, y),
        X,
        y,
    )


@quick
def test_predictions_follow_from_the_likelihood(fitted_noise, z_score):
    """All answers are those of one mixture of normals with scales of rows.

    Wrong variants: squares of means of scales; the noise at the level.
    """
    model, X, y = fitted_noise
    draws = model._drawn()
    f = draws.by_rows(X, lambda f: f.transpose(0, 1)).transpose(1, 0, 2)
    units = model._model.units
    means = units.y_mean + units.y_scale * f[..., 0]
    stds = model.noise_scale_ * np.exp(6 * np.tanh(f[..., 1] / 6))
    mean, std = model.predict(X, return_std=True)
    assert np.allclose(mean, means.mean(0))
    variance = means.var(0, ddof=1) + (stds**2).mean(0)
    assert np.allclose(std, np.sqrt(variance))
    density = stats.norm.pdf(y, means, stds).mean(0)
    assert np.allclose(model.predict_log_density(X, y), np.log(density))
    quantile = model.predict_quantiles(X, 0.2)[:, 0]
    assert np.allclose(stats.norm.cdf(quantile, means, stds).mean(0), 0.2)
    sample = model.sample_y(X[:4], 4000, random_state=0)
    ends = model.predict_quantiles(X[:4], [0.1, 0.9])
    # The predictions average over 100 networks, the draws over all.
    assert np.allclose((sample < ends[:, :1]).mean(1), 0.1, atol=0.03)
    assert np.allclose((sample > ends[:, 1:]).mean(1), 0.1, atol=0.03)
    components = model._predictive_normals(X)
    assert np.allclose(components[0], means.T)
    assert np.allclose(components[1], stds.T)


@quick
def test_a_fixed_level_is_in_units_of_y():
    """Wrong variants: not divided by the unit of y; that of a later time."""
    X, y = make_data(60, 0)
    options = {**SETTINGS, "max_iter": 3, "hidden_layer_sizes": 3}
    first = BayesianMLPRegressor(**(ONE | options | varying(4.0))).fit(X, y)
    other = BayesianMLPRegressor(**(ONE | options | varying(40.0)))
    other.fit(X, 10 * y + 3)
    shift = len(y) * math.log(10)
    assert math.isclose(other.lower_bound_, first.lower_bound_ - shift, rel_tol=1e-6)
    assert np.allclose(
        other._predictive(X).normals()[1], 10 * first._predictive(X).normals()[1]
    )
    assert other.noise_scale_ == 40.0
    before = first._predictive(X).normals()[1]
    assert np.array_equal(
        first.set_params(**varying(8.0))._predictive(X).normals()[1], before
    )


@quick
def test_refused():
    X, y = make_data(30, 0)
    model = BayesianMLPRegressor(
        loss=lambda f, y: (y - f[..., 0]).abs(), **(ONE | varying(1.0))
    )
    with pytest.raises(IncompatibleComponentsError, match="scale of the noise"):
        model.fit(X, y)


@quick
def test_long_paths_are_refused_at_once(monkeypatch):
    """As the default network has one: the reason says what to do.

    Wrong variant: hours, whatever `max_seconds` is.
    """
    monkeypatch.setattr("skvi.evidence._bounds.tempered_sides", None)  # not reached
    X = np.random.default_rng(0).normal(size=(120, 2))
    model = BayesianMLPRegressor(max_iter=2, divergence="kl", random_state=0)
    with pytest.warns(ConvergenceWarning):
        model.fit(X, X[:, 0])
    assert model.posterior_.layout.size * len(X) > 3e5
    monkeypatch.setattr("skvi.evidence._importance.MAX_PATH", 3e5)
    bounds = model.evidence_bounds(X, X[:, 0], max_seconds=5, random_state=0)
    assert not bounds.reliable
    assert "method='tempering'" in bounds.reason
    with pytest.raises(TypeError, match="not callable"):
        model.evidence_bounds(X, X[:, 0], method="tempering")


@quick
def test_networks_have_a_time_limit_by_default(monkeypatch):
    """Wrong variant: five minutes without a word, with three units on 308 rows."""
    X = np.random.default_rng(0).normal(size=(40, 2))
    shape = {"hidden_layer_sizes": 2, "divergence": "kl", "max_iter": 2}
    model = BayesianMLPRegressor(**shape, random_state=0).fit(X, X[:, 0])
    monkeypatch.setattr("skvi.evidence._bounds.PATH_SECONDS", 0.5)
    bounds = model.evidence_bounds(X, X[:, 0], random_state=0)
    assert not bounds.reliable
    assert "max_seconds" in bounds.reason


RNG = np.random.default_rng(3)
X = RNG.normal(size=(120, 2))
GRADES = np.round(5 + X[:, 0] + 0.5 * RNG.normal(size=120))
SHORT = {"hidden_layer_sizes": 5, "divergence": "kl", "max_iter": 3, "random_state": 0}


def grid(y, weight=None):
    return coarse_grid(np.asarray(y, dtype=float), weight)


@quick
def test_which_targets_have_a_coarse_grid():
    """Integers in any units and precision, and binary ones.

    Not numbers that do not repeat, one value, decimals, or many steps; one row far away
    changes nothing. Wrong variants: numbers up to digits of the largest; any number of
    steps.
    """
    ages = np.round(40 + 15 * RNG.normal(size=2000))
    assert grid(GRADES) == (1.0, GRADES.min())
    assert grid(GRADES % 2) == (1.0, 0.0)
    step, origin = grid(0.4536 * GRADES + 1e4)
    assert (step, origin) == pytest.approx((0.4536, 0.4536 * GRADES.min() + 1e4))
    assert grid(np.float32(0.1) * GRADES.astype(np.float32))[0] == pytest.approx(0.1)
    for far in (900, 1023, 9999, 1234567, -1e9):
        step, origin = grid(np.r_[GRADES, far])
        assert (step, origin) == (1.0, min(GRADES.min(), far))
        assert grid(np.r_[X[:, 0], far]) is None
    for other in (X[:, 0], np.repeat(X[:, 0], 2), np.ones(50), [1.0, 2.0], [1.0]):
        assert grid(other) is None
    for other in (ages, 1000 * ages, RNG.integers(0, 100_000, 10_000)):
        assert grid(other) is None
    assert grid(np.round(GRADES + RNG.normal(size=120), 2)) is None


@quick
def test_weights_are_repetitions():
    """Rows without weight show no step. Wrong variant: the number of rows."""
    y, weight = np.arange(6.0), np.array([2.0, 2, 2, 2, 2, 3])
    assert grid(y) is None
    assert grid(y, weight) == grid(np.repeat(y, weight.astype(int))) == (1.0, 0.0)
    assert grid(np.r_[y, 0.5], np.r_[weight, 0]) == (1.0, 0.0)


@quick
def test_wide_noise_has_a_density():
    """To (step / scale)^2 / 24, whatever the units. Wrong variant: probabilities."""
    f, y = torch.zeros(1, 9, 1).double(), 0.5 * torch.arange(-4, 5).double()
    smooth = GaussianLikelihood(5.0)
    found = RoundedLikelihood(smooth, 0.5).log_prob(f, y)
    torch.testing.assert_close(found, smooth.log_prob(f, y), rtol=0, atol=5e-4)


@quick
def test_batches_keep_the_grid_of_a_fit():
    """A batch alone has none. Wrong variant: that of the batch."""
    model = BayesianMLPRegressor(**SHORT | {"divergence": "auto"}).fit(
        X[:100], GRADES[:100]
    )
    before = model.likelihood_
    after = model.partial_fit(X[100:], GRADES[100:] // 2 * 2).likelihood_
    assert (after.step, after.origin) == (before.step, before.origin)
    assert type(after.noise.noise) is type(before.noise.noise)
    model = BayesianMLPRegressor(**SHORT).partial_fit(X, GRADES)
    assert not isinstance(model.likelihood_, RoundedLikelihood)
