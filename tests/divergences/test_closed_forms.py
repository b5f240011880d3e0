"""Divergences: closed forms against integrals, derivatives, limits, ranges."""

import math

import pytest
import torch

import skvi.divergences
from skvi.base import Layout, NormalForm
from skvi.divergences import (
    AlphaDivergence,
    BetaDivergence,
    Divergence,
    FDivergence,
    GammaDivergence,
    JeffreysDivergence,
    KLDivergence,
    RenyiDivergence,
)
from skvi.divergences._forms import log_power_integral
from skvi.posteriors import FullRankNormal, MeanFieldNormal
from skvi.priors import Laplace, Normal
from skvi.priors._blocks import build_prior

CLASSES = [getattr(skvi.divergences, name) for name in skvi.divergences.__all__]
CLASSES = [c for c in CLASSES if isinstance(c, type) and issubclass(c, Divergence)]
SPECS = [c() for c in CLASSES if c not in (Divergence, FDivergence)]
SPECS += [AlphaDivergence(a) for a in (0.2, 0.9999, 1, 1.6)]
SPECS += [AlphaDivergence(a, joint=True) for a in (-0.2, 0.4, 1.6)]
SPECS += [BetaDivergence(b) for b in (0.8, 0.9999, 1, 1.00001, 2)]
SPECS += [BetaDivergence(b, joint=True) for b in (0.8, 1.4)]
SPECS += [GammaDivergence(g) for g in (0.8, 0.9999, 1, 1.00001, 2)]
SPECS += [
    KLDivergence(weight=0.4),
    *(RenyiDivergence(a) for a in (-0.2, 0, 0.9999, 1, 1.0003, 1.6)),
]
every_spec = pytest.mark.parametrize("spec", SPECS, ids=repr)
KINDS = [(q, pi) for q in ("diag", "full") for pi in ("diag", "full")]
every_kind = pytest.mark.parametrize(("q_kind", "pi_kind"), KINDS)


def as_prior(normal):
    """A fitted posterior that stands where a prior stands."""
    family = MeanFieldNormal() if normal.is_diagonal else FullRankNormal()
    posterior = family.build(Layout({"coef": (len(normal.mean),)}))
    posterior = posterior.near(normal)
    return posterior


def kl_by_torch(*normals):
    parts = [
        torch.distributions.MultivariateNormal(n.mean, n.covariance()) for n in normals
    ]
    return torch.distributions.kl_divergence(*parts)


@pytest.fixture
def pair(make_normal):
    """Build q and pi for which every order in SPECS exists."""

    def build(q_kind, pi_kind, size=2, width=1.2):
        q = make_normal(size, q_kind, seed=1, width=0.8)
        return q, make_normal(size, pi_kind, seed=2, width=width)

    return build


def log_integral(log_f, size, half=20.0, n=161):
    """Log integral on a grid; the trapezoidal rule is exact to rounding here."""
    axis = torch.linspace(-half, half, n, dtype=torch.float64)
    theta = torch.cartesian_prod(*[axis] * size).reshape(-1, size)
    step = 2 * half / (n - 1)
    return torch.logsumexp(log_f(theta), 0) + size * math.log(step)


@every_kind
@pytest.mark.parametrize(
    ("a", "b"), [(0.5, 0.5), (1.5, -0.5), (-0.2, 1.2), (2, 0), (0, 1.3), (1, 0.4)]
)
def test_log_power_integral(pair, q_kind, pi_kind, a, b):
    # Wrong variants: + a b in the last term; log determinants with a for 1 - a.
    q, pi = pair(q_kind, pi_kind)
    expected = log_integral(lambda t: a * q.log_prob(t) + b * pi.log_prob(t), 2)
    torch.testing.assert_close(
        log_power_integral(q, pi, a, b), expected, rtol=1e-8, atol=0
    )


@every_kind
@pytest.mark.parametrize("weight", [1.0, 0.3])
def test_kl_is_its_integral(pair, q_kind, pi_kind, weight):
    # Wrong variants: the trace without its half; the entropy's sign.
    q, pi = pair(q_kind, pi_kind)
    value = KLDivergence(weight).closed_form(q, as_prior(pi))
    torch.testing.assert_close(value, weight * kl_by_torch(q, pi), rtol=1e-10, atol=0)


@pytest.mark.parametrize("q_kind", ["diag", "full"])
@pytest.mark.parametrize("blocks", [False, True])
def test_kl_to_a_prior_that_is_not_normal(pair, q_kind, blocks, expect_normal):
    # Wrong variant: the conditional in place of the marginal variances of a full q.
    parts = {"a": Laplace(0.7), "b": Normal(2.0) if blocks else Laplace(0.7)}
    layout = Layout({"a": (1,), "b": (1,)})
    q, prior = pair(q_kind, "diag")[0], build_prior(parts, layout)
    if not blocks:
        prior = parts["a"].build(layout)
    cross = 0.0
    for part, mean, variance in zip(parts.values(), q.mean, q.variance, strict=True):
        one = part.build(Layout({"coef": (1,)}))
        cross += expect_normal(
            lambda t, one=one: one.log_prob(t[:, None]), mean, variance**0.5, 0
        )
    entropy = torch.distributions.MultivariateNormal(q.mean, q.covariance()).entropy()
    value = KLDivergence().closed_form(q, prior)
    torch.testing.assert_close(value, -entropy - cross, rtol=1e-10, atol=0)


