"""Devices: every tensor is made where the others are."""

import ast
import pickle
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import skvi
from skvi.base import Layout, NormalForm
from skvi.divergences import (
    AlphaDivergence,
    BetaDivergence,
    GammaDivergence,
    JeffreysDivergence,
    KLDivergence,
    RenyiDivergence,
)
from skvi.expectations._logistic import log_mixture_sigmoid
from skvi.expectations._poisson import poisson_mixture_cdf, poisson_mixture_log_mass
from skvi.likelihoods import (
    BernoulliLikelihood,
    GaussianLikelihood,
    NegativeBinomialLikelihood,
    PoissonLikelihood,
    StudentTLikelihood,
)
from skvi.likelihoods._categorical import CategoricalLikelihood
from skvi.losses import BetaLoss, LogLoss
from skvi.losses._callable import CallableLoss
from skvi.priors import (
    ARD,
    GammaHyperprior,
    Horseshoe,
    Laplace,
    Normal,
    Prior,
    StudentT,
)
from skvi.priors._blocks import build_prior
from skvi.priors._heavy_tailed import LogUniform
from skvi.utils import _tensors
from skvi.utils._tensors import CPU, make_generator, resolve_device, to_device
from tests.devices import META, emulated_device

ROOT = Path(skvi.__file__).parent
FACTORIES = frozenset(
    (
        "arange", "empty", "eye", "full", "linspace", "logspace", "normal", "ones",
        "rand", "randint", "randn", "randperm", "tensor", "tril_indices",
        "triu_indices", "zeros", "scalar_tensor",
    )
)  # fmt: skip


