"""Posterior families: the distributions that approximate the posterior."""

from skvi.posteriors._ensemble import Ensemble
from skvi.posteriors._flow import NormalizingFlow
from skvi.posteriors._low_rank import LowRankNormal
from skvi.posteriors._mixture_of_normals import MixtureOfNormals
from skvi.posteriors._multiplicative import MultiplicativeFlow
from skvi.posteriors._normal import FullRankNormal, MeanFieldNormal
from skvi.posteriors._pairs import Beta, Gamma
from skvi.posteriors._product import Product
from skvi.posteriors._refined import RefinedNormal
from skvi.posteriors._semi_implicit import HierarchicalVariational, SemiImplicitMixture
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
