"""Priors whose scales a network learns, one for each layer."""

from collections.abc import Mapping

from sklearn.base import clone

from skvi.base import Layout
from skvi.priors import Normal, Prior

__all__ = ["layerwise_prior"]

# Size of a block from which on the scale of its prior is learned.
MIN_NUMBERS = 5


def layerwise_prior(layout: Layout, given: Mapping[str, Prior]) -> dict[str, Prior]:
    """Normal priors by block, which learn their scales.

    Parameters
    ----------
    layout : Layout
        The layout of a network.
    given : mapping of str to Prior
        The prior of "intercept", if there is one.

    Returns
    -------
    dict of str to Prior
        Blocks of fewer than five numbers keep the scale 1: a learned one would be
        uninformative.
    """
    found: dict[str, Prior] = {}
    for name, block in layout.items():
        size = block.size
        found[name] = Normal("learn" if size >= MIN_NUMBERS else 1.0)
        if block.role == "intercept" and given:
            found[name] = clone(given["intercept"])
    return found
