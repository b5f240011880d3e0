"""Posterior families: the distributions that approximate the posterior."""

from skvi.posteriors._ensemble import Ensemble
from skvi.posteriors._flow import NormalizingFlow
from skvi.posteriors._multiplicative import MultiplicativeFlow
from skvi.posteriors._normal import FullRankNormal, LowRankNormal, MeanFieldNormal
from skvi.posteriors._product import Product
from skvi.posteriors._refinement import RefinedNormal
from skvi.posteriors._semi_implicit import (
    Beta,
    Gamma,
    HierarchicalVariational,
    SemiImplicitMixture,
)
from skvi.posteriors._whitened import MixtureOfNormals
from skvi.posteriors.base import Family, Posterior

__all__ = [
    "Beta",
    "Ensemble",
    "Family",
    "FullRankNormal",
    "Gamma",
    "HierarchicalVariational",
    "LowRankNormal",
    "MeanFieldNormal",
    "MixtureOfNormals",
    "MultiplicativeFlow",
    "NormalizingFlow",
    "Posterior",
    "Product",
    "RefinedNormal",
    "SemiImplicitMixture",
]
