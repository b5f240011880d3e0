"""Priors over the parameter vector theta."""

from skvi.priors._heavy_tailed import ARD, Horseshoe, Laplace, StudentT
from skvi.priors._normal import HalfCauchy, Normal
from skvi.priors.base import BuiltPrior, GammaHyperprior, Prior

__all__ = [
    "ARD",
    "BuiltPrior",
    "GammaHyperprior",
    "HalfCauchy",
    "Horseshoe",
    "Laplace",
    "Normal",
    "Prior",
    "StudentT",
]
