"""The public checks of parts: all built-in parts pass, planted mistakes do not.

The wrong variants are the classes below, one for each statement of a contract.
"""

import math
from dataclasses import replace

import pytest
import torch

from skvi._estimator._parts import DIVERGENCES, LOSSES, POSTERIORS, PRIORS
from skvi.base import Layout, NormalForm
from skvi.divergences import KLDivergence, RenyiDivergence
from skvi.likelihoods import GaussianLikelihood
from skvi.losses import BetaLoss, LogLoss
from skvi.posteriors import MeanFieldNormal
from skvi.priors import Laplace, Normal
from skvi.testing import check_part


@pytest.mark.parametrize("part", LOSSES.values())
def test_losses(part):
    check_part(part())


@pytest.mark.parametrize("part", DIVERGENCES.values())
def test_divergences(part):
    check_part(part())


@pytest.mark.parametrize("part", PRIORS.values())
def test_priors(part):
    check_part(part())


# `GaussianDropout` has not every variance, `MultiplicativeFlow` is for layers: their
# own tests check their draws and density.
@pytest.mark.parametrize("name", sorted(set(POSTERIORS) - {"multiplicative_flow"}))
def test_families(name):
    part = POSTERIORS[name]
    check_part(part())


def test_likelihoods():
    check_part(GaussianLikelihood(0.3))


class HiddenState(Normal):
    def __init__(self, scale=1.0):
        self.scale, self.half = scale, scale / 2


class Copied(Normal):
    def __init__(self, scale=1.0):
        self.scale = float(scale) + 1


def test_components():
    with pytest.raises(AssertionError, match="besides its parameters"):
        check_part(HiddenState())
    with pytest.raises((AssertionError, RuntimeError), match=r"__init__|constructor"):
        check_part(Copied())


class MeanLoss(LogLoss):
    """Averages over rows."""

    is_log_loss = False

    def __call__(self, likelihood, f, y):
        losses = super().__call__(likelihood, f, y)
        return losses.mean(1, keepdim=True).expand_as(losses)


class DetachedLoss(BetaLoss):
    def __call__(self, likelihood, f, y):
        losses = super().__call__(likelihood, f, y)
        return losses.detach() + 0 * f.sum(2)


class HalfCurvature(LogLoss):
    def expected(self, likelihood, mean, std_or_cov, y, refine=1):
        value, first, second = super().expected(likelihood, mean, std_or_cov, y, refine)
        return value, first, 0.5 * second


class FalseLogLoss(BetaLoss):
    is_log_loss = True


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (MeanLoss(), "beside other rows"),
        (DetachedLoss(), "gradient in f"),
        (HalfCurvature(), "second derivative"),
        (FalseLogLoss(), "is_log_loss"),
    ],
)
def test_wrong_losses(part, message):
    with pytest.raises(AssertionError, match=message):
        check_part(part)


class NarrowDraws(GaussianLikelihood):
    def sample(self, f, generator):
        return f[..., 0] + 0.9 * (super().sample(f, generator) - f[..., 0])


class NoPowerNorm(GaussianLikelihood):
    def log_power_integral(self, f, c):
        return super().log_power_integral(f, c) + 0.5 * math.log(c)


@pytest.mark.parametrize("part", [NarrowDraws(1.0), NoPowerNorm(1.0)])
def test_wrong_likelihoods(part):
    with pytest.raises(AssertionError, match="to the power"):
        check_part(part)


class Shifted(KLDivergence):
    kl_weight = None

    def closed_form(self, q, prior):
        return super().closed_form(q, prior) + 0.1

    def monte_carlo(self, log_q, log_prior):
        return super().monte_carlo(log_q, log_prior) + 0.1


class Reversed(KLDivergence):
    kl_weight = None

    def closed_form(self, q, prior):
        pi = prior.as_normal()
        return 0.5 * (
            (pi.variance / q.variance).sum()
            + ((q.mean - pi.mean).square() / q.variance).sum()
            - len(q.mean)
        ) - (pi.half_log_det - q.half_log_det)


