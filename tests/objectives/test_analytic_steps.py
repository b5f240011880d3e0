"""Analytic gradients of networks against automatic differentiation, on the same draws.

The reference differentiates what the target and the divergence say of draws
``theta = mean + std * noise`` with the noise of the step.
"""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from skvi.base import NormalForm
from skvi.divergences import (
    AlphaDivergence,
    GammaDivergence,
    JeffreysDivergence,
    KLDivergence,
    RenyiDivergence,
)
from skvi.likelihoods import BernoulliLikelihood, GaussianLikelihood, StudentTLikelihood
from skvi.likelihoods._categorical import CategoricalLikelihood
from skvi.losses import BetaLoss, GammaLoss, LogLoss
from skvi.losses._callable import CallableLoss
from skvi.objectives import ELBO, EUBO
from skvi.objectives._analytic import AnalyticSteps, structure_of
from skvi.objectives._network_steps import NormalSteps, make_steps
from skvi.posteriors import Ensemble, FullRankNormal, LowRankNormal, MeanFieldNormal
from skvi.predictors import MLPPredictor, ModulePredictor
from skvi.predictors._mlp import ACTIVATIONS
from skvi.priors import Laplace, Normal, StudentT
from skvi.priors._blocks import build_prior
from skvi.targets import SupervisedTarget
from skvi.utils._tensors import antithetic

D, S, IMAGE = 3, 5, (1, 4, 5)


@dataclass(frozen=True, eq=False)
class Parts:
    """A member: what `Problem` holds."""

    target: Any
    posterior: Any
    divergence: Any
    generator: torch.Generator


def make_member(seed=0, n=31, dtype=torch.float64, hidden=(6, 4), **parts):
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    likelihood = parts.get("likelihood", GaussianLikelihood("learn"))
    activation = parts.get("activation", "relu")
    shape, predictor = (D,), parts.get("predictor")
    if predictor is None:
        predictor = MLPPredictor(D, likelihood.n_outputs, hidden, activation)
    else:
        shape = IMAGE
    y = randn(n)
    if likelihood.is_discrete:
        top = max(likelihood.n_outputs, 2)
        y = torch.randint(top, (n,), generator=generator).double()
    target = SupervisedTarget(
        predictor,
        likelihood,
        parts.get("loss", LogLoss()),
        build_prior(parts.get("prior", Normal(0.7)), predictor.layout),
        randn(n, *shape).to(dtype),
        y,
        randn(n).exp() if parts.get("weighted", True) else None,
        constant=0.3,
        offset=randn(n) if parts.get("offset", False) else None,
    )
    posterior = MeanFieldNormal().build(predictor.layout)
    size = predictor.layout.size
    params = torch.cat([0.5 * randn(size), -1 + 0.3 * randn(size)]).to(dtype)
    return Parts(
        target,
        posterior.at(params),
        parts.get("divergence", KLDivergence()),
        torch.Generator().manual_seed(seed + 1),
    )


def params_of(members):
    rows = [torch.cat([m.posterior.params, m.target.hyper]) for m in members]
    return torch.stack(rows).to(members[0].posterior.params.dtype)


def reference(member, params, noise, rows, share):
    """Value and gradient by automatic differentiation, in double precision.

    The gradient holds this share of the divergence.
    """
    leaf, size = params.double().clone().requires_grad_(), member.target.layout.size
    mean, log_std, hyper = leaf.tensor_split([size, 2 * size])
    target, theta = member.target.at(hyper), mean + log_std.exp() * noise.double()
    loss = (target.prior.log_prob(theta) - target.log_joint(theta, rows)).mean()
    q = NormalForm(mean, log_std.exp())
    divergence = member.divergence.closed_form(q, target.prior)
    (gradient,) = torch.autograd.grad(loss + share * divergence, leaf)
    return (loss + divergence).detach(), gradient


