"""Gradients of the ELBO for normals with correlations: the network without autograd."""

from collections.abc import Sequence
from typing import Self

import torch

from skvi.objectives._network_steps import NetworkSteps
from skvi.objectives._steps import Member
from skvi.utils._random import NoiseStream, antithetic

__all__ = ["NormalSteps"]


class NormalSteps(NetworkSteps):
    """Gradients of the negative ELBO from draws of any normal, for one member.

    The network backpropagates slopes to theta through buffers. Draws and divergence,
    which depend on the variational parameters, use automatic differentiation.
    """

    def __init__(
        self,
        members: Sequence[Member],
        params: torch.Tensor,
        n_draws: int,
        batch_size: int | None,
        noise: NoiseStream | None = None,
    ) -> None:
        n_noise = members[0].posterior.as_normal().n_noise
        super().__init__(members, params, n_draws, batch_size, n_noise, noise)
        self._divergences: list[torch.Tensor] = []
        self._share = 1.0

    def weigh_divergence(self, shares: Sequence[float]) -> None:
        (self._share,) = shares

    def differentiate(self, step: int) -> None:
        member, noise = self.members[0], self.noise.next()[0]
        split = len(member.posterior.params)
        with torch.inference_mode(False), torch.enable_grad():
            leaf = self.params[0].clone().requires_grad_()
            q = member.posterior.at(leaf[:split]).normal()
            theta = q.transform(antithetic(noise, self.n_draws))
            prior = member.target.at(leaf[split:]).prior
            divergence = member.divergence.closed_form(q, prior)
        blocks = self.passes.blocks(theta.detach())
        for weights, block in zip(self.passes.weights, blocks, strict=True):
            weights.copy_(block)
        self.gradient.zero_()
        self._pull_back(step)
        gradients = torch.cat([g[0, 0].flatten(1) for g in self.passes.gradients], 1)
        with torch.inference_mode(False):
            slopes = gradients.clone(), torch.full_like(divergence, self._share)
            (own,) = torch.autograd.grad((theta, divergence), leaf, slopes)
        self.gradient.add_(own)
        self._divergences.append(divergence.detach().double().reshape(1))

    def values(self, own: torch.Tensor, hyper: torch.Tensor) -> torch.Tensor:
        divergences, self._divergences = torch.stack(self._divergences), []
        return self._losses(hyper) + divergences

    def keep(self, members: Sequence[int], params: torch.Tensor) -> Self:
        raise NotImplementedError(
            "A single member cannot be left out of its own steps."
        )
