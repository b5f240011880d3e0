"""Divergences to priors that are not normal, by nodes along coordinates."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm

from skvi.base import Layout, NormalForm
from skvi.divergences import (
    AlphaDivergence,
    BetaDivergence,
    GammaDivergence,
    RenyiDivergence,
)
from skvi.divergences._nodes import log_integrals
from skvi.linear_model import BayesianLinearRegression, BayesianLogisticRegression
from skvi.priors import Horseshoe, Laplace, Normal, StudentT

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


def test_range_of_the_order():
    """Beyond it the value is infinite, as in closed form."""
    prior = Normal().build(Layout({"coef": (3,)}))
    for width in (0.9, 1.2):
        q = correlated(width=width)
        found = RenyiDivergence(2.0).closed_form(q, Hidden(prior))
        exact = RenyiDivergence(2.0).closed_form(q, prior)
        assert math.isinf(found) == math.isinf(exact)


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


@pytest.mark.parametrize("spec", PRIORS, ids=repr)
@pytest.mark.parametrize(
    "divergence",
    [
        RenyiDivergence(0.5),
        RenyiDivergence(1.3),
        GammaDivergence(1.1),
        BetaDivergence(1.1),
    ],
)
def test_derivatives(spec, divergence):
    """Against central differences, for a correlated q.

    Wrong variants: factors that are not updated, or have not settled.
    """
    prior, q = spec.build(Layout({"coef": (4,)})), correlated(size=4, width=0.7)
    found, step = divergence.terms(q, prior), 1e-4
    direction = torch.tensor([0.3, -0.5, 0.2, 0.4], dtype=torch.float64)
    change = torch.outer(direction, direction)

    def at(size, in_mean):
        mean = q.mean + size * direction * in_mean
        covariance = q.covariance() + size * change * (1 - in_mean)
        root = torch.linalg.cholesky(covariance)
        return float(divergence.closed_form(NormalForm(mean, root), prior))

    for in_mean in (0, 1):
        slope = (at(step, in_mean) - at(-step, in_mean)) / (2 * step)
        by_cov = 0.5 * float((found.precision_gradient * change).sum())
        expected = float(found.gradient @ direction) if in_mean else by_cov
        assert slope == pytest.approx(expected, rel=1e-4, abs=1e-5)


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


@pytest.mark.parametrize("prior", ["normal", "laplace", "auto"])
@pytest.mark.parametrize("likelihood", ["gaussian", "student_t"])
def test_unknown_numbers_are_those_of_kl(prior, likelihood):
    """Noise and scale: the same fit as where they are given, and named.

    Wrong variants: the start of the noise; the scale in units of the fit; none named.
    """
    X, y, _ = make_rows()
    parts = {"likelihood": likelihood, "posterior": "mean_field"}
    model = BayesianLinearRegression(
        prior=prior, divergence=RenyiDivergence(0.5), **parts
    )
    model.fit(X, y)
    kl = BayesianLinearRegression(prior=prior, **parts).fit(X, y)
    assert model.noise_scale_ == pytest.approx(kl.noise_scale_, rel=1e-4)
    given = {"noise_scale": model.noise_scale_, "prior": model.prior_["coef"]}
    known = BayesianLinearRegression(divergence=RenyiDivergence(0.5), **given, **parts)
    np.testing.assert_allclose(model.coef_, known.fit(X, y).coef_, rtol=1e-4)
    taken = {"noise_scale", "y_mean", "y_scale"}
    if prior == "auto":
        assert model.prior_scale_ == pytest.approx(kl.prior_scale_, rel=1e-4)
        taken.add("prior_scale")
    assert set(model._model.taken_from_y) == taken


def test_learned_scales():
    """The learned scale has the highest bound.

    Wrong variant: the objective's gradient in the scale without the prior's.
    """
    X, _, y = make_rows()
    common = {"divergence": RenyiDivergence(0.5), "random_state": 0}
    model = BayesianLogisticRegression(prior=Laplace("learn"), **common).fit(X, y)
    scale = model.diagnostics_["learned"]["prior_scale"]
    nearby = [
        BayesianLogisticRegression(
            prior=Laplace(scale * factor),
            intercept_prior=model.prior_["intercept"],
            **common,
        )
        .fit(X, y)
        .objective_value_
        for factor in (0.9, 1.0, 1.1)
    ]
    assert nearby[1] > max(nearby[0], nearby[2])
