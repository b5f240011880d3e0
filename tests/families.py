"""Families of posteriors as users write them."""

import torch

from skvi.base import Draw
from skvi.posteriors import Family, Posterior


class LogisticPosterior(Posterior):
    """Independent logistic distributions."""

    def __init__(self, layout):
        self.layout = layout
        self.params = torch.zeros(2, layout.size, dtype=torch.float64).reshape(-1) - 1

    def log_prob(self, theta, params=None):
        mean, log_scale = (self.params if params is None else params).reshape(2, -1)
        z = (theta - mean) / log_scale.exp()
        log_sigmoid = torch.nn.functional.logsigmoid
        return (log_sigmoid(z) + log_sigmoid(-z) - log_scale).sum(1)

    def draw(self, n_draws, generator):
        mean, log_scale = self.params.reshape(2, -1)
        u = torch.rand(n_draws, len(mean), generator=generator, dtype=mean.dtype)
        theta = mean + log_scale.exp() * torch.logit(u)
        return Draw(theta, self.log_prob(theta))


class LogisticFamily(Family):
    """A user's family, without a normal form."""

    def build(self, layout, generator=None):
        return LogisticPosterior(layout)
