"""What networks do without tuning: schedules, priors by layer, and their messages."""

import math
import warnings

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning

from skvi.divergences import RenyiDivergence
from skvi.exceptions import SkviWarning
from skvi.neural_network import BayesianMLPRegressor
from skvi.neural_network._reports import remedies
from skvi.predictors import MLPPredictor
from skvi.priors import Normal
from skvi.priors._blocks import build_prior
from skvi.solvers import Stochastic
from skvi.solvers._stochastic._ends import Validation
from skvi.solvers._stochastic._optimizers import Adam
from skvi.solvers._stochastic._schedules import Patience, Plateau, StableDecay

#: One network with the whole divergence and the plainest noise.
ONE = {
    "divergence": "kl",
    "posterior": "mean_field",
    "likelihood": "gaussian",
    "activation": "softplus",
    "skip_connection": False,
}
#: A size and a prior that suit the bound: scales are learned, of features by row.
SUITED = {
    "hidden_layer_sizes": 20,
    "prior": {
        "coef_0": Normal("learn_rows"),
        "coef": Normal("learn"),
        "intercept": Normal("learn"),
    },
}


def observe(means, n_observations, warm_up=0, noise=0.01):
    """Step sizes after each observation, until the schedule is done; and itself."""
    generator, rates = torch.Generator().manual_seed(0), []
    schedule = StableDecay(
        Adam(torch.zeros(1), 1.0), n_observations, 1e-5, 100, warm_up
    )
    for mean in means:
        if schedule.done:
            break
        schedule.observe(mean + noise * torch.randn(100, generator=generator))
        rates.append(schedule.optimizer.rate)
    return np.array(rates), schedule


def test_a_level_objective_ends_early():
    """The step size falls after it was level, as long as it took so far; then once more
    from half of it, for twice as long, which gains nothing.

    Wrong variants: all observations are made; the fall ends half-way; the first round
    is the last; steps of the second are as long as those of the first.
    """
    means = [100 * 0.5**k for k in range(200)]
    rates, schedule = observe(means, 200)
    held = int((rates == 1.0).sum())
    assert 12 <= held < 33
    assert len(rates) == 4 * held
    first, second = rates[held : 2 * held - 1], rates[2 * held - 1 : -1]
    np.testing.assert_allclose(first, 1 - np.arange(1, held) / held)
    np.testing.assert_allclose(second, 0.5 - np.arange(2 * held) / (4 * held))
    assert schedule.converged


def run_rounds(n_observations):
    """Starts of the rounds, and their first steps, of an objective that falls slowly
    below the noise of its steps."""
    optimizer = Adam(torch.zeros(1), 1.0)
    schedule, starts = StableDecay(optimizer, n_observations, 1e-5, 100), {}
    while not schedule.done:
        count = len(schedule.seen) + 1
        mean = 100 * optimizer.rate + 500 / (20 + count)
        noise = 300 * optimizer.rate * torch.tensor([-1.0, 1.0])
        schedule.observe(mean + noise.repeat(50))
        if schedule.n_before == count:
            starts[count] = optimizer.rate
    return starts, schedule


def test_rounds_go_on_while_twice_as_many_steps_gain():
    """Wrong variants: the second round is the last; whatever the last one gained, it
    has converged; a short rest of the observations is a round of its own."""
    starts, schedule = run_rounds(1600)
    ends, first = [*starts, len(schedule.seen)], min(starts)
    assert ends == [first * 2**k for k in range(len(ends))]
    assert len(ends) > 3
    assert list(starts.values()) == [0.5**k for k in range(1, len(ends))]
    # A nat for all rows and parameters counts as nothing.
    assert 300 < ends[-1] < 1000
    assert schedule.converged

    n_observations = int(1.3 * ends[2])
    starts, schedule = run_rounds(n_observations)
    assert list(starts) == ends[:2]
    assert len(schedule.seen) == n_observations
    assert not schedule.converged


