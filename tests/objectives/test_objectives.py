"""Objectives: values and gradient rules where the posterior and log p(D) are known.

The rules are written a second time here, as functions of the variational parameters
and of the noise, next to the wrong variants that each property tells apart.
"""

import pytest
import torch
from torch.distributions import kl_divergence

from skvi.base import Layout
from skvi.divergences import KL, Renyi
from skvi.exceptions import IncompatibleComponentsError
from skvi.objectives import ELBO, EUBO, IWELBO, AlphaEnergy
from skvi.posteriors import FullRankNormal, MeanFieldNormal
from skvi.predictors import MLPPredictor
from skvi.priors import Laplace
from skvi.targets import Target
from tests.objectives.conjugate import (
    EXACT,
    LOG_Z,
    SIZE,
    TARGET,
    as_torch,
    make_posterior,
    make_target,
    randn,
    replicate,
    run,
)

families = pytest.mark.parametrize(
    "family", [MeanFieldNormal(), FullRankNormal()], ids=repr
)


def exact_gradient(posterior, upper):
    """Gradient of KL(p || q) for the EUBO, of KL(q || p) for the negative ELBO."""
    q = as_torch(posterior.normal())
    value = kl_divergence(EXACT, q) if upper else kl_divergence(q, EXACT)
    return torch.autograd.grad(value, posterior.params)[0]


# --- ELBO ---------------------------------------------------------------------------


@families
@pytest.mark.parametrize("shift", [0, 0.5, 3])
def test_elbo_is_log_evidence_minus_kl(family, shift):
    """Wrong variants: a constant of the prior, or of the noise, left out."""
    posterior = make_posterior(family, shift)
    value, gradient = run(ELBO(), posterior)
    kl = kl_divergence(as_torch(posterior.normal()), EXACT).detach()
    torch.testing.assert_close(-value, LOG_Z - kl, rtol=1e-10, atol=0)
    assert -value < LOG_Z
    expected = exact_gradient(posterior, upper=False)
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-10)


def test_elbo_is_tight_at_the_posterior():
    value, gradient = run(ELBO(), make_posterior(FullRankNormal(), 0, 1))
    torch.testing.assert_close(-value, LOG_Z, rtol=1e-12, atol=0)
    assert float(gradient.abs().max()) < 1e-10


@families
@pytest.mark.parametrize("rule", ["reparam", "stl"])
def test_sampled_elbo_is_unbiased(family, rule, z_score):
    posterior = make_posterior(family)
    values, gradients = replicate(150, ELBO(rule), posterior, n_draws=50)
    assert z_score(values, run(ELBO(), posterior)[0]) < 5
    expected = exact_gradient(posterior, upper=False)
    assert z_score(gradients, expected) < 5
    assert z_score(gradients, 0.8 * expected) > 5


def test_sticking_the_landing(z_score):
    """At q = posterior: without noise. Wrong variant: parameters not detached."""
    posterior = make_posterior(FullRankNormal(), 0, 1)
    assert float(run(ELBO("stl"), posterior)[1].abs().max()) < 1e-10
    _, gradients = replicate(150, ELBO("reparam"), posterior)
    assert float(gradients.abs().mean()) > 0.01
    assert z_score(gradients, 0.0) < 5


@pytest.mark.parametrize("divergence", [KL(0.5), Renyi(0.5), Renyi(1.5)], ids=repr)
def test_generalized_objective(divergence, z_score):
    """Expected loss plus D. Wrong variant: the prior counted twice, or dropped."""
    posterior = make_posterior(FullRankNormal())
    value, gradient = run(ELBO(), posterior, divergence=divergence)
    loss = TARGET.expected_loss_terms(posterior.as_normal())[0]
    expected = loss + divergence.closed_form(posterior.as_normal(), TARGET.prior)
    torch.testing.assert_close(value, expected, rtol=1e-10, atol=0)
    # The estimate of a log mean has a bias of order 1 / n_draws.
    values, gradients = replicate(
        40, ELBO("reparam"), posterior, n_draws=5_000, divergence=divergence
    )
    assert z_score(values, value) < 5
    assert z_score(gradients, gradient) < 5


