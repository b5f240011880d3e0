"""Divergences to priors that are not normal, from draws of a power of the posterior."""

import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale

from skvi.base import Layout, NormalForm
from skvi.divergences import AlphaDivergence, RenyiDivergence
from skvi.divergences._forms import log_power_integral
from skvi.divergences._integrals import log_tempered_integral
from skvi.linear_model import BayesianLogisticRegression
from skvi.posteriors import FullRankNormal, LowRankNormal, MeanFieldNormal
from skvi.priors import Horseshoe, Laplace, Normal, StudentT
from skvi.priors._blocks import build_prior

LAYOUT = Layout({"coef": (3,)})
SPECS = [RenyiDivergence(0.5), AlphaDivergence(0.5), AlphaDivergence(0.5, joint=True)]
FAMILIES = [MeanFieldNormal(), FullRankNormal(), LowRankNormal(rank=1)]


class Opaque:
    """A normal prior that keeps to itself that it is one."""

    def __init__(self, prior):
        self.prior = prior
        self.has_log_prob_terms = prior.has_log_prob_terms
        self.log_prob, self.log_prob_terms = prior.log_prob, prior.log_prob_terms

    def as_normal(self):
        return None


def posterior_of(family, make_normal):
    posterior = family.build(LAYOUT)
    normal = make_normal(3, "full", width=0.7)
    if isinstance(family, LowRankNormal):
        normal = NormalForm(
            normal.mean, 0.5 * normal.variance.sqrt(), normal.scale[:, :1]
        )
    posterior = posterior.near(normal)
    return posterior


@pytest.mark.parametrize(
    ("family", "order"), list(zip(FAMILIES, (0.8, 1.6, 0.3), strict=True)), ids=str
)
def test_integrals_and_gradients(family, order, make_normal, generator, z_score):
    """Values and gradients over 400 replicates, against the closed form.

    Wrong variants: draws of q; no power in the width of the draws; the score without
    its baseline's mean; the score without the order; no gradient of the prior.
    """
    hyper = torch.tensor([0.3], dtype=torch.float64, requires_grad=True)
    learned = Normal("learn").build(LAYOUT)
    prior = learned.bind(hyper)
    posterior = posterior_of(family, make_normal)
    params = posterior.params.clone().requires_grad_()
    exact = log_power_integral(
        posterior.normal(params), prior.as_normal(), order, 1 - order
    )
    exact = exact.exp()
    slope = torch.cat(torch.autograd.grad(exact, (params, hyper)))
    values, slopes = [], []
    for _ in range(400):
        logs, _ = log_tempered_integral(
            posterior.normal(params),
            Opaque(learned.bind(hyper)),
            order,
            generator,
            n_draws=64,
        )
        assert logs.shape == (1,)
        # The gradient of the integral itself has no bias.
        value = logs.exp().squeeze()
        values.append(value.detach())
        slopes.append(torch.cat(torch.autograd.grad(value, (params, hyper))))
    assert z_score(torch.stack(values), exact.detach()) < 5
    assert z_score(torch.stack(slopes), slope) < 5


@pytest.mark.parametrize("order", [0.3, 1.6])
@pytest.mark.parametrize("prior", [Laplace(0.7), StudentT(3.0), Horseshoe()], ids=str)
def test_coordinates_against_quadrature(
    prior, order, make_normal, generator, integrate
):
    """Independent coordinates each have their integral, and their draws.

    Wrong variant: the joint integral's constant in each of them.
    """
    built = prior.build(LAYOUT)
    posterior = posterior_of(MeanFieldNormal(), make_normal)
    q = posterior.as_normal()
    logs, weights = log_tempered_integral(q, built, order, generator, False, 200_000)
    spread = weights.exp().std(0) / weights.exp().mean(0) / math.sqrt(len(weights))
    for j in range(3):
        one = NormalForm(q.mean[j : j + 1], q.scale[j : j + 1])
        single = prior.build(Layout({"coef": (1,)}))

        def integrand(t, one=one, single=single):
            log_q, log_pi = one.log_prob(t[:, None]), single.log_prob(t[:, None])
            return torch.exp(order * log_q + (1 - order) * log_pi)

        edges = [0.0] + [s * 10.0**k for k in range(-6, 2) for s in (-1, 1)] + [-40, 40]
        expected = math.log(integrate(integrand, *edges))
        assert abs(float(logs[j]) - expected) < 5 * float(spread[j]) + 1e-5


@pytest.mark.parametrize(
    ("spec", "family"),
    [*zip(SPECS, FAMILIES, strict=True), (SPECS[1], FAMILIES[0])],
    ids=str,
)
def test_estimates_of_fits(spec, family, make_normal, generator):
    """Means of the estimate of a step of training are the closed form.

    Wrong variants: a Rényi divergence without 1 / (a (a - 1)); the alpha-divergence of
    the joint integral for a factorized pair.
    """
    prior = Normal(1.3).build(LAYOUT)
    posterior = posterior_of(family, make_normal)
    value = spec.closed_form(posterior.as_normal(), prior)
    draws = [
        spec.estimate(posterior, Opaque(prior), None, None, generator).detach()
        for _ in range(1000)
    ]
    draws = torch.stack(draws)
    # Logs of means of 128 draws: the bias of Rényi's is below half their variance.
    bias = 0.5 * float(draws.var()) if isinstance(spec, RenyiDivergence) else 0.0
    error = 5 * float(draws.std()) / math.sqrt(len(draws))
    assert abs(float(draws.mean() - value)) < error + bias


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "order"),
    [("mean_field", 0.5), ("full_rank", 0.5), ("mean_field", 2.0)],
)
def test_fits_meet_those_with_closed_forms(family, order):
    """A Student-t with 1e7 degrees of freedom is a normal without a closed form.

    Wrong variants: draws of q, whose weights have tails that 128 draws miss; a Rényi
    divergence in the classical scaling.
    """
    X, y = load_breast_cancer(return_X_y=True)
    data = scale(X)[:, [1, 4, 8, 9]], y
    shared = {
        "posterior": family,
        "divergence": RenyiDivergence(order),
        "random_state": 0,
    }
    fit, exact = (
        BayesianLogisticRegression(prior=prior, solver=solver, **shared).fit(*data)
        for prior, solver in ((StudentT(1e7), "stochastic"), (Normal(), "auto"))
    )
    assert exact.diagnostics_["solver"] == "natural_gradient"
    assert fit.converged_
    assert (np.abs(fit.coef_ - exact.coef_) < 0.1 * exact.coef_std_).all()
    assert fit.coef_std_ == pytest.approx(exact.coef_std_, rel=0.05)
    # Steps with noise end near the optimum, never above it.
    assert 0 < exact.objective_value_ - fit.objective_value_ < 0.3


def test_blocks_have_coordinates():
    """A mapping of priors is factorized where all of them are."""
    layout = Layout({"coef": (2,), "intercept": (1,)})
    prior = build_prior({"coef": Laplace(), "intercept": Normal(10.0)}, layout)
    posterior = MeanFieldNormal().build(layout)
    logs, weights = log_tempered_integral(
        posterior.as_normal(), prior, 0.5, torch.Generator(), False, 10
    )
    assert logs.shape == (3,)
    assert weights.shape == (10, 3)
