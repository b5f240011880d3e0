"""Skewed noise, positive targets, and a value with a probability of its own."""

import numpy as np
import pytest
import torch
from scipy import stats

from skvi._predictive._quantiles import quantiles_of
from skvi.likelihoods import (
    GeneralizedGammaLikelihood,
    HeteroscedasticLikelihood,
    HurdleLikelihood,
    JohnsonSULikelihood,
    Likelihood,
    PoissonLikelihood,
)

SU = JohnsonSULikelihood(4.0, 1.5, 0.7)
GG = GeneralizedGammaLikelihood(2.5, 0.6, 0.8)
SKEWED = [SU, GG, HeteroscedasticLikelihood(SU), HeteroscedasticLikelihood(GG)]
HURDLES = [HurdleLikelihood(part, 0.4) for part in SKEWED]
every = pytest.mark.parametrize("likelihood", SKEWED + HURDLES, ids=repr)


def outputs(likelihood, n_rows=3):
    f = torch.linspace(-0.6, 0.9, n_rows * likelihood.n_outputs).double()
    return f.reshape(1, n_rows, -1)


def integral(likelihood, f, function, c=1):
    """Integral over y of a function times the power of the density of one row."""
    low = [0.0, 0.05] if "Gamma" in repr(likelihood) else [-60.0, -10.0, -2.0, -0.5]
    ends = [*low, 0.2, 0.4, 0.9, 2.0, 5.0, 20.0, 100.0, 1000.0]  # that are no nodes
    x, w = np.polynomial.legendre.leggauss(80)
    halves, middles = np.diff(ends)[:, None] / 2, np.convolve(ends, [0.5, 0.5], "valid")
    y = np.append((middles[:, None] + halves * x).ravel(), 0.4)
    w = np.append((halves * w).ravel(), float(isinstance(likelihood, HurdleLikelihood)))
    at = f.expand(1, len(y), -1), torch.from_numpy(y)
    return float(w @ (function(y) * likelihood.log_prob(*at)[0].mul(c).exp().numpy()))


@every
def test_moments_by_quadrature(likelihood):
    """Wrong variants: the location for the mean; a moment without the atom; no Jacobian
    of the logarithm."""
    f = outputs(likelihood)
    for row in range(3):
        own = f[:, [row]]
        moments = [integral(likelihood, own, lambda y, k=k: y**k) for k in range(3)]
        assert moments[0] == pytest.approx(1, rel=1e-6)
        assert float(likelihood.mean(own)) == pytest.approx(moments[1], rel=1e-4)
        variance = moments[2] - moments[1] ** 2
        assert float(likelihood.variance(own)) == pytest.approx(variance, rel=5e-3)


@every
def test_distribution_functions(likelihood):
    """The cdf is the integral of the density, and quantiles invert it.

    Wrong variant: levels of the rest that do not leave out the jump.
    """
    f, at = outputs(likelihood), torch.tensor([0.2, 0.9, 2.0]).double()
    cdf = likelihood.cdf(f, at)
    for row in range(3):
        own, top = f[:, [row]], float(at[row])
        found = integral(likelihood, own, lambda y, top=top: y <= top)
        assert float(cdf[0, row]) == pytest.approx(found, abs=1e-6)
    for level in (0.02, 0.3, 0.6, 0.97):
        y = likelihood.quantile(f, level)
        share = likelihood.cdf(f, y[0])
        is_atom = torch.zeros_like(share, dtype=torch.bool)
        if isinstance(likelihood, HurdleLikelihood):
            is_atom = y == likelihood.value
            below = share - torch.sigmoid(f[..., -1])
            assert bool(((below <= level) & (level <= share))[is_atom].all())
        torch.testing.assert_close(
            share[~is_atom], torch.full_like(share, level)[~is_atom]
        )


@every
@pytest.mark.parametrize("c", [0.8, 1, 1.5])
def test_power_integrals(likelihood, c):
    """Wrong variants: the power of the Jacobian; an atom that is not raised."""
    own = outputs(likelihood)[:, [1]]
    found = float(likelihood.log_power_integral(own, c).exp())

    assert found == pytest.approx(integral(likelihood, own, np.ones_like, c), rel=1e-4)


@every
def test_slopes(likelihood):
    """Wrong variants: the slope of the asymmetry's sign; rows at the value."""
    f, y = outputs(likelihood, 4), torch.tensor([0.4, 0.9, 2.5, 0.05]).double()
    expected = Likelihood.log_prob_derivatives(likelihood, f, y)[1]
    found = likelihood._log_prob_slope(f, y).reshape(expected.shape)
    torch.testing.assert_close(found, expected)


@every
def test_samples(likelihood, generator, z_score):
    """Wrong variant: noise that is not skewed."""
    f = outputs(likelihood)
    draws = likelihood.sample(f.expand(20_000, -1, -1), generator)
    for point in (0.2, 0.4, 1.5):
        expected = likelihood.cdf(f, torch.full((3,), point).double())[0]
        for k in range(3):
            share = (draws[:, k] <= point).double()
            if 0.01 < expected[k] < 0.99:
                assert z_score(share, float(expected[k])) < 5


def test_limits_of_johnson_su():
    """Normal, lognormal and mirrored noise; all digits for nearly symmetric noise.

    Wrong variant: the scale without cosh(m), which is not that of the median.
    """
    z = torch.linspace(-1.2, 4, 30).double()
    normal = JohnsonSULikelihood(1.0, 1e4)._standard_log_prob(z)
    np.testing.assert_allclose(normal, stats.norm.logpdf(z), atol=1e-6)
    lognormal = stats.lognorm(1 / 1.3, loc=-1.3, scale=1.3)
    found = JohnsonSULikelihood(1e7, 1.3)._standard_log_prob(z)
    np.testing.assert_allclose(found, lognormal.logpdf(z), atol=1e-6)
    right, left = JohnsonSULikelihood(3.0, 1.3), JohnsonSULikelihood(1 / 3.0, 1.3)
    torch.testing.assert_close(left._standard_log_prob(z), right._standard_log_prob(-z))
    law = stats.johnsonsu(-1.3 * np.log(3), 1.3)
    u = np.sinh(np.log(3)) + z.numpy() * np.cosh(np.log(3)) / 1.3
    expected = law.logpdf(u) + np.log(np.cosh(np.log(3)) / 1.3)
    np.testing.assert_allclose(right._standard_log_prob(z), expected)


def test_hurdle_of_counts():
    """Probabilities sum to one, and give the moments.

    Wrong variant: the rest's own probability of the value is not taken out.
    """
    likelihood = HurdleLikelihood(PoissonLikelihood(), 2.0)
    f, y = torch.tensor([[[0.8, -0.3]]]).double(), torch.arange(60).double()
    mass = likelihood.log_prob(f.expand(1, 60, 2), y)[0].exp()
    assert float(mass.sum()) == pytest.approx(1)
    mean = float(mass @ y)
    assert float(likelihood.mean(f)) == pytest.approx(mean)
    assert float(likelihood.variance(f)) == pytest.approx(float(mass @ (y - mean) ** 2))
    cdf = likelihood.cdf(f.expand(1, 60, 2), y)[0]
    torch.testing.assert_close(cdf, mass.cumsum(0))
    powers = likelihood.log_power_integral(f, 1.5)
    assert float(powers) == pytest.approx(float((mass**1.5).sum().log()))
    found = quantiles_of(likelihood, f, np.array([0.1, 0.4]), torch.ones(1).double())
    expected = [int((mass.cumsum(0) < level).sum()) for level in (0.1, 0.4)]
    assert found[0].tolist() == expected
