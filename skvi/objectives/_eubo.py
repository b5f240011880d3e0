"""The evidence upper bound."""

import math

import torch

from skvi.objectives._weights import WeightsObjective, normalize, weighted_sum
from skvi.utils._validation import StrOptions

__all__ = ["EUBO"]


class EUBO(WeightsObjective):
    r"""Evidence upper bound: minimizes KL(posterior || q).

    .. math:: U(q) = E_{p(\theta|D)}[\log p(D, \theta) - \log q(\theta)]
              = \log p(D) + KL(p(\theta|D) \| q)

    A normal q at the optimum has the mean and covariance of the posterior (for a
    mean-field q: its marginal standard deviations); those of the ELBO are often too
    small.

    Parameters
    ----------
    gradient : {"auto", "score", "doubly_reparam"}, default="auto"
        "auto" matches moments if q is normal, and otherwise trains with
        "doubly_reparam". Both rules train on self-normalized weights of fresh draws;
        their bias is O(1/S) and large while the effective sample size is small. The
        noise of "doubly_reparam" vanishes if q is the posterior.

    Notes
    -----
    The exact EUBO is above log p(D). Its self-normalized estimate from draws of q can
    fall below: `evidence_bounds` takes its upper bound from posterior draws. The
    gradient of the exact EUBO is ``-E_p[d log q(theta; lambda) / d lambda]`` with theta
    held fixed. Differentiating the weights as well minimizes something that has no
    lower bound at a finite number of draws.

    References
    ----------
    Ji and Shen (2019), *Stochastic variational inference via upper bound*, eq. 2;
    the algorithm's printed gradient is not used (it vanishes in the mean). Tucker
    et al. (2019), *Doubly reparameterized gradient estimators*.

    Examples
    --------
    >>> from skvi.objectives import EUBO
    >>> EUBO(gradient="score")
    EUBO(gradient='score')
    """

    _parameter_constraints: dict = {
        "gradient": [StrOptions({"auto", "score", "doubly_reparam"})]
    }
    direction = "upper"
    tilt = 0.0

    def __init__(self, gradient: str = "auto") -> None:
        self.gradient = gradient

    def bound(self, log_weights: torch.Tensor) -> torch.Tensor:
        """Self-normalized estimate of the EUBO.

        Parameters
        ----------
        log_weights : Tensor of shape (..., S)
            ``log p(D, theta) - log q(theta)`` at draws of q, in nats.

        Returns
        -------
        Tensor
            A scalar in nats: reduced over the last axis, averaged over the others.
            Its bias is O(1/S), so that it can be below log p(D).
        """
        means = weighted_sum(normalize(log_weights), log_weights)
        top = log_weights.amax(-1)
        return torch.where(top == -math.inf, top, means).mean()

    def training_weights(self, log_weights: torch.Tensor) -> torch.Tensor:
        """``softmax(lw)``; see `WeightsObjective.training_weights`."""
        return normalize(log_weights)

    def path_weights(self, weights: torch.Tensor) -> torch.Tensor:
        """Minus the weights; see `WeightsObjective.path_weights`."""
        return -weights