def batches_of(member, has_batches):
    if not has_batches:
        return [None] * 3
    generator = torch.Generator().manual_seed(3)
    order = torch.randperm(member.target.n_rows, generator=generator)
    return list(order.tensor_split(3))


def compare(members, has_batches=True, rtol=1e-11, shares=None, n_draws=S):
    """Three steps from different places."""
    params = params_of(members)
    rows = [batches_of(member, has_batches) for member in members]
    most = max(len(r[0]) for r in rows) if has_batches else None
    steps = AnalyticSteps(members, params, n_draws, most)
    if shares is None:
        shares = [1.0] * len(members)
    else:
        steps.weigh_divergence(shares)
    trail, expected = [], []
    move = 0.1 * torch.randn(params.shape, generator=torch.Generator().manual_seed(9))
    with torch.inference_mode():
        steps.prepare(rows)
    for k in range(3):
        trail.append(params.clone())
        with torch.inference_mode():
            steps.differentiate(k)
        noise = antithetic(steps.noise.block[:, k], n_draws)
        found = [
            reference(member, own, eps, r[k], share)
            for member, own, eps, r, share in zip(
                members, params, noise, rows, shares, strict=True
            )
        ]
        expected.append(torch.stack([value for value, _ in found]))
        for gradient, (_, exact) in zip(steps.gradient, found, strict=True):
            atol = rtol * float(exact.abs().max())
            torch.testing.assert_close(gradient.double(), exact, rtol=rtol, atol=atol)
        params += move.to(params.dtype)
    split = len(members[0].posterior.params)
    values = steps.values(*torch.stack(trail).tensor_split([split], -1))
    torch.testing.assert_close(values, torch.stack(expected), rtol=rtol, atol=rtol)


LOSSES = {
    "gaussian, learned": {},
    "gaussian": {"likelihood": GaussianLikelihood(0.4)},
    "student_t, learned": {"likelihood": StudentTLikelihood(4.0, "learn")},
    "bernoulli": {"likelihood": BernoulliLikelihood()},
    "categorical": {"likelihood": CategoricalLikelihood(3)},
    "beta, learned": {"loss": BetaLoss(1.3)},
    "gamma": {"loss": GammaLoss(1.2), "likelihood": BernoulliLikelihood()},
    "beta, classes": {"loss": BetaLoss(1.2), "likelihood": CategoricalLikelihood(4)},
    "function": {
        "loss": CallableLoss(lambda f, y: (f - y).abs()),
        "likelihood": GaussianLikelihood(1.0),
    },
}
REGULARIZERS = {
    "cold": {"divergence": KLDivergence(0.3)},
    "renyi": {"divergence": RenyiDivergence(0.5)},
    "renyi above 1": {"divergence": RenyiDivergence(1.7), "prior": Normal(3.0)},
    "renyi of order 1": {"divergence": RenyiDivergence(1.0)},
    "next to a limit": {"divergence": RenyiDivergence(0.9995)},
    "alpha": {"divergence": AlphaDivergence(0.6)},
    "alpha, joint": {"divergence": AlphaDivergence(0.01, joint=True)},
    "renyi, learned scale": {
        "divergence": RenyiDivergence(1.3),
        "prior": Normal("learn"),
    },
    "alpha, learned scales": {
        "prior": {"coef": Normal("learn"), "intercept_0": Normal(0.7)}
        | {"intercept": Normal("learn")},
        "divergence": AlphaDivergence(0.6),
    },
    "jeffreys, learned scale": {
        "divergence": JeffreysDivergence(),
        "prior": Normal("learn"),
    },
    "laplace": {"prior": Laplace(0.5)},
    "student_t": {"prior": StudentT(3.0)},
    "learned scale": {"prior": Normal("learn"), "divergence": KLDivergence(0.4)},
    "learned scales, one fixed": {
        "prior": {"coef": Normal("learn"), "intercept_0": Normal(0.7)}
        | {"intercept": Normal("learn")},
    },
    "learned scales of rows": {
        "prior": {"coef_0": Normal("learn_rows"), "coef": Normal("learn")}
        | {"intercept": Normal(0.7)},
    },
    "learned scales": {
        "prior": {"coef": Normal("learn"), "intercept": Laplace("learn")},
        "divergence": KLDivergence(2.0),
    },
}


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("hidden", [(7,), (6, 4)])
def test_activations(hidden, activation, count):
    """Wrong variants: an activation's derivative left out, or at its argument; the
    weights of the next layer with the intercepts; one member's rows for all."""
    parts = {"hidden": hidden, "activation": activation}
    compare([make_member(seed, n=30 + seed, **parts) for seed in range(count)])


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", LOSSES)
def test_losses(name, count):
    """Wrong variants: the slope of the log density; no weights in it; the noise's
    slope without the number of terms."""
    members = [make_member(s, n=30 + s, **LOSSES[name]) for s in range(count)]
    compare(members)
    compare(members, has_batches=False)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", REGULARIZERS)
