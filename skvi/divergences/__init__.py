"""Divergences D(q || prior): how uncertainty is measured against the prior.

All values are in nats. Between two normals all have closed forms, which follow from one
function, the power integral: the log of the integral of q^a pi^b.
"""

from skvi.divergences._alpha import AlphaDivergence, RenyiDivergence
from skvi.divergences._beta import BetaDivergence, GammaDivergence
from skvi.divergences._f import FDivergence
from skvi.divergences._kl import JeffreysDivergence, KLDivergence
from skvi.divergences.base import Divergence

__all__ = [
    "AlphaDivergence",
    "BetaDivergence",
    "Divergence",
    "FDivergence",
    "GammaDivergence",
    "JeffreysDivergence",
    "KLDivergence",
    "RenyiDivergence",
]