class HalfPull(RenyiDivergence):
    def terms(self, q, prior, q_precision=None):
        terms = super().terms(q, prior, q_precision)
        return type(terms)(
            terms.value,
            terms.gradient,
            terms.curvature,
            0.5 * terms.precision_gradient,
            terms.entropy_weight,
        )


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (Shifted(), "q = prior"),
        (Reversed(), "terms|disagree"),
        (HalfPull(), "precision_gradient"),
    ],
)
def test_wrong_divergences(part, message):
    with pytest.raises(AssertionError, match=message):
        check_part(part)


class ForgetsNaturalScale(Laplace):
    def build(self, layout):
        built = super().build(layout)
        built.scale = torch.ones_like(built.scale)
        return built


_BuiltLaplace = type(Laplace().build(Layout({"coef": (1,)})))


class Lying(Laplace):
    """Builds something else than it says."""

    _parameter_constraints: dict = {}

    def __init__(self, scale=1.0, built=None):
        self.scale, self.built = scale, built

    def build(self, layout):
        right = super().build(layout)
        right.__class__ = self.built
        return right


class TooMuchMass(_BuiltLaplace):
    def log_prob(self, theta):
        return super().log_prob(theta) + 0.1


class FlatGradient(_BuiltLaplace):
    def log_prob_gradient(self, theta):
        return 0.5 * super().log_prob_gradient(theta)


class ShiftedDraws(_BuiltLaplace):
    def sample(self, n_draws, generator):
        return super().sample(n_draws, generator) + 0.1


class PluggedIn(_BuiltLaplace):
    """The log density at the mean, instead of its expectation."""

    def expected_log_prob(self, mean, std):
        return super().expected_log_prob(mean, 0.01 * std)


class FalseNormal(_BuiltLaplace):
    def as_normal(self):
        return self.matching_normal()


@pytest.mark.parametrize(
    ("built", "message"),
    [
        (TooMuchMass, "integrates to"),
        (FlatGradient, "log_prob_gradient"),
        (ShiftedDraws, "different distributions"),
        (PluggedIn, "expected_log_prob"),
        (FalseNormal, "as_normal"),
    ],
)
def test_wrong_priors(built, message):
    with pytest.raises(AssertionError, match=message):
        check_part(Lying(built=built))


def test_natural_scales_are_needed():
    with pytest.raises(AssertionError, match="natural scale"):
        check_part(ForgetsNaturalScale())


_Diagonal = type(MeanFieldNormal().build(Layout({"coef": (1,)})))


class HalfEntropy(_Diagonal):
    def log_prob(self, theta, params=None):
        return super().log_prob(theta, params) + 0.1

    def draw(self, n_draws, generator):
        draw = super().draw(n_draws, generator)
        return replace(draw, log_q=draw.log_q + 0.1)


class Fixed(_Diagonal):
    def draw(self, n_draws, generator):
        draw = super().draw(n_draws, generator)
        return replace(draw, theta=draw.theta.detach())


class WideForm(_Diagonal):
    def as_normal(self):
        normal = super().as_normal()
        return NormalForm(normal.mean, 1.1 * normal.scale)


class OtherDraws(_Diagonal):
    def draw(self, n_draws, generator):
        draw = super().draw(n_draws, generator)
        return replace(draw, theta=draw.theta + 0.5)


class LyingFamily(MeanFieldNormal):
    """Builds something else than it says."""

    def __init__(self, built=None):
        self.built = built

    def build(self, layout, generator=None):
        posterior = super().build(layout, generator)
        posterior.__class__ = self.built
        return posterior


@pytest.mark.parametrize(
    ("built", "message"),
    [
        (HalfEntropy, "integral of the density"),
        (Fixed, "differentiable"),
        (WideForm, "variance of as_normal"),
        (OtherDraws, "beside log q"),
    ],
)
def test_wrong_families(built, message):
    with pytest.raises(AssertionError, match=message):
        check_part(LyingFamily(built))
