"""Families, objectives and solvers of users' log densities, against exact values."""

import math
import pickle
import warnings

import numpy as np
import pytest
import torch
from scipy import special
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from torch.distributions import Gamma, MultivariateNormal, Normal

from skvi.evidence._changes import Changes
from skvi.exceptions import IncompatibleComponentsError
from skvi.inference import VariationalInference
from skvi.objectives import ELBO
from skvi.posteriors import (
    LowRankNormal,
    MixtureOfNormals,
    NormalizingFlow,
    SemiImplicitMixture,
)
from skvi.solvers import Stochastic
from skvi.targets._density import DensityTarget

UNIT = 1000.0


def banana(p):
    """x ~ N(0, 1) in units of a thousand, y ~ N(x^2 / 2, 0.5); the integral is e^2."""
    x = p["x"] / UNIT
    curve = Normal(0.5 * x.square(), 0.5).log_prob(p["y"])
    return 2.0 + Normal(0.0, 1.0).log_prob(x) - math.log(UNIT) + curve


def log_normal(p):
    return Normal(5.0, 2.0).log_prob(p["x"])


def log_gamma(p):
    return Gamma(3.0, 2.0).log_prob(p["x"])


def fitted(*args, **params):
    """A fit; short ones may warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return VariationalInference(*args, random_state=0, **params).fit()


@pytest.fixture(scope="module")
def bent():
    return fitted(
        banana,
        {"x": (), "y": ()},
        posterior=NormalizingFlow(n_layers=2, n_hidden=16),
        solver=Stochastic(n_draws=32, learning_rate=0.02),
        max_iter=10,
    )


def test_a_flow_finds_a_curve(bent):
    """A normal is .3 nats short.

    Wrong variants: the flow in the units of the density; no determinant of the normal
    that it starts at.
    """
    assert bent.lower_bound_ == pytest.approx(2.0, abs=0.05)
    assert bent.lower_bound_ < 2.0 + 4 * bent.lower_bound_se_
    assert bent.diagnostics_["solver"] == "stochastic"
    np.testing.assert_allclose(bent.mean_["y"], 0.5, atol=0.15)
    np.testing.assert_allclose(bent.std_["y"], 0.75**0.5, rtol=0.25)
    np.testing.assert_allclose(bent.std_["x"], UNIT, rtol=0.1)
    low, high = bent.evidence_bounds(n_draws=2000, random_state=0).interval()
    assert low < 2.0 < high


def test_density_of_a_flow(bent):
    """It integrates to 1; a pickle has the same.

    Wrong variant: the determinant of the inverse with the other sign.
    """
    x, y = np.linspace(-6, 6, 300), np.linspace(-6, 30, 500)
    points = {"x": UNIT * np.repeat(x, len(y)), "y": np.tile(y, len(x))}
    area = UNIT * (x[1] - x[0]) * (y[1] - y[0])
    assert np.exp(bent.log_prob(points)).sum() * area == pytest.approx(1.0, abs=1e-3)
    again = pickle.loads(pickle.dumps(bent))
    draws = {name: v[:3] for name, v in bent.sample_posterior(3, 1).items()}
    np.testing.assert_array_equal(again.log_prob(draws), bent.log_prob(draws))


def test_a_warm_start_goes_on(bent):
    """Wrong variant: parameters of the last flow at the normal of a new start."""
    model = clone(bent).set_params(warm_start=True)
    vars(model).update({k: v for k, v in vars(bent).items() if k.endswith("_")})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.set_params(max_iter=1).fit()
    error = math.hypot(model.lower_bound_se_, bent.lower_bound_se_)
    assert model.lower_bound_ > bent.lower_bound_ - 0.05 - 4 * error


def test_eubo_has_the_moments_of_the_density():
    """In the logarithm of x: digamma and trigamma functions. The ELBO has others.

    From weighted draws, without gradient steps. Wrong variant: an objective that is
    ignored.
    """
    vi = fitted(log_gamma, {"x": ()}, {"x": "positive"}, objective="eubo", max_iter=10)
    assert vi.diagnostics_["solver"] == "moment_matching"
    normal = vi.posterior_.as_normal()
    expected = special.digamma(3.0) - math.log(2.0), special.polygamma(1, 3.0) ** 0.5
    assert float(normal.mean) == pytest.approx(expected[0], abs=0.02)
    assert float(normal.variance.sqrt()) == pytest.approx(expected[1], rel=0.03)


def test_a_factorized_eubo_has_marginal_deviations():
    """Of a correlated normal, where the ELBO has those given the other: .44 for 1.

    Wrong variant: moments of the ELBO's solution.
    """
    normal = MultivariateNormal(
        torch.zeros(2).double(), torch.tensor([[1.0, 0.9], [0.9, 1.0]]).double()
    )
    vi = VariationalInference(
        lambda p: normal.log_prob(p["x"]),
        {"x": (2,)},
        posterior="mean_field",
        objective="eubo",
        random_state=0,
    ).fit()
    assert vi.converged_
    found = vi.posterior_.as_normal()
    error = 4 * 0.01  # 10,000 effective draws
    np.testing.assert_allclose(found.mean, 0.0, atol=error)
    np.testing.assert_allclose(found.variance, 1.0, atol=error * 2**0.5)


@pytest.mark.parametrize("solver", [Stochastic(n_draws=50), "auto"])
def test_a_gradient_that_is_named_is_taken(solver):
    """The same optimum by gradients without derivatives, in noise.

    Wrong variants: fixed draws whatever the solver, or whatever the gradient.
    """
    exact = VariationalInference(log_gamma, {"x": ()}, {"x": "positive"}).fit()
    vi = fitted(
        log_gamma,
        {"x": ()},
        {"x": "positive"},
        objective=ELBO("score"),
        solver=solver,
        max_iter=10,
    )
    assert vi.diagnostics_["solver"] == "stochastic"
    error = 4 * vi.lower_bound_se_ + 0.01
    assert vi.lower_bound_ == pytest.approx(exact.lower_bound_, abs=error)


def test_what_does_not_go_together():
    with pytest.raises(ValueError, match="at most 1000 are allowed"):
        VariationalInference(log_gamma, {"x": (1001,)}, posterior="flow").fit()
    with pytest.raises(IncompatibleComponentsError, match="AlphaEnergy"):
        VariationalInference(log_gamma, {"x": ()}, objective="alpha_energy").fit()


def test_flows_of_a_module():
    """A module of the user's, with forward and inverse, or as a distribution."""

    class Shift(torch.nn.Module):
        def __init__(self, size):
            super().__init__()
            self.by = torch.nn.Parameter(torch.zeros(size))

        def forward(self, noise):
            return noise + self.by, torch.zeros(len(noise))

        def inverse(self, theta):
            return theta - self.by, torch.zeros(len(theta))

    class Wrapped(torch.nn.Module):
        """As flows of the package zuko are: a distribution with a transform."""

        def __init__(self, size):
            super().__init__()
            self.shift = Shift(size)

        def forward(self):
            return _Distribution(self.shift.by)

    found = []
    for make in (Shift, Wrapped):
        family = NormalizingFlow(make)
        found.append(fitted(log_normal, {"x": ()}, posterior=family, max_iter=2))
    assert found[0].lower_bound_ == pytest.approx(0.0, abs=0.01)
    assert found[0].lower_bound_ == pytest.approx(found[1].lower_bound_, abs=1e-12)