def test_a_falling_objective_has_not_converged():
    """Half of the limit with whole steps, and then they fall in any case.

    Wrong variant: whoever comes to the limit has converged.
    """
    rates, schedule = observe([100.0 - k for k in range(100)], 100)
    assert (rates == 1.0).sum() == 50
    assert len(rates) == 100
    assert rates[-1] == 1 / 32
    assert not schedule.converged
    short, _ = observe([100.0 - k for k in range(30)], 30)
    np.testing.assert_allclose(short[:-1], 1 - np.arange(1, 30) / 30)


def test_without_a_tolerance_all_observations_are_made():
    """What is level then is converged at the end. Wrong variant: it ends early."""
    optimizer = Adam(torch.zeros(1), 1.0)
    schedule = StableDecay(optimizer, 100, tol=0.0, n_terms=100)
    rates = []
    while not schedule.done:
        schedule.observe(torch.tensor([50.0, 51.0]) if rates else torch.tensor([99.0]))
        rates.append(optimizer.rate)
    assert rates.count(1.0) == 50
    assert len(rates) == 100
    assert schedule.converged
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = BayesianMLPRegressor(solver=Stochastic(tol=0), max_iter=2, **ONE).fit(
            [[0.0], [1.0]], [0, 1]
        )
    assert model.n_iter_ == 2


def test_a_warm_up_is_not_level():
    """Wrong variants: observations of the warm-up count; it has no end."""
    means = [50.0] * 8 + [40.0 - k for k in range(40)] + [0.0] * 200
    rates, schedule = observe(means, 200, warm_up=8)
    assert (rates == 1.0).sum() > 48
    assert schedule.warm_up == 8
    assert schedule.share == 1.0


