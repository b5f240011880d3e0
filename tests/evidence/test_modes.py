"""What a prior's spike hides: proposals for it, and chains that start beyond it."""

import pytest
import torch

from skvi._sampling._chains import Chains
from skvi.base import NormalForm
from skvi.evidence._modes import Modes, _seen_from, _subsets
from skvi.likelihoods import BernoulliLikelihood, GaussianLikelihood
from skvi.losses import LogLoss
from skvi.predictors import LinearPredictor
from skvi.priors import StudentT
from skvi.solvers._wide_start import dispersed_starts, likelihood_normal
from skvi.targets import SupervisedTarget
from skvi.targets._row_terms import terms_at


def make_target(likelihood, n=40, d=3):
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(n, d, generator=generator).double()
    f = X @ torch.tensor([1.0, -0.7, 0.4]).double()
    noise = torch.randn(n, generator=generator).double()
    y = f + noise
    if not isinstance(likelihood, GaussianLikelihood):
        y = (y > 0).double()
    model = LinearPredictor(d, fit_intercept=False)
    prior = StudentT(scale=0.01).build(model.layout)
    return SupervisedTarget(model, likelihood, LogLoss(), prior, X, y)


@pytest.mark.parametrize("where", [[0], [0, 2]])
def test_a_normal_likelihood_looks_the_same_from_everywhere(where):
    """Up to a thousandth of its curvature. Wrong variant: sign of the step."""
    target = make_target(GaussianLikelihood())
    normal = likelihood_normal(target)
    seen = _seen_from(target, normal, torch.tensor(where))
    torch.testing.assert_close(seen.mean, normal.mean, rtol=0, atol=5e-3)
    torch.testing.assert_close(
        seen.covariance(), normal.covariance(), rtol=5e-3, atol=0
    )


def test_the_slope_in_the_spike_is_that_of_the_likelihood():
    """At the mean of the others given that T is 0, which has no slope in the others.

    Wrong variants: the normal around the mode; the others' mean on the other side.
    """
    target, where = make_target(BernoulliLikelihood()), torch.tensor([0])
    normal = likelihood_normal(target)
    seen = _seen_from(target, normal, where)
    scale = normal.scale @ normal.scale.T
    theta = normal.mean - scale[:, 0] / scale[0, 0] * normal.mean[0]
    _, slope, _ = terms_at(target, theta)
    gradient = target.predictor.pull_back(target.X, slope)
    found = torch.linalg.solve(seen.covariance(), theta - seen.mean)
    torch.testing.assert_close(found, gradient, rtol=1e-6, atol=1e-8)


def test_every_spike_has_what_is_seen_from_it():
    """Wrong variant: the likelihood's normal around its mode for all of them."""
    target = make_target(BernoulliLikelihood())
    normal = likelihood_normal(target)
    modes = Modes.find(target, normal)
    assert len(modes.spikes) == 7  # subsets of three coordinates
    for where, seen in modes.spikes:
        expected = _seen_from(target, normal, where)
        torch.testing.assert_close(seen.mean, expected.mean)
        assert float((seen.mean - normal.mean).abs().max()) > 0.01


def test_subsets():
    """All of up to three; of more those that are narrow in the fit, and all together.

    Wrong variants: single coordinates only; the wide ones for the narrow ones.
    """
    normal = NormalForm(torch.zeros(5).double(), torch.ones(5).double())
    narrow = torch.tensor([1.0, 0.1, 1.0, 0.1, 1.0]).double()
    fit = NormalForm(torch.zeros(5).double(), narrow)
    few = _subsets(torch.tensor([0, 2, 4]), normal, fit)
    expected = [[0], [2], [4], [0, 2], [0, 4], [2, 4], [0, 2, 4]]
    assert [found.tolist() for found in few] == expected
    many = _subsets(torch.tensor([0, 1, 2, 3]), normal, fit)
    assert [found.tolist() for found in many] == [[0, 1, 2, 3], [1, 3]]


def test_reverse_mixtures_have_lighter_tails():
    """Every component is narrower than the posterior. Wrong variant: wider ones."""
    target, where = make_target(GaussianLikelihood()), torch.tensor([0])
    normal = likelihood_normal(target)
    eps = torch.randn(200, 3, generator=torch.Generator().manual_seed(1)).double()
    pilot = Chains(normal.transform(eps).reshape(4, 50, 3), torch.zeros(4, 50), 0.8)
    spikes = [(where, _seen_from(target, normal, where))]
    modes = Modes(normal, normal, target.prior, spikes)
    (mixture,) = modes.lighter(pilot, [0.5])
    _, likely, spike = mixture.components
    torch.testing.assert_close(likely.variance, 0.25 * normal.variance)
    precision = torch.linalg.inv(modes.spikes[0][1].covariance())[1:, 1:]
    conditional = torch.linalg.inv(precision).diagonal()
    torch.testing.assert_close(spike.others.variance, 0.25 * conditional)


def in_deviations(theta, normal):
    """Largest distance from a normal's mean, in its deviations."""
    return float(((theta - normal.mean) / normal.variance.sqrt()).abs().max())


def test_every_third_chain_starts_where_the_likelihood_is_large():
    """From a fit in the spike. Wrong variant: none does."""
    target, generator = make_target(GaussianLikelihood()), torch.Generator()
    spike = NormalForm(torch.zeros(3).double(), torch.full((3,), 0.01).double())
    starts = dispersed_starts(target, spike, generator.manual_seed(0), 60)
    likely = likelihood_normal(target)
    assert in_deviations(starts[::3], likely) < 5
    assert in_deviations(starts[1:30:3], likely) > 5