class _Distribution:
    """theta -> noise as `transform`, with `inv` its inverse."""

    def __init__(self, by, sign=-1):
        self.by, self.sign = by, sign

    @property
    def transform(self):
        return self

    @property
    def inv(self):
        return _Distribution(self.by, -self.sign)

    def call_and_ladj(self, x):
        return x + self.sign * self.by, torch.zeros(len(x), dtype=x.dtype)


def two_modes(p):
    """Masses .3 and .7 times e, of different widths."""
    x, y = p["x"], p["y"]
    left = Normal(-1.5, 0.2).log_prob(x) + Normal(0.0, 1.0).log_prob(y)
    right = Normal(1.5, 0.3).log_prob(x) + Normal(1.0, 0.5).log_prob(y)
    return 1.0 + torch.logaddexp(left + math.log(0.3), right + math.log(0.7))


def test_a_mixture_has_the_modes_that_starts_find():
    """Weights of the masses, an ELBO of log Z, bounds of the evidence around it.

    One normal finds one mode, and says so. Wrong variants: the modes of the starts
    unused; weights of strata that are not learned.
    """
    shapes = {"x": (), "y": ()}
    with pytest.warns(ConvergenceWarning, match="'mixture'"):
        one = VariationalInference(two_modes, shapes, random_state=0).fit()
    assert one.lower_bound_ == pytest.approx(1 + math.log(0.7), abs=0.02)
    model = fitted(two_modes, shapes, posterior=MixtureOfNormals(2), max_iter=5)
    assert model.lower_bound_ == pytest.approx(1.0, abs=0.01)
    draws = model.sample_posterior(20_000, 0)
    assert np.mean(draws["x"] < 0) == pytest.approx(0.3, abs=0.01)
    assert model.mean_["x"] == pytest.approx(0.6, abs=0.03)
    low, high = model.evidence_bounds(n_draws=2000, random_state=0).interval()
    assert 0.95 < low < 1.01
    assert 0.99 < high < 1.05


