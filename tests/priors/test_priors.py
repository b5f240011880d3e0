"""Priors: densities, draws, gradients and blocks of every prior."""

import math
import pickle

import numpy as np
import pytest
import torch
from scipy import special

import skvi.priors
from skvi.base import Layout
from skvi.exceptions import IncompatibleComponentsError
from skvi.expectations._log_square import log_scaled_e1, log_scaled_e1_slope
from skvi.posteriors import FullRankNormal, MeanFieldNormal
from skvi.priors import ARD, Horseshoe, Laplace, Normal, Prior, StudentT
from skvi.priors._blocks import build_prior
from skvi.priors._heavy_tailed import LogUniform
from skvi.testing import check_part

CLASSES = [getattr(skvi.priors, name) for name in skvi.priors.__all__]
CLASSES = [c for c in CLASSES if isinstance(c, type) and issubclass(c, Prior)]
#: Priors with draws and a total mass that quadrature can find.
REGULAR = [
    Normal(0.3),
    Laplace(0.3),
    StudentT(),
    StudentT(1.0, 0.3),
    Horseshoe(),
    Horseshoe(0.3),
    ARD(0.5, 2.0),
]
SPECS = [c() for c in CLASSES if c is not Prior] + REGULAR
SCALED = [spec for spec in SPECS if hasattr(spec, "scale")]
LAYOUT = Layout({"coef": (1, 2), "intercept": (1,)}, roles={"intercept": "intercept"})
BLOCKS = {"intercept": Normal(3.0), "coef": Laplace(0.5)}  # not in the layout's order
MIXED = {"intercept": Normal(3.0), "coef": Horseshoe(0.5)}
every_spec = pytest.mark.parametrize("spec", SPECS, ids=repr)
every_regular = pytest.mark.parametrize("spec", REGULAR, ids=repr)
THETA = torch.tensor([[0.5, -1.2, 2.0], [-0.1, 0.3, -4.0]], dtype=torch.float64)
# Edges of panels in log(theta): poles at 0 and heavy tails are smooth there.
LOG_EDGES = (-60, -30, -10, -3, -1, 0, 1, 3, 10, 30, 60)


def build_one(spec):
    return spec.build(Layout({"coef": (1,)}))


@pytest.fixture
def expect_even(integrate):
    """Expectation of an even function of theta under a symmetric prior."""

    def run(prior, function, *edges):
        def integrand(x):
            t = x.exp()
            return 2 * function(t) * (prior.log_prob(t[:, None]) + x).exp()

        return float(integrate(integrand, *(edges or LOG_EDGES), n_nodes=100))

    return run


@pytest.mark.parametrize("spec", [*REGULAR, LogUniform()], ids=repr)
def test_contract(spec):
    """Density, gradient, draws, matching normal, expectations and pickles.

    Wrong variants: the scale for the standard deviation of a Laplace; df for df / 2.
    """
    check_part(spec)


@every_regular
def test_density_integrates_to_one(spec, expect_even):
    # Wrong variants: the constant without the scale; Gamma(df) for Gamma(df / 2).
    prior = build_one(spec)
    assert expect_even(prior, torch.ones_like) == pytest.approx(1, abs=1e-10)
    assert torch.equal(prior.log_prob(THETA[:, :1]), prior.log_prob(-THETA[:, :1]))


@pytest.mark.parametrize("spec", [Normal(0.3), Laplace(0.3), StudentT(), ARD(2.0, 3.0)])
def test_matching_normal_has_the_moments(spec, expect_even):
    # Wrong variant: the scale of a Student-t for its standard deviation.
    prior = build_one(spec)
    variance = expect_even(prior, torch.square)
    assert float(prior.matching_normal().variance) == pytest.approx(variance, rel=1e-8)


@every_regular
def test_coordinates_are_independent(spec, generator, z_score):
    prior, one = spec.build(LAYOUT), build_one(spec)
    each = torch.stack([one.log_prob(THETA[:, [j]]) for j in range(3)])
    torch.testing.assert_close(prior.log_prob(THETA), each.sum(0))
    draws = prior.sample(50_000, generator)
    assert draws.shape == (50_000, 3)
    assert z_score(draws[:, 0].sign() * draws[:, 1].sign(), 0.0) < 5
    small = (draws.abs() < one.matching_normal().scale).double()
    assert z_score(small[:, 1] - small[:, 2], 0.0) < 5
    centered = small - small.mean(0)
    assert z_score(centered[:, 0] * centered[:, 1], 0.0) < 5


@every_spec
def test_natural_sizes_multiply_the_scale(spec):
    """theta / size has the density of a block of size 1, but for LogUniform's unit."""
    prior = spec.build(Layout({"coef": (1, 2)}, scales={"coef": 0.1}))
    unit = spec.build(Layout({"coef": (1, 2)})).log_prob(THETA[:, :2] / 0.1)
    expected = unit - 2 * math.log(0.1)
    torch.testing.assert_close(prior.log_prob(THETA[:, :2]), expected)


