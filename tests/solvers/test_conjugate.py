"""Conjugate linear regression: target, statistics, posteriors, solvers, evidence."""

import math
import warnings

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import logsumexp, polygamma

from skvi.base import Layout, NormalForm
from skvi.base._gamma_form import GammaForm
from skvi.divergences import KL
from skvi.likelihoods import GaussianLikelihood
from skvi.linear_model import BayesianLinearRegression
from skvi.losses import BetaLoss, LogLoss
from skvi.objectives import ELBO
from skvi.posteriors import FullRankNormal, Gamma, MeanFieldNormal, Product
from skvi.predictors import LinearPredictor
from skvi.priors import ARD, GammaHyperprior, HierarchicalNormal, Normal
from skvi.solvers import CoordinateAscent, Problem, SolverOptions, _conjugate
from skvi.solvers._alternating import Alternating
from skvi.targets import HierarchicalTarget
from skvi.targets._least_squares import summarize
from skvi.utils._sparse import SparseRows

TIGHT = SolverOptions(max_iter=2000, tol=1e-11)


def make_data(n=12, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    X -= X.mean(0)
    y = X @ rng.standard_normal(d) + 0.5 + 0.7 * rng.standard_normal(n)
    return torch.from_numpy(X), torch.from_numpy(y)


def make_target(n=12, d=3, noise=(2.0, 1.5), coef=(1.5, 0.8, True), loss=None, seed=0):
    X, y = make_data(n, d, seed)
    predictor = LinearPredictor(d)
    only = predictor.layout.only("intercept")
    prior = Normal(2.0).build(only if coef else predictor.layout)
    return HierarchicalTarget(
        predictor,
        GaussianLikelihood("learn" if noise else 0.7),
        loss or LogLoss(),
        prior,
        X,
        y,
        noise_hyperprior=noise and GammaHyperprior(*noise),
        coef_hyperprior=coef and GammaHyperprior(*coef),
    )


def make_problem(target, family=None):
    blocks = {("coef", "intercept"): family or FullRankNormal()}
    posterior = Product(blocks).build(target.layout)
    return Problem(target, ELBO(), KL(), posterior, None)


# --- statistics and predictors -------------------------------------------------------


@pytest.mark.parametrize("shape", [(12, 3), (4, 7)])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_sum_of_squares_is_that_of_the_rows(shape, is_sparse):
    """Wrong variants: the weighted mean left out; weights squared."""
    from scipy.sparse import csr_matrix

    rng = np.random.default_rng(1)
    X, y = rng.standard_normal(shape), torch.from_numpy(rng.standard_normal(shape[0]))
    w = rng.uniform(0.5, 2, shape[0])
    offset = w @ X / w.sum()
    centered, w = X - offset, torch.from_numpy(w)
    predictor = LinearPredictor(shape[1])
    if is_sparse:
        rows = SparseRows.standardized(csr_matrix(X), offset, 1.0)
        data = summarize(predictor, rows, y, w)
    else:
        data = summarize(predictor, torch.from_numpy(centered), y, w)
    coef = torch.from_numpy(rng.standard_normal((5, shape[1])))
    intercept = torch.from_numpy(rng.standard_normal(5))
    f = coef @ torch.from_numpy(centered).T + intercept[:, None]
    expected = (y - f).square() @ w
    torch.testing.assert_close(
        data.sum_of_squares(coef, intercept), expected, rtol=1e-9, atol=1e-9
    )
    gram = torch.from_numpy(centered.T) @ (w[:, None] * torch.from_numpy(centered))
    torch.testing.assert_close(data.full_gram(), gram, rtol=1e-9, atol=1e-9)


def test_nearly_collinear_features_keep_their_digits():
    """Wrong variant: eigenvalues of the Gram matrix alone lose the small direction."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30, 2))
    X[:, 1] = X[:, 0] + 1e-7 * X[:, 1]
    X -= X.mean(0)
    y = X[:, 0] - X[:, 1] * 0.5
    data = summarize(LinearPredictor(2), *map(torch.from_numpy, (X, y)), None)
    assert len(data.values) == 2
    np.testing.assert_allclose(
        data.vectors @ data.solution, [1.0, -0.5], rtol=1e-6, atol=1e-6
    )


# --- densities -----------------------------------------------------------------------


def test_log_joint_is_the_density_of_the_logs():
    """Wrong variants: no Jacobian; a rate for a scale; precision for a variance."""
    target = make_target()
    theta = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).double()
    X, y = target.X.numpy(), target.y.numpy()
    expected = []
    for row in theta.numpy():
        coef, b, (tau, lam) = row[:3], row[3], np.exp(row[4:])
        expected.append(
            stats.norm.logpdf(y, X @ coef + b, tau**-0.5).sum()
            + stats.norm.logpdf(coef, 0, lam**-0.5).sum()
            + stats.norm.logpdf(b, 0, 2.0)
            + stats.gamma.logpdf(tau, 2.0, scale=1 / 1.5)
            + stats.gamma.logpdf(lam, 1.5, scale=1 / 0.8)
            + row[4:].sum()
        )
    np.testing.assert_allclose(target.log_joint(theta), expected, rtol=1e-12)
    rows = torch.arange(12)
    np.testing.assert_allclose(target.log_joint(theta, rows), expected, rtol=1e-12)


def test_log_joint_gradient(numeric_gradient):
    for coef in ((1.5, 0.8, True), (1.5, 0.8, False), None):
        target = make_target(coef=coef)
        theta = torch.linspace(-0.5, 0.7, target.layout.size).double()
        expected = numeric_gradient(lambda t, g=target: g.log_joint(t[None])[0], theta)
        found = target.log_joint_gradient(theta[None])[0]
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("a", [0.05, 0.7, 40.0])
def test_gamma_posterior(a, generator, z_score):
    """Wrong variants: scale for rate; the Jacobian left out; underflow at 0.05."""
    layout = Layout({"p": (2,)}, {"p": "exp"})
    posterior = Gamma().build(layout)
    shape, rate = torch.tensor([[a, 2.0], [3.0, 0.5]], dtype=torch.float64)
    posterior = posterior.near_gamma(GammaForm(shape, rate))
    draw = posterior.draw(100_000, generator)
    theta, log_q = draw.theta, draw.log_q
    assert torch.isfinite(theta).all()
    expected = stats.gamma.logpdf(theta.exp().numpy(), shape, scale=1 / rate).sum(1)
    fine = (theta > -600).all(1)
    np.testing.assert_allclose(
        log_q[fine], (expected + theta.numpy().sum(1))[fine], rtol=1e-9, atol=1e-8
    )
    assert z_score(theta, torch.digamma(shape) - rate.log()) < 5
    variance = torch.polygamma(1, shape)
    centered = theta - (torch.digamma(shape) - rate.log())
    assert z_score(centered**2, variance) < 5


def test_gamma_draws_are_differentiable(z_score):
    """d E[log g] / d log a = a trigamma(a). Wrong variant: detached draws."""
    layout, a = Layout({"p": (1,)}, {"p": "exp"}), 1.7
    posterior = Gamma().build(layout)
    gradients = []
    for seed in range(50):
        params = torch.tensor([math.log(a), 0.3]).double().requires_grad_()
        posterior = posterior.at(params)
        generator = torch.Generator().manual_seed(seed)
        theta = posterior.draw(2000, generator).theta
        gradients.append(torch.autograd.grad(theta.mean(), params)[0])
    found = torch.stack(gradients)
    assert z_score(found[:, 0], a * polygamma(1, a)) < 5
    torch.testing.assert_close(found[:, 1], torch.full((50,), -1.0).double())


def test_product_is_a_product(generator):
    """Wrong variants: parts in the order of `blocks` instead of the layout's."""
    layout = Layout({"a": (2,), "s": (1,), "b": (1, 3)}, {"s": "exp"})
    posterior = Product({("b", "a"): MeanFieldNormal()}).build(layout)
    part = posterior.part("a")
    assert list(part.layout) == ["b", "a"]
    means = torch.tensor([10.0, 11.0, 12.0, -1.0, -2.0]).double()
    part = part.near(NormalForm(means, torch.full((5,), 0.01, dtype=torch.float64)))
    posterior = posterior.with_parts({("b", "a"): part})
    draw = posterior.draw(500, generator)
    theta, log_q = draw.theta, draw.log_q
    centers = torch.tensor([-1.0, -2.0, 10.0, 11.0, 12.0]).double()
    assert (theta[:, [0, 1, 3, 4, 5]] - centers).abs().max() < 0.1
    torch.testing.assert_close(posterior.log_prob(theta), log_q)
    expected = stats.norm.logpdf(theta[:, [0, 1, 3, 4, 5]], centers, 0.01).sum(1)
    expected += stats.gamma.logpdf(theta[:, 2].exp().numpy(), 1.0) + theta[:, 2].numpy()
    np.testing.assert_allclose(log_q, expected, rtol=1e-10)
    assert posterior.side == "exact"
    assert posterior.as_normal() is None
    with pytest.raises(ValueError, match=r"at most once, out of \['a', 'b', 's'\]"):
        Product({"c": FullRankNormal()}).build(layout)
    with pytest.raises(ValueError, match="at most once"):
        Product({"a": FullRankNormal(), ("a", "b"): FullRankNormal()}).build(layout)
    with pytest.raises(ValueError, match="blocks must hold families"):
        Product({"a": "full_rank"}).build(layout)
    with pytest.raises(ValueError, match="bijection 'exp'"):
        Product({"a": Gamma()}).build(layout)


def test_hierarchical_priors_are_student_t(generator, z_score):
    """Wrong variants: a degrees of freedom for 2 a; one t per coefficient."""
    layout, theta = Layout({"coef": (1, 3)}), torch.linspace(-2, 2, 12).reshape(4, 3)
    a, b = 1.5, 0.8
    joint = stats.multivariate_t(np.zeros(3), b / a * np.eye(3), df=2 * a)
    found = HierarchicalNormal(a, b).build(layout).log_prob(theta.double())
    np.testing.assert_allclose(found, joint.logpdf(theta), rtol=1e-6)
    each = stats.t.logpdf(theta, 2 * a, scale=math.sqrt(b / a)).sum(1)
    np.testing.assert_allclose(ARD(a, b).build(layout).log_prob(theta), each, rtol=1e-6)
    prior = HierarchicalNormal(4.0, 3.0).build(layout)
    draws = prior.sample(100_000, generator)
    assert z_score(draws.abs() < 1, stats.t.cdf(1, 8, scale=0.75**0.5) * 2 - 1) < 5
    # One precision for all: squares are correlated.
    square = (draws**2).clamp(max=9)
    assert np.corrcoef(square.T)[0, 1] > 0.1
    separate = ARD(4.0, 3.0).build(layout).sample(100_000, generator) ** 2
    assert abs(np.corrcoef(separate.clamp(max=9).T)[0, 1]) < 0.02
    assert torch.isfinite(ARD().build(layout).sample(100, generator)).all()


# --- solvers -------------------------------------------------------------------------

CASES = {
    "shared": {},
    "ard": {"coef": (1.5, 0.8, False)},
    "vague": {"noise": (1e-6, 1e-6), "coef": (1e-6, 1e-6)},
    "vague ard": {"noise": (1e-6, 1e-6), "coef": (1e-6, 1e-6, False)},
    "noise only": {"coef": None},
    "coef only": {"noise": None},
    "wide": {"n": 5, "d": 8},
    "wide ard": {"n": 5, "d": 8, "coef": (1.5, 0.8, False)},
}
#: Families take turns, and both see the models that users meet.
FITS = [(c, (FullRankNormal(), MeanFieldNormal())[i % 2]) for i, c in enumerate(CASES)]
FITS += [("shared", MeanFieldNormal()), ("ard", FullRankNormal())]
every_case = pytest.mark.parametrize(("case", "family"), FITS, ids=str)


@every_case
def test_coordinate_ascent(case, family, generator, z_score):
    """The value is minus the ELBO of what is returned, and never rises.

    Wrong variants: E[w'w] without the trace (as the lecture notes print it); the
    entropy of a Gamma instead of that of its logarithm; a log determinant of the
    eigenvectors that a wide matrix lacks.
    """
    target = make_target(**CASES[case])
    problem = make_problem(target, family)
    solution = CoordinateAscent().solve(problem, TIGHT)
    assert solution.converged
    assert (np.diff(solution.history) <= 1e-10).all()
    draw = solution.posterior.draw(50_000, generator)
    theta, log_q = draw.theta, draw.log_q
    log_weights = target.log_joint(theta) - log_q
    assert z_score(log_weights, -solution.value, rounding=1e-9) < 5


@pytest.mark.parametrize(
    ("case", "family"),
    [(case, family) for case, family in FITS if "vague" not in case],
    ids=str,
)
def test_coordinate_ascent_ends_at_an_optimum(case, family):
    """No variational parameter can be moved to a better ELBO.

    Gradients of the ELBO on common draws are zero within their standard errors. Vague
    priors leave flat directions, without a scale to compare with.
    """
    target = make_target(**CASES[case])
    problem = make_problem(target, family)
    solution = CoordinateAscent().solve(problem, TIGHT)
    leaf = solution.posterior.params.clone().requires_grad_()
    posterior, gradients = solution.posterior.at(leaf), []
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        draw = posterior.draw(1000, generator)
        theta, log_q = draw.theta, draw.log_q
        value = (target.log_joint(theta) - log_q).mean()
        gradients.append(torch.autograd.grad(value, leaf)[0])
    found = torch.stack(gradients)
    z = found.mean(0).abs() / (found.std(0) / 60**0.5 + 1e-9)
    assert float(z.max()) < 5


@pytest.mark.parametrize(
    ("case", "family"),
    [
        ("shared", FullRankNormal()),
        ("ard", MeanFieldNormal()),
        ("coef only", FullRankNormal()),
        pytest.param("noise only", MeanFieldNormal(), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_alternating_finds_the_same(case, family):
    """Quadrature over the noise against closed forms: 0.0001 nat.

    Wrong variants: the prior's precision exp(E[log]) for E; the gap between both
    left out of the value.
    """
    target = make_target(**CASES[case])
    exact = CoordinateAscent().solve(make_problem(target, family), TIGHT)
    options = SolverOptions(max_iter=300, tol=1e-8)
    problem = make_problem(target, family)
    found = Alternating().solve(problem, options)
    assert found.converged
    assert found.value == pytest.approx(exact.value, abs=1e-4)
    assert (np.diff(found.history) <= 1e-5).all()


def test_robust_fit_learns_the_best_noise():
    """Type-II maximum of a robust fit, against a scan with the noise fixed."""
    X, y = make_data(40)
    parts = {"loss": BetaLoss(1.2), "prior": "normal", "normalize_y": False}
    model = BayesianLinearRegression(noise_scale="learn", tol=1e-9, **parts)
    model.fit(X.numpy(), y.numpy())
    assert model.diagnostics_["solver"] == "empirical_bayes"

    def value(scale):
        fixed = BayesianLinearRegression(noise_scale=scale, tol=1e-9, **parts)
        return fixed.fit(X.numpy(), y.numpy()).lower_bound_

    best = value(model.noise_scale_)
    assert model.lower_bound_ == pytest.approx(best, abs=1e-6)
    assert best > max(
        value(1.02 * model.noise_scale_), value(model.noise_scale_ / 1.02)
    )


# --- evidence ------------------------------------------------------------------------


def reference_evidence(X, y, gammas, noise=None, lam=None, m=160):
    """Dense trapezoidal sums over log precisions; the rest by linear algebra."""
    grid, n = np.linspace(-14, 9, m), len(y)
    t, s = (grid if v is None else np.log([v]) for v in (noise, lam))
    t, s = (a.ravel()[:, None, None] for a in np.meshgrid(t, s))
    covariance = np.exp(-s) * (X @ X.T) + 4.0 + np.exp(-t) * np.eye(n)
    whitened = np.linalg.solve(np.linalg.cholesky(covariance), y[:, None])[..., 0]
    value = -0.5 * (whitened**2).sum(1) - 0.5 * n * math.log(2 * math.pi)
    value -= 0.5 * np.linalg.slogdet(covariance)[1]
    for x, (a, b), given in ((t, gammas[0], noise), (s, gammas[1], lam)):
        if given is None:
            x = x.ravel()
            value += stats.gamma.logpdf(np.exp(x), a, scale=1 / b) + x
            value += math.log(grid[1] - grid[0])
    return logsumexp(value)


@pytest.mark.parametrize("case", ["shared", "noise only", "coef only", "wide"])
def test_evidence_by_quadrature(case):
    """Against a plain sum, from which it must be less than its own error apart.

    Wrong variants: no Jacobian; the intercept's prior left out.
    """
    from skvi.evidence._conjugate import conjugate_evidence

    parts = CASES[case]
    target = make_target(**parts)
    X, y = target.X.numpy(), target.y.numpy()
    noise = None if parts.get("noise", 1) else 0.7**-2
    lam = None if parts.get("coef", 1) else 0.25
    gammas = ((2.0, 1.5), (1.5, 0.8))
    expected = reference_evidence(X, y, gammas, noise=noise, lam=lam)
    problem = make_problem(target)
    solution = CoordinateAscent().solve(problem, TIGHT)
    bounds = conjugate_evidence(target, solution.posterior, torch.Generator())
    assert bounds.method == "quadrature"
    assert bounds.reliable
    assert bounds.lower <= bounds.upper < bounds.lower + 1e-6
    assert bounds.estimate == pytest.approx(expected, abs=1e-6)
    assert -solution.value < bounds.lower + 1e-9
    assert -solution.value > bounds.lower - 2.0


def test_one_precision_each_without_squares(monkeypatch):
    """Binary features, 20 times as many as rows: the noise falls to almost nothing.

    Wrong variant: the identity, which is the prior, left out of the factorization.
    """
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (10, 200)).astype(float)
    y = X @ rng.standard_normal(200)
    model = BayesianLinearRegression(prior="ard", max_iter=30, tol=1e3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = model.fit(X[:, :12], y).coef_
        BayesianLinearRegression(prior="ard", max_iter=200).fit(X, y)  # fails if not

        def fail(*args, **kwargs):
            raise np.linalg.LinAlgError

        monkeypatch.setattr(_conjugate, "cholesky", fail)
        found = model.fit(X[:, :12], y).coef_
    np.testing.assert_allclose(found, expected, rtol=1e-9)
