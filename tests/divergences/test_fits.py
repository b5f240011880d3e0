"""Divergences as fitted, by closed forms and at nodes."""

import math
import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.optimize import minimize
from scipy.stats import norm
from sklearn.exceptions import ConvergenceWarning

from skvi.base import Layout, NormalForm
from skvi.divergences import (
    AlphaDivergence,
    BetaDivergence,
    FDivergence,
    GammaDivergence,
    JeffreysDivergence,
    RenyiDivergence,
)
from skvi.divergences._nodes import log_integrals
from skvi.linear_model import BayesianLogisticRegression
from skvi.priors import Horseshoe, Laplace, Normal, StudentT
from skvi.solvers import Stochastic

FAMILIES = ["mean_field", "full_rank"]
SPECS = [AlphaDivergence(0.9), AlphaDivergence(1.3)]
SPECS += [BetaDivergence(b) for b in (0.8, 1.1, 1.5)]
SPECS += [GammaDivergence(g) for g in (0.8, 1.1, 1.5)]
SPECS += [JeffreysDivergence()]
JOINT = [AlphaDivergence(0.9, joint=True), AlphaDivergence(1.2, joint=True)]
JOINT += [BetaDivergence(1.05, joint=True), BetaDivergence(0.9, joint=True)]
#: Families take turns; per coordinate and joint are the same for a full rank.
FITS = [(spec, FAMILIES[i % 2]) for i, spec in enumerate(SPECS)]
FITS += [(spec, FAMILIES[i % 2]) for i, spec in enumerate(JOINT)]
FITS += [
    (JeffreysDivergence(), "full_rank"),
    (JOINT[0], "full_rank"),
    (JOINT[1], "mean_field"),
]
FITS += [(AlphaDivergence(0.5), "mean_field"), (BetaDivergence(0.5), "mean_field")]


@pytest.fixture(scope="module")
def data():
    """Noisy classes: no direction separates them. Read-only."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 4)) @ np.array(
        [[1, 0.6, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0.3], [0, 0, 0, 0.5]]
    )
    y = X @ [1.0, -0.5, 0.3, 0] + rng.logistic(size=150) > 0.2
    X.setflags(write=False)
    return X, y.astype(int)


def objective(X, y, spec, prior, family, hermite):
    """Expected log loss by another quadrature, plus the closed form, of numbers."""
    nodes, weights = (torch.from_numpy(a) for a in hermite)
    A = torch.from_numpy(np.c_[X, np.ones(len(X))])
    sign = torch.from_numpy(2.0 * y - 1)
    size = A.shape[1]
    rows, columns = torch.tril_indices(size, size, -1)

    def value(x):
        x = torch.from_numpy(x).requires_grad_()
        mean, scale = x[:size], x[size : 2 * size].exp()
        if family == "full_rank":
            scale = torch.diag(scale).index_put((rows, columns), x[2 * size :])
        q = NormalForm(mean, scale)
        spread = (A @ q.scale if scale.ndim == 2 else A * scale).norm(dim=1)
        f = (A @ mean)[:, None] + spread[:, None] * nodes
        loss = (torch.nn.functional.softplus(-sign[:, None] * f) @ weights).sum()
        total = loss + spec.closed_form(q, prior)
        total.backward()
        return float(total.detach()), x.grad.numpy()

    n_free = 2 * size if family == "mean_field" else 2 * size + len(rows)
    return value, n_free


@pytest.mark.parametrize(("spec", "family"), FITS, ids=repr)
def test_optimum_is_that_of_another_optimizer(spec, family, data):
    """L-BFGS on means, log widths and the rest of the factor, from another start.

    Wrong variants: a precision gradient without its factor 2; the curvature of KL
    for a Hessian changes nothing here, a wrong gradient in the mean does.
    """
    X, y = data
    model = BayesianLogisticRegression(
        divergence=spec,
        posterior=family,
        tol=1e-8,
        prior="normal",
        intercept_prior="normal",
    )
    model.fit(X, y)
    assert model.converged_
    X = X - X.mean(0)
    prior = model.prior_["coef"].build(model.posterior_.layout)
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    hermite = nodes, weights / weights.sum()
    value, n_free = objective(X, y, spec, prior, family, hermite)
    start = np.r_[np.zeros(5), np.full(n_free - 5, -1.0)]
    start[10:] = 0
    options = {"maxiter": 5000, "maxfun": 10**5, "ftol": 0, "gtol": 1e-9}
    found = minimize(value, start, jac=True, method="L-BFGS-B", options=options)
    assert -model.objective_value_ == pytest.approx(found.fun, abs=1e-6)
    mean = model.posterior_.as_normal().mean
    np.testing.assert_allclose(mean, found.x[:5], atol=1e-3)


def fit(X, y, **params):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = BayesianLogisticRegression(**{"prior": "normal", **params}).fit(X, y)
    return model, [str(w.message) for w in caught if w.category is ConvergenceWarning]


def test_beta_that_loses_the_prior():
    """In 30 dimensions; per coordinate it does not."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(60, 30))
    y = (X[:, 0] + rng.logistic(size=60) > 0).astype(int)
    _, messages = fit(X, y, divergence=BetaDivergence(1.5), posterior="full_rank")
    assert len(messages) == 1
    assert "the prior has been lost: in 31 dimensions" in messages[0]
    assert "beta closer to 1" in messages[0]
    _, messages = fit(X, y, divergence=BetaDivergence(1.2), posterior="mean_field")
    assert not messages


