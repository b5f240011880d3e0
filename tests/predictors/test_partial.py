"""Predictors of which some blocks are point parameters."""

import pytest
import torch

from skvi.base import NormalForm
from skvi.divergences import KLDivergence
from skvi.exceptions import IncompatibleComponentsError
from skvi.likelihoods import GaussianLikelihood
from skvi.losses import LogLoss
from skvi.objectives import ELBO, EUBO, IWELBO
from skvi.posteriors import MeanFieldNormal
from skvi.predictors import MLPPredictor
from skvi.predictors._module import PartialPredictor
from skvi.priors import Normal
from skvi.targets import SupervisedTarget
from tests.densities import randn

FULL = MLPPredictor(2, 1, (3,), "tanh")
NAMES = ["intercept_1", "coef_0"]
REST = FULL.layout.without(*NAMES)


X, Y, WEIGHT = randn(6, 2), randn(6, seed=1), randn(6, seed=2).abs()


def make_target(deterministic=NAMES, prior=None):
    likelihood, layout = (
        GaussianLikelihood("learn"),
        FULL.layout.without(*deterministic),
    )
    prior = (prior or Normal("learn")).build(layout)
    parts = FULL, likelihood, LogLoss(), prior
    return SupervisedTarget(*parts, X, Y, WEIGHT, deterministic=deterministic)


def full_theta(theta, point):
    both = torch.empty(len(theta), FULL.layout.size).double()
    both[:, FULL.layout.positions(REST)] = theta
    both[:, FULL.layout.positions(NAMES)] = point
    return both


def test_the_predictor_sees_its_full_theta():
    """Wrong variants: random blocks first; the order of the names for theirs."""
    partial = PartialPredictor(FULL, NAMES)
    assert list(partial.point_layout) == NAMES
    assert list(partial.layout) == ["intercept_0", "coef_1"]
    theta, point = randn(4, REST.size), randn(partial.point_layout.size, seed=3)
    found = partial.bind(point).forward(theta, X)
    torch.testing.assert_close(found, FULL.forward(full_theta(theta, point), X))
    start = FULL.initial_normal(torch.Generator().manual_seed(0))
    unpacked = FULL.layout.unpack(start.mean[None])
    points = partial.point_layout.unpack(partial.initial_point()[None])
    for name in NAMES:
        assert torch.equal(points[name], unpacked[name])


def test_points_are_named_beside_the_scales():
    target = make_target()
    assert target.learned == ("noise_scale", "prior_scale", "intercept_1", "coef_0")
    layout = target.point_layout
    roles = [block.role for block in layout.values()]
    assert roles == ["noise", "prior", "intercept", "weight"]
    assert layout.size == len(target.hyper) == 2 + 1 + 6
    low, high = layout.limits()
    assert bool(
        (low[:2] < target.hyper[:2]).all() & (target.hyper[:2] < high[:2]).all()
    )
    assert bool(low[2:].isinf().all() & high[2:].isinf().all())
    frozen = target.frozen()
    assert (frozen.learned, len(frozen.hyper)) == ((), 0)
    theta = randn(3, REST.size)
    torch.testing.assert_close(frozen.log_joint(theta), target.log_joint(theta))
    assert frozen.layout.size == REST.size


@pytest.mark.parametrize("objective", [ELBO("reparam"), ELBO("score"), IWELBO(3)])
def test_gradient_in_the_points(objective, numeric_gradient):
    """Of what is estimated from the same draws, by differences.

    Wrong variants: points held fixed; their gradient counted along theta's as well.
    """
    target = make_target()
    posterior = MeanFieldNormal().build(target.layout)
    posterior = posterior.at(posterior.params + 0.3 * randn(2 * REST.size, seed=4))

    def parts(hyper):
        generator = torch.Generator().manual_seed(0)
        problem = target.at(hyper), posterior, KLDivergence(), None, 12, generator
        return objective.value_and_gradient(*problem)

    hyper = target.hyper + 0.1 * randn(len(target.hyper), seed=5)
    gradient = parts(hyper)[1][2 * REST.size :]
    numeric = numeric_gradient(lambda h: parts(h)[0], hyper)
    torch.testing.assert_close(gradient, numeric, rtol=1e-5, atol=1e-6)


def test_points_ascend_the_evidence_under_an_upper_bound():
    """Fisher's identity; wrong variant: they descend the bound itself."""
    target = make_target(prior=Normal(1.0))
    posterior = MeanFieldNormal().build(target.layout)
    generator = torch.Generator().manual_seed(0)
    state = generator.get_state()
    problem = posterior, KLDivergence(), None, 50, generator
    _, gradient = EUBO("score").value_and_gradient(target, *problem)
    generator.set_state(state)
    draw = posterior.draw(50, generator).detach()
    hyper = target.hyper.clone().requires_grad_()
    log_joint = target.at(hyper).log_joint(draw.theta)
    weights = torch.softmax(log_joint.detach() - draw.log_q, 0)
    (expected,) = torch.autograd.grad(-(weights @ log_joint), hyper)
    torch.testing.assert_close(gradient[2 * REST.size :], expected)


@pytest.mark.parametrize("names", [["coef"], list(FULL.layout)])
def test_refused_names(names):
    with pytest.raises(IncompatibleComponentsError, match="some, but not all blocks"):
        PartialPredictor(FULL, names)


def test_start_of_the_posterior():
    full = FULL.initial_normal(torch.Generator().manual_seed(3))
    found = make_target().initial_normal(torch.Generator().manual_seed(3))
    rest = FULL.layout.positions(REST)
    assert isinstance(found, NormalForm)
    assert torch.equal(found.mean, full.mean[rest])
    assert torch.equal(found.scale, full.scale[rest])
