"""Hyperpriors of the precisions of normal coefficients."""

from dataclasses import dataclass

__all__ = ["GammaHyperprior"]


@dataclass(frozen=True)
class GammaHyperprior:
    """Prior Gamma distribution of a precision.

    Parameters
    ----------
    shape, rate : float
        Parameters of the Gamma distribution of the precision, in the units of the fit.
    is_shared : bool, default=True
        One precision for all coefficients, or one for each.

    Examples
    --------
    >>> from skvi.priors import GammaHyperprior
    >>> GammaHyperprior(1.0, 1.0).is_shared
    True
    """

    shape: float
    rate: float
    is_shared: bool = True
