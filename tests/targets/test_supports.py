"""Supports: known integrals, Jacobians and inverses."""

import math

import pytest
import torch
from scipy import special
from torch.distributions import (
    AffineTransform,
    Bernoulli,
    Beta,
    Binomial,
    Gamma,
    Geometric,
    HalfCauchy,
    InverseGamma,
    Kumaraswamy,
    LogNormal,
    Normal,
    Pareto,
    SigmoidTransform,
    TransformedDistribution,
    Weibull,
    constraints,
    transforms,
)

from skvi.targets._density import DensityTarget
from skvi.targets._maps import SUPPORTS, find_transform


def number(x):
    return torch.tensor(x, dtype=torch.float64)


SMALL, ONE, LARGE, ZERO = number(0.05), number(1.0), number(50.0), number(0.0)
#: At ends other than 0, next to which float64 has few digits.
HALF = number(0.5)


def moved(base, *maps):
    return TransformedDistribution(base, list(maps))


def censored(x):
    """All but those beyond x of exponential times, and a prior with many near 0."""
    return Gamma(SMALL, ONE).log_prob(x) + torch.log(1 - torch.exp(-3 * x))


def trials(x):
    y = torch.ones(20, dtype=torch.float64)
    return Beta(SMALL, HALF).log_prob(x) + Bernoulli(x[:, None]).log_prob(y).sum(1)


def log_beta(a, b):
    return special.betaln(a, b)


#: log density, support, log integral, mean and deviation; None if there is none.
KNOWN = {
    "beta": (Beta(SMALL, HALF).log_prob, "unit_interval", 0.0, 0.090909, 0.230909),
    "beta at 1": (Beta(LARGE, HALF).log_prob, "unit_interval", 0.0, 0.990099, 0.013797),
    "beta at 0": (
        Beta(SMALL, LARGE).log_prob,
        "unit_interval",
        0.0,
        0.000999,
        0.004422,
    ),
    "beta inside": (Beta(LARGE, LARGE).log_prob, "unit_interval", 0.0, 0.5, 0.049752),
    "gamma": (Gamma(SMALL, ONE).log_prob, "positive", 0.0, 0.05, math.sqrt(0.05)),
    "gamma inside": (Gamma(LARGE, ONE).log_prob, "positive", 0.0, 50.0, math.sqrt(50)),
    "inverse gamma": (InverseGamma(SMALL, ONE).log_prob, "positive", 0.0, None, None),
    "lognormal": (LogNormal(ZERO, number(30.0)).log_prob, "positive", 0.0, None, None),
    "half cauchy": (HalfCauchy(ONE).log_prob, "positive", 0.0, None, None),
    "weibull": (Weibull(ONE, SMALL).log_prob, "positive", 0.0, None, None),
    "pareto": (
        Pareto(number(2.0), SMALL).log_prob,
        constraints.greater_than(2.0),
        0.0,
        None,
        None,
    ),
    "kumaraswamy": (
        Kumaraswamy(SMALL, HALF).log_prob,
        "unit_interval",
        0.0,
        None,
        None,
    ),
    "logit normal": (
        moved(Normal(ZERO, number(5.0)), SigmoidTransform()).log_prob,
        "unit_interval",
        0.0,
        0.5,
        None,
    ),
    "interval": (
        moved(Beta(HALF, HALF), AffineTransform(0.1, 0.3 - 0.1)).log_prob,
        constraints.interval(0.1, 0.3),
        0.0,
        0.2,
        0.2 * math.sqrt(0.125),
    ),
    "below": (
        lambda x: Gamma(HALF, ONE).log_prob(5 - x),
        constraints.less_than(5.0),
        0.0,
        4.5,
        math.sqrt(0.5),
    ),
    "bernoulli": (
        trials,
        "unit_interval",
        log_beta(20.05, 0.5) - log_beta(0.05, 0.5),
        20.05 / 20.55,
        None,
    ),
    "binomial": (
        lambda x: Beta(SMALL, HALF).log_prob(x) + Binomial(20, x).log_prob(ZERO),
        "unit_interval",
        log_beta(0.05, 20.5) - log_beta(0.05, 0.5),
        0.05 / 20.55,
        None,
    ),
    "geometric": (
        lambda x: Beta(SMALL, HALF).log_prob(x) + Geometric(x).log_prob(ZERO),
        "unit_interval",
        math.log(0.05 / 0.55),
        1.05 / 1.55,
        None,
    ),
    "censored": (censored, "positive", math.log(1 - 4**-0.05), None, None),
}