def test_elbo_without_a_closed_divergence(z_score):
    """Rényi to a Laplace prior: draws, whatever the gradient rule asks for.

    The value is that of a grid. Wrong variants: a divergence of half the weight, one
    of order 0.6.
    """
    target = make_target(prior=Laplace(0.8))
    posterior, divergence = make_posterior(FullRankNormal()), Renyi(0.5)
    auto = run(ELBO(), posterior, 100, 0, target, divergence)
    sampled = run(ELBO("reparam"), posterior, 100, 0, target, divergence)
    for a, b in zip(auto, sampled, strict=True):
        assert torch.equal(a, b)
    loss = target.expected_loss_terms(posterior.as_normal())[0]
    axis = torch.linspace(-12, 12, 601, dtype=torch.float64)
    theta = torch.cartesian_prod(axis, axis)
    log_q, log_prior = posterior.log_prob(theta), target.prior.log_prob(theta)
    step = float(axis[1] - axis[0])
    integral = (0.5 * (log_q + log_prior)).exp().sum() * step**2
    values, _ = replicate(
        40, ELBO(), posterior, n_draws=2_000, divergence=divergence, target=target
    )
    assert z_score(values, (loss - 4 * integral.log()).detach()) < 5


def test_elbo_of_a_network_agrees_with_draws_of_weights(z_score):
    """Local reparameterization trains with the same expectation."""
    target = make_target(MLPPredictor(1, 1, (3,), "tanh"))
    posterior = make_posterior(MeanFieldNormal(), target=target)
    pairs = [
        replicate(150, ELBO(rule), posterior, n_draws=100, target=target)
        for rule in ("auto", "reparam")
    ]
    for local, weights in zip(*pairs, strict=True):
        assert z_score(local - weights, 0.0) < 5


@pytest.mark.parametrize("rule", ["auto", "reparam", "stl"])
def test_minibatch_gradients_average_to_the_full_one(rule):
    # Wrong variant: the divergence scaled with the rows.
    posterior = make_posterior(FullRankNormal())
    parts = [
        run(ELBO(rule), posterior, rows=torch.tensor(rows))
        for rows in ([0, 3], [1, 7], [2, 6], [4, 5])
    ]
    full = run(ELBO(rule), posterior)
    for i in range(2):
        mean = torch.stack([part[i] for part in parts]).mean(0)
        torch.testing.assert_close(mean, full[i], rtol=1e-10, atol=1e-10)


# --- EUBO: the rules, right and wrong -----------------------------------------------


def make_rule(posterior, kind):
    """A surrogate of (params, eps), for one set of draws."""

    def weigh(log_weights):
        return torch.softmax(log_weights, 0).detach()

    def surrogate(params, eps):
        theta, fixed = posterior.normal(params).transform(eps), params.detach()
        if kind == "score":
            theta = theta.detach()
        log_q = posterior.log_prob(theta, params)
        log_joint = TARGET.log_joint(theta)
        log_weights = log_joint - log_q
        path = log_joint - posterior.log_prob(theta, fixed)
        w = weigh(log_weights)
        if kind in ("score", "algorithm 1"):  # the latter forgets theta.detach()
            return -w @ log_q
        if kind == "equation 5":
            return w @ ((log_weights.detach() + 1) * log_joint - log_q)
        if kind == "autodiff":
            return torch.softmax(log_weights, 0) @ log_weights
        if kind == "missing detach":  # of the parameters inside q
            return -w @ log_weights
        return -(w - w**2 if kind == "w - w^2" else w) @ path

    return surrogate


def gradients_of(kind, posterior, n_replicates, n_draws, seed=0):
    eps = randn(n_replicates, n_draws, SIZE, seed=seed)
    rule = torch.func.grad(make_rule(posterior, kind))
    return torch.vmap(rule, (None, 0))(posterior.params.detach(), eps)


@families
@pytest.mark.parametrize("kind", ["score", "doubly_reparam"])
def test_package_trains_with_these_rules(family, kind):
    posterior = make_posterior(family)
    value, gradient = run(EUBO(kind), posterior, n_draws=7, seed=3)
    expected = gradients_of(kind, posterior, 1, 7, seed=3)[0]
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-11)
    theta = posterior.as_normal().transform(randn(7, SIZE, seed=3))
    log_weights = TARGET.log_joint(theta) - posterior.log_prob(theta).detach()
    torch.testing.assert_close(value, EUBO().bound(log_weights))
    if kind == "doubly_reparam":
        default = run(EUBO(), posterior, n_draws=7, seed=3)[1]
        assert torch.equal(gradient, default)


@families
@pytest.mark.parametrize(
    ("kind", "right"),
    [
        ("score", True),
        ("doubly_reparam", True),
        ("w - w^2", True),
        ("autodiff", True),  # as the number of draws grows; not before, see below
        ("algorithm 1", False),
        ("equation 5", False),
        ("missing detach", False),
    ],
)
def test_many_draws_give_the_exact_gradient(family, kind, right, z_score):
    """-E_p[d log q(theta; lambda) / d lambda], with theta held fixed."""
    posterior = make_posterior(family)
    gradients = gradients_of(kind, posterior, 40, 5_000)
    assert (z_score(gradients, exact_gradient(posterior, upper=True)) < 5) == right


