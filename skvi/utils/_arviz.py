"""Draws of a posterior as the tree of groups that ArviZ reads."""

from collections.abc import Mapping
from typing import Any

import numpy as np


def as_tree(
    groups: Mapping[str, Mapping[str, np.ndarray]],
    dims: Mapping[str, list[str]] | None = None,
    coords: Mapping[str, Any] | None = None,
) -> Any:
    """Return a DataTree; arrays have shapes (S, ...), of observed data (n, ...).

    ImportError if arviz-base is not installed.
    """
    try:
        import arviz_base
    except ImportError as error:
        message = "to_arviz needs arviz-base: pip install 'skvi[arviz]'."
        raise ImportError(message) from error

    def by_chain(values: np.ndarray) -> np.ndarray:
        n_chains = 1 if len(values) % 4 else 4  # R-hat needs several
        return values.reshape(n_chains, -1, *values.shape[1:])

    found = {
        group: dict(members)
        if group == "observed_data"
        else {name: by_chain(np.asarray(values)) for name, values in members.items()}
        for group, members in groups.items()
    }
    return arviz_base.from_dict(found, dims=dims, coords=coords)
