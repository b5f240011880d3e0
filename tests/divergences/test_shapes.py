"""Divergences of diagonal, full and low-rank normals, and what they cost."""

import pytest
import torch

from skvi.base import Layout, NormalForm
from skvi.divergences import (
    AlphaDivergence,
    BetaDivergence,
    GammaDivergence,
    JeffreysDivergence,
    KLDivergence,
    RenyiDivergence,
)
from skvi.divergences._forms import log_power_integral, mix, precision_of
from skvi.priors import Horseshoe, Laplace, Normal, StudentT
from skvi.priors._blocks import build_prior
from tests.divergences.normals import Prior, as_full

SPECS = [
    KLDivergence(),
    *(RenyiDivergence(a) for a in (0.5, 0.9995, 1e-4, 1, 0, 1.4, -0.1)),
]
SPECS += [AlphaDivergence(a, joint=True) for a in (0.5, 0.9995, 1.4)]
SPECS += [BetaDivergence(b, joint=True) for b in (0.95, 1, 1.0005, 1.3)]
SPECS += [GammaDivergence(g) for g in (0.9, 1, 1.0005, 1.3)]
SPECS += [JeffreysDivergence()]
every_spec = pytest.mark.parametrize("spec", SPECS, ids=repr)


@pytest.fixture
def make(make_normal):
    def build(shape, size, seed, width):
        if not shape.startswith("low"):
            return make_normal(size, shape, seed, width)
        own = make_normal(size, "diag", seed, 0.7 * width)
        generator = torch.Generator().manual_seed(seed)
        factor = torch.randn(
            size, size + 1 if shape == "low_wide" else 2, generator=generator
        )
        factor = 0.7 * width * factor.double() / factor.shape[1] ** 0.5
        factor = factor / factor.norm(dim=1, keepdim=True) * 0.6 * width
        return NormalForm(own.mean, own.scale, factor)

    return build


#: Not both without a factor: other tests have those.
PAIRS = [("low", "diag"), ("diag", "low"), ("low", "full"), ("full", "low_wide")]
PAIRS += [("low", "low_wide"), ("low_wide", "low")]


PRIORS = [Normal(0.7), StudentT(), {"coef": Laplace(), "rest": Horseshoe()}, "full"]


@pytest.mark.parametrize("prior", PRIORS, ids=repr)
@pytest.mark.parametrize("q_shape", ["diag", "full", "low"])
def test_kl_of_many_normals_is_that_of_each(prior, q_shape, make):
    """Normals given an auxiliary variable, one for each draw of it.

    Wrong variant: the terms of all of them in one sum.
    """
    layout = Layout({"coef": (3,), "rest": (1,)})
    full = Prior(make("full", 4, 9, 1.4))
    pi = full if prior == "full" else build_prior(prior, layout)
    each = [make(q_shape, 4, seed, 0.9) for seed in range(3)]
    parts = [(q.mean, q.scale, q.factor)[: 3 if q_shape == "low" else 2] for q in each]
    many = NormalForm(*(torch.stack(part) for part in zip(*parts, strict=True)))
    found = KLDivergence(0.5).closed_form(many, pi)
    expected = torch.stack([KLDivergence(0.5).closed_form(q, pi) for q in each])
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    if prior == "full":
        with pytest.raises(ValueError, match="only KL takes many"):
            RenyiDivergence(0.5).closed_form(many, pi)


@every_spec
@pytest.mark.parametrize(("q_shape", "pi_shape"), PAIRS)
def test_every_shape_is_its_full_matrix(spec, make, q_shape, pi_shape):
    # Wrong variant: the capacity matrix without its identity.
    q, pi = make(q_shape, 4, 1, 0.9), make(pi_shape, 4, 2, 1.4)
    value = spec.closed_form(q, Prior(pi))
    expected = spec.closed_form(as_full(q), Prior(as_full(pi)))
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("q_shape", "pi_shape"), [("diag", "full"), ("full", "diag"), ("low", "full")]
)
def test_closed_forms_are_what_draws_give(make, q_shape, pi_shape, generator, z_score):
    """In three dimensions, all of them from the same 300,000 draws.

    Wrong variants: a value that is 30 % off; the constant without its power of 2 pi.
    """
    q, pi = make(q_shape, 3, 3, 0.9), make(pi_shape, 3, 4, 1.1)
    eps = torch.randn(300_000, q.n_noise, generator=generator, dtype=torch.float64)
    theta = q.transform(eps)
    log_q, log_pi = q.log_prob(theta), pi.log_prob(theta)
    specs = [
        KLDivergence(),
        AlphaDivergence(0.3, joint=True),
        AlphaDivergence(1.3, joint=True),
    ]
    for a, b in [(0.5, 0.5), (1.3, -0.3), (1.2, 0), (1, 0.2)]:
        draws = torch.exp((a - 1) * log_q + b * log_pi)
        assert z_score(draws, log_power_integral(q, pi, a, b).exp()) < 5
    for spec in specs:
        values = torch.vmap(spec.monte_carlo)(log_q[:, None], log_pi[:, None])
        assert z_score(values, spec.closed_form(q, Prior(pi))) < 5
        assert z_score(values, 1.3 * spec.closed_form(q, Prior(pi))) > 5
    draws = torch.exp(0.2 * log_q), torch.exp(0.2 * log_pi)
    norm = log_power_integral(q, pi, 0, 1.2).exp()
    terms = (draws[0] - 1.2 * draws[1] + 0.2 * norm) / (1.2 * 0.2)
    value = BetaDivergence(1.2, joint=True).closed_form(q, Prior(pi))
    assert z_score(terms, value) < 5


