"""The density 1, the reference measure of a target without a prior."""

import torch

from skvi.priors.base import BuiltPrior

__all__ = ["FlatReference"]


class FlatReference(BuiltPrior):
    """Density 1 everywhere: its log adds nothing.

    It is used if a divergence compares q with the prior and there is none: ``KL(q ||
    1)`` is ``E_q[log q]``, and the loss is minus the whole log joint density.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import NormalForm
    >>> from skvi.divergences import KLDivergence
    >>> from skvi.priors._reference import FlatReference
    >>> q = NormalForm(torch.zeros(1), torch.ones(1))
    >>> bool(KLDivergence().closed_form(q, FlatReference()) == -q.entropy())
    True
    """

    is_proper = False
    is_log_concave = True
    has_log_prob_terms = True
    has_expected_log_prob = True

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        """Zeros, (S,)."""
        return torch.zeros_like(theta[:, 0])

    def log_prob_gradient(self, theta: torch.Tensor) -> torch.Tensor:
        """Zeros, (S, P)."""
        return torch.zeros_like(theta)

    def log_prob_terms(self, theta: torch.Tensor) -> torch.Tensor:
        """Zeros, (S, P)."""
        return torch.zeros_like(theta)

    def expected_log_prob(self, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
        """Zeros, (P,)."""
        return torch.zeros_like(mean)