FREE = {"max_iter": 12, "solver": Stochastic(n_draws=5), "random_state": 0}
FREE["tol"] = 0.05


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (FDivergence("hellinger"), "collapsed toward a point mass"),
        (FDivergence("total_variation"), "collapsed toward a point mass"),
        (FDivergence(lambda t: -t.log()), "draws of the posterior, which miss"),
        (AlphaDivergence(0.3, joint=True), "collapsed toward a point mass"),
    ],
    ids=["hellinger", "tv", "reverse", "alpha"],
)
def test_estimates_that_fail_are_reported(spec, message):
    """From draws, in many dimensions. Wrong variant: no word about it."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(200, 20))
    y = (X[:, 0] + rng.logistic(size=200) > 0).astype(int)
    params = {**FREE, "max_iter": 2, "divergence": spec, "posterior": "mean_field"}
    prior = "laplace" if isinstance(spec, AlphaDivergence) else "normal"
    model, messages = fit(X, y, prior=prior, **params)
    assert len(messages) == 1
    assert message in messages[0]
    assert not model.converged_


PRIORS = [Laplace(0.7), StudentT(df=3.0), Horseshoe()]
MEANS, WIDTHS = [0.0, 0.6, -2.0], [0.8, 0.2, 1.5]


def tensors(*lists):
    return [torch.tensor(values, dtype=torch.float64) for values in lists]


def correlated(size=3, width=1.0):
    """A normal with correlations of about a half."""
    mean = torch.linspace(-1.0, 1.5, size, dtype=torch.float64)
    covariance = torch.full((size, size), 0.6, dtype=torch.float64) + 0.4 * torch.eye(
        size, dtype=torch.float64
    )
    return NormalForm(width * mean, width * torch.linalg.cholesky(covariance))


class Hidden:
    """A normal prior that keeps to itself that it is one."""

    is_proper = has_log_prob_terms = True

    def __init__(self, prior):
        self.tail_precision, self.matching_normal = (
            prior.tail_precision,
            prior.matching_normal,
        )
        normal = prior.as_normal()
        self.log_prob_terms = normal.log_prob_terms
        self.log_prob_gradient = prior.log_prob_gradient

    def as_normal(self):
        return None


@pytest.mark.parametrize("spec", PRIORS, ids=repr)
@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (1.5, -0.5), (1.0, 0.2)])
def test_independent_coordinates(spec, a, b):
    """Against adaptive quadrature.

    Wrong variants: equal weights of nodes that are denser around 0; no normalization of
    the power of q.
    """
    prior = spec.build(Layout({"coef": (3,)}))
    found = log_integrals(NormalForm(*tensors(MEANS, WIDTHS)), prior, a, b)
    for value, m, s in zip(found.tolist(), MEANS, WIDTHS, strict=True):

        def integrand(x, m=m, s=s):
            log_prior = prior.log_prob_terms(tensors([[x] * 3])[0])[0, 0]
            return math.exp(a * norm.logpdf(x, m, s) + b * float(log_prior))

        ends = sorted({m - 12 * s, 0.0, m, m + 12 * s})
        parts = [quad(integrand, *x) for x in pairwise(ends)]
        exact = math.log(sum(part[0] for part in parts))
        assert value == pytest.approx(exact, abs=1e-3 if spec == PRIORS[2] else 1e-5)


@pytest.mark.parametrize("diagonal", [True, False])
@pytest.mark.parametrize(
    "divergence",
    [
        RenyiDivergence(0.5),
        RenyiDivergence(1.4),
        AlphaDivergence(0.7),
        AlphaDivergence(0.7, joint=True),
        GammaDivergence(1.2),
        GammaDivergence(0.8),
        BetaDivergence(1.2, joint=True),
    ],
    ids=repr,
)
def test_normal_priors(divergence, diagonal):
    """Value and derivatives are those of the closed form, whatever the shape.

    Wrong variants: half the gradient in the covariance; the entropy not divided by the
    order.
    """
    prior = Normal(1.3).build(Layout({"coef": (3,)}))
    q = NormalForm(*tensors(MEANS, WIDTHS)) if diagonal else correlated(width=0.8)
    found = divergence.terms(q, Hidden(prior))
    exact = divergence.terms(q, prior)
    close = {"rtol": 1e-6, "atol": 1e-7}
    torch.testing.assert_close(found.value, exact.value, **close)
    torch.testing.assert_close(found.gradient, exact.gradient, **close)
    torch.testing.assert_close(
        found.precision_gradient, exact.precision_gradient, **close
    )
    torch.testing.assert_close(
        torch.as_tensor(found.entropy_weight, dtype=torch.float64).sum(),
        torch.as_tensor(exact.entropy_weight, dtype=torch.float64).sum(),
        **close,
    )


@pytest.mark.parametrize("spec", PRIORS[:2], ids=repr)
@pytest.mark.parametrize("a", [0.5, 1.5])
def test_correlated_coordinates(spec, a):
    """Against a grid in two dimensions.

    Wrong variant: what is left of the prior beside normal factors is neglected.
    """
    prior, q = spec.build(Layout({"coef": (2,)})), correlated(size=2)
    line = torch.linspace(-12, 12, 800, dtype=torch.float64)  # not at 0
    grid = torch.cartesian_prod(line, line)
    logs = a * q.log_prob(grid) + (1 - a) * prior.log_prob(grid)
    exact = float(torch.logsumexp(logs, 0) + 2 * (line[1] - line[0]).log())
    found = float(log_integrals(q, prior, a, 1 - a))
    assert found == pytest.approx(exact, abs=4e-3)


def make_rows(n=80, d=3):
    rng = np.random.default_rng(4)
    X = rng.normal(size=(n, d))
    f = X @ np.array([1.0, -0.5, 0.0])
    return X - X.mean(0), f + rng.normal(size=n), (f + rng.logistic(size=n) > 0) * 1


@pytest.mark.parametrize("posterior", ["mean_field", "full_rank"])
@pytest.mark.parametrize("prior", ["laplace", "horseshoe"])
@pytest.mark.parametrize("divergence", ["renyi", "gamma", "beta"])
def test_fits_without_draws(prior, posterior, divergence):
    """They converge, and are the same for every seed."""
    X, _, y = make_rows()
    kwargs = {"prior": prior, "posterior": posterior, "divergence": divergence}
    first, second = (
        BayesianLogisticRegression(**kwargs, random_state=seed).fit(X, y)
        for seed in (0, 1)
    )
    assert first.converged_
    assert first.diagnostics_["solver"] == "natural_gradient"
    np.testing.assert_array_equal(first.coef_, second.coef_)
