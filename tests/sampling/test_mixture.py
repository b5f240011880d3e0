"""Mixtures as proposals, and jumps of chains that they offer."""

import pytest
import torch

from skvi._sampling._chains import HamiltonianChains
from skvi._sampling._importance import Mixture, adapt_mixture
from skvi._sampling._importance import StudentT as StudentProposal
from skvi.base import Layout, NormalForm
from skvi.targets import Target


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
