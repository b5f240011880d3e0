"""Noise with scales of rows, and several targets: densities, slopes, predictions."""

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.integrate import quad

from skvi._predictive._quantiles import mixture_quantiles
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
from skvi.losses import BetaLoss, GammaLoss, LogLoss
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
def test_scales_of_rows(likelihood):
    """Wrong variants: the log of the scale without a bound; no Jacobian of a scale."""
    expected = law(likelihood, F)
    assert np.allclose(likelihood.log_prob(F, Y)[0], expected.logpdf(Y))
    assert np.allclose(likelihood.cdf(F, Y)[0], expected.cdf(Y))
    assert np.allclose(likelihood.quantile(F, 0.1)[0], expected.ppf(0.1))
    assert np.allclose(likelihood.variance(F)[0], expected.var())
    torch.testing.assert_close(likelihood.mean(F), F[..., 0])
    flat = torch.zeros(1, 3, 2).double()
    same = likelihood.noise.log_prob(flat, Y[:3])
    torch.testing.assert_close(likelihood.log_prob(flat, Y[:3]), same)


@every
@pytest.mark.parametrize("c", [0.8, 1, 1.5])
def test_power_integrals_of_rows(likelihood, c):
    """Wrong variant: the integral at the level of the scale, for all rows."""
    found = likelihood.log_power_integral(F[:, :3], c)[0].exp()
    for k in range(3):
        density = law(likelihood, F[:, [k]]).pdf
        expected = quad(lambda y: float(density(y)[0]) ** c, -np.inf, np.inf)[0]  # noqa: B023
        assert float(found[k]) == pytest.approx(expected, rel=1e-6)


@every
def test_slopes(likelihood):
    """Wrong variant: the slope in the scale without that of its bound."""
    expected = Likelihood.log_prob_derivatives(likelihood, F, Y)[1]
    torch.testing.assert_close(likelihood._log_prob_slope(F, Y), expected)


@every
def test_draws(likelihood, generator, z_score):
    """Wrong variant: noise at the level, whatever the row."""
    rows = F[:, :3]
    draws = likelihood.sample(rows.expand(20_000, -1, -1), generator)
    shares = torch.from_numpy(law(likelihood, rows).cdf(draws.numpy()))
    for level in (0.1, 0.5, 0.8):
        assert z_score((shares <= level).double(), level) < 5


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


@pytest.mark.parametrize("loss", [BetaLoss(1.5), GammaLoss(1.5)], ids=repr)
def test_robust_losses_are_proper_for_scales(loss):
    """The expected loss is least at the truth, also in the scale of a row.

    Wrong variant: the power integral at the level.
    """
    likelihood = HETEROSCEDASTIC[0]
    y = torch.linspace(-12, 12, 4001, dtype=torch.float64)
    truth = torch.tensor([0.4, 0.8]).double()

    def at(f):
        return f.expand(1, len(y), 2)

    mass = likelihood.log_prob(at(truth), y)[0].exp()
    mass = mass / mass.sum()
    f = truth.clone().requires_grad_()
    expected = (loss(likelihood, at(f), y)[0] * mass).sum()
    (gradient,) = torch.autograd.grad(expected, f)
    assert gradient.abs().max() < 1e-9


@pytest.mark.parametrize("likelihood", [GAUSSIAN, *HETEROSCEDASTIC], ids=repr)
def test_quantiles_of_mixtures(likelihood):
    """F(quantile) = level, for modes far apart, and each row on its own.

    Wrong variants: Newton's steps out of the bracket; all rows stop together.
    """
    generator = torch.Generator().manual_seed(0)
    f = 3 * torch.randn(50, 48, likelihood.n_outputs, generator=generator).double()
    f[:25, :24, 0] += 100
    levels = np.array([0.001, 0.3, 0.7, 0.99])
    found = mixture_quantiles(likelihood, f, levels)
    for level, y in zip(levels, found.T, strict=True):
        assert np.allclose(likelihood.cdf(f, y).mean(0), level, atol=1e-9)
    others = f.clone()
    others[:, 1:] = 0.0
    assert torch.equal(mixture_quantiles(likelihood, others, levels)[0], found[0])


def test_several_targets():
    """Sums over targets with their own numbers. Wrong variant: those of the first."""
    parts = [
        HeteroscedasticLikelihood(GaussianLikelihood("learn")),
        StudentTLikelihood(5.0, 2.0),
        GaussianLikelihood("learn"),
    ]
    likelihood = IndependentLikelihood(parts)
    assert likelihood.n_outputs == 4
    assert likelihood.scale_outputs == (1,)
    assert likelihood.learned == ("noise_scale[0]", "noise_scale[2]")
    y = torch.randn(7, 3, generator=torch.Generator().manual_seed(0)).double()
    assert likelihood.initial_hyper(y).tolist() == [
        float(parts[0].initial_hyper(y[:, 0])),
        float(parts[2].initial_hyper(y[:, 2])),
    ]
    bound = likelihood.bind(torch.tensor([0.3, -0.5]).double())
    f = torch.randn(2, 7, 4, generator=torch.Generator().manual_seed(1)).double()
    ratio = torch.exp(0.3 + 6 * torch.tanh(f[..., 1] / 6))
    columns = [
        stats.norm(f[..., 0], ratio).logpdf(y[:, 0]),
        stats.t(5.0, f[..., 2], 2.0).logpdf(y[:, 1]),
        stats.norm(f[..., 3], np.exp(-0.5)).logpdf(y[:, 2]),
    ]
    assert np.allclose(bound.log_prob(f, y), sum(columns))
    integrals = [p.log_power_integral(g, 1.5) for p, g in bound._by_target(f)]
    assert torch.allclose(bound.log_power_integral(f, 1.5), sum(integrals))
    assert bound.mean(f).shape == (2, 7, 3)
    assert torch.equal(bound.mean(f), f[..., [0, 2, 3]])
    assert not bound.is_normal
    assert bound.learned == ()
