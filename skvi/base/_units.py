"""Units of the data that the parameters of a model refer to."""

from dataclasses import dataclass

import numpy as np

__all__ = ["Units"]


@dataclass(frozen=True, eq=False)
class Units:
    """Origins and scales of a fit: of the target, the features, and the offset of f.

    The parameters describe ``(y - y_mean) / y_scale``, for each of K targets, as a
    function of ``(X - x_mean) / x_scale`` and of ``offset - f_mean``, the logarithm of
    an exposure. `x_mean` is None if the features are not centered. `unseen` are
    features whose scale is not known yet, since they were constant; None for none.
    """

    y_mean: float | np.ndarray
    y_scale: float | np.ndarray
    x_mean: np.ndarray | None = None
    x_scale: float | np.ndarray = 1.0
    f_mean: float = 0.0
    unseen: np.ndarray | None = None
