"""Priors: densities, draws, gradients and expectations of every prior."""

import math
import pickle

import pytest
import torch

import skvi.priors
from skvi.base import Layout
from skvi.exceptions import IncompatibleComponentsError
from skvi.priors import Laplace, Normal, Prior, build_prior

CLASSES = [getattr(skvi.priors, name) for name in skvi.priors.__all__]
CLASSES = [c for c in CLASSES if isinstance(c, type) and issubclass(c, Prior)]
SPECS = [c() for c in CLASSES if c is not Prior] + [Normal(0.3), Laplace(0.3)]
LAYOUT = Layout({"coef": (1, 2), "intercept": (1,)})
BLOCKS = {"intercept": Normal(3.0), "coef": Laplace(0.5)}  # not in the layout's order
every_spec = pytest.mark.parametrize("spec", SPECS, ids=repr)
every_prior = pytest.mark.parametrize("spec", [*SPECS, BLOCKS], ids=repr)
THETA = torch.tensor([[0.5, -1.2, 2.0], [-0.1, 0.3, -4.0]], dtype=torch.float64)


def build_one(spec):
    return spec.build(Layout({"coef": (1,)}))


@every_spec
def test_density_integrates_to_one(spec, integrate):
    # Wrong variant: the normal's or the Laplace's constant without its scale.
    prior, edge = build_one(spec), 60 * spec.scale
    total = integrate(lambda t: prior.log_prob(t[:, None]).exp(), -edge, 0, edge)
    assert float(total) == pytest.approx(1, abs=1e-10)


@every_spec
def test_draws_follow_the_density(spec, generator, z_score, integrate):
    # Wrong variant: scale for the standard deviation of a Laplace.
    prior, edge = build_one(spec), 60 * spec.scale
    draws = prior.sample(1_000_000, generator)[:, 0]
    powers = torch.stack([draws, draws.abs(), draws**2, draws * draws.abs()], 1)

    def moments(t):
        density = prior.log_prob(t[:, None]).exp()
        return torch.stack([t, t.abs(), t**2, t * t.abs()]) * density

    exact = integrate(moments, -edge, 0, edge)
    assert z_score(powers, exact) < 5
    normal = prior.matching_normal()
    assert float(normal.mean) == pytest.approx(float(exact[0]), abs=1e-10)
    assert float(normal.variance) == pytest.approx(float(exact[2]), rel=1e-10)


@every_spec
def test_coordinates_are_independent(spec, generator, z_score):
    prior, one = spec.build(LAYOUT), build_one(spec)
    each = torch.stack([one.log_prob(THETA[:, [j]]) for j in range(3)])
    torch.testing.assert_close(prior.log_prob(THETA), each.sum(0))
    draws = prior.sample(200_000, generator)
    assert draws.shape == (200_000, 3)
    assert z_score(draws[:, 0] * draws[:, 1], 0.0) < 5
    assert z_score(draws[:, 1].abs() - draws[:, 2].abs(), 0.0) < 5


@every_prior
def test_gradient(spec, numeric_gradient):
    # Wrong variants: the sign; one factor of the scale too few.
    prior = build_prior(spec, LAYOUT)
    gradient = prior.log_prob_gradient(THETA)
    theta = THETA.clone().requires_grad_()
    (exact,) = torch.autograd.grad(prior.log_prob(theta).sum(), theta)
    torch.testing.assert_close(gradient, exact, rtol=1e-10, atol=0)
    for row, actual in zip(THETA, gradient, strict=True):
        numeric = numeric_gradient(lambda t: prior.log_prob(t[None])[0], row)
        torch.testing.assert_close(actual, numeric, rtol=5e-6, atol=1e-8)


@every_prior
def test_expected_log_prob(spec, expect_normal):
    """Against quadrature. Wrong variants: |mean| for E|theta|; variance for std."""
    prior = build_prior(spec, LAYOUT)
    if not prior.has_expected_log_prob:
        with pytest.raises(NotImplementedError):
            prior.expected_log_prob(THETA[0], torch.ones(3))
        return
    std = torch.tensor([0.4, 2.0, 1e-3], dtype=torch.float64)
    parts = [spec["coef"]] * 2 + [spec["intercept"]] if spec is BLOCKS else [spec] * 3
    for mean in THETA:
        expected = [
            expect_normal(lambda t, p=part: build_one(p).log_prob(t[:, None]), m, s, 0)
            for part, m, s in zip(parts, mean, std, strict=True)
        ]
        actual = prior.expected_log_prob(mean, std)
        torch.testing.assert_close(actual, torch.stack(expected), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("scale", [0.3, 2.0])
def test_expected_log_prob_far_from_the_kink(scale):
    """Without spread it is the log density; far out it is linear."""
    prior = build_one(Laplace(scale))
    mean = torch.tensor([-50.0, -1.0, 1e-3, 40.0], dtype=torch.float64)
    expected = -mean.abs() / scale - math.log(2 * scale)
    actual = prior.expected_log_prob(mean, torch.full_like(mean, 1e-9))
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=0)


@every_prior
def test_as_normal_has_the_same_density(spec):
    prior = build_prior(spec, LAYOUT)
    normal = prior.as_normal()
    if normal is None:
        laplace = spec["coef"] if spec is BLOCKS else spec
        assert not isinstance(laplace, Normal)
    else:
        torch.testing.assert_close(normal.log_prob(THETA), prior.log_prob(THETA))
        assert normal.mean.dtype == torch.float64


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


@every_spec
@pytest.mark.parametrize("scale", [0, -1.0, "wide"])
def test_bad_scale(spec, scale):
    with pytest.raises(ValueError, match=f"'scale' parameter of {type(spec).__name__}"):
        type(spec)(scale=scale).build(LAYOUT)


@every_prior
def test_pickle(spec):
    prior = build_prior(spec, LAYOUT)
    data = pickle.dumps(prior)
    assert b"torch" not in data  # numpy only
    assert torch.equal(pickle.loads(data).log_prob(THETA), prior.log_prob(THETA))
