"""Targets that are known in closed form, and the numbers that tests draw."""

import math

import torch

from skvi.base import Layout
from skvi.priors import Normal
from skvi.targets import Target


def randn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


class NormalTarget(Target):
    """A normal density times exp(log_evidence): everything is known."""

    log_evidence = -3.0

    def __init__(self, normal):
        self.normal, self.layout = normal, Layout({"theta": normal.mean.shape})
        self.prior = Normal(3.0).build(self.layout)

    def log_joint(self, theta, rows=None):
        return self.normal.log_prob(theta) + self.log_evidence


class TwoModes(Target):
    """Two narrow modes, 20 deviations apart, with 20 % and 80 % of the mass."""

    layout = Layout({"theta": (2,)})
    symmetry = None

    def __init__(self):
        self.prior = Normal(3.0).build(self.layout)

    def log_joint(self, theta, rows=None):
        near = -0.5 * ((theta - 2) / 0.2).square().sum(1) + math.log(0.2)
        far = -0.5 * ((theta + 2) / 0.2).square().sum(1) + math.log(0.8)
        return torch.logaddexp(near, far)
