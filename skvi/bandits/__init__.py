"""Contextual bandits: decide by what a model has learned, and learn from what follows.

A policy asks a model for the expected reward of every action in a context, and takes
the best one. They differ in how they explore: by a draw from the posterior (Thompson),
by chance (epsilon-greedy), or by optimism (upper confidence bound).
"""

from skvi.bandits._policies import EpsilonGreedy, ThompsonSampler, UpperConfidenceBound
from skvi.bandits._simulate import simulate
from skvi.bandits.base import BanditPolicy

__all__ = [
    "BanditPolicy",
    "EpsilonGreedy",
    "ThompsonSampler",
    "UpperConfidenceBound",
    "simulate",
]
