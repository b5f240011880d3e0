"""Supports to the last digit: known integrals, and densities far beyond float64."""

import math

import mpmath
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


def moved(base, *maps):
    return TransformedDistribution(base, list(maps))


def censored(x):
    """All but those beyond x of exponential times, and a prior with many near 0."""
    return Gamma(SMALL, ONE).log_prob(x) + torch.log(1 - torch.exp(-3 * x))


def trials(x):
    y = torch.ones(20, dtype=torch.float64)
    return Beta(SMALL, SMALL).log_prob(x) + Bernoulli(x[:, None]).log_prob(y).sum(1)


def log_beta(a, b):
    return special.betaln(a, b)


#: log density, support, log integral, mean and deviation; None if there is none.
KNOWN = {
    "beta": (Beta(SMALL, SMALL).log_prob, "unit_interval", 0.0, 0.5, 0.476731),
    "beta at 1": (Beta(LARGE, SMALL).log_prob, "unit_interval", 0.0, 0.999, 0.004422),
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
    "wide": (LogNormal(ZERO, number(300.0)).log_prob, "positive", 0.0, None, None),
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
        Kumaraswamy(SMALL, SMALL).log_prob,
        "unit_interval",
        0.0,
        None,
        None,
    ),
    "logit normal": (
        moved(Normal(ZERO, number(30.0)), SigmoidTransform()).log_prob,
        "unit_interval",
        0.0,
        0.5,
        None,
    ),
    "interval": (
        moved(Beta(SMALL, SMALL), AffineTransform(0.1, 0.3 - 0.1)).log_prob,
        constraints.interval(0.1, 0.3),
        0.0,
        0.2,
        0.2 * 0.476731,
    ),
    "below": (
        lambda x: Gamma(SMALL, ONE).log_prob(5 - x),
        constraints.less_than(5.0),
        0.0,
        4.95,
        math.sqrt(0.05),
    ),
    "bernoulli": (
        trials,
        "unit_interval",
        log_beta(20.05, 0.05) - log_beta(0.05, 0.05),
        20.05 / 20.1,
        None,
    ),
    "binomial": (
        lambda x: Beta(SMALL, SMALL).log_prob(x) + Binomial(20, x).log_prob(ZERO),
        "unit_interval",
        log_beta(0.05, 20.05) - log_beta(0.05, 0.05),
        0.05 / 20.1,
        None,
    ),
    "geometric": (
        lambda x: Beta(SMALL, SMALL).log_prob(x) + Geometric(x).log_prob(ZERO),
        "unit_interval",
        math.log(0.5),
        1.05 / 1.1,
        None,
    ),
    "censored": (censored, "positive", math.log(1 - 4**-0.05), None, None),
}


@pytest.mark.parametrize("kind", KNOWN)
def test_known_integrals(kind):
    """Shapes from .05 to 50 at both ends, by quadrature over coordinates.

    Wrong variant: logs of 1 - x from values in float64.
    """
    log_density, support, log_integral, mean, std = KNOWN[kind]
    target = DensityTarget(lambda p: log_density(p["x"]), {"x": ()}, {"x": support})
    reach = 4000.0 if kind == "wide" else 1000.0
    theta = torch.arange(-reach, reach, 0.02, dtype=torch.float64)[:, None]
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


WRITTEN = {
    "1 - x": (lambda x: torch.log(1 - x), lambda s, t: mpmath.log(t)),
    "log1p": (lambda x: torch.log1p(-x), lambda s, t: mpmath.log(t)),
    "logit": (torch.logit, lambda s, t: mpmath.log(s / t)),
    "square": (lambda x: (1 - x * x).log(), lambda s, t: mpmath.log(t * (1 + s))),
    "cube": (
        lambda x: torch.log1p(-(x**3)),
        lambda s, t: mpmath.log(t * (1 + s + s * s)),
    ),
    "powers": (
        lambda x: (x**ZERO * (1 - x) ** ONE).log(),
        lambda s, t: mpmath.log(t),
    ),
    "xlogy": (
        lambda x: torch.xlogy(2.0, torch.stack([x, 1 - x], -1)).sum(-1),
        lambda s, t: 2 * mpmath.log(s * t),
    ),
    "moved": (
        lambda x: torch.cat([x, 1 - x]).reshape(2, -1)[1, None].expand(3, -1)[2].log(),
        lambda s, t: mpmath.log(t),
    ),
    "clamped": (
        lambda x: (
            torch.log(1 - x.clamp(0.25, 0.75)) + torch.logit(x.clamp(max=1 - 1e-16))
        ),
        lambda s, t: mpmath.log(min(max(t, 0.25), 0.75)) + mpmath.log(s / t),
    ),
    "scaled": (lambda x: (3 - 3 * x).log(), lambda s, t: mpmath.log(3 * t)),
    "product": (
        lambda x: torch.log(1 - torch.stack([x, x]).prod(0)),
        lambda s, t: mpmath.log(t * (1 + s)),
    ),
}


@pytest.mark.parametrize("kind", WRITTEN)
def test_relative_precision_at_both_ends(kind):
    """Against 400 digits, with gradients. Wrong variant: 1 - x of float64."""
    function, exact = WRITTEN[kind]
    at = [-300.0, -40.0, -3.0, 0.0, 2.0, 38.0, 300.0]
    z = number(at).requires_grad_()
    with mpmath.workdps(400):
        pairs = [(1 / (1 + mpmath.exp(-u)), 1 / (1 + mpmath.exp(u))) for u in at]
        expected = number([float(exact(s, t)) for s, t in pairs])
    found = function(SUPPORTS["unit_interval"](z))
    assert type(found) is torch.Tensor
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-14)
    (slope,) = torch.autograd.grad(found.sum(), z)
    assert slope.isfinite().all()


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
        jacobian = torch.autograd.functional.jacobian(
            lambda u: free(transform(u)).as_subclass(torch.Tensor), one
        )
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
    torch.testing.assert_close(ours.as_subclass(torch.Tensor), other(x))


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
