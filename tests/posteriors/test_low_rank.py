"""The family of low rank: density, draws, projection, moments of f, networks."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from skvi.base import Layout, NormalForm
from skvi.neural_network import BayesianMLPRegressor
from skvi.objectives import ChiBound, RenyiBound
from skvi.posteriors import FullRankNormal, LowRankNormal, MeanFieldNormal
from skvi.predictors import LinearPredictor
from skvi.targets import Target
from skvi.utils._rows import SparseRows

SIZE, RANK = 6, 2
LAYOUT = Layout({"coef": (1, SIZE - 1), "intercept": (1,)})


def dense(normal):
    return torch.distributions.MultivariateNormal(normal.mean, normal.covariance())


@pytest.fixture
def posterior(generator):
    """Away from its start, with factors larger than the own deviations."""
    out = LowRankNormal(RANK).build(LAYOUT)
    out.params = torch.randn(len(out.params), generator=generator).double()
    return out


def test_density_is_that_of_the_dense_normal(posterior, generator):
    """Also at points that are not draws.

    Wrong variants: the capacity I - G'G; its log determinant left out; own
    deviations in the place of own variances.
    """
    normal = posterior.as_normal()
    own = torch.diag(normal.scale.square())
    expected = own + normal.factor @ normal.factor.T
    torch.testing.assert_close(normal.covariance(), expected)
    theta = 3 * torch.randn(20, SIZE, generator=generator).double()
    reference = dense(normal).log_prob(theta)
    torch.testing.assert_close(posterior.log_prob(theta), reference)
    draw = posterior.draw(20, generator)
    draws, log_q = draw.theta, draw.log_q
    torch.testing.assert_close(log_q, dense(normal).log_prob(draws))


def test_draws_have_the_moments(posterior, generator, z_score):
    """Wrong variant: one noise for own deviations and factor."""
    normal = posterior.as_normal()
    theta = posterior.draw(200_000, generator).theta
    deviation = theta - normal.mean
    products = deviation[:, :, None] * deviation[:, None]
    assert z_score(theta, normal.mean) < 5
    assert z_score(products, normal.covariance()) < 5
    assert z_score(products, 1.05 * normal.covariance()) > 5


def test_gradients_of_draws_and_density(posterior, numeric_gradient):
    """Both paths: theta and the parameters of log q. Wrong variant: theta detached."""
    start = posterior.params.clone()

    def run(params):
        posterior.params = params
        noise = torch.Generator().manual_seed(3)
        draw = posterior.draw(3, noise)
        theta, log_q = draw.theta, draw.log_q
        return (theta**2).sum() + log_q.sum()

    leaf = start.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(run(leaf), leaf)
    numeric = numeric_gradient(lambda p: run(p).detach(), start)
    torch.testing.assert_close(gradient, numeric, rtol=1e-5, atol=1e-6)


def test_ranks_above_the_size_mean_the_size(make_normal):
    """Then every normal is reached. Wrong variant: own variances of the whole."""
    posterior = LowRankNormal(rank=50).build(LAYOUT)
    assert len(posterior.params) == SIZE * (2 + SIZE)
    full = make_normal(SIZE, "full")
    posterior = posterior.near(full)
    found = posterior.as_normal()
    torch.testing.assert_close(found.covariance(), full.covariance())
    assert float(found.scale.min()) > 0
    with pytest.raises(ValueError, match="'rank' parameter of LowRankNormal"):
        LowRankNormal(rank=0).validate()
    LowRankNormal().check_size(10**7)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_projection_is_the_best_fit(rank, seed, make_normal):
    """The q with the least KL(p || q): factor analysis by maximum likelihood.

    Own variances whose best value is zero (Heywood cases) stop at a floor, where
    half of the slope is all that could still be gained. Wrong
    variants: leading eigenvectors of the covariance (principal components); the own
    variances of one iteration.
    """
    full = make_normal(SIZE, "full", seed=seed)
    posterior = LowRankNormal(rank).build(LAYOUT)
    posterior = posterior.near(full)
    params = posterior.params.clone().requires_grad_()
    kl = torch.distributions.kl_divergence(dense(full), dense(posterior.normal(params)))
    (gradient,) = torch.autograd.grad(kl, params)
    normal = posterior.as_normal()
    at_floor = normal.scale.square() < 1e-4 * normal.variance
    own = gradient[SIZE : 2 * SIZE]
    assert 0 <= float(own[at_floor].sum()) < 1e-4
    own[at_floor] = 0.0
    assert float(gradient.abs().max()) < 1e-5
    assert 0 < float(kl.detach()) < 1


def test_projections_between_ranks(posterior):
    """More columns hold the same normal, to be left by gradients; fewer the best."""
    normal, wide = posterior.as_normal(), LowRankNormal(RANK + 2).build(LAYOUT)
    wide = wide.near(normal)
    found = wide.as_normal()
    torch.testing.assert_close(found.covariance(), normal.covariance())
    # Wrong variant: columns of zeros, where the gradient of every objective is zero.
    assert float(found.factor.abs().amax(0).min()) > 0
    same = LowRankNormal(RANK).build(LAYOUT)
    same = same.near(normal)
    assert torch.equal(same.as_normal().mean, normal.mean)
    torch.testing.assert_close(same.params, posterior.params)
    narrow = LowRankNormal(1).build(LAYOUT)
    narrow = narrow.near(normal)
    kl = torch.distributions.kl_divergence
    diagonal = NormalForm(normal.mean, normal.variance.sqrt())
    best = kl(dense(normal), dense(narrow.as_normal()))
    assert 0 < best < kl(dense(normal), dense(diagonal))


def test_other_families_take_it_over(posterior):
    """Wrong variant: the own deviations alone."""
    normal = posterior.as_normal()
    full, diagonal = FullRankNormal().build(LAYOUT), MeanFieldNormal().build(LAYOUT)
    full = full.near(normal)
    diagonal = diagonal.near(normal)
    torch.testing.assert_close(full.as_normal().covariance(), normal.covariance())
    torch.testing.assert_close(
        diagonal.as_normal().variance, normal.covariance().diagonal()
    )


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


def test_moments_in_many_chunks(monkeypatch, generator):
    """Wrong variant: only the last chunk enters the gradient."""
    predictor, X = LinearPredictor(3), torch.randn(50, 3, generator=generator)
    parts = torch.linspace(-1, 1, 4), torch.ones(4), torch.eye(4)[:, :2]
    leaves = [part.double().requires_grad_() for part in parts]

    def run():
        found = predictor.moments(X, NormalForm(*leaves))  # float32 features
        value = found[0].sin().sum() + found[1].sqrt().sum()
        return value, *torch.autograd.grad(value, leaves)

    whole = run()
    monkeypatch.setattr("skvi.predictors._linear.CACHE_ELEMENTS", 12)
    torch.testing.assert_close(run(), whole)


def test_existence_of_upper_bounds(posterior):
    """As for the same covariance with a square scale.

    Wrong variant: the factor forgotten, which makes q narrower than it is.
    """

    class Bell(Target):
        layout = LAYOUT

        def tail_precision(self):
            return torch.ones(SIZE).double(), True

    square = FullRankNormal().build(LAYOUT)
    found = []
    for log_scale in (-2.0, -0.5, 0.0, 1.0):
        posterior.params[SIZE : 2 * SIZE] = log_scale
        square = square.near(posterior.as_normal())
        for objective in (ChiBound(2), RenyiBound(2)):
            both = [objective.exists(Bell(), q) for q in (posterior, square)]
            assert both[0] is both[1]
            found.append(both[0])
    assert {True, False} <= set(found)


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::skvi.exceptions.SkviWarning",
)
def test_networks_learn_correlations():
    """On features that nearly agree, where a factorized q loses nats.

    Wrong variant: a factor that starts at zero, and gradients that leave it there.
    """
    rng = np.random.default_rng(0)
    X = rng.standard_normal((100, 1)) + 0.1 * rng.standard_normal((100, 5))
    y = X[:, 0] + 0.3 * rng.standard_normal(100)
    parts = {"hidden_layer_sizes": (), "max_iter": 60, "random_state": 0}

    def fit(posterior):
        return BayesianMLPRegressor(posterior=posterior, **parts).fit(X, y)

    low, diagonal = fit(LowRankNormal(4)), fit("mean_field")
    normal = low.posterior_.as_normal()
    loadings = normal.factor / normal.scale[:, None]
    assert float(loadings.square().sum(0).max()) > 1
    error = np.hypot(low.lower_bound_se_, diagonal.lower_bound_se_)
    assert low.lower_bound_ > diagonal.lower_bound_ + 1 + 5 * error
    assert np.isfinite(low.predict_interval(X[:5])).all()