def test_features_learn_scales_of_their_own():
    """By a mapping. Wrong variants: one scale for the first layer; rows in another
    order than in theta; the scale of other layers."""
    layout = MLPPredictor(3, 1, (6,)).layout
    prior = {"coef_0": Normal("learn_rows"), "coef": Normal("learn")}
    built = build_prior(prior | {"intercept": Normal()}, layout)
    assert built.learned[:2] == ("prior_scale[coef_0, 0]", "prior_scale[coef_0, 1]")
    hyper = torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.float64)
    scale = built.bind(hyper).as_normal().scale / layout.natural_scales()
    expected = [1.0] * 6 + [math.e] * 6 + [math.e**2] * 6 + [1.0] * 6
    assert scale.tolist() == pytest.approx([*expected, *[math.e**3] * 6, 1.0])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_narrow_prior_is_named():
    """And what is named works. Wrong variant: more rows or units for a prior that lets
    nothing through."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(80, 1))
    y = np.abs(X[:, 0]) + 0.1 * rng.normal(size=80)
    model = BayesianMLPRegressor(
        prior=Normal(0.02),
        solver=Stochastic(learning_rate=0.05),
        max_iter=60,
        random_state=0,
        **(ONE | {"activation": "relu", "hidden_layer_sizes": 20}),
    )
    with pytest.warns(SkviWarning, match="prior='auto'"):
        model.fit(X, y)
    assert model.score(X, y) < 0.3
    model.set_params(prior="auto", max_iter=400, solver__tol=1.0)
    assert model.fit(X, y).score(X, y) > 0.9
    assert "prior" not in remedies((20,), "relu", None, learns_scales=True)


def test_nothing_is_level_before_the_warm_up_is_over():
    """Wrong variants: values under a tenth of the divergence count; rounds are as long
    as the warm-up, too."""
    schedule = StableDecay(Adam(torch.zeros(1), 0.05), 1000, tol=1.0, warm_up=30)
    while not schedule.is_level:
        schedule.observe(torch.zeros(5))
    # Thirty observations of the warm-up, and twelve without progress.
    assert len(schedule.seen) == 42
    assert schedule.n_all == 54


@pytest.mark.parametrize("fraction", [None, 0.2])
def test_early_stopping_waits_for_the_divergence(fraction):
    """A wave, of which the default leaves an error of 0.02.

    Wrong variants: the whole divergence from the first step; what makes no progress
    during the warm-up stops; it has converged then.
    """
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(400, 1))
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=400)
    model = BayesianMLPRegressor(
        early_stopping=True,
        validation_fraction=fraction,
        max_iter=2000,
        random_state=0,
        **ONE,
    ).fit(X, y)
    assert model.converged_
    assert model.n_iter_ > 300  # of the warm-up
    error = model.predict(X) - np.sin(2 * X[:, 0])
    assert np.sqrt(np.mean(error**2)) < 0.04


@pytest.mark.parametrize("kind", [Plateau, Patience])
def test_early_stops_count_from_the_end_of_the_warm_up(kind):
    """Wrong variants: they count from the first observation; the divergence has its
    whole weight at once."""
    optimizer, validation = Adam(torch.zeros(1), 1.0), Validation(lambda state: 0.0, 0)
    given = (1, 1e-3) if kind is Plateau else (validation, 5)
    schedule, shares = kind(optimizer, *given, warm_up=7), []
    while not schedule.done:
        shares.append(schedule.share)
        validation.judge(None, schedule.share == 1.0)
        schedule.observe(torch.tensor([1.0, 1.1]))
        assert not schedule.converged or len(shares) > 7
    # A hundredth for the first half, then by equal factors.
    rising = 0.01 ** (1 - np.arange(0.5, 3.5) / 3.5)
    assert shares[:4] == [0.01] * 4
    assert shares[4:7] == pytest.approx(rising)
    assert shares[7:] == [1.0] * (len(shares) - 7)
    # The first of them is progress; a sixth halving goes below 1/32.
    assert len(shares) == 7 + 1 + (6 if kind is Plateau else 5)


def test_steps_do_not_leave_where_the_divergence_is_finite():
    """Long ones with little weight of a divergence that is infinite for a wide q.

    Wrong variant: no limits; the gradient becomes non-finite after 8 iterations.
    """
    source = np.random.default_rng(0)
    X = source.standard_normal((40, 2))
    y = X[:, 0] + 0.1 * source.standard_normal(40)
    model = BayesianMLPRegressor(
        posterior="mean_field",
        hidden_layer_sizes=(10,),
        divergence=RenyiDivergence(3.0),
        solver=Stochastic(learning_rate=0.2),
        max_iter=60,
        random_state=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y)
    assert model.n_iter_ == 60


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


def test_saturating_units_find_a_wave():
    """Units that bend all over the data at the start: `y = sin(2 x)`, RMSE 0.02.

    Wrong variant: intercepts of 0, from where 6 of 6 seeds end above 0.08.
    """
    source = np.random.default_rng(0)
    X = source.uniform(-3, 3, (500, 1))
    y = np.sin(2 * X[:, 0]) + 0.1 * source.standard_normal(500)
    model = BayesianMLPRegressor(
        max_iter=150, random_state=0, **(ONE | SUITED | {"activation": "tanh"})
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y)
    error = model.predict(X) - np.sin(2 * X[:, 0])
    assert np.sqrt(np.mean(error**2)) < 0.05
    assert model.noise_scale_ == pytest.approx(0.1, rel=0.2)


def test_a_round_that_ends_higher_is_not_the_last():
    """Its steps were too long: the next one has shorter ones.

    Wrong variant: it gained nothing, and ends the fit.
    """
    schedule, ends = StableDecay(Adam(torch.zeros(1), 1.0), 1000, 1e-5, 100), set()
    while not schedule.done:
        level = 60.0 if schedule.n_before == 24 else 50.0
        schedule.observe(level + torch.tensor([-0.01, 0.01]).repeat(50))
        ends.add(schedule.n_before)
    assert ends == {0, 24, 48, 96}
    assert len(schedule.seen) == 192
    assert schedule.converged


@pytest.mark.parametrize(("fall", "end"), [(1.9, 48), (2.1, 96)])
def test_last_round_is_one_after_which_another_would_gain_less_than_tol(fall, end):
    """A round gains half of the one before: the first is 24 long, and falls to 0.

    Wrong variant: the gain of the round itself is compared.
    """
    schedule = StableDecay(Adam(torch.zeros(1), 0.1), 1000, tol=1.0)
    while not schedule.done:
        value = -fall if schedule.n_seen >= 24 else 0.0
        schedule.observe(torch.full((2,), value))
    assert schedule.converged
    assert schedule.n_seen == end
