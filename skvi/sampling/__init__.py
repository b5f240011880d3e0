"""Draws from a posterior and their diagnostics: weights, chains, tails."""

from skvi.sampling._annealing import AnnealedPath, tune_path
from skvi.sampling._chains import Chains, HamiltonianChains
from skvi.sampling._diagnostics import effective_sample_size, pareto_khat, split_rhat
from skvi.sampling._importance import (
    StudentT,
    WeightedDraws,
    adapt_proposal,
    draw_limit,
    draw_weighted,
)

__all__ = [
    "AnnealedPath",
    "Chains",
    "HamiltonianChains",
    "StudentT",
    "WeightedDraws",
    "adapt_proposal",
    "draw_limit",
    "draw_weighted",
    "effective_sample_size",
    "pareto_khat",
    "split_rhat",
    "tune_path",
]
