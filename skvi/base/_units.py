"""Units of the data that the parameters of a model refer to."""

from dataclasses import dataclass

import numpy as np

__all__ = ["Units"]


@dataclass(frozen=True, eq=False)
class Units:
    """Origins and scales of a fit: of the target, the features, and the offset of f.

    The parameters describe ``(y - y_mean) / y_scale`` as a function of ``(X - x_mean) /
    x_scale`` and of ``offset - f_mean``, the logarithm of an exposure.

    Parameters
    ----------
    y_mean, y_scale : float or ndarray of shape (K,)
        One value for each of K targets.
    x_mean : ndarray of shape (d,) or None, default=None
        None if the features are not centered.
    x_scale : float or ndarray of shape (d,), default=1.0
    f_mean : float, default=0.0

    Examples
    --------
    >>> from skvi.base._units import Units
    >>> Units(y_mean=2.0, y_scale=0.5).x_mean is None
    True
    """

    y_mean: float | np.ndarray
    y_scale: float | np.ndarray
    x_mean: np.ndarray | None = None
    x_scale: float | np.ndarray = 1.0
    f_mean: float = 0.0