@pytest.mark.parametrize("n_draws", [1, 2, 3, 8])
def test_expectation_at_every_number_of_draws(n_draws, z_score):
    """With w - w^2 the path form equals the score form; with w it is biased."""
    posterior = make_posterior(MeanFieldNormal())
    score = gradients_of("score", posterior, 40_000, n_draws)
    right = gradients_of("w - w^2", posterior, 40_000, n_draws, seed=1)
    wrong = gradients_of("doubly_reparam", posterior, 40_000, n_draws, seed=1)
    assert z_score(score - right, 0.0) < 5
    assert z_score(score - wrong, 0.0) > 10


def test_no_noise_at_the_posterior():
    """Of the path's rule. Wrong variant: the parameters inside q not detached."""
    posterior = make_posterior(FullRankNormal(), 0, 1)
    gradients = gradients_of("doubly_reparam", posterior, 200, 10)
    assert float(gradients.abs().max()) < 1e-9
    wrong = gradients_of("missing detach", posterior, 200, 10)
    assert float(wrong.abs().max()) > 1e-3


@families
@pytest.mark.parametrize("shift", [0, 0.5, 1])
def test_sandwich(family, shift, z_score):
    """ELBO <= log p(D) <= EUBO, and by how much."""
    posterior = make_posterior(family, shift)
    eubo = LOG_Z + kl_divergence(EXACT, as_torch(posterior.normal())).detach()
    theta = posterior.as_normal().transform(randn(200_000, SIZE))
    log_weights = TARGET.log_joint(theta) - posterior.log_prob(theta).detach()
    estimates = torch.stack([EUBO().bound(b) for b in log_weights.split(10_000)])
    assert z_score(estimates, eubo) < 5
    assert -run(ELBO(), posterior)[0] < LOG_Z < eubo
    assert (ELBO().direction, EUBO().direction) == ("lower", "upper")


def test_bound_reduces_the_last_axis():
    log_weights = torch.tensor([[0.0, 1.0], [-2.0, 3.0]]).double()
    w = log_weights.exp() / log_weights.exp().sum(1, True)
    expected = (w * log_weights).sum(1).mean()
    torch.testing.assert_close(EUBO().bound(log_weights), expected)
    shifted = EUBO().bound(log_weights - 1e5)  # no overflow, and one nat is one nat
    torch.testing.assert_close(shifted, expected - 1e5, rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    ("objective", "divergence", "parts"),
    [
        (
            EUBO(),
            Renyi(0.5),
            ["EUBO", r"Renyi\(", "objective='elbo'", "divergence='kl'"],
        ),
        (EUBO("score"), KL(0.5), ["EUBO", r"KL\(weight=0.5\)", "divergence='kl'"]),
        (ELBO("stl"), Renyi(2.0), ["stl", r"Renyi\(alpha=2.0\)", "gradient='reparam'"]),
        (ELBO("stl"), KL(2.0), ["stl", r"KL\(weight=2.0\)", "gradient='reparam'"]),
        (ELBO(), Renyi(-0.5), [r"Renyi\(alpha=-0.5\)", "alpha > 0"]),
        (ELBO("reparam"), Renyi(0), [r"Renyi\(alpha=0\)", "alpha > 0"]),
    ],
)
def test_impossible_pairs_are_refused(objective, divergence, parts):
    """The message names both parts and the remedy."""
    for part in parts:
        with pytest.raises(IncompatibleComponentsError, match=part):
            objective.check(divergence, TARGET)


def test_possible_pairs_pass():
    for objective in (ELBO(), ELBO("stl"), ELBO("reparam"), EUBO(), EUBO("score")):
        objective.check(KL(), TARGET)
    ELBO().check(Renyi(0.5), TARGET)
    with pytest.raises(ValueError, match="'gradient' parameter of EUBO must be"):
        EUBO("stl").check(KL(), TARGET)


class Bell(Target):
    layout = Layout({"coef": (1,)})

    def log_joint(self, theta, rows=None):
        return -0.5 * theta.square().sum(1)


@pytest.mark.parametrize(
    ("objective", "divergence", "match"),
    [
        (ELBO(), KL(0.5), "this target has none"),
        (ELBO(), Renyi(0.5), "this target has none"),
        (AlphaEnergy(), KL(), "has no separate rows"),
    ],
)
def test_what_needs_a_prior_or_rows_is_refused(objective, divergence, match):
    with pytest.raises(IncompatibleComponentsError, match=match):
        objective.check(divergence, Bell())
    IWELBO().check(KL(), Bell())
