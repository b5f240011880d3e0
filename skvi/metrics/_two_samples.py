"""Distance between two sets of draws."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist

from skvi.utils._arrays import elements

__all__ = ["energy_distance"]

# Rows whose distances are computed at once.
AT_ONCE = 500


def energy_distance(draws: Mapping[str, Any], reference: Mapping[str, Any]) -> float:
    r"""Energy distance of draws from reference draws, in standardized parameters.

    .. math:: 2 E|X - Y| - E|X - X'| - E|Y - Y'|

    It is 0 in expectation if both are draws of one distribution, and only then.
    Parameters are divided by the standard deviations of the reference, so that
    units do not matter.

    Parameters
    ----------
    draws, reference : dict of str to array-like
        Independent draws, each of shape ``(n_draws, *shape)`` and ``(n_reference,
        *shape)``, such as `VariationalInference.sample_posterior` gives them. Time and
        not memory grows with the product of the numbers: a few thousand of each are
        enough.

    Returns
    -------
    float
        Unbiased estimate, which can be negative.

    References
    ----------
    Székely and Rizzo (2013), *Energy statistics: a class of statistics based on
    distances*.

    Examples
    --------
    >>> import numpy as np
    >>> from skvi.metrics import energy_distance
    >>> rng = np.random.default_rng(0)
    >>> x, y, far = rng.normal(size=(3, 2000)) + [[0.0], [0.0], [1.0]]
    >>> abs(energy_distance({"mu": y}, {"mu": x})) < 0.01
    True
    >>> round(energy_distance({"mu": far}, {"mu": x}), 1)
    0.5
    """
    if set(draws) != set(reference):
        raise ValueError(
            f"draws and reference must have the same parameters. Got {sorted(draws)} "
            f"and {sorted(reference)}."
        )
    _, x = elements(draws)
    _, y = elements({name: reference[name] for name in draws})
    std = y.std(0)
    std = np.where(std > 0, std, 1.0)
    x, y = x / std, y / std
    between = _total(x, y) / (len(x) * len(y))
    # Without the distances of draws from themselves.
    within = _total(x, x) / (len(x) * (len(x) - 1))
    other = _total(y, y) / (len(y) * (len(y) - 1))
    return float(2 * between - within - other)


def _total(x: np.ndarray, y: np.ndarray) -> float:
    """Sum of all distances."""
    starts = range(0, len(x), AT_ONCE)
    return float(sum(cdist(x[i : i + AT_ONCE], y).sum() for i in starts))
