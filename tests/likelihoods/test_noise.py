"""Noise with scales of rows, and several targets: densities, slopes, predictions."""

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.integrate import quad

from skvi.likelihoods import (
    GaussianLikelihood,
    GeneralizedGammaLikelihood,
    HeteroscedasticLikelihood,
    HurdleLikelihood,
    JohnsonSULikelihood,
    Likelihood,
    PoissonLikelihood,
    RoundedLikelihood,
    StudentTLikelihood,
)
from skvi.likelihoods._independent import IndependentLikelihood
from skvi.losses import LogLoss
from skvi.utils._rows import RowBuffers

GAUSSIAN, STUDENT = GaussianLikelihood(0.7), StudentTLikelihood(3.0, 0.7)
NOISES = [GAUSSIAN, STUDENT]
HETEROSCEDASTIC = [HeteroscedasticLikelihood(noise) for noise in NOISES]
every = pytest.mark.parametrize("likelihood", HETEROSCEDASTIC, ids=repr)
# The log of the scale over its level: also far out, where it is bounded.
F = torch.tensor(
    [[[0.3, 0.0], [-1.0, 1.0], [2.0, -0.5], [0.0, 9.0], [1.0, -30.0]]]
).double()
Y = torch.tensor([0.0, 3.0, 2.1, -1.0, 1.0]).double()


def law(likelihood, f):
    """Distributions of y as scipy has them."""
    f0, f1 = f[0].numpy().T
    scale = 0.7 * np.exp(6 * np.tanh(f1 / 6))
    if isinstance(likelihood.noise, GaussianLikelihood):
        return stats.norm(f0, scale)
    return stats.t(3.0, f0, scale)


@every
def test_slopes(likelihood):
    """Wrong variant: the slope in the scale without that of its bound."""
    expected = Likelihood.log_prob_derivatives(likelihood, F, Y)[1]
    torch.testing.assert_close(likelihood._log_prob_slope(F, Y), expected)


def buffers_of(likelihood, f, hyper):
    """Buffers of a pass at f (S, n, K), for two members."""
    f = torch.stack([f, f + 0.1])
    return RowBuffers(f, torch.zeros_like(f), hyper, torch.zeros_like(hyper))


SKEWED = [
    JohnsonSULikelihood(noise_scale="learn"),
    HeteroscedasticLikelihood(JohnsonSULikelihood(delta=1.5, noise_scale="learn")),
    HurdleLikelihood(
        HeteroscedasticLikelihood(JohnsonSULikelihood(noise_scale=1.0)), 3.0
    ),
    HurdleLikelihood(
        HeteroscedasticLikelihood(GeneralizedGammaLikelihood(noise_scale="learn")), -1.0
    ),
    HurdleLikelihood(GaussianLikelihood("learn"), 0.0),
]
LEARNED = [
    HeteroscedasticLikelihood(GaussianLikelihood("learn")),
    HeteroscedasticLikelihood(StudentTLikelihood(3.0, "learn")),
    StudentTLikelihood(3.0, "learn"),
    GaussianLikelihood("learn"),
    PoissonLikelihood(),
    RoundedLikelihood(GaussianLikelihood("learn"), 0.5),
    RoundedLikelihood(HeteroscedasticLikelihood(StudentTLikelihood(4.0, 1.0)), 0.5),
    STUDENT,
    *HETEROSCEDASTIC,
    *SKEWED,
    IndependentLikelihood(
        [
            HeteroscedasticLikelihood(GaussianLikelihood("learn")),
            StudentTLikelihood(5.0, 2.0),
            GaussianLikelihood("learn"),
        ]
    ),
]


@pytest.mark.parametrize("likelihood", LEARNED, ids=repr)
def test_passes_are_automatic_derivatives(likelihood):
    """Wrong variants: slopes without weights; no gradient of the learned level; the
    numbers of another target."""
    generator = torch.Generator().manual_seed(1)
    f = torch.randn(3, 5, likelihood.n_outputs, generator=generator).double()
    n_learned = len(likelihood.learned)
    hyper = torch.linspace(-0.3, 0.4, 2 * n_learned).double().reshape(2, n_learned)
    y = torch.stack([Y, Y.flip(0)])[:, None]
    if "Gamma" in repr(likelihood):  # positive, or the value
        y = torch.where(y == -1, y, y.abs() + 0.1)
    if isinstance(likelihood, IndependentLikelihood):
        y = torch.stack([y, 0.5 * y, y + 1], -1)
    weight = torch.linspace(0.1, 2, 10).double().reshape(2, 1, 5)
    found, expected = (buffers_of(likelihood, f, hyper.clone()) for _ in range(2))
    passes = LogLoss()._row_pass(likelihood, found)
    automatic = super(LogLoss, LogLoss())._row_pass(likelihood, expected)
    assert type(passes) is not type(automatic)
    for visit in (passes, automatic):
        with torch.inference_mode():  # as solvers do
            visit(y, weight, 3 * weight.sum((1, 2)))
    trail = hyper[None]
    torch.testing.assert_close(passes.values(trail), automatic.values(trail))
    torch.testing.assert_close(found.slope, expected.slope)
    torch.testing.assert_close(found.for_hyper, expected.for_hyper)


@pytest.mark.parametrize("df", [2.0, 3.0, 4.0, 10.0])
def test_tails_of_a_student_t(df):
    """SciPy's, and their integral by quadrature; single precision reaches far.

    Wrong variants: a power of the polynomial; the moment without its wider law.
    """
    noise = StudentTLikelihood(df)
    z = torch.cat([-torch.logspace(-3, 3, 40), torch.linspace(0, 9, 10)]).double()
    found = noise._standard_log_cdf(z)
    np.testing.assert_allclose(found, stats.t.logcdf(z, df), rtol=1e-12, atol=1e-14)
    far = torch.tensor([-1e6])
    expected = noise._standard_log_cdf(far.double())
    torch.testing.assert_close(
        noise._standard_log_cdf(far), expected, rtol=1e-6, atol=0, check_dtype=False
    )
    moment = noise._standard_tail_moment(torch.tensor([0.7]).double()).item()
    if df <= 2:
        assert moment == np.inf
    else:
        exact = quad(lambda u: 2 * u * stats.t.sf(u, df), 0.7, np.inf)[0]
        assert moment == pytest.approx(exact, rel=1e-7)
