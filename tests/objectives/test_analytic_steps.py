"""Analytic gradients of networks against automatic differentiation, on the same draws.

The reference differentiates what the target and the divergence say of draws
``theta = mean + std * noise`` with the noise of the step.
"""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from skvi.base import NormalForm
from skvi.divergences import (
    AlphaDivergence,
    JeffreysDivergence,
    KLDivergence,
    RenyiDivergence,
)
from skvi.likelihoods import (
    BernoulliLikelihood,
    GaussianLikelihood,
    HeteroscedasticLikelihood,
    StudentTLikelihood,
)
from skvi.likelihoods._categorical import CategoricalLikelihood
from skvi.losses import BetaLoss, GammaLoss, LogLoss
from skvi.losses._callable import CallableLoss
from skvi.objectives._analytic import AnalyticSteps, LocalSteps, structure_of
from skvi.posteriors import MeanFieldNormal
from skvi.predictors import MLPPredictor, ModulePredictor
from skvi.predictors._mlp import ACTIVATIONS
from skvi.priors import Laplace, Normal, StudentT
from skvi.priors._blocks import build_prior
from skvi.targets import SupervisedTarget
from skvi.targets._rows import shift
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
        shape = (D,) if isinstance(predictor, MLPPredictor) else IMAGE
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


def local_reference(member, params, noise, rows, share):
    """The same, from draws of the activations of each row with noise (S, units, n)."""
    leaf, size = params.double().clone().requires_grad_(), member.target.layout.size
    mean, log_std, hyper = leaf.tensor_split([size, 2 * size])
    target, q = member.target.at(hyper), NormalForm(mean, log_std.exp())
    part, n_draws = target.rows.take(rows), len(noise)
    n_rows, units = len(part.X), list(target.predictor.sizes[1:])
    layers = iter(noise[..., :n_rows].double().mT.split(units, -1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skvi.predictors._mlp.randn", lambda *_, **__: next(layers))
        f = target.predictor.sample_locally(q, part.X, n_draws, None)
    losses = target.loss(target.likelihood, shift(f, part), part.y).mean(0)
    divergence = member.divergence.closed_form(q, target.prior)
    loss = target.total_loss(losses, rows)
    (gradient,) = torch.autograd.grad(loss + share * divergence, leaf)
    return (loss + divergence).detach(), gradient


def batches_of(member, has_batches):
    if not has_batches:
        return [None] * 3
    generator = torch.Generator().manual_seed(3)
    order = torch.randperm(member.target.n_rows, generator=generator)
    return list(order.tensor_split(3))


def compare(
    members, has_batches=True, rtol=1e-11, shares=None, n_draws=S, kind=AnalyticSteps
):
    """Three steps from different places."""
    expect = local_reference if kind is LocalSteps else reference
    params = params_of(members)
    rows = [batches_of(member, has_batches) for member in members]
    most = max(len(r[0]) for r in rows) if has_batches else None
    steps = kind(members, params, n_draws, most)
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
        block = steps.noise.block[:, steps.noise.position - 1]
        noise = antithetic(block.flatten(2), n_draws).unflatten(2, block.shape[2:])
        found = [
            expect(member, own, eps, r[k], share)
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


@pytest.mark.parametrize("has_batches", [True, False])
@pytest.mark.parametrize("n_draws", [1, 2, 5])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_of_rows(activation, n_draws, has_batches):
    """Wrong variants: the slope in a variance without the noise, or for the deviation;
    second draws of pairs with the noise of the first; no path through variances to the
    units below."""
    skips = MLPPredictor(D, 2, (6, 4), activation, skip_outputs=(0,))
    likelihood = HeteroscedasticLikelihood(GaussianLikelihood(0.4))
    members = [
        make_member(seed, n=30 + seed, activation=activation, divergence=divergence)
        for seed, divergence in enumerate([KLDivergence(), KLDivergence(0.3)])
    ]
    compare(members, has_batches, n_draws=n_draws, kind=LocalSteps)
    member = make_member(predictor=skips, likelihood=likelihood)
    compare([member], has_batches, n_draws=n_draws, kind=LocalSteps)


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


@pytest.mark.parametrize("name", ["gaussian, learned", "categorical", "beta, learned"])
def test_single_precision(name):
    """To its rounding."""
    parts = {"dtype": torch.float32, **LOSSES[name]}
    compare([make_member(seed, **parts) for seed in range(2)], rtol=2e-5)


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