@every_spec
def test_low_rank_gradients(spec, make):
    """Autograd in mean, scale and factor against finite differences."""
    q, pi = make("low", 3, 1, 0.9), Prior(make("diag", 3, 2, 1.4))
    tensors = [t.clone().requires_grad_() for t in (q.mean, q.scale, q.factor)]
    assert torch.autograd.gradcheck(
        lambda *parts: spec.closed_form(NormalForm(*parts), pi), tensors
    )


def test_kl_of_nearly_equal_loadings_in_single_precision():
    # Fails where the capacity matrix, of condition 1e8, is factorized in float32.
    factor = 1e4 * torch.tensor([[1.0, 1.0], [1.0, 1.0001], [1.0, 1.0]])
    mean, scale = torch.zeros(len(factor)), torch.ones(len(factor))
    values = [
        KLDivergence().closed_form(
            NormalForm(mean.to(d), scale.to(d), factor.to(d)),
            Prior(NormalForm(mean.to(d), 1e4 * scale.to(d))),
        )
        for d in (torch.float32, torch.float64)
    ]
    torch.testing.assert_close(*values, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "spec", [s for s in SPECS if getattr(s, "alpha", 1) > 0], ids=repr
)
@pytest.mark.parametrize("q_shape", ["low", "low_wide"])
def test_low_rank_terms(spec, make, q_shape):
    """Derivatives are those of the full matrix, and of shape (P, P)."""
    q, pi = make(q_shape, 3, 1, 0.9), Prior(make("diag", 3, 2, 1.4))
    actual, expected = spec.terms(q, pi), spec.terms(as_full(q), pi)
    for name in ("value", "gradient", "curvature", "precision_gradient"):
        a, b = getattr(actual, name), getattr(expected, name)
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(precision_of(q), torch.linalg.inv(q.covariance()))


@pytest.mark.parametrize("a", [-0.4, 0.3, 1.7])
@pytest.mark.parametrize("b", [-0.6, -0.02, 0.4])
def test_finite_where_the_precision_is_positive_definite(make, a, b):
    """For low rank, whatever the signs, and then the value of the full matrices.

    Wrong variants: the diagonal alone decides; the inertia of the signs left out.
    """
    seen = set()
    for seed in range(8):
        for widths in [(0.3, 2.0), (1.0, 1.0), (2.0, 0.3)]:
            q, pi = make("low", 4, seed, widths[0]), make("low", 4, seed + 9, widths[1])
            positive = bool(torch.linalg.eigvalsh(mix(a, pi, b, q))[0] > 0)
            found = log_power_integral(q, pi, a, b)
            expected = log_power_integral(as_full(q), as_full(pi), a, b)
            assert torch.isfinite(found) == positive
            torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)
            seen.add(positive)
    assert (a > 0 or b > 0) == (True in seen)


@pytest.mark.parametrize(
    "spec",
    [
        KLDivergence(),
        RenyiDivergence(0.5),
        AlphaDivergence(1.4, joint=True),
        BetaDivergence(1.3, joint=True),
        GammaDivergence(0.9),
        JeffreysDivergence(),
    ],
    ids=repr,
)
def test_five_thousand_parameters(spec):
    """Value and gradient, rank 10, in far less than one P x P matrix (200 MB)."""
    size, rank = 5000, 10
    generator = torch.Generator().manual_seed(0)
    factor = 0.02 * torch.randn(size, rank, generator=generator, dtype=torch.float64)
    scale = torch.full((size,), 0.95, dtype=torch.float64)
    tensors = [t.requires_grad_() for t in (0.02 + 0 * scale, scale, factor)]
    pi = Prior(NormalForm(torch.zeros(size).double(), torch.ones(size).double()))
    with torch.profiler.profile(profile_memory=True) as profile:
        value = spec.closed_form(NormalForm(*tensors), pi)
        gradients = torch.autograd.grad(value, tensors)
    largest = max(e.cpu_memory_usage for e in profile.events())
    assert largest < 8 * 4 * size * rank
    assert all(torch.isfinite(g).all() for g in (value, *gradients))
