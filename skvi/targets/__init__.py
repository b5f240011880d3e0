"""Targets: the log joint density log p(D, theta) and what is known about it."""

from skvi.priors import GammaHyperprior
from skvi.targets._hierarchical import HierarchicalTarget
from skvi.targets._least_squares import LeastSquares, summarize
from skvi.targets._precisions import Precision
from skvi.targets._supervised import SupervisedTarget
from skvi.targets.base import Target

__all__ = [
    "GammaHyperprior",
    "HierarchicalTarget",
    "LeastSquares",
    "Precision",
    "SupervisedTarget",
    "Target",
    "summarize",
]
