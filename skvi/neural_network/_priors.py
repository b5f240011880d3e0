"""Priors of networks: by layer, with scales that are learned."""

from collections.abc import Mapping
from typing import Any

from sklearn.base import clone

from skvi.base import Layout
from skvi.priors import Normal, Prior, build_prior

__all__ = ["built_prior", "layerwise_prior"]

# Size of a block from which on the scale of its prior is learned.
MIN_NUMBERS = 5


def built_prior(network: Any, layout: Layout) -> Any:
    """Prior of all parameters, without that of intercepts if there are none."""
    if network._learns_scales:
        features = network._block_of_features
        network.prior_ = layerwise_prior(layout, network.prior_, features)
        return build_prior(network.prior_, layout)
    prior, roles = network.prior_, {block.role for block in layout.values()}
    is_own = isinstance(network.prior, Mapping) or network.intercept_prior is not None
    if isinstance(prior, Mapping) and not (is_own or roles - {"weight"}):
        prior = {"coef": prior["coef"]}
    return build_prior(prior, layout)


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
