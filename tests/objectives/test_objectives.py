"""ELBO and EUBO: values and gradients where the posterior and log p(D) are known."""

import math

import pytest
import torch
from torch.distributions import kl_divergence

from skvi.base import Layout
from skvi.divergences import KLDivergence, RenyiDivergence
from skvi.exceptions import IncompatibleComponentsError
from skvi.objectives import ELBO, EUBO, IWELBO, AlphaEnergy, ChiBound, RenyiBound
from skvi.posteriors import FullRankNormal, MeanFieldNormal
from skvi.predictors import MLPPredictor
from skvi.priors import Laplace, Normal
from skvi.targets import Target
from tests.densities import randn
from tests.objectives.conjugate import (
    EXACT,
    LOG_Z,
    SIZE,
    TARGET,
    as_torch,
    make_posterior,
    make_target,
    replicate,
    run,
)

BOUNDS = [RenyiBound(), ChiBound(), IWELBO()]
families = pytest.mark.parametrize(
    "family", [MeanFieldNormal(), FullRankNormal()], ids=repr
)


def exact_gradient(posterior):
    """Gradient of KL(q || p), which is that of the negative ELBO."""
    value = kl_divergence(as_torch(posterior.normal()), EXACT)
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
    expected = exact_gradient(posterior)
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
    expected = exact_gradient(posterior)
    assert z_score(gradients, expected) < 5
    assert z_score(gradients, 0.8 * expected) > 5


def test_sticking_the_landing(z_score):
    """At q = posterior: without noise. Wrong variant: parameters not detached."""
    posterior = make_posterior(FullRankNormal(), 0, 1)
    assert float(run(ELBO("stl"), posterior)[1].abs().max()) < 1e-10
    _, gradients = replicate(150, ELBO("reparam"), posterior)
    assert float(gradients.abs().mean()) > 0.01
    assert z_score(gradients, 0.0) < 5


@pytest.mark.parametrize(
    "divergence",
    [KLDivergence(0.5), RenyiDivergence(0.5), RenyiDivergence(1.5)],
    ids=repr,
)
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
    posterior, divergence = make_posterior(FullRankNormal()), RenyiDivergence(0.5)
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


# --- EUBO ---------------------------------------------------------------------------


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


class Bell(Target):
    layout = Layout({"coef": (1,)})

    def log_joint(self, theta, rows=None):
        return -0.5 * theta.square().sum(1)


class Joint(type(Normal().build(TARGET.layout))):
    """A prior that does not say whether it is a product."""

    has_log_prob_terms = False


def joint_prior():
    target = make_target()
    target.prior_spec = Joint(torch.ones(SIZE).double())
    return target


RB = ELBO("score", rao_blackwell=True)
#: Objective, divergence, target, and what the message says: the parts and the remedy.
REFUSED = [
    *(
        (EUBO(), RenyiDivergence(0.5), TARGET, m)
        for m in ("EUBO", r"RenyiDivergence\(", "'elbo'", "'kl'")
    ),
    *(
        (EUBO("score"), KLDivergence(0.5), TARGET, m)
        for m in (r"KLDivergence\(weight=0.5\)", "'kl'")
    ),
    *(
        (ELBO("stl"), RenyiDivergence(2.0), TARGET, m)
        for m in ("stl", "gradient='reparam'")
    ),
    (ELBO("stl"), KLDivergence(2.0), TARGET, r"KLDivergence\(weight=2.0\)"),
    (
        ELBO(),
        RenyiDivergence(-0.5),
        TARGET,
        r"RenyiDivergence\(alpha=-0.5\).*alpha > 0",
    ),
    (
        ELBO("reparam"),
        RenyiDivergence(0),
        TARGET,
        r"RenyiDivergence\(alpha=0\).*alpha > 0",
    ),
    (ELBO(rao_blackwell=True), KLDivergence(), TARGET, "rao_blackwell=True"),
    (ELBO(rao_blackwell=True), KLDivergence(), TARGET, "gradient='score'"),
    (
        ELBO("stl", control_variate=True),
        KLDivergence(),
        TARGET,
        "control_variate='auto'",
    ),
    *(
        (RB, RenyiDivergence(0.5), TARGET, m)
        for m in ("divergence='kl'", "rao_blackwell=False")
    ),
    (RB, KLDivergence(), joint_prior(), "an independent prior"),
    (
        ELBO("score"),
        RenyiDivergence(0.5),
        make_target(prior=Laplace()),
        "gradient='reparam'",
    ),
    *(
        (o, RenyiDivergence(0.5), TARGET, f"objective={type(o).__name__}")
        for o in BOUNDS
    ),
    *((o, KLDivergence(2.0), TARGET, f"objective={type(o).__name__}") for o in BOUNDS),
    *(
        (AlphaEnergy(), KLDivergence(2.0), TARGET, m)
        for m in ("objective='elbo'", "'kl'")
    ),
    (ELBO(), KLDivergence(0.5), Bell(), "this target has none"),
    (ELBO(), RenyiDivergence(0.5), Bell(), "this target has none"),
    (AlphaEnergy(), KLDivergence(), Bell(), "has no separate rows.*objective='renyi'"),
]
WRONG = [
    (EUBO("stl"), "'gradient' parameter of EUBO must be"),
    (RenyiBound(1), "alpha=1.*objective='elbo'"),
    (RenyiBound(-1, "reparam"), "alpha=-1.*reparam.*'score'"),
    (RenyiBound(0.5, "score"), "alpha=0.5.*score.*'reparam'"),
    (RenyiBound(math.nan), "'alpha' parameter of RenyiBound must be"),
    (RenyiBound(math.inf), "'alpha' parameter of RenyiBound must be"),
    (ChiBound(1), "'order' parameter of ChiBound must be.*Got 1"),
    (ChiBound(gradient="reparam"), "'gradient' parameter of ChiBound"),
    (IWELBO(0), "'n_importance' parameter of IWELBO must be"),
    (IWELBO(gradient="score"), "'gradient' parameter of IWELBO"),
    *(
        (AlphaEnergy(a), "'alpha' parameter of AlphaEnergy")
        for a in (0, -1.0, math.nan)
    ),
]


@pytest.mark.parametrize(("objective", "divergence", "target", "message"), REFUSED)
def test_impossible_pairs_are_refused(objective, divergence, target, message):
    """The message names both parts and the remedy."""
    with pytest.raises(IncompatibleComponentsError, match=f"(?s){message}"):
        objective.check(divergence, target)


@pytest.mark.parametrize(("objective", "message"), WRONG)
def test_wrong_parameters(objective, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        objective.check(KLDivergence(), TARGET)


def test_possible_pairs_pass():
    for objective in (ELBO(), ELBO("stl"), ELBO("reparam"), EUBO(), *BOUNDS, RB):
        objective.check(KLDivergence(), TARGET)
    for objective in (ELBO("score"), RB):
        objective.check(KLDivergence(0.5), TARGET)
        objective.check_posterior(
            make_posterior(MeanFieldNormal()), KLDivergence(), TARGET
        )
    ELBO().check(RenyiDivergence(0.5), TARGET)
    ELBO("score").check(RenyiDivergence(0.5), TARGET)
    IWELBO().check(KLDivergence(), Bell())
    full = make_posterior(FullRankNormal())
    with pytest.raises(IncompatibleComponentsError, match="posterior='mean_field'"):
        RB.check_posterior(full, KLDivergence(), TARGET)