def test_divergences_and_priors(name, count):
    """Wrong variants: the entropy's slope without the weight; slopes of the last step
    left in the learned scale; the prior's mean left out; a fixed scale that follows a
    learned one; the slope in the log of a scale without the coordinates' number."""
    compare([make_member(s, n=30 + s, **REGULARIZERS[name]) for s in range(count)])


@pytest.mark.parametrize("name", REGULARIZERS)
def test_shares_of_the_divergence(name):
    """Of each member in gradients, never in values.

    Wrong variants: that of the first member for all; the entropy taken whole; values
    with a share of the divergence.
    """
    members = [make_member(s, n=30 + s, **REGULARIZERS[name]) for s in range(2)]
    compare(members, shares=[0.1, 0.7])


def test_a_prior_with_a_mean():
    """That of a posterior of other data. Wrong variant: the center left out."""
    first = make_member(1)
    second = make_member(2, prior=first.posterior)
    compare([second], rtol=1e-9)
    compare([second], rtol=1e-9, shares=[0.3])


@pytest.mark.parametrize("n_draws", [1, 2])
def test_few_draws(n_draws):
    """Wrong variant: sums over draws divided by two at least."""
    compare([make_member(seed) for seed in range(2)], n_draws=n_draws)


def test_offsets_and_rows_without_weights():
    """Wrong variants: the offset added in every call; an average over draws with
    the rows of a full batch."""
    for parts in ({"offset": True}, {"weighted": False}):
        compare([make_member(**parts)])
        compare([make_member(seed, **parts) for seed in range(2)], has_batches=False)
    parts = {"offset": True, "likelihood": CategoricalLikelihood(3)}
    compare([make_member(**parts)])


@pytest.mark.parametrize("name", ["gaussian, learned", "categorical", "beta, learned"])
def test_single_precision(name):
    """To its rounding."""
    parts = {"dtype": torch.float32, **LOSSES[name]}
    compare([make_member(seed, **parts) for seed in range(2)], rtol=2e-5)


def test_members_with_their_own_hyperparameters():
    """Weights of the divergence, prior scales, noises and orders of one structure.

    Wrong variant: those of the first member for all.
    """
    members = [
        make_member(seed, divergence=KLDivergence(0.5 + seed), prior=Normal(1.0 + seed))
        for seed in range(3)
    ]
    assert len({structure_of(member) for member in members}) == 1
    compare(members)


@pytest.mark.parametrize(
    ("make", "learns"), [(RenyiDivergence, True), (AlphaDivergence, False)]
)
def test_orders_of_their_own(make, learns):
    """One stack, without automatic differentiation.

    Wrong variants: the order of the first member for all; the variance where the log
    of the deviation is the coordinate.
    """
    priors = [Normal("learn") if learns else Normal(1.0 + seed) for seed in range(3)]
    members = [
        make_member(seed, divergence=make(order), prior=prior)
        for seed, (order, prior) in enumerate(zip((0.2, 0.9, 1.2), priors, strict=True))
    ]
    assert len({structure_of(member) for member in members}) == 1
    assert structure_of(members[0]) != structure_of(make_member(prior=priors[0]))
    part = AnalyticSteps(members, params_of(members), S, None).divergence
    assert type(part).__name__ == "Orders"
    compare(members)


