"""Posteriors that bend, in the coordinates of a normal."""

from copy import copy
from dataclasses import replace
from typing import Self

import torch

from skvi.base import Draw, Layout, NormalForm
from skvi.posteriors.base import Posterior
from skvi.utils._device import CPU

__all__ = ["WhitenedPosterior"]


class WhitenedPosterior(Posterior):
    """Distribution of theta = mean + scale u; u has that of the family.

    Mean and scale are those of `anchor`, a normal that is no variational parameter:
    N(0, 1) at first. `near` replaces it, so that units and correlations of theta do
    not matter to the family, whose u is near N(0, 1) at its start.

    A subclass must implement `draw_white` and, unless its `side` is "none",
    `log_prob_white`; and set `params`.
    """

    starts_at_normal = True
    anchor: NormalForm
    #: Gradients of skews and curvatures are noisier than those of means.
    least_draws = 64

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        one = torch.ones(layout.size, dtype=torch.float64, device=CPU)
        self.anchor = NormalForm(torch.zeros_like(one), one)

    def draw_white(self, n_draws: int, generator: torch.Generator) -> Draw:
        """Draw u, with its log density; see `Posterior.draw`.

        Parameters
        ----------
        n_draws : int
        generator : torch.Generator

        Returns
        -------
        Draw
            Of u in place of theta.
        """
        raise NotImplementedError

    def log_prob_white(self, u: torch.Tensor, params: torch.Tensor) -> torch.Tensor:
        """Log density of u; see `Posterior.log_prob`.

        Parameters
        ----------
        u : Tensor of shape (S, P)
        params : Tensor of shape (n_variational,)

        Returns
        -------
        Tensor of shape (S,)
            In nats.
        """
        raise NotImplementedError

    def near(self, normal: NormalForm) -> Self:
        """Place the posterior at a normal; u and its parameters stay as they are."""
        if normal.factor is not None:
            scale = torch.linalg.cholesky(normal.covariance())
            normal = NormalForm(normal.mean, scale)
        other = copy(self)
        device = self.params.device
        other.anchor = NormalForm(normal.mean.to(device), normal.scale.to(device))
        return other

    def to_white(self, theta: torch.Tensor) -> torch.Tensor:
        """Map theta to u.

        Parameters
        ----------
        theta : Tensor of shape (S, P)

        Returns
        -------
        Tensor of shape (S, P)
        """
        return self.anchor.whiten(theta - self.anchor.mean)

    def draw(self, n_draws: int, generator: torch.Generator) -> Draw:
        """Draw theta, with its log density; see `Posterior.draw`."""
        return self._from_white(self.draw_white(n_draws, generator))

    def _from_white(self, draw: Draw) -> Draw:
        """Draw of theta from one of u."""
        theta = self.anchor.transform(draw.theta)
        return replace(draw, theta=theta, log_q=draw.log_q - self.anchor.half_log_det)

    def log_prob(
        self, theta: torch.Tensor, params: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Log density; see `Posterior.log_prob`."""
        params = self.params if params is None else params
        log_q = self.log_prob_white(self.to_white(theta), params)
        return log_q - self.anchor.half_log_det