@pytest.mark.parametrize("kind", KNOWN)
def test_known_integrals(kind):
    """Shapes from .05 to 50 at 0, and from .5 at other ends, by quadrature.

    Wrong variant: values that may be the end of their support.
    """
    log_density, support, log_integral, mean, std = KNOWN[kind]
    target = DensityTarget(lambda p: log_density(p["x"]), {"x": ()}, {"x": support})
    theta = torch.arange(-1000, 1000, 0.02, dtype=torch.float64)[:, None]
    with torch.no_grad():
        logs = target.log_joint(theta) + math.log(0.02)
        x = target.constrain(theta)[0]["x"].numpy()
    assert float(logs.logsumexp(0)) == pytest.approx(log_integral, abs=1e-6)
    weights = torch.softmax(logs, 0).numpy()
    weights, x = weights[weights > 0], x[weights > 0]
    if mean is not None:
        center = weights @ x
        assert center == pytest.approx(mean, rel=1e-4)
    if std is not None:
        assert math.sqrt(weights @ (x - center) ** 2) == pytest.approx(std, rel=1e-3)


def lower(n, diagonal):
    rows, columns = torch.tril_indices(n, n, diagonal)
    return lambda y: y[..., rows, columns]


@pytest.mark.parametrize(
    ("name", "shape", "free"),
    [
        ("simplex", (4,), lambda y: y[..., :-1]),
        ("ordered", (3,), lambda y: y),
        ("positive_ordered", (3,), lambda y: y),
        ("lower_cholesky", (3, 3), lower(3, 0)),
        ("positive_definite", (3, 3), lower(3, 0)),
        ("corr_cholesky", (4, 4), lower(4, -1)),
        ("corr_matrix", (4, 4), lower(4, -1)),
    ],
)
def test_jacobians_and_inverses(name, shape, free):
    """Wrong variant: powers of the diagonal that begin one later."""
    transform = SUPPORTS[name]
    size = transform.inverse_shape(torch.Size(shape))
    x = torch.randn(5, *size, generator=torch.Generator().manual_seed(0)).double()
    y = transform(x)
    assert y.shape == (5, *shape)
    assert transform.forward_shape(x.shape) == y.shape
    torch.testing.assert_close(transform.inv(y), x)
    for one in x:
        jacobian = torch.autograd.functional.jacobian(lambda u: free(transform(u)), one)
        found = transform.log_abs_det_jacobian(one, transform(one))
        torch.testing.assert_close(found, torch.linalg.slogdet(jacobian)[1])


TORCH = {
    "simplex": transforms.StickBreakingTransform(),
    "corr_cholesky": transforms.CorrCholeskyTransform(),
}


@pytest.mark.parametrize("name", TORCH)
def test_coordinates_are_those_of_torch(name):
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(0)).double()
    other = TORCH[name]
    ours = find_transform("x", getattr(constraints, name))(x)
    torch.testing.assert_close(ours, other(x))


def test_directions():
    """Of a von Mises density, by quadrature. Wrong variant: no area of the sphere."""
    target = DensityTarget(
        lambda p: 3 * p["u"][:, 0] - math.log(2 * math.pi * special.i0(3.0)),
        {"u": (2,)},
        {"u": "unit_vector"},
    )
    grid = torch.arange(-8.0, 8.0, 0.05, dtype=torch.float64) + 0.025
    theta = torch.cartesian_prod(grid, grid)
    p = target.log_joint(theta).exp() * 0.05**2
    assert float(p.sum()) == pytest.approx(1.0, abs=5e-4)
    mean = float(p @ target.constrain(theta)[0]["u"][:, 0])
    assert mean == pytest.approx(special.i1(3.0) / special.i0(3.0), abs=1e-3)
