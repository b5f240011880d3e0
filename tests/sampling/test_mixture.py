"""Mixtures as proposals, and jumps of chains that they offer."""

import math

import pytest
import torch

from skvi._sampling._chains import HamiltonianChains
from skvi._sampling._importance import StudentT as StudentProposal
from skvi._sampling._mixture import Mixture, SpikeAndNormal, adapt_mixture
from skvi.base import Layout, NormalForm
from skvi.priors import Horseshoe, Normal, StudentT, build_prior
from skvi.targets import Target

LIKELIHOOD = NormalForm(
    torch.tensor([2.0, -1.0, 0.5]).double(),
    torch.tensor([[0.5, 0, 0], [0.2, 0.6, 0], [-0.1, 0.3, 0.4]]).double(),
)


def heavy(scale):
    layout = Layout({"coef": (1, 2), "intercept": (1,)})
    return build_prior({"coef": scale, "intercept": Normal(5.0)}, layout)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


class Bimodal(Target):
    """A narrow normal with 30 % of the mass, and a wide one far from it."""

    layout = Layout({"coef": (1, 1)})
    parts = (
        NormalForm(torch.zeros(1).double(), torch.full((1,), 0.01).double()),
        NormalForm(torch.full((1,), 8.0).double(), torch.ones(1).double()),
    )
    log_weights = torch.tensor([0.3, 0.7]).double().log()

    @classmethod
    def parts_as_proposals(cls):
        return [StudentProposal(part, 5) for part in cls.parts]

    def log_joint(self, theta, rows=None):
        terms = torch.stack([part.log_prob(theta) for part in self.parts], 1)
        return torch.logsumexp(terms + self.log_weights, 1)


@pytest.mark.parametrize("prior", [Horseshoe(0.05), StudentT(scale=0.05)], ids=repr)
@pytest.mark.parametrize("where", [[0], [0, 1]])
def test_spike_densities_are_those_of_their_draws(prior, where):
    """E[r / q] under q is 1 for a density r inside q.

    Wrong variants: heights of cells that are not divided by their widths; the scale of
    the others in the draws alone.
    """
    where = torch.tensor(where)
    spike = SpikeAndNormal(heavy(prior), LIKELIHOOD, where, df=5, width=0.9)
    theta = spike.sample(20_000, generator())
    inside = (theta[:, where].abs() < 0.1).all(1)
    rest = theta[inside][:, spike.rest]
    near = NormalForm(rest.mean(0), 0.5 * rest.std(0))
    log_r = near.log_prob(theta[:, spike.rest]) - len(where) * math.log(0.2)
    ratio = torch.where(inside, torch.exp(log_r - spike.log_prob(theta)), 0.0)
    error = float(ratio.std()) / len(theta) ** 0.5
    assert float(ratio.mean()) == pytest.approx(1, abs=4 * error)
    assert error < 0.2


def test_under_a_flat_prior_the_spike_density_is_the_normal():
    """Up to cells of a twelfth of a deviation.

    Wrong variants: the others' mean ignores T, or has the other sign; their covariance
    is the marginal one; the factor is that of the prior alone.
    """
    flat = heavy(Normal(1e6))
    spike = SpikeAndNormal(flat, LIKELIHOOD, torch.tensor([0]))
    theta = LIKELIHOOD.transform(torch.randn(2000, 3, generator=generator()).double())
    difference = spike.log_prob(theta) - LIKELIHOOD.log_prob(theta)
    assert float(difference.abs().max()) < 0.25
    assert float(difference.mean()) == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize("width", [0.5, 1.0])
def test_factors_of_the_spike_have_the_likelihoods_slope_at_zero(width):
    """Normal factors, from three values each, up to cells of a twelfth of a deviation.

    Wrong variants: centers at the mean; the width itself for its square.
    """
    where = torch.tensor([0, 1])
    spike = SpikeAndNormal(heavy(Normal(1e6)), LIKELIHOOD, where, width=width)
    precision = torch.linalg.inv(LIKELIHOOD.covariance()[:2, :2])
    slopes = precision @ LIKELIHOOD.mean[:2]
    for cells, slope, curvature in zip(
        spike.cells, slopes, precision.diagonal() / width**2, strict=True
    ):
        h = 3 * curvature**-0.5
        low, middle, high = cells.log_prob(torch.tensor([-h, 1e-9, h]).double())
        found = float((high - low) / (2 * h))
        assert found == pytest.approx(float(slope), rel=0.05)
        found = float((2 * middle - low - high) / h**2)
        assert found == pytest.approx(float(curvature), rel=0.1)


def test_the_mixtures_weights_are_found():
    """The weight of each mode is the fraction of its mass.

    Wrong variant: draws count equally, whatever their importance.
    """
    components = Bimodal.parts_as_proposals()
    mixture, pilot = adapt_mixture(Bimodal(), components, generator())
    assert float(mixture.weights[0]) == pytest.approx(0.3, abs=0.03)
    assert pilot.log_weights.exp().mean() == pytest.approx(1, abs=0.05)


def test_no_component_dies_out():
    """What one round has no draws of another one may need. Wrong variant: no floor."""
    nowhere = NormalForm(torch.full((1,), -50.0).double(), torch.ones(1).double())
    components = [*Bimodal.parts_as_proposals(), StudentProposal(nowhere, 5)]
    mixture, _ = adapt_mixture(Bimodal(), components, generator())
    assert float(mixture.weights[2]) == pytest.approx(0.02, abs=1e-3)


def test_draws_of_a_mixture_are_in_random_order():
    """Blocks of neighbors must be exchangeable. Wrong variant: sorted by component."""
    mixture = Mixture(Bimodal.parts_as_proposals(), torch.tensor([0.3, 0.7]).double())
    is_far = (mixture.sample(4000, generator())[:, 0] > 4).double()
    assert is_far.mean() == pytest.approx(0.7, abs=0.04)
    assert is_far[:2000].mean() == pytest.approx(0.7, abs=0.05)


def test_jumps_bring_the_modes_into_proportion():
    """All chains start in one mode; the other one is 800 of its deviations away.

    Wrong variants: the ratio of the proposal's densities is upside down, or left out;
    the slope is kept after a jump.
    """
    # Weights that are far from those of the target.
    mixture = Mixture(Bimodal.parts_as_proposals(), torch.tensor([0.6, 0.4]).double())
    near = NormalForm(torch.full((1,), 8.0).double(), torch.ones(1).double())
    starts = torch.full((64, 1), 8.0).double()
    sampler = HamiltonianChains(Bimodal(), starts, near, generator(), jump=mixture)
    chains = sampler.warm_up(60).run(150)
    assert (chains.theta > 4).double().mean() == pytest.approx(0.7, abs=0.03)
    assert chains.rhat < 1.05
    narrow = chains.theta[chains.theta < 4]
    assert narrow.std() == pytest.approx(0.01, rel=0.05)