@pytest.mark.parametrize("prior", [Normal(0.3), Normal("learn")], ids=repr)
@pytest.mark.parametrize("make", [RenyiDivergence, AlphaDivergence, GammaDivergence])
@pytest.mark.parametrize("n_components", [1, 2])
def test_steps_end_where_the_divergence_is_finite(n_components, make, prior):
    """Each coordinate is moved to just below its limit, and only if it is beyond.

    Wrong variants: no limits; limits at a factor 1 of a learned scale; those of the
    first member for all; only the first component.
    """
    orders = (0.5, 0.7) if make is GammaDivergence else (1.5, 2.5)
    members = [
        make_member(seed, divergence=make(order), prior=prior)
        for seed, order in enumerate(orders)
    ]
    size = members[0].target.layout.size
    if n_components > 1:
        family = Ensemble(n_members=n_components).build(members[0].target.layout)
        members = [replace(member, posterior=family) for member in members]
    params = params_of(members)
    if prior.scale == "learn":
        params[:, -1] = torch.tensor([0.4, -0.6])
    own = params[:, : 2 * n_components * size].unflatten(1, (-1, 2, size))
    own[:, :, 0] *= 0.1  # squares of means count more and more next to a limit
    own[:, :, 1, : size // 2] = 3.0
    own[:, :, 1, size // 2 :] = -3.0
    before = params.clone()
    steps = make_steps(ELBO(), members, params, S, None)
    assert steps.confines
    steps.confine()
    for member, row, start in zip(members, params, before, strict=True):
        split = 2 * n_components * size
        pi = member.target.at(row[split:]).prior
        for mean, log_std in row[:split].unflatten(0, (-1, 2, size)):
            for shift, is_finite in ((0.0, True), (0.02, False)):
                q = NormalForm(mean, (log_std + shift).exp())
                found = member.divergence.closed_form(q, pi)
                assert bool(found.isfinite()) == is_finite
        moved = (row != start)[:split].unflatten(0, (-1, 2, size))
        assert moved[:, 1, : size // 2].all()
        assert not moved[:, 0].any()
        assert not moved[:, 1, size // 2 :].any()
        assert torch.equal(row[split:], start[split:])


def test_nothing_confines_kl():
    """Wrong variant: limits of infinity, which cost time."""
    members = [make_member(seed, prior=Normal("learn")) for seed in range(2)]
    assert not make_steps(ELBO(), members, params_of(members), S, None).confines


@pytest.mark.parametrize(
    "parts",
    [
        {"hidden": (6,)},
        {"activation": "tanh"},
        {"loss": BetaLoss(1.3)},
        {"likelihood": GaussianLikelihood(0.4)},
        {"prior": Normal("learn")},
        {"divergence": RenyiDivergence(0.5)},
        {"offset": True},
        {"dtype": torch.float32},
    ],
)
def test_what_has_another_structure(parts):
    assert structure_of(make_member()) != structure_of(make_member(**parts))


def test_what_has_none():
    """Without a factorized normal, without a closed divergence; other gradients."""
    member = make_member()
    full = FullRankNormal().build(member.target.layout)
    other = Parts(member.target, full, member.divergence, member.generator)
    assert structure_of(other) is None
    assert ELBO("reparam").structure(member) is None
    assert EUBO().structure(member) is None
    assert ELBO().structure(member) is not None
    assert structure_of(make_member(hidden=())) is None


def test_noise_is_a_pair_of_draws_and_their_mirror_images():
    """The same for a member whoever is beside it. Wrong variants: one generator for
    all members; mirror images that are drawn again."""
    alone = AnalyticSteps([make_member(1)], params_of([make_member(1)]), S, None)
    members = [make_member(0), make_member(1)]
    both = AnalyticSteps(members, params_of(members), S, None)
    for _ in range(20):
        noise = alone.noise.next()
        assert torch.equal(noise[0], both.noise.next()[1])
        noise = antithetic(noise, S)
        assert noise.shape[1] == S
        assert torch.equal(noise[:, : S // 2], -noise[:, S // 2 + 1 :])
    assert abs(float(both.noise.block.std()) - 1) < 0.05


@pytest.mark.parametrize(("count", "n_draws"), [(1, 1), (1, 4), (2, 3)])
def test_modules(count, n_draws):
    """Draws, their gradients and the divergence in closed form, and the module by
    automatic differentiation. Wrong variant: rows of another member."""
    layers = torch.nn.Conv2d(1, 2, 3), torch.nn.Tanh(), torch.nn.Flatten()
    module = torch.nn.Sequential(*layers, torch.nn.Linear(12, 3)).double()
    predictor = ModulePredictor(module, torch.zeros(5, *IMAGE).double(), 3)
    parts = {"likelihood": CategoricalLikelihood(3), "prior": Normal("learn")}
    parts |= {"predictor": predictor, "divergence": KLDivergence(0.4)}
    members = [make_member(seed, n=30 + seed, **parts) for seed in range(count)]
    assert structure_of(members[0]) == structure_of(members[-1]) is not None
    compare(members, n_draws=n_draws)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("family", [FullRankNormal(), LowRankNormal(2)], ids=repr)
@pytest.mark.parametrize(("share", "n_draws"), [(1.0, S), (0.2, 1)])
def test_normals_with_correlations(family, dtype, share, n_draws):
    """The network through buffers, the rest by automatic differentiation.

    Wrong variants: the divergence left out; the slopes of the noise of the step before
    left in.
    """
    parts = {"prior": Normal("learn"), "divergence": KLDivergence(0.5), "dtype": dtype}
    member = make_member(**parts)
    posterior = family.build(member.target.layout)
    posterior = posterior.near(member.posterior.as_normal())
    params = posterior.params.to(dtype)
    params += 0.1 * torch.randn(
        params.shape, generator=torch.Generator().manual_seed(5)
    )
    member = replace(member, posterior=posterior.at(params))
    params, rows = params_of([member]), batches_of(member, True)
    steps = ELBO().steps([member], params, n_draws, max(len(r) for r in rows))
    assert isinstance(steps, NormalSteps)
    if share < 1:
        steps.weigh_divergence([share])
    trail, expected = [], []
    steps.prepare([rows])
    for k in range(3):
        trail.append(params.clone())
        with torch.inference_mode():
            steps.differentiate(k)
        leaf, split = params[0].double().clone().requires_grad_(), len(posterior.params)
        target, q = (
            member.target.at(leaf[split:]),
            posterior.at(leaf[:split]).normal(),
        )
        noise = antithetic(steps.noise.block[0, k], n_draws)
        theta = q.transform(noise.double())
        loss = (target.prior.log_prob(theta) - target.log_joint(theta, rows[k])).mean()
        divergence = member.divergence.closed_form(q, target.prior)
        (exact,) = torch.autograd.grad(loss + share * divergence, leaf)
        expected.append((loss + divergence).detach().reshape(1))
        rtol = 1e-11 if dtype == torch.float64 else 2e-5
        atol = rtol * float(exact.abs().max())
        own = steps.gradient[0].double()
        torch.testing.assert_close(own, exact, rtol=rtol, atol=atol)
        params += 0.01
    values = steps.values(*torch.stack(trail).tensor_split([split], -1))
    torch.testing.assert_close(values, torch.stack(expected), rtol=rtol, atol=rtol)
