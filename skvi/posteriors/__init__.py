"""Posterior families: which approximations of the posterior are allowed."""

from skvi.posteriors._low_rank import LowRankNormal
from skvi.posteriors._normal import FullRankNormal, MeanFieldNormal
from skvi.posteriors.base import Family, Posterior

__all__ = [
    "Family",
    "FullRankNormal",
    "LowRankNormal",
    "MeanFieldNormal",
    "Posterior",
]
