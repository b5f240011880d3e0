"""Divergences of diagonal, full and low-rank normals, and what they cost."""

import pytest
import torch

from skvi.base import NormalForm
from skvi.divergences import (
    AlphaDivergence,
    BetaDivergence,
    GammaDivergence,
    JeffreysDivergence,
    KLDivergence,
    RenyiDivergence,
)
from tests.divergences.normals import Prior, as_full

SPECS = [
    KLDivergence(),
    *(RenyiDivergence(a) for a in (0.5, 0.9995, 1e-4, 1, 0, 1.4, -0.1)),
]
SPECS += [AlphaDivergence(a, joint=True) for a in (0.5, 0.9995, 1.4)]
SPECS += [BetaDivergence(b, joint=True) for b in (0.95, 1, 1.0005, 1.3)]
SPECS += [GammaDivergence(g) for g in (0.9, 1, 1.0005, 1.3)]
SPECS += [JeffreysDivergence()]
every_spec = pytest.mark.parametrize("spec", SPECS, ids=repr)


@pytest.fixture
def make(make_normal):
    def build(shape, size, seed, width):
        if not shape.startswith("low"):
            return make_normal(size, shape, seed, width)
        own = make_normal(size, "diag", seed, 0.7 * width)
        generator = torch.Generator().manual_seed(seed)
        factor = torch.randn(
            size, size + 1 if shape == "low_wide" else 2, generator=generator
        )
        factor = 0.7 * width * factor.double() / factor.shape[1] ** 0.5
        factor = factor / factor.norm(dim=1, keepdim=True) * 0.6 * width
        return NormalForm(own.mean, own.scale, factor)

    return build


#: Not both without a factor: other tests have those.
PAIRS = [("low", "diag"), ("diag", "low"), ("low", "full"), ("full", "low_wide")]
PAIRS += [("low", "low_wide"), ("low_wide", "low")]


@every_spec
@pytest.mark.parametrize(("q_shape", "pi_shape"), PAIRS)
def test_every_shape_is_its_full_matrix(spec, make, q_shape, pi_shape):
    # Wrong variant: the capacity matrix without its identity.
    q, pi = make(q_shape, 4, 1, 0.9), make(pi_shape, 4, 2, 1.4)
    value = spec.closed_form(q, Prior(pi))
    expected = spec.closed_form(as_full(q), Prior(as_full(pi)))
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-11)


@every_spec
def test_low_rank_gradients(spec, make):
    """Autograd in mean, scale and factor against finite differences."""
    q, pi = make("low", 3, 1, 0.9), Prior(make("diag", 3, 2, 1.4))
    tensors = [t.clone().requires_grad_() for t in (q.mean, q.scale, q.factor)]
    assert torch.autograd.gradcheck(
        lambda *parts: spec.closed_form(NormalForm(*parts), pi), tensors
    )
