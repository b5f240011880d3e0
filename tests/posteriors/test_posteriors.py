"""Families: draws, densities, variational parameters, pickles."""

import inspect

import numpy as np
import pytest
import torch

import skvi.posteriors
from skvi.base import Layout, NormalForm
from skvi.linear_model import BayesianLogisticRegression
from skvi.posteriors import Family, FullRankNormal, MeanFieldNormal
from skvi.posteriors._ensemble import GaussianDropout
from skvi.posteriors._normal import INITIAL_SCALE

CLASSES = [getattr(skvi.posteriors, name) for name in skvi.posteriors.__all__]
# Product is what its blocks are; Gamma and Beta, which are for other blocks, are in
# test_factors, those without a density in test_semi_implicit.
FACTORS = "Gamma", "Beta"
BOUNDED = "SemiImplicitMixture", "HierarchicalVariational", "MultiplicativeFlow"
OTHERS = "Family", "Product", *BOUNDED, *FACTORS
FAMILIES = [c() for c in CLASSES if issubclass(c, Family) and c.__name__ not in OTHERS]
FAMILIES.append(GaussianDropout())
LAYOUT = Layout({"coef": (1, 2), "intercept": (1,)})
SIZE = LAYOUT.size
every_family = pytest.mark.parametrize("family", FAMILIES, ids=repr)
every_normal_family = pytest.mark.parametrize(
    "family",
    [f for f in FAMILIES if f.build(LAYOUT, torch.Generator()).as_normal() is not None],
    ids=repr,
)
#: Those that have every diagonal covariance; for the others see test_network_families.
every_free_family = pytest.mark.parametrize(
    "family",
    [f for f in FAMILIES if not isinstance(f, GaussianDropout)],
    ids=repr,
)


@pytest.fixture
def build(make_normal):
    """A posterior away from its starting point, with gradients in its parameters."""

    def run(family):
        posterior = family.build(LAYOUT, torch.Generator().manual_seed(0))
        components = posterior.components
        if components[0].as_normal() is not None:
            seeds = range(3, 3 + len(components))
            normals = [make_normal(SIZE, "full", seed=seed) for seed in seeds]
            pairs = zip(components, normals, strict=True)
            posterior = posterior.with_components([c.near(n) for c, n in pairs])
        posterior.params.requires_grad_()
        return posterior

    return run


def independent(normal):
    return torch.distributions.MultivariateNormal(normal.mean, normal.covariance())


@every_family
def test_draws_and_log_density_agree(family, build, generator):
    # Wrong variants: the log determinant of the covariance not halved; eps as theta.
    posterior = build(family)
    draw = posterior.draw(50, generator)
    theta, log_q = draw.theta, draw.log_q
    assert theta.shape == (50, SIZE)
    torch.testing.assert_close(log_q, posterior.log_prob(theta), rtol=1e-10, atol=1e-10)
    normal = posterior.as_normal()
    if posterior.side == "exact" and normal is not None:
        expected = independent(normal).log_prob(theta)
        torch.testing.assert_close(log_q, expected, rtol=1e-10, atol=1e-10)


@every_family
def test_density_integrates_to_one(family, build, generator, z_score):
    """By importance sampling from independent Cauchy variables."""
    posterior = build(family)
    shape = 60_000, SIZE
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
    theta = torch.tan(torch.pi * (uniform - 0.5))
    log_cauchy = -torch.log(torch.pi * (1 + theta**2)).sum(1)
    weights = (posterior.log_prob(theta).detach() - log_cauchy).exp()
    assert z_score(weights, 1.0) < 5
    assert z_score(weights, 1.1) > 5


@every_normal_family
def test_draws_have_the_moments(family, build, generator, z_score):
    # Wrong variant: eps @ L in place of eps @ L'.
    posterior = build(family)
    theta = posterior.draw(1_000_000, generator).theta.detach()
    normal = posterior.as_normal()
    deviation = theta - normal.mean
    assert z_score(theta, normal.mean) < 5
    products = deviation[:, :, None] * deviation[:, None]
    assert z_score(products, normal.covariance()) < 5
    assert z_score(products, 1.02 * normal.covariance()) > 5


@every_family
def test_draws_are_differentiable_in_the_parameters(family, build, numeric_gradient):
    """The path derivative, with the noise held fixed, against finite differences."""
    posterior = build(family)
    start = posterior.params.detach().clone()

    def draw(params):
        posterior.params = params
        generator = torch.Generator().manual_seed(7)
        draw = posterior.draw(3, generator)
        theta, log_q = draw.theta, draw.log_q
        return (theta**2).sum() + log_q.sum()

    leaf = start.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(draw(leaf), leaf)
    numeric = numeric_gradient(lambda p: draw(p).detach(), start)
    torch.testing.assert_close(gradient, numeric, rtol=5e-6, atol=1e-8)


@every_family
def test_log_prob_with_other_parameters(family, build, generator):
    """Detached parameters leave the path only; other ones are really used."""
    posterior = build(family)
    theta = posterior.draw(5, generator).theta
    fixed = posterior.params.detach()
    leaf = theta.detach().requires_grad_()
    # Wrong variant: `params` ignored, so that gradients reach the own parameters.
    log_q = posterior.log_prob(leaf, fixed)
    log_q.sum().backward()
    assert posterior.params.grad is None
    assert float(leaf.grad.abs().min()) > 0
    torch.testing.assert_close(log_q, posterior.log_prob(leaf))
    moved = (fixed + 0.3).requires_grad_()
    other = posterior.log_prob(leaf.detach(), moved)
    posterior.params = fixed + 0.3
    torch.testing.assert_close(other, posterior.log_prob(leaf.detach()))
    other.sum().backward()
    assert float(moved.grad.abs().min()) > 0


