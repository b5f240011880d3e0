"""Priors whose scales a network learns, for each feature and each layer."""

from collections.abc import Mapping

from sklearn.base import clone

from skvi.base import Layout
from skvi.priors import Normal, Prior

__all__ = ["layerwise_prior"]

# Size of a block from which on the scale of its prior is learned.
MIN_NUMBERS = 5


def layerwise_prior(
    layout: Layout, given: Mapping[str, Prior], features: str | None = None
) -> dict[str, Prior]:
    """Normal priors by block, which learn their scales; rows of `features` their own.

    Irrelevant features then cost and disturb little. Fewer than five numbers keep the
    scale 1, or that of their block: a learned one would be uninformative.
    """
    found: dict[str, Prior] = {}
    for name, block in layout.items():
        size = block.size
        found[name] = Normal("learn" if size >= MIN_NUMBERS else 1.0)
        if name == features and size >= MIN_NUMBERS * block.shape[0]:
            found[name] = Normal("learn_rows")
        if block.role == "intercept" and given:
            found[name] = clone(given["intercept"])
    return found
