"""Families for a user's density, against long chains."""

import json
import math
import os
import pickle
import runpy
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from torch.distributions import Gamma, MultivariateNormal, Normal

from skvi.evidence._changes import Changes
from skvi.exceptions import IncompatibleComponentsError
from skvi.inference import VariationalInference
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


def test_what_does_not_go_together():
    with pytest.raises(ValueError, match="at most 1000 are allowed"):
        VariationalInference(log_gamma, {"x": (1001,)}, posterior="flow").fit()
    with pytest.raises(IncompatibleComponentsError, match="AlphaEnergy"):
        VariationalInference(log_gamma, {"x": ()}, objective="alpha_energy").fit()


def two_modes(p):
    """Masses .3 and .7 times e, of different widths."""
    x, y = p["x"], p["y"]
    left = Normal(-1.5, 0.2).log_prob(x) + Normal(0.0, 1.0).log_prob(y)
    right = Normal(1.5, 0.3).log_prob(x) + Normal(1.0, 0.5).log_prob(y)
    return 1.0 + torch.logaddexp(left + math.log(0.3), right + math.log(0.7))


@pytest.mark.slow
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


ROOT = Path(__file__).parents[2]
DATA = os.environ.get("SKVI_DATA")
QUICK = "kilpisjarvi_mod-kilpisjarvi", "gp_pois_regr-gp_regr", "mesquite-logmesquite"
SLOW = (
    "arma-arma11",
    "garch-garch11",
    "hmm_example-hmm_example",
    "kidiq-kidscore_interaction",
    "low_dim_gauss_mix-low_dim_gauss_mix",
    "nes1972-nes",
    "sblrc-blr",
)
with_data = pytest.mark.skipif(not DATA, reason="needs SKVI_DATA")


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(ROOT / "benchmarks" / "posteriordb.py"))


def fit(script, name, **params):
    folder = Path(DATA) / "posteriordb" / name
    model = script["MODELS"][name](json.loads((folder / "data.json").read_text()))
    reference = json.loads((folder / "moments.json").read_text())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        vi = VariationalInference(*model, random_state=0, **params).fit()
    return vi, *script["errors"](vi.sample_posterior(10_000, 0), reference)


@with_data
@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_moments_are_those_of_long_chains(script, name):
    """In raw units: years, IQ. Wrong variant: a fit from 0 without curvature."""
    vi, mean, std = fit(script, name)
    assert vi.converged_
    assert mean < script["MEAN"]
    assert std < script["STD"]


@with_data
@pytest.mark.parametrize("name", [QUICK[0], QUICK[2]])
def test_correlations_that_a_family_lacks_are_reported(script, name):
    """Deviations are too small by factors of 4 and 200."""
    vi, _, std = fit(script, name, posterior="mean_field")
    assert std > 1
    assert not vi.converged_
