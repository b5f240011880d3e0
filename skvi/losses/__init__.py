"""Losses: which parameter value is the target of inference.

A loss turns a likelihood into l(theta, x_i, y_i), in nats per row. The log loss
gives Bayesian inference; robust losses give a generalized posterior that
is less sensitive to outliers.
"""

from skvi.losses._callable import RegularizedLoss
from skvi.losses._robust import BetaLoss, GammaLoss
from skvi.losses.base import LogLoss, Loss

__all__ = [
    "BetaLoss",
    "GammaLoss",
    "LogLoss",
    "Loss",
    "RegularizedLoss",
]
