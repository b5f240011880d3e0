"""Draws of priors whose coefficients and noise have a scale with a hyperprior."""

import math

import pytest
import torch
from scipy import integrate

from skvi.base import Layout
from skvi.priors import GammaHyperprior, HalfCauchy, Normal
from skvi.targets._precisions import BuiltHierarchy


def test_coefficients_have_the_drawn_precision(generator, z_score):
    """Means of squares under a Gamma(6, 2) precision. Wrong variants: exp(-t) for
    exp(-t / 2), a width that is the variance; a scale for a rate; the number first.
    """
    own = Normal(GammaHyperprior(6.0, 2.0)).build(Layout({"coef": (1, 2)}))
    layout = Layout({"coef": (1, 2), "noise_precision": (1,)})
    prior = BuiltHierarchy(layout, own, GammaHyperprior(5.0, 3.0))
    draws = layout.unpack(prior.sample(20_000, generator))
    assert z_score(draws["coef"][:, 0].square(), 2.0 / (6.0 - 1)) < 5
    assert z_score(draws["noise_precision"].exp(), 5.0 / 3.0) < 5


@pytest.mark.parametrize("scale", [0.3, 1.0, 20.0])
def test_the_density_of_a_half_cauchy_noise(scale, generator):
    """Its integral is one, its median of the scale c, and draws have it.

    Wrong variants: without the Jacobian of the precision, log 2; the floor without its
    normalization; draws of the scale for those of the log precision.
    """
    noise = HalfCauchy(scale)

    def density(t):
        return float(noise.log_density(torch.tensor(t).double()).exp())

    middle = -2 * math.log(scale)
    parts = [(middle - 200, middle), (middle, middle + 27), (middle + 27, middle + 60)]
    below, above, floor = (integrate.quad(density, *ends)[0] for ends in parts)
    assert below + above + floor == pytest.approx(1, abs=1e-6)
    assert below == pytest.approx(0.5, abs=2e-6)
    draws = noise.draw_log(20_000, generator)[:, 0]
    assert float((draws < middle).double().mean()) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(
    "spec", [Normal(GammaHyperprior(1.5, 0.4)), Normal(HalfCauchy(0.7))]
)
def test_given_its_scale_a_prior_integrates_to_its_density(spec):
    """Also the moments of the precision. Wrong variants: the density of the precision
    for that of the log scale; a factor 2 of the rate; a shape without the half."""
    prior = spec.build(Layout({"coef": (1, 3)}))
    theta = torch.tensor([[0.3, -1.2, 0.8]]).double()

    def joint(z, power=0):
        at = torch.tensor(z).double()
        known = prior.given_scale(math.exp(z)).log_prob(theta)
        return float((known + prior.log_density_of_scale(at) - 2 * power * at).exp())

    total, mean, square = (
        integrate.quad(joint, -12, 12, args=(k,), limit=200)[0] for k in range(3)
    )
    assert math.log(total) == pytest.approx(float(prior.log_prob(theta)), abs=1e-7)
    squares = prior.scale_weights() @ theta[0].square()
    expected, variance = prior.expected_precision(squares)
    assert expected == pytest.approx(mean / total, rel=1e-5)
    second = square / total - (mean / total) ** 2
    assert variance == pytest.approx(second, rel=1e-5)
