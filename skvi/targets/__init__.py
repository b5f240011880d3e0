"""Targets: the log joint density log p(D, theta) and what is known about it."""

from skvi.targets._supervised import SupervisedTarget
from skvi.targets.base import Target

__all__ = [
    "SupervisedTarget",
    "Target",
]