@every_family
def test_score_has_zero_mean(family, build, generator, z_score):
    """E_q[d log q / d lambda] = 0, with theta held fixed."""
    posterior = build(family)
    theta = posterior.draw(20_000, generator).theta.detach()
    params = posterior.params.detach()
    score = torch.vmap(
        torch.func.grad(lambda p, t: posterior.log_prob(t[None], p)[0]), (None, 0)
    )(params, theta)
    assert score.shape == (20_000, len(params))
    assert z_score(score, 0.0) < 5
    assert z_score(score**2, 0.0) > 5


@every_free_family
def test_starting_point_is_a_valid_posterior(family):
    posterior = family.build(LAYOUT)
    assert posterior.layout is LAYOUT
    assert posterior.params.ndim == 1
    assert posterior.params.dtype == torch.float64
    assert posterior.side in ("exact", "upper", "lower", "none")
    normal = posterior.as_normal()
    if normal is not None:
        torch.testing.assert_close(normal.mean, torch.zeros(SIZE, dtype=torch.float64))
        expected = INITIAL_SCALE**2 * torch.eye(SIZE).double()
        torch.testing.assert_close(normal.covariance(), expected)


@pytest.mark.parametrize("kind", ["diag", "full"])
@every_free_family
def test_near_a_normal(family, kind, make_normal):
    """The mean and those covariances that the family has.

    Wrong variant: conditional variances, 1 / diag(inv(cov)), for a factorized family.
    """
    posterior, normal = family.build(LAYOUT), make_normal(SIZE, kind)
    if posterior.as_normal() is None:
        return
    posterior = posterior.near(normal)
    result = posterior.as_normal()
    covariance = normal.covariance()
    if result.is_diagonal:
        covariance = torch.diag(covariance.diagonal())
    torch.testing.assert_close(result.mean, normal.mean)
    torch.testing.assert_close(result.covariance(), covariance)
    assert posterior.is_diagonal == result.is_diagonal
    posterior.params.requires_grad_()
    assert not posterior.as_normal().scale.requires_grad
    assert posterior.normal().scale.requires_grad


def test_numbers_of_variational_parameters():
    assert len(MeanFieldNormal().build(LAYOUT).params) == 2 * SIZE
    assert len(FullRankNormal().build(LAYOUT).params) == SIZE + SIZE * (SIZE + 1) // 2


@every_family
def test_only_the_local_generator_advances(family, build):
    before, posterior = torch.get_rng_state(), build(family)
    draws = [
        posterior.draw(3, torch.Generator().manual_seed(s)).theta for s in (1, 1, 2)
    ]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert torch.equal(torch.get_rng_state(), before)
    signature = inspect.signature(posterior.draw)
    assert signature.parameters["generator"].default is inspect.Parameter.empty


def test_full_rank_refuses_what_it_cannot_afford():
    FullRankNormal().check_size(10_000)
    MeanFieldNormal().check_size(10**9)
    with pytest.raises(ValueError, match=r"10001 parameters .* posterior='mean_field'"):
        FullRankNormal().check_size(10_001)


def test_moment_projections_are_the_best_fits(make_normal):
    """Marginal variances minimize KL(p || q) over factorized q."""
    full = make_normal(SIZE, "full", seed=5)
    posterior = MeanFieldNormal().build(LAYOUT)
    posterior = posterior.near(full)
    params = posterior.params.clone().requires_grad_()
    q = posterior.normal(params)
    diagonal = NormalForm(q.mean, torch.diag(q.scale))
    kl = torch.distributions.kl_divergence(independent(full), independent(diagonal))
    (gradient,) = torch.autograd.grad(kl, params)
    assert float(gradient.abs().max()) < 1e-12


def test_the_same_kind_of_posterior_reads_the_same():
    """Wrong variant: the address of the object."""
    layout = Layout({"coef": (1, 2), "intercept": (1,)})
    first, second = (FullRankNormal().build(layout) for _ in range(2))
    assert repr(first) == repr(second) == "<FullPosterior of coef(1, 2), intercept(1,)>"


def test_the_bound_is_that_of_a_refined_posterior(monkeypatch):
    # Fails if the value of an exact solver, before the refinement, is taken for it.
    X, y = np.eye(3)[[0, 0, 1, 1, 2]], [0, 1, 0, 1, 1]
    model = BayesianLogisticRegression(posterior="full_rank", prior="normal")
    plain = model.fit(X, y)
    best, family = plain.lower_bound_, type(plain.posterior_)

    def refine(posterior, target, generator):
        shift = torch.zeros_like(posterior.params)
        shift[0] = 2.0  # one mean, by two prior standard deviations: about two nats
        return posterior.at(posterior.params + shift)

    monkeypatch.setattr(family, "refine", refine)
    moved = model.fit(X, y)
    assert moved.lower_bound_ < best - 1.0