@pytest.mark.parametrize("size", [1, 5])
def test_modes_beyond_the_starts(size):
    """At -20 and 30, where all starts, near 0, go to the first; masses .3 and .7.

    One normal says so, a mixture has both. Wrong variants: points within the range of
    the starts; points where the density is above the center only.
    """

    def far_modes(p):
        left = Normal(-20.0, 1.0).log_prob(p["x"]).sum(1) + math.log(0.3)
        return torch.logaddexp(
            left, Normal(30.0, 1.0).log_prob(p["x"]).sum(1) + math.log(0.7)
        )

    with pytest.warns(ConvergenceWarning, match="'mixture'"):
        one = VariationalInference(far_modes, {"x": (size,)}, random_state=0).fit()
    assert one.lower_bound_ == pytest.approx(math.log(0.7), abs=0.01)
    family = MixtureOfNormals(2)
    model = fitted(far_modes, {"x": (size,)}, posterior=family, max_iter=5)
    assert model.lower_bound_ == pytest.approx(0.0, abs=0.02)
    np.testing.assert_allclose(model.mean_["x"], 15.0, atol=1.0)


def test_both_bounds_of_a_semi_implicit_fit():
    """Below and above the ELBO, which is below the integral, e^2."""
    vi = fitted(
        banana,
        {"x": (), "y": ()},
        posterior=SemiImplicitMixture(n_hidden=4),
        max_iter=2,
    )
    found = vi.diagnostics_
    error = 4 * (vi.lower_bound_se_ + found["elbo_upper_se"])
    assert 1.5 < vi.lower_bound_ < min(2.0, found["elbo_upper"] + error)
    with pytest.raises(IncompatibleComponentsError, match="full_rank"):
        vi.log_prob({"x": [0.0], "y": [0.0]})


def test_weights_of_draws_with_a_bound_of_their_density():
    """They are 1 where the bound is the density of the target.

    Wrong variant: weights relative to the normal of the moments of the draws.
    """

    def normal(p):
        return Normal(0.0, 1.0).log_prob(p["x"]).sum(1)

    target = DensityTarget(normal, {"x": (2,)}, None, ())
    q = SemiImplicitMixture().build(target.layout)  # the same normal, as one given e
    with torch.no_grad():
        found = Changes.of(target, q, torch.Generator().manual_seed(0))
    assert found.efficiency == pytest.approx(1.0, abs=1e-9)
    assert max(found.mean, found.std) < 1e-2


@pytest.mark.parametrize(("size", "rank"), [(5, 1), (20, 3)])
def test_a_normal_of_low_rank_is_found(size, rank):
    """Exactly, as by a full one; strong factors.

    Wrong variants: stochastic steps, which end 3 % off; moments of random draws.
    """
    g = torch.Generator().manual_seed(size)
    factor = 5 * torch.randn(size, rank, generator=g, dtype=torch.float64)
    own = 0.2 + torch.rand(size, generator=g, dtype=torch.float64)
    truth = torch.distributions.LowRankMultivariateNormal(own + 3, factor, own)

    def density(p):
        return truth.log_prob(p["x"])

    low = fitted(density, {"x": (size,)}, posterior=LowRankNormal(rank))
    std = truth.variance.sqrt().numpy()
    assert low.converged_
    assert low.lower_bound_ == pytest.approx(0.0, abs=0.01)
    np.testing.assert_allclose(low.std_["x"], std, rtol=0.02)
    assert np.abs(low.mean_["x"] - truth.mean.numpy()).max() < 0.02 * std.min()


def test_few_stored_samples_are_named():
    """Wrong variant: a verdict on what the samples came from."""

    def density(p):
        return Normal(2.0, 1.0).log_prob(p["m"]).sum(1)

    few = fitted(density, {"m": (12,)}, posterior="refined")
    assert not few.converged_
    assert "store more than 10 samples" in few.diagnostics_["message"]
