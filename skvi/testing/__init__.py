"""Checks that custom components satisfy their contracts.

Each check raises an `AssertionError` that says what is wrong, and otherwise returns
nothing: call it in a test.
"""

from skvi.testing._divergences import check_divergence
from skvi.testing._ensure import check_component
from skvi.testing._losses import check_likelihood, check_loss
from skvi.testing._posteriors import check_family
from skvi.testing._priors import check_prior

__all__ = [
    "check_component",
    "check_divergence",
    "check_family",
    "check_likelihood",
    "check_loss",
    "check_prior",
]
