"""Families: densities, draws, moments."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.sparse import csr_matrix
from scipy.special import logsumexp
from torch.func import functional_call

import skvi.posteriors
from skvi.base import Layout, NormalForm
from skvi.posteriors import (
    Ensemble,
    Family,
    FullRankNormal,
    LowRankNormal,
    MeanFieldNormal,
    NormalizingFlow,
)
from skvi.posteriors._flow import InverseAutoregressive
from skvi.posteriors._mixture import MixtureOverScales
from skvi.posteriors._normal import INITIAL_SCALE
from skvi.predictors import LinearPredictor
from skvi.priors._blocks import build_prior
from skvi.utils._rows import SparseRows
from skvi.utils._tensors import randn

CLASSES = [getattr(skvi.posteriors, name) for name in skvi.posteriors.__all__]
# Product is what its blocks are; Gamma and Beta, which are for other blocks, are in
# test_factors, those without a density in test_semi_implicit.
FACTORS = "Gamma", "Beta"
BOUNDED = "SemiImplicitMixture", "HierarchicalVariational", "MultiplicativeFlow"
OTHERS = "Family", "Product", *BOUNDED, *FACTORS
FAMILIES = [c() for c in CLASSES if issubclass(c, Family) and c.__name__ not in OTHERS]
LAYOUT = Layout({"coef": (1, 2), "intercept": (1,)})
SIZE = LAYOUT.size
every_family = pytest.mark.parametrize("family", FAMILIES, ids=repr)


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
@every_family
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


def test_full_rank_refuses_what_it_cannot_afford():
    FullRankNormal().check_size(10_000)
    MeanFieldNormal().check_size(10**9)
    with pytest.raises(ValueError, match=r"10001 parameters .* posterior='mean_field'"):
        FullRankNormal().check_size(10_001)


def test_the_same_kind_of_posterior_reads_the_same():
    """Wrong variant: the address of the object."""
    layout = Layout({"coef": (1, 2), "intercept": (1,)})
    first, second = (FullRankNormal().build(layout) for _ in range(2))
    assert repr(first) == repr(second) == "<FullPosterior of coef(1, 2), intercept(1,)>"


def apart(make_normal, base, n_members=3, distance=0.0):
    """Members at normals of their own, and these."""
    posterior = Ensemble(base, n_members).build(LAYOUT)
    normals = [make_normal(SIZE, "full", seed=m) for m in range(n_members)]
    normals = [
        NormalForm(n.mean + distance * m, n.scale) for m, n in enumerate(normals)
    ]
    pairs = zip(posterior.components, normals, strict=True)
    return posterior.with_components([c.near(n) for c, n in pairs]), normals


def test_density_is_that_of_the_mixture(make_normal, generator):
    """Beside scipy's. Wrong variants: the mean of the log densities; no log M."""
    posterior, normals = apart(make_normal, "full_rank")
    draw = posterior.draw(50, generator)
    logs = [
        stats.multivariate_normal(n.mean, n.covariance()).logpdf(draw.theta)
        for n in normals
    ]
    expected = logsumexp(logs, axis=0) - math.log(3)
    np.testing.assert_allclose(posterior.log_prob(draw.theta), expected, rtol=1e-10)
    np.testing.assert_allclose(draw.log_q, expected, rtol=1e-10)
    assert posterior.side == draw.side == "exact"
    assert posterior.as_normal() is None


def test_derivatives_of_a_pass_are_finite_differences(generator):
    """In noise and all parameters, of coordinates and log determinant.

    Wrong variant: the determinant of a bend moves the noise the other way.
    """
    flow = InverseAutoregressive(4, 2, 5).double()
    names, start = zip(*flow.named_parameters(), strict=True)
    # None of them 0, where derivatives of tails and weights vanish.
    values = [randn(generator, *p.shape).requires_grad_() for p in start]
    noise = randn(generator, 3, 4).requires_grad_()

    def run(noise, *values):
        return functional_call(flow, dict(zip(names, values, strict=True)), noise)

    assert torch.autograd.gradcheck(run, (noise, *values))


def test_log_determinant_of_a_pass(generator):
    """That of its Jacobian.

    Wrong variant: bends without the slope of asinh.
    """
    flow = InverseAutoregressive(4, 2, 5).double()
    for p in flow.parameters():
        p.data.copy_(randn(generator, *p.shape))
    noise = randn(generator, 4)
    jacobian = torch.autograd.functional.jacobian(lambda x: flow(x[None])[0][0], noise)
    _, log_det = flow(noise[None])
    torch.testing.assert_close(log_det[0], torch.linalg.slogdet(jacobian)[1])


def test_log_density_that_changes_along_the_path_only(generator):
    """Its gradient is that of the density by the inverse, at parameters that are fixed.

    Wrong variants: log scales without their share of the Jacobian; the slopes of a
    bend's determinant added.
    """
    family = NormalizingFlow(n_layers=3, n_hidden=8)
    start = family.build(Layout({"coef": (1, 5)}), generator)
    factor = randn(generator, 5, 5).tril(-1) + torch.eye(5).double()
    start = start.near(NormalForm(randn(generator, 5), factor))
    params = (start.params + 0.3 * randn(generator, *start.params.shape)).clone()
    params.requires_grad_()
    q = start.at(params)
    draw = q.draw(20, generator)
    found, exact = q.path_log_q(draw), q.log_prob(draw.theta, params.detach())
    torch.testing.assert_close(found, exact)
    weights = randn(generator, 20)
    slopes = [
        torch.autograd.grad((weights * log_q).sum(), params, retain_graph=True)[0]
        for log_q in (found, exact)
    ]
    torch.testing.assert_close(*slopes)