def terms_by_autograd(spec, q, prior):
    """Gradient and curvature in the mean, and twice the gradient in the covariance."""
    covariance = q.variance if q.is_diagonal else q.covariance()
    mean, covariance = q.mean.clone().requires_grad_(), covariance.requires_grad_()

    def value(m):
        scale = (
            covariance.sqrt() if q.is_diagonal else torch.linalg.cholesky(covariance)
        )
        return spec.closed_form(NormalForm(m, scale), prior)

    gradient, pull = torch.autograd.grad(value(mean), (mean, covariance))
    curvature = torch.autograd.functional.hessian(value, mean)
    return gradient, curvature, 2 * pull


LAYOUT = Layout({"coef": (2,), "intercept": (1,)})


def make_prior(name, pair):
    if name in ("diag", "full"):
        return as_prior(pair("diag", name, 3)[1])
    blocks = {"coef": Laplace(0.7), "intercept": Normal(2.0)}
    return build_prior(Laplace(0.7) if name == "laplace" else blocks, LAYOUT)


@pytest.mark.parametrize(
    ("spec", "prior_kind"),
    [(s, k) for s in SPECS for k in ("diag", "full") if getattr(s, "alpha", 1) != 0]
    + [
        (s, k)
        for s in SPECS
        if isinstance(s, KLDivergence)
        for k in ("laplace", "blocks")
    ],
    ids=repr,
)
@pytest.mark.parametrize("q_kind", ["diag", "full"])
def test_terms_are_derivatives(spec, pair, q_kind, prior_kind):
    """Wrong variants: the precision's gradient without its factor 2, or without the
    outer product."""
    q, prior = pair(q_kind, "diag", 3)[0], make_prior(prior_kind, pair)
    assert spec.has_closed_form(prior)
    precision = torch.linalg.inv(q.covariance())
    precision = precision.diagonal() if q.is_diagonal else precision
    terms, again = spec.terms(q, prior), spec.terms(q, prior, precision)
    for name in ("value", "gradient", "curvature", "precision_gradient"):
        torch.testing.assert_close(getattr(terms, name), getattr(again, name))
    gradient, curvature, pull = terms_by_autograd(spec, q, prior)
    torch.testing.assert_close(
        terms.value, spec.closed_form(q, prior), rtol=1e-10, atol=0
    )
    torch.testing.assert_close(terms.gradient, gradient, rtol=1e-9, atol=1e-11)
    actual = terms.precision_gradient
    expected = pull if actual.ndim == pull.ndim else torch.diag(pull)
    if actual.ndim > pull.ndim:  # a factorized q uses the diagonal of what it is given
        actual, expected = actual.diagonal(), pull
    torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-9)
    actual = terms.curvature
    assert torch.linalg.eigvalsh(actual if actual.ndim > 1 else actual.diag())[0] > 0
    if actual.ndim == 1:
        curvature = curvature.diagonal()
    if isinstance(spec, AlphaDivergence | BetaDivergence):  # a matrix above it, or near
        return
    torch.testing.assert_close(actual, curvature, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(
    "spec", [s for s in SPECS if getattr(s, "alpha", 1) > 0], ids=repr
)
@pytest.mark.parametrize("q_kind", ["diag", "full"])
def test_entropy_weight(spec, pair, q_kind):
    """D loses c for each unit of log width of a coordinate of a q narrower than pi.

    Wrong variant: the weight of KL, 1, for all.
    """
    q, pi = pair(q_kind, "diag", 3)

    def value(log_width):
        narrow = NormalForm(pi.mean, q.scale * 1e-3 * math.exp(log_width))
        return float(spec.closed_form(narrow, as_prior(pi)))

    slope = (value(1e-4) - value(-1e-4)) / 2e-4
    narrow = NormalForm(pi.mean, q.scale * 1e-3)
    weight = torch.as_tensor(spec.terms(narrow, as_prior(pi)).entropy_weight)
    growth = (
        2 if isinstance(spec, JeffreysDivergence) else 1
    )  # it grows like 1 / width^2
    assert slope == pytest.approx(-float(weight.expand(3).sum()) / growth, rel=1e-4)


@pytest.fixture
def estimate(pair, generator):
    """Monte Carlo estimates of D from n_estimates times n_draws draws, and D itself."""

    def run(spec, n_estimates, n_draws):
        q, pi = pair("full", "diag", width=0.9)
        shape = n_estimates * n_draws, 2
        theta = q.transform(
            torch.randn(shape, generator=generator, dtype=torch.float64)
        )
        logs = [p.log_prob(theta).reshape(n_estimates, n_draws) for p in (q, pi)]
        return torch.vmap(spec.monte_carlo)(*logs), spec.closed_form(q, as_prior(pi))

    return run


@every_spec
def test_monte_carlo(spec, estimate, z_score):
    # Wrong variants: q and pi swapped; 1/(alpha - 1) for 1/(alpha (alpha - 1)).
    estimates, value = estimate(spec, 50, 4_000)
    assert z_score(estimates, value) < 5
    assert z_score(estimates, 1.2 * value) > 5