@every_spec
def test_density_at_extremes(spec):
    """Poles and far tails: no NaN, and finite gradients."""
    sizes = torch.tensor([0.0, 1e-300, 1e-20, 1e20, 1e150], dtype=torch.float64)
    theta = torch.cat([sizes, -sizes])[:, None]
    prior = build_one(spec)
    assert not prior.log_prob(theta).isnan().any()
    gradient = prior.log_prob_gradient(theta)
    assert torch.isfinite(gradient).all()
    assert (gradient * theta <= 0).all()


@every_regular
def test_tails(spec):
    """The quadratic decay far out is the one that is said. Wrong variant: Laplace 1."""
    prior = build_one(spec)
    far = torch.tensor([[1e6]], dtype=torch.float64)
    decay = -2 * float(prior.log_prob(far)) / 1e12
    assert float(prior.tail_precision()) == pytest.approx(decay, rel=1e-3, abs=1e-5)


def test_ard_integrates_the_precisions_out(integrate):
    """Against quadrature over the precision. Wrong variant: df = shape."""
    shape, rate = 1.5, 0.4
    prior = build_one(ARD(shape, rate))
    for w in (0.0, 0.3, 5.0):

        def joint(x, w=w):
            t = x.exp()
            log_gamma = shape * x - rate * t
            log_normal = 0.5 * (x - t * w**2)
            return torch.exp(log_gamma + log_normal)

        constant = rate**shape / special.gamma(shape) / math.sqrt(2 * math.pi)
        expected = constant * float(integrate(joint, -40, -10, 0, 8))
        actual = float(prior.log_prob(torch.tensor([[w]], dtype=torch.float64)).exp())
        assert actual == pytest.approx(expected, rel=1e-10)


def test_horseshoe_integrates_the_local_scales_out(integrate):
    """Against quadrature over lambda. Wrong variant: t = theta^2 / s^2."""
    scale = 0.4
    prior = build_one(Horseshoe(scale))
    for w in (1e-3, 0.3, 5.0):

        def joint(x, w=w):
            local = x.exp()
            cauchy = 2 / (math.pi * (1 + local.square()))
            normal = torch.exp(-0.5 * (w / (scale * local)).square())
            return cauchy * normal / (scale * math.sqrt(2 * math.pi))

        expected = float(integrate(joint, -40, -8, -3, 0, 3, 8, 40))
        actual = float(prior.log_prob(torch.tensor([[w]], dtype=torch.float64)).exp())
        assert actual == pytest.approx(expected, rel=1e-9)


def test_scaled_exponential_integral():
    """Where scipy has it, at the joint of both formulas, and by its series."""
    t = torch.tensor([1e-8, 0.3, 20.0, 600.0], dtype=torch.float64)
    expected = np.log(special.exp1(t.numpy())) + t.numpy()
    torch.testing.assert_close(log_scaled_e1(t), torch.from_numpy(expected))
    joint = torch.tensor([500 - 1e-9, 500 + 1e-9], dtype=torch.float64)
    for function in (log_scaled_e1, log_scaled_e1_slope):
        below, above = function(joint)
        assert float(below) == pytest.approx(float(above), rel=1e-10)
    large = torch.tensor([1e5, 1e200], dtype=torch.float64)
    torch.testing.assert_close(
        log_scaled_e1(large), -torch.log1p(large), rtol=1e-9, atol=0
    )
    torch.testing.assert_close(
        log_scaled_e1_slope(large), -1 / large, rtol=1e-4, atol=0
    )


def test_log_uniform_is_improper():
    prior = build_prior({"coef": LogUniform(), "intercept": Normal()}, LAYOUT)
    assert not prior.is_proper
    assert build_prior(MIXED, LAYOUT).is_proper
    with pytest.raises(IncompatibleComponentsError, match=r"improper.*Horseshoe"):
        prior.sample(2, torch.Generator())


def test_blocks_follow_the_layout():
    # Wrong variant: the order of the mapping.
    prior = build_prior(BLOCKS, LAYOUT)
    coef = Laplace(0.5).build(Layout({"coef": (1, 2)})).log_prob(THETA[:, :2])
    intercept = build_one(Normal(3.0)).log_prob(THETA[:, 2:])
    torch.testing.assert_close(prior.log_prob(THETA), coef + intercept)
    expected = torch.tensor([0.5 * math.sqrt(2)] * 2 + [3.0], dtype=torch.float64)
    torch.testing.assert_close(prior.matching_normal().scale, expected)
    assert prior.as_normal() is None
    normal = build_prior({"coef": Normal(0.5), "intercept": Normal(3.0)}, LAYOUT)
    torch.testing.assert_close(
        normal.as_normal().scale, torch.tensor([0.5, 0.5, 3.0], dtype=torch.float64)
    )


@pytest.mark.parametrize("spec", [BLOCKS, MIXED], ids=repr)
def test_blocks_have_gradients_and_pickles(spec):
    prior, theta = build_prior(spec, LAYOUT), THETA.clone().requires_grad_()
    (exact,) = torch.autograd.grad(prior.log_prob(theta).sum(), theta)
    torch.testing.assert_close(prior.log_prob_gradient(THETA), exact)
    data = pickle.dumps(prior)
    assert b"torch" not in data  # numpy only
    assert torch.equal(pickle.loads(data).log_prob(THETA), prior.log_prob(THETA))