LOW_RANK_SIZE, RANK = 6, 2
LOW_RANK_LAYOUT = Layout({"coef": (1, LOW_RANK_SIZE - 1), "intercept": (1,)})


def dense(normal):
    return torch.distributions.MultivariateNormal(normal.mean, normal.covariance())


@pytest.fixture
def posterior(generator):
    """Away from its start, with factors larger than the own deviations."""
    out = LowRankNormal(RANK).build(LOW_RANK_LAYOUT)
    out.params = torch.randn(len(out.params), generator=generator).double()
    return out


def test_projections_between_ranks(posterior):
    """More columns hold the same normal, to be left by gradients; fewer the best."""
    normal, wide = (
        posterior.as_normal(),
        LowRankNormal(RANK + 2).build(LOW_RANK_LAYOUT),
    )
    wide = wide.near(normal)
    found = wide.as_normal()
    torch.testing.assert_close(found.covariance(), normal.covariance())
    # Wrong variant: columns of zeros, where the gradient of every objective is zero.
    assert float(found.factor.abs().amax(0).min()) > 0
    same = LowRankNormal(RANK).build(LOW_RANK_LAYOUT)
    same = same.near(normal)
    assert torch.equal(same.as_normal().mean, normal.mean)
    torch.testing.assert_close(same.params, posterior.params)
    narrow = LowRankNormal(1).build(LOW_RANK_LAYOUT)
    narrow = narrow.near(normal)
    kl = torch.distributions.kl_divergence
    diagonal = NormalForm(normal.mean, normal.variance.sqrt())
    best = kl(dense(normal), dense(narrow.as_normal()))
    assert 0 < best < kl(dense(normal), dense(diagonal))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_moments_of_f(n_outputs, fit_intercept, sparse, generator):
    """Against the design matrix and the dense covariance, with gradients.

    Wrong variants: the own variances without the square of X; `both` halved; the
    columns of f inside those of the factor.
    """
    predictor = LinearPredictor(4, n_outputs, fit_intercept)
    size = predictor.layout.size

    def random(*shape):
        return torch.randn(*shape, generator=generator).double()

    X, rows = random(30, 4), torch.eye(size).double()
    leaves = [random(size), random(size).exp(), random(size, 2)]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    normal = NormalForm(*leaves)
    A = torch.stack([predictor.project(X, e[:, None])[..., 0] for e in rows], -1)
    A = A.reshape(30, n_outputs, size)
    mean, covariance = A @ normal.mean, A @ normal.covariance() @ A.mT
    if n_outputs == 1:
        mean, covariance = mean[:, 0], covariance[:, 0, 0]
    features = SparseRows(csr_matrix(X.numpy())) if sparse else X
    found = predictor.moments(features, normal)
    torch.testing.assert_close(found, (mean, covariance))
    by_mean, by_covariance = random(*mean.shape), random(*covariance.shape)

    def gradients(moments):
        value = (by_mean * moments[0]).sum() + (by_covariance * moments[1]).sum()
        return torch.autograd.grad(value, leaves)

    expected = gradients((mean, covariance))
    torch.testing.assert_close(gradients(found), expected)


WEIGHTS = np.array([0.2, 0.5, 0.3])


def mixture(family):
    rng, nodes = np.random.default_rng(0), []
    base = family.build(LAYOUT, torch.Generator().manual_seed(0))
    for k in range(3):
        root = np.tril(0.5 * rng.uniform(size=(3, 3))) + (1 + k) * np.eye(3)
        mean = torch.from_numpy(rng.normal(size=3) + k)
        nodes.append(base.near(NormalForm(mean, torch.from_numpy(root))))
    return MixtureOverScales(nodes, np.log(WEIGHTS), [-1.0, 0.0, 1.0])


def moments(q):
    means = np.array([n.mean.numpy() for n in q.normals()])
    covs = np.array([n.covariance().numpy() for n in q.normals()])
    mean = WEIGHTS @ means
    moved = means - mean
    return mean, np.tensordot(WEIGHTS, covs, 1) + moved.T @ (WEIGHTS[:, None] * moved)


@pytest.mark.parametrize("family", [FullRankNormal(), MeanFieldNormal()])
def test_as_a_prior_it_is_the_normal_of_its_moments(family):
    """Wrong variant: without the variance of the means of the nodes."""
    q = mixture(family)
    mean, cov = moments(q)
    normal = build_prior(q, LAYOUT).as_one().as_normal()
    np.testing.assert_allclose(normal.mean, mean, rtol=1e-10)
    np.testing.assert_allclose(normal.variance, np.diag(cov), rtol=1e-10)
    if isinstance(family, FullRankNormal):
        np.testing.assert_allclose(normal.covariance(), cov, rtol=1e-10)
