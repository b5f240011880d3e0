"""Objectives and their gradients."""

import math

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from skvi.base import Layout
from skvi.divergences import (
    AlphaDivergence,
    FDivergence,
    KLDivergence,
    RenyiDivergence,
)
from skvi.exceptions import IncompatibleComponentsError
from skvi.objectives import ELBO, EUBO, IWELBO, AlphaEnergy, ChiBound, RenyiBound
from skvi.posteriors import FullRankNormal, MeanFieldNormal
from skvi.priors import Laplace, Normal
from skvi.targets import Target
from tests.densities import randn
from tests.objectives import conjugate
from tests.objectives.conjugate import (
    EXACT,
    PRIOR_SCALE,
    SIZE,
    TARGET,
    as_torch,
    make_posterior,
    make_target,
    replicate,
    run,
)

BOUNDS = [RenyiBound(), ChiBound(), IWELBO()]


# --- ELBO ---------------------------------------------------------------------------


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


# --- EUBO ---------------------------------------------------------------------------


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


S = 5
REPLICATES = 60_000


def exact_gradient(posterior, weight=1.0):
    """Gradient of ``E_q[loss] + weight KL(q || prior)``, from closed forms."""
    q = as_torch(posterior.normal())
    prior = PRIOR_SCALE * torch.eye(SIZE).double()
    prior = MultivariateNormal(torch.zeros(SIZE).double(), scale_tril=prior)
    value = kl_divergence(q, EXACT) + (weight - 1) * kl_divergence(q, prior)
    return torch.autograd.grad(value, posterior.params)[0]


def score_run(objective, posterior, seed=0, divergence=None, n_draws=S, **kwargs):
    return conjugate.run(
        objective, posterior, n_draws, seed, divergence=divergence, **kwargs
    )


# --- the rules, right and wrong -----------------------------------------------------


def reference(posterior, eps, rao_blackwell, control, weight=1.0):
    """Gradients, (R, n_variational), from noise of shape (R, S, P)."""
    shape = eps.shape[:2]
    normal = posterior.as_normal()
    theta = normal.transform(eps.reshape(-1, SIZE))
    fixed = posterior.params.detach()
    of_one = torch.func.grad(lambda p, t: posterior.log_prob(t[None], p)[0])
    h = torch.func.vmap(of_one, (None, 0))(fixed, theta).reshape(*shape, -1)
    log_prior = -0.5 * (theta / PRIOR_SCALE) ** 2
    log_prior = log_prior - math.log(PRIOR_SCALE * math.sqrt(2 * math.pi))
    log_lik = TARGET.log_joint(theta) - log_prior.sum(1)
    if rao_blackwell:
        z = (theta - normal.mean) / normal.scale
        log_q = -0.5 * z**2 - torch.log(normal.scale * math.sqrt(2 * math.pi))
        own = log_prior - log_q
    else:
        own = (log_prior.sum(1) - posterior.log_prob(theta, fixed))[:, None]
    # The variational parameters are means, then scales: coordinates twice.
    reward = (log_lik[:, None] + weight * own).reshape(*shape, -1)
    reward = torch.cat([reward, reward], -1) if rao_blackwell else reward
    if not control:
        return -(h * reward).mean(1)
    product, square = h**2 * reward, h**2
    top, bottom = product.sum(1, True) - product, square.sum(1, True) - square
    return -(h * (reward - top / bottom)).mean(1)


OPTIONS = [(False, False), (True, False), (False, True), (True, True)]
options = pytest.mark.parametrize(
    ("rao_blackwell", "control"), OPTIONS, ids=["plain", "rb", "cv", "both"]
)


@pytest.mark.parametrize("n_draws", [1, 2, 3])
def test_few_draws(n_draws, z_score):
    """Unbiased too; a single draw has no others to take a coefficient from."""
    posterior = make_posterior(MeanFieldNormal())
    objective = ELBO("score", rao_blackwell=True)
    if n_draws == 1:
        plain = ELBO("score", True, control_variate=False)
        pair = (
            score_run(objective, posterior, n_draws=1),
            score_run(plain, posterior, n_draws=1),
        )
        torch.testing.assert_close(*pair, rtol=1e-12, atol=1e-14)
        return
    eps = randn(REPLICATES, n_draws, SIZE, seed=3)
    gradients = reference(posterior, eps, True, True)
    assert z_score(gradients, exact_gradient(posterior)) < 5


def test_f_divergences_are_means_of_draws(z_score):
    """Chi2 is twice the alpha divergence of order 2, which has a closed form.

    Wrong variant: the divergence itself as the reward, without its slope in log q.
    """
    posterior, alpha = make_posterior(MeanFieldNormal()), AlphaDivergence(2, joint=True)
    normal, chi2 = posterior.normal(), FDivergence("chi2")
    exact = TARGET.expected_loss(posterior) + 2 * alpha.closed_form(
        normal, TARGET.prior
    )
    (exact,) = torch.autograd.grad(exact, posterior.params)
    _, found = replicate(100, ELBO("score"), posterior, n_draws=200, divergence=chi2)
    assert z_score(found, exact) < 4
    logs = randn(2, 5)
    torch.testing.assert_close(2 * alpha.score_factor(*logs), chi2.score_factor(*logs))


@options
def test_minibatches_average_to_all_rows(rao_blackwell, control):
    """Linear in the loss. Wrong variant: log q scaled with the rows."""
    posterior = make_posterior(MeanFieldNormal())
    objective = ELBO("score", rao_blackwell, control)
    parts = [
        score_run(objective, posterior, rows=torch.tensor(rows))
        for rows in ([0, 3], [1, 7], [2, 6], [4, 5])
    ]
    for i, full in enumerate(score_run(objective, posterior)):
        mean = torch.stack([part[i] for part in parts]).mean(0)
        torch.testing.assert_close(mean, full, rtol=1e-10, atol=1e-10)