def test_blocks_by_role():
    """Of a torch module; wrong variant: normalizations shrunk as weights are."""
    shapes = {"a.weight": (2,), "a.bias": (1,), "norm": (1,), "head": (1,)}
    roles = {"a.bias": "intercept", "norm": "affine"}
    layout = Layout(shapes, roles=roles)
    spec = {"a.weight": Normal(1.0), "coef": Normal(2.0), "intercept": Normal(3.0)}
    scale = build_prior(spec, layout).as_normal().scale
    assert scale.tolist() == [1.0, 1.0, 3.0, 3.0, 2.0]
    spec = {"weight": Normal(1.0), "affine": Normal("learn"), "intercept": Normal(3.0)}
    layout = layout.without("head")
    prior = build_prior(spec, layout)
    assert prior.learned == ("prior_scale",)
    scale = prior.bind(torch.tensor([math.log(5.0)]).double()).as_normal().scale
    torch.testing.assert_close(scale, torch.tensor([1.0, 1.0, 3.0, 5.0]).double())
    with pytest.raises(IncompatibleComponentsError, match=r"a\.bias"):
        build_prior({"coef": Normal(2.0)}, layout)


def test_draws_of_blocks(generator, z_score):
    draws = build_prior(BLOCKS, LAYOUT).sample(400_000, generator)
    variance = torch.tensor([0.5, 0.5, 9.0], dtype=torch.float64)
    assert z_score(draws**2, variance) < 5


@pytest.mark.parametrize(
    "spec", [{"coef": Normal()}, {**BLOCKS, "scale": Normal()}, {"weights": Normal()}]
)
def test_blocks_must_match(spec):
    with pytest.raises(IncompatibleComponentsError, match=r"\['coef', 'intercept'\]"):
        build_prior(spec, LAYOUT)


@pytest.mark.parametrize("spec", SCALED, ids=repr)
@pytest.mark.parametrize("scale", [0, -1.0, "wide"])
def test_bad_scale(spec, scale):
    with pytest.raises(ValueError, match=f"'scale' parameter of {type(spec).__name__}"):
        type(spec)(scale=scale).build(LAYOUT)


@pytest.mark.parametrize("family", [FullRankNormal(), MeanFieldNormal()])
def test_posterior_as_prior(family, make_normal, generator, numeric_gradient):
    posterior = family.build(LAYOUT)
    posterior = posterior.near(make_normal(3, "full"))
    prior = build_prior(posterior, LAYOUT)
    expected = posterior.log_prob(THETA)
    torch.testing.assert_close(prior.log_prob(THETA), expected)
    numeric = numeric_gradient(lambda t: prior.log_prob(t[None])[0], THETA[0])
    gradient = prior.log_prob_gradient(THETA)[0]
    torch.testing.assert_close(gradient, numeric, rtol=5e-6, atol=1e-8)
    normal, around = prior.as_normal(), prior.matching_normal()
    torch.testing.assert_close(normal.log_prob(THETA), expected)
    assert around.is_diagonal
    torch.testing.assert_close(around.variance, normal.variance)
    assert prior.sample(5, generator).shape == (5, 3)
    # A copy: what happens to the posterior later does not matter.
    posterior = posterior.near(make_normal(3, "diag", seed=1))
    torch.testing.assert_close(prior.log_prob(THETA), expected)


def test_posterior_of_another_layout():
    posterior = FullRankNormal().build(Layout({"coef": (1, 3)}))
    with pytest.raises(IncompatibleComponentsError, match="is over Layout"):
        build_prior(posterior, LAYOUT)
    inexact = FullRankNormal().build(LAYOUT)
    inexact.side = "lower"
    with pytest.raises(IncompatibleComponentsError, match="full_rank"):
        build_prior(inexact, LAYOUT)


def test_rows_learn_scales():
    """Wrong variants: scales of columns; unequal numbers of rows share scales."""
    layout = Layout({"coef_0": (2, 3), "intercept_0": (3,), "coef_1": (3, 1)})
    rows = Normal("learn_rows")
    spec = {"coef_0": rows, "intercept_0": Normal(7.0), "coef_1": Normal("learn")}
    built = build_prior(spec, layout)
    names = ("prior_scale[coef_0, 0]", "prior_scale[coef_0, 1]", "prior_scale[coef_1]")
    assert built.learned == names
    hyper = torch.tensor([2.0, 3.0, 5.0], dtype=torch.float64).log()
    scale = built.bind(hyper).as_normal().scale
    expected = [2.0] * 3 + [3.0] * 3 + [7.0] * 3 + [5.0] * 3
    assert scale.tolist() == pytest.approx(expected)
    assert built.learned_scales().tolist() == [0] * 3 + [1] * 3 + [-1] * 3 + [2] * 3
    with pytest.raises(IncompatibleComponentsError, match="numbers of rows"):
        build_prior({"coef": rows, "intercept_0": Normal()}, layout)