def _forgotten(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "torch":
            if names := FACTORIES.intersection(a.name for a in node.names):
                yield f"{node.lineno}: {names}"
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        made = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
        if made and node.func.attr in FACTORIES:
            if "device" not in {keyword.arg for keyword in node.keywords}:
                yield f"{node.lineno}: torch.{node.func.attr}"


def test_factory_calls_name_their_device():
    """Without it a tensor is on the CPU, whatever the device of the fit.

    They are called as functions of torch, not imported one by one. Wrong variant:
    `torch.eye(n, dtype=x.dtype)` in any module.
    """
    found = [
        f"{path.relative_to(ROOT)}:{call}"
        for path in sorted(ROOT.rglob("*.py"))
        for call in _forgotten(ast.parse(path.read_text()))
    ]
    assert not found, "\n".join(found)


def test_emulated_device_is_strict():
    with emulated_device() as device:
        on, host = torch.ones(3, device=META), torch.ones(3)
        with pytest.raises(RuntimeError, match="same device"):
            on + host
        with pytest.raises((RuntimeError, TypeError)):
            on.numpy()
        assert device.n_waits == 0
        assert ((on + 2.0).square().sum() + torch.tensor(1.0)).device == META
        assert float(on.sum()) == 3.0
        assert device.n_waits == 1
    with pytest.raises(RuntimeError, match=r"lost its numbers|meta"):
        float(torch.ones(3, device=META).sum())


def test_resolve_device(monkeypatch):
    """Wrong variant: `>=` for `<` in the rule of "auto"."""
    assert resolve_device("auto") == _tensors._best_device()
    monkeypatch.setattr(_tensors, "_best_device", lambda: torch.device("cuda"))
    assert resolve_device("auto").type == "cuda"
    assert resolve_device("auto", _tensors.WORTH_MOVING).type == "cuda"
    assert resolve_device("auto", _tensors.WORTH_MOVING - 1) == CPU
    assert resolve_device("cpu") == CPU


def test_parts_of_parts_move():
    """Wrong variant: lists of parts stay where they are."""
    layout = Layout({"coef_0": (2,), "coef_1": (1,)})
    prior = build_prior({"coef_0": Normal(2.0), "coef_1": Laplace()}, layout)
    with emulated_device():
        there = prior.to(META)
        theta = torch.ones(1, 3, dtype=torch.float64)
        found = there.log_prob(theta.to(META))
        assert found.device == META
        assert_close(found.cpu(), prior.log_prob(theta))
        back = pickle.loads(pickle.dumps(there))
    assert_close(back.log_prob(theta), prior.log_prob(theta))


@pytest.mark.parametrize("device", ["abacus", "cuda:99", "meta", "cpu:one"])
def test_absent_devices_are_refused(device):
    with pytest.raises(ValueError, match=rf"device='{device}' is not .* has .*'cpu'"):
        resolve_device(device)


def test_devices_without_double_precision_are_refused(monkeypatch):
    ones = torch.ones

    def single(*shape, dtype=None, **options):
        if dtype == torch.float64:  # as torch says it of "mps"
            raise TypeError("Cannot convert a tensor to float64")
        return ones(*shape, dtype=dtype, **options)

    monkeypatch.setattr(torch, "ones", single)
    with pytest.raises(ValueError, match="no double precision"):
        resolve_device("cpu")


def _parts():
    """Functions of tensors, and their arguments: every likelihood, loss, prior, ..."""
    generator = torch.Generator().manual_seed(0)
    normal = partial(torch.randn, generator=generator, dtype=torch.float64)
    n = 12
    counts, labels = torch.arange(n).double() % 5, torch.arange(n).double() % 2
    for likelihood, y in [
        (GaussianLikelihood(0.7), normal(n)),
        (StudentTLikelihood(df=4.0, noise_scale=1.0), normal(n)),
        (BernoulliLikelihood(), labels),
        (PoissonLikelihood(), counts),
        (NegativeBinomialLikelihood(0.5), counts),
        (CategoricalLikelihood(3), counts % 3),
        (CategoricalLikelihood(5), counts),
    ]:
        k = likelihood.n_outputs
        f, mean = normal(4, n, k), normal(n, k)
        root = normal(n, k, k)
        moments = mean, 0.5 * root @ root.mT
        if k == 1:
            moments = mean[:, 0], 2 * root[:, 0, 0].abs()
        name = type(likelihood).__name__ + (str(k) if k > 1 else "")
        yield f"{name}-slope", likelihood._log_prob_slope, (f, y)
        slow = isinstance(likelihood, NegativeBinomialLikelihood)
        for loss in (LogLoss(),) if slow else (LogLoss(), BetaLoss(1.3)):
            own = f"{name}-{type(loss).__name__}"
            yield own, partial(loss, likelihood), (f, y)
            yield f"{own}-expected", partial(loss.expected, likelihood), (*moments, y)
    absolute = CallableLoss(lambda f, y: (f - y).abs())
    expected = partial(absolute.expected, GaussianLikelihood(1.0))
    yield "callable", expected, (normal(n), normal(n).abs(), normal(n))
    mean, std = normal(n), normal(n).abs()
    yield "log_mixture_sigmoid", log_mixture_sigmoid, (mean, std.square())
    yield "poisson_cdf", poisson_mixture_cdf, (counts, mean, std)
    yield "poisson_log_mass", poisson_mixture_log_mass, (counts, mean, std)
    layout = Layout({"coef": (1, 6)})
    theta, root = normal(5, 6), 0.1 * normal(6, 6)
    forms = [
        NormalForm(root[0], 0.2 + root[1].abs()),
        NormalForm(root[0], root.tril(-1) + 0.6 * torch.eye(6).double()),
        NormalForm(root[0], 0.2 + root[1].abs(), root[:, :2]),
    ]
    priors = [Normal(2.0), Laplace(0.5), StudentT(3.0), Horseshoe(0.3), ARD(1.0, 1.0)]
    for prior in (*priors, LogUniform(), Normal(GammaHyperprior(1.0, 1.0))):
        built, name = prior.build(layout), type(prior).__name__
        yield name, lambda b, t: b.log_prob(t), (built, theta)
        yield f"{name}-gradient", lambda b, t: b.log_prob_gradient(t), (built, theta)
        if built.has_expected_log_prob:
            some = built, theta[0], theta[1].abs()
            yield f"{name}-expected", lambda b, m, s: b.expected_log_prob(m, s), some
    learned = Normal("learn").build(layout)
    bound = lambda b, t: b.bind(b.initial_hyper()).log_prob(t)
    yield "Normal-learned", bound, (learned, theta)
    unit = Normal().build(layout)
    for divergence in (
        KLDivergence(), RenyiDivergence(0.5), AlphaDivergence(0.5), BetaDivergence(1.2),
        GammaDivergence(1.2), JeffreysDivergence(),
    ):  # fmt: skip
        for form, kind in zip(forms, ("diagonal", "full", "low"), strict=True):
            name = f"{type(divergence).__name__}-{kind}"
            yield name, divergence.closed_form, (form, unit)


PARTS = {name: (function, arguments) for name, function, arguments in _parts()}


@pytest.mark.parametrize("name", PARTS)
def test_parts_follow_their_arguments(name):
    """Numbers are the same on a device that refuses all tensors of the host.

    Wrong variants: `eye(..., device=CPU)` in any of them, or nodes that are cached
    without their device.
    """
    function, arguments = PARTS[name]
    expected = function(*arguments)
    with emulated_device():
        found = function(*to_device(arguments, META))
        for e, f in zip(*map(_as_tuple, (expected, found)), strict=True):
            assert f.device == META
            assert_close(f.cpu(), e, rtol=1e-9, atol=1e-12)


def _as_tuple(value):
    return value if isinstance(value, tuple) else (value,)


SAMPLERS = [
    GaussianLikelihood(1.0), StudentTLikelihood(4.0, 1.0), BernoulliLikelihood(),
    PoissonLikelihood(), NegativeBinomialLikelihood(), CategoricalLikelihood(3),
    Normal(), Laplace(), StudentT(), Horseshoe(), ARD(1.0, 1.0),
    Normal(GammaHyperprior(1.0, 1.0)),
]  # fmt: skip


@pytest.mark.parametrize("part", SAMPLERS, ids=lambda part: type(part).__name__)
def test_draws_are_on_the_device_of_the_generator(part):
    with emulated_device():
        generator = make_generator(0, META)
        if isinstance(part, Prior):
            built = part.build(Layout({"coef": (1, 4)})).to(META)
            draws = built.sample(3, generator)
        else:
            draws = part.sample(torch.zeros(3, 4, part.n_outputs).to(META), generator)
        assert draws.device == META
        assert draws.shape == (3, 4)
        assert bool(draws.isfinite().all())
