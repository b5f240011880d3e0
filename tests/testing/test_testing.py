"""The public checks of parts: all built-in parts pass, planted mistakes do not.

The wrong variants are the classes below, one for each statement of a contract.
"""

import math
from dataclasses import replace

import pytest
import torch

from skvi._estimator._parts import DIVERGENCES, LOSSES, POSTERIORS, PRIORS
from skvi.base import Layout, NormalForm
from skvi.divergences import Divergence, KLDivergence, RenyiDivergence
from skvi.likelihoods import GaussianLikelihood, Likelihood, PoissonLikelihood
from skvi.losses import BetaLoss, LogLoss, Loss
from skvi.posteriors import Family, MeanFieldNormal, NormalizingFlow
from skvi.priors import Laplace, Normal, Prior
from skvi.solvers import Solver
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


# `MultiplicativeFlow` is for layers: its own tests check its draws and density.
@pytest.mark.parametrize("name", sorted(set(POSTERIORS) - {"multiplicative_flow"}))
def test_families(name):
    part = POSTERIORS[name]
    check_part(part())


def _doubled(name):
    method = getattr(PoissonLikelihood, name)
    return lambda self, f, *rest: method(PoissonLikelihood(), 2 * f, *rest)


# A mean of exp(2 f), which grows so fast that no quadrature is right for a wide f.
NAMES = "log_prob", "log_power_integral", "mean", "sample"
methods = {"is_discrete": True, **{name: _doubled(name) for name in NAMES}}
ByQuadrature = type("ByQuadrature", (Likelihood,), methods)


class Exact(ByQuadrature):
    def expected_log_loss(self, mean, std_or_cov, y, refine=1):
        found = PoissonLikelihood().expected_log_loss(2 * mean, 2 * std_or_cov, y)
        return tuple(2**i * value for i, value in enumerate(found))


@pytest.mark.parametrize("part", [GaussianLikelihood(0.3), Exact(), ByQuadrature()])
def test_likelihoods(part):
    check_part(part)


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


class OwnSeed(GaussianLikelihood):
    def sample(self, f, generator):
        return super().sample(f, torch.Generator().manual_seed(0))


class FalseDensity(PoissonLikelihood):
    is_discrete = False


WRONG = {NarrowDraws(1.0): "to the power", NoPowerNorm(1.0): "to the power"}
WRONG |= {OwnSeed(1.0): "from the generator", FalseDensity(): "is_discrete"}


@pytest.mark.parametrize(("part", "message"), WRONG.items())
def test_wrong_likelihoods(part, message):
    with pytest.raises(AssertionError, match=message):
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


class SumOfDraws(KLDivergence):
    def monte_carlo(self, log_q, log_prior):
        return (log_q - log_prior).sum()


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (SumOfDraws(), "every draw twice"),
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


class SameSign(torch.nn.Linear):
    def __init__(self, size):
        super().__init__(1, size)

    def forward(self, x):
        return 2 * x + self.bias, torch.full_like(x[:, 0], x.shape[1] * math.log(2))

    def inverse(self, theta):
        return (theta - self.bias) / 2, self(theta)[1]


def test_wrong_modules():
    with pytest.raises(AssertionError, match="log determinant of inverse"):
        check_part(NormalizingFlow(SameSign))
    with pytest.raises(TypeError, match="Flatten must implement inverse"):
        check_part(NormalizingFlow(torch.nn.Flatten))


class Steps(Solver):
    """Gradient descent, which never asks whether it has converged."""

    def __init__(self, rate=0.1, in_place=False):
        self.rate, self.in_place = rate, in_place

    def solve(self, problem, options):
        x = problem.posterior.params if self.in_place else problem.params
        for _ in range(10 * options.max_iter):
            leaf = x.clone().requires_grad_()
            surrogate, value = problem.with_params(leaf).surrogate(5)
            x -= self.rate * torch.autograd.grad(surrogate, leaf)[0]
        return problem.with_params(x).solved(self, [float(value)])


def test_solvers():
    check_part(Steps())
    wrong = {Steps(0.0): "decrease", Steps(0.001): "from the optimum"}
    wrong |= {Steps(in_place=True): "must not change", Steps(1e3): "not finite"}
    for part, message in wrong.items():
        with pytest.raises((AssertionError, ValueError), match=message):
            check_part(part)


@pytest.mark.parametrize("base", [Divergence, Family, Likelihood, Loss, Prior, Solver])
def test_missing_methods_are_named(base):
    with pytest.raises(NotImplementedError, match=f"{base.__name__} must implement"):
        check_part(base())
