"""Passes of the default flow, whose derivatives are written by hand."""

import torch
from torch.func import functional_call

from skvi.base import Layout, NormalForm
from skvi.posteriors import NormalizingFlow
from skvi.posteriors._flow import InverseAutoregressive
from skvi.utils._tensors import randn


def test_derivatives_of_a_pass_are_finite_differences(generator):
    """In noise and all parameters, of coordinates and log determinant.

    Wrong variant: the determinant of a bend moves the noise the other way.
    """
    flow = InverseAutoregressive(4, 2, 5).double()
    names, start = zip(*flow.named_parameters(), strict=True)
    # None of them 0, where derivatives of tails and weights vanish.
    values = [randn(generator, *p.shape).requires_grad_() for p in start]
    noise = randn(generator, 3, 4).requires_grad_()

    def run(noise, *values):
        return functional_call(flow, dict(zip(names, values, strict=True)), noise)

    assert torch.autograd.gradcheck(run, (noise, *values))


def test_log_determinant_of_a_pass(generator):
    """That of its Jacobian.

    Wrong variant: bends without the slope of asinh.
    """
    flow = InverseAutoregressive(4, 2, 5).double()
    for p in flow.parameters():
        p.data.copy_(randn(generator, *p.shape))
    noise = randn(generator, 4)
    jacobian = torch.autograd.functional.jacobian(lambda x: flow(x[None])[0][0], noise)
    _, log_det = flow(noise[None])
    torch.testing.assert_close(log_det[0], torch.linalg.slogdet(jacobian)[1])


def test_log_density_that_changes_along_the_path_only(generator):
    """Its gradient is that of the density by the inverse, at parameters that are fixed.

    Wrong variants: log scales without their share of the Jacobian; the slopes of a
    bend's determinant added.
    """
    family = NormalizingFlow(n_layers=3, n_hidden=8)
    start = family.build(Layout({"coef": (1, 5)}), generator)
    factor = randn(generator, 5, 5).tril(-1) + torch.eye(5).double()
    start = start.near(NormalForm(randn(generator, 5), factor))
    params = (start.params + 0.3 * randn(generator, *start.params.shape)).clone()
    params.requires_grad_()
    q = start.at(params)
    draw = q.draw(20, generator)
    found, exact = q.path_log_q(draw), q.log_prob(draw.theta, params.detach())
    torch.testing.assert_close(found, exact)
    weights = randn(generator, 20)
    slopes = [
        torch.autograd.grad((weights * log_q).sum(), params, retain_graph=True)[0]
        for log_q in (found, exact)
    ]
    torch.testing.assert_close(*slopes)
