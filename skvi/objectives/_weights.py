"""Base of importance-weighted objectives: check, draws, gradient rules."""

import math
from typing import Any

import torch

from skvi.exceptions import IncompatibleComponentsError
from skvi.objectives.base import Objective

__all__ = ["WeightsObjective", "log_power_mean", "normalize", "weighted_sum"]

# Below this range of the scaled log weights their power mean is computed by a series.
SMALL_RANGE = 1.0


class WeightsObjective(Objective):
    """Base class of importance-weighted objectives, functions of the log weights.

    The log weights are ``lw = log p(D, theta) - log q(theta)``. A subclass must
    implement `bound`, `training_weights`, and the factors of its gradient rules:
    `path_weights` and `score_factor`.

    Notes
    -----
    The hyperparameters of a target (learned noise) follow the exact gradient of a
    maximized bound. Under a minimized one they ascend ``sum(softmax(lw) *
    log_joint)`` with the weights and theta held fixed (Fisher's identity): minimizing
    the bound in them would lower the evidence without limit.

    Examples
    --------
    >>> from skvi.objectives import EUBO, IWELBO
    >>> EUBO().kind, IWELBO().kind
    ('weights', 'weights')
    """

    kind = "weights"
    min_draws = 2
    #: Fits start at the ELBO's solution; steps of the usual size would lead away from
    #: it, to where draws can hardly distinguish a wide q from a good one.
    rate_share = 0.2
    #: Factor of ``sum(weights * d log q / d lambda)`` in the gradient of the loss.
    score_factor = -1.0

    def check(self, divergence: Any, target: Any) -> None:
        """Refuse every divergence except KL with weight 1, and improper priors."""
        self.validate()
        if not divergence.is_standard:
            name = type(self).__name__
            raise IncompatibleComponentsError(
                f"objective={name} moves q toward the exact posterior and leaves no "
                "room for another divergence to the prior than KLDivergence(weight=1); "
                f"got divergence={divergence!r}. Use objective='elbo' with this "
                "divergence, or divergence='kl' with this objective."
            )

        if target.prior is not None and not target.prior.is_proper:
            raise IncompatibleComponentsError(
                f"objective={type(self).__name__} compares q with the exact posterior, "
                "which an improper prior such as LogUniform need not have. Use "
                "objective='elbo', or a proper sparse prior: prior='horseshoe'."
            )

    def bound(self, log_weights: torch.Tensor) -> torch.Tensor:
        """Estimate the bound.

        Parameters
        ----------
        log_weights : Tensor of shape (..., S)
            ``log p(D, theta) - log q(theta)`` at draws of q, in nats.

        Returns
        -------
        Tensor
            A scalar in nats: reduced over the last axis, averaged over the others.
        """
        raise NotImplementedError

    def training_weights(self, log_weights: torch.Tensor) -> torch.Tensor:
        """Self-normalized weights of the draws in the gradient.

        Parameters
        ----------
        log_weights : Tensor of shape (..., S)

        Returns
        -------
        Tensor of shape (..., S)
            Detached; their sum over the last axis is 1.
        """
        raise NotImplementedError

    def path_weights(self, weights: torch.Tensor) -> torch.Tensor:
        """Factors of ``d lw / d theta`` along the path of the draws, in the loss.

        Parameters
        ----------
        weights : Tensor of shape (..., S)
            The `training_weights`.

        Returns
        -------
        Tensor of shape (..., S)
        """
        raise NotImplementedError

    def group_shape(self, n_draws: int) -> tuple[int, int]:
        """Groups of draws, and draws in each of them.

        Parameters
        ----------
        n_draws : int
            Requested total number of draws.

        Returns
        -------
        n_groups, n_per_group : int
        """
        return 1, n_draws

    def surrogate(
        self,
        target: Any,
        posterior: Any,
        divergence: Any,
        rows: torch.Tensor | None,
        n_draws: int,
        generator: torch.Generator,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Minus a lower bound, or an upper one; see `Objective.surrogate`."""
        rule = "doubly_reparam" if self.gradient == "auto" else self.gradient
        shape = self.group_shape(n_draws)
        draw = posterior.draw(math.prod(shape), generator)
        theta, log_q = draw.theta, draw.log_q
        if rule == "score":
            draw = draw.detach()
            theta, log_q = draw.theta, posterior.log_q(draw)
        elif rule == "doubly_reparam":
            log_q = posterior.path_log_q(draw)
        for_theta, for_hyper = target.log_joint_split(theta, rows)
        log_weights = (for_theta - log_q).reshape(shape)
        fixed = log_weights.detach()
        weights = self.training_weights(fixed)
        if rule == "score":
            factors = self.score_factor * weights
            surrogate = weighted_sum(factors, log_q.reshape(shape))
        elif rule == "reparam":
            surrogate = weighted_sum(-weights, log_weights)
        else:
            surrogate = weighted_sum(self.path_weights(weights), log_weights)
        if for_hyper is not None:
            if self.direction == "upper":
                weights = normalize(fixed)
            surrogate = surrogate - weighted_sum(weights, for_hyper.reshape(shape))
        value = self.bound(fixed)
        return surrogate.mean(), value if self.direction == "upper" else -value


def normalize(log_weights: torch.Tensor, power: float = 1.0) -> torch.Tensor:
    """Detached ``softmax(power * log_weights)``; 0 where all of them are -inf."""
    return torch.softmax(power * log_weights.detach(), -1).nan_to_num(nan=0.0)


def weighted_sum(factors: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Sum over the last axis, in which 0 times an infinite value is 0."""
    return torch.where(factors == 0, 0.0, factors * values).sum(-1)


def log_power_mean(log_weights: torch.Tensor, power: float) -> torch.Tensor:
    """``log(mean(w^power)) / power`` over the last axis; the mean of log w at 0.

    In log space, and accurate to rounding for every power, however small: if ``power *
    lw`` hardly varies, it is expanded around the mean of lw.
    """
    mean = log_weights.mean(-1, keepdim=True)
    if power == 0:
        return mean[..., 0]
    count = log_weights.shape[-1]
    direct = (torch.logsumexp(power * log_weights, -1) - math.log(count)) / power
    low, high = log_weights.amin(-1, True), log_weights.amax(-1, True)
    is_small = abs(power) * (high - low) <= SMALL_RANGE  # False if it is NaN
    centered = torch.where(is_small, log_weights - mean, 0.0)
    series = torch.log1p(torch.expm1(power * centered).mean(-1)) / power
    return torch.where(is_small[..., 0], mean[..., 0] + series, direct)
