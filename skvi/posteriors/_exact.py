"""Exact posteriors, which the data determine."""

import torch

from skvi.base import Layout
from skvi.posteriors.base import Family, Posterior
from skvi.utils._device import CPU

__all__ = ["Exact", "Unsolved"]


class Exact(Family):
    """The exact posterior, for linear regressions whose priors are conjugate.

    Given the precisions of noise and coefficients the posterior is normal; those that
    are unknown are integrated by quadrature. Its ELBO is the log evidence.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skvi.linear_model import BayesianLinearRegression
    >>> X, y = load_diabetes(return_X_y=True)
    >>> BayesianLinearRegression().fit(X, y).posterior_family_
    Exact()
    """

    def build(
        self, layout: Layout, generator: torch.Generator | None = None
    ) -> Posterior:
        """Posterior before the data; only the solver "exact" can use it."""
        return Unsolved(layout)


class Unsolved(Posterior):
    """Exact posterior before its data: it has no draws and no density yet."""

    def __init__(self, layout: Layout) -> None:
        self.layout, self.params = (
            layout,
            torch.zeros(0, dtype=torch.float64, device=CPU),
        )
