"""What a fit of a log density says when the model or the data are wrong."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch.distributions import Beta, HalfNormal, Normal, Uniform

from skvi.inference import VariationalInference

Y = torch.tensor([1.0, 2.0, 4.0, 3.0], dtype=torch.float64)
SHAPES = {"mu": (), "sigma": ()}
POSITIVE = {"sigma": "positive"}


def model(p, y=Y):
    prior = Normal(0.0, 10.0).log_prob(p["mu"]) + HalfNormal(5.0).log_prob(p["sigma"])
    return prior + Normal(p["mu"][:, None], p["sigma"][:, None]).log_prob(y).sum(1)


def by_hand(p):
    residual = (Y - p["mu"][:, None]) / p["sigma"][:, None]
    return -4 * p["sigma"].log() - 0.5 * residual.square().sum(1) - p["mu"].square()


def shares(p):
    first = Beta(2.0, 2.0).log_prob(p["share"]) + Uniform(0.0, 1.0).log_prob(p["other"])
    return first + HalfNormal(1.0).log_prob(p["sigma"])


def tied(p):
    return Normal(0.0, 1.0).log_prob(p["a"] + 2 * p["b"][:, 0]) - p["b"][:, 1] ** 2


WRONG = {
    "torch's distributions": (model, SHAPES, r"supports=\{'sigma': 'positive'\}"),
    "by hand": (by_hand, SHAPES, r"supports=\{'sigma': 'positive'\}"),
    "two kinds": (
        shares,
        {"share": (), "other": (), "sigma": ()},
        "'share': 'unit_interval', 'other': 'unit_interval', 'sigma': 'positive'",
    ),
    "a combination": (tied, {"a": (), "b": (2,)}, r"combination of \['a', 'b'\]"),
    "not used": (
        lambda p: Normal(0.0, 1.0).log_prob(p["a"]),
        {"a": (), "z": (3,)},
        r"depend on \['z'\].*prior",
    ),
    "constant": (
        lambda p: Normal(0.0, 1.0).log_prob(p["a"]) + 0 * p["z"],
        {"a": (), "z": ()},
        r"depend on \['z'\]: it is constant",
    ),
    "nowhere": (
        lambda p: p["a"] - math.inf,
        {"a": ()},
        "such as -inf at .*probabilities of 0",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_causes_are_named(kind):
    """Wrong variants: one support for all names; directions of raw gradients."""
    density, shapes, words = WRONG[kind]
    with pytest.raises(ValueError, match=words):
        VariationalInference(density, shapes, random_state=0).fit()


def test_data_with_nan_or_of_numpy():
    y = Y.clone()
    y[1] = math.nan
    vi = VariationalInference(model, SHAPES, POSITIVE, random_state=0)
    with pytest.raises(ValueError, match="the data hold 1 NaN"):
        vi.fit(y)
    with pytest.raises(ValueError, match=r"numpy arrays.*torch\.from_numpy"):
        vi.fit(Y.numpy())


def test_what_looks_wrong_and_is_not():
    """Flat on the unit interval; missing data that the density leaves out; units."""

    def unused(p, y):
        weight = torch.tensor([1e-6, 1.0, 1e6], dtype=torch.float64)
        seen = torch.where(y.isnan(), 0.0, y)
        fit = Normal(p["mu"][:, None], 1.0).log_prob(seen) * ~y.isnan()
        return fit.sum(1) + Normal(0.0, 1.0).log_prob(p["x"] * weight).sum(1)

    y = Y.clone()
    y[1] = math.nan
    shapes, supports = {"mu": (), "x": (3,), "s": ()}, {"s": "unit_interval"}
    vi = VariationalInference(unused, shapes, supports, random_state=0).fit(y)
    np.testing.assert_allclose(vi.std_["x"], [1e6, 1.0, 1e-6], rtol=0.01)
    assert vi.mean_["mu"] == pytest.approx(8 / 3, abs=0.02)
    assert vi.std_["s"] == pytest.approx(12**-0.5, rel=0.1)


@pytest.mark.parametrize("case", ["no prior", "a prior", "vague scale"])
def test_a_ridge_without_an_end(case):
    """Separable classes without a prior; not a proper density that a normal fits badly.

    Wrong variant: a line that is flat at its end, after a fall, is a ridge, too.
    """
    X = torch.randn(30, 2, generator=torch.Generator().manual_seed(0)).double()
    is_one = X[:, 0] + 0.3 * X[:, 1] > 0

    def classes(p):
        signed = torch.where(is_one, 1.0, -1.0) * (p["beta"] @ X.T)
        fit = torch.nn.functional.logsigmoid(signed).sum(1)
        weight = 1.0 if case == "a prior" else 0.0
        return fit + weight * Normal(0.0, 1.0).log_prob(p["beta"]).sum(1)

    def scale(p):
        return Normal(p["mu"][:, None], p["sigma"][:, None]).log_prob(Y).sum(1)

    given = (classes, {"beta": (2,)})
    if case == "vague scale":
        given = (scale, SHAPES, POSITIVE)
    vi = VariationalInference(*given, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        vi.fit()
    message = vi.diagnostics_["message"]
    assert ("prior may be missing" in message) == (case == "no prior")
    assert ("along ['beta']" in message) == (case == "no prior")
    assert vi.converged_ == (case == "a prior")


def test_densities_that_raise_far_away():
    """As decompositions of matrices do. Wrong variant: errors of far points raised."""

    def density(p):
        if bool((p["x"].abs() > 20).any()):
            raise torch.linalg.LinAlgError("the matrix is not positive definite")
        return Normal(0.5, 0.1).log_prob(p["x"])

    vi = VariationalInference(density, {"x": ()}, random_state=0).fit()
    assert vi.converged_
    assert vi.lower_bound_ == pytest.approx(0.0, abs=1e-6)
