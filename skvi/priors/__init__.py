"""Priors over the parameter vector theta."""

from skvi.priors._horseshoe import Horseshoe
from skvi.priors._laplace import Laplace
from skvi.priors._normal import HalfCauchy, Normal
from skvi.priors._student_t import ARD, StudentT
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
