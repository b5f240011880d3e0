"""Draws from a posterior, and diagnostics of weights, chains and tails."""

from skvi.sampling._annealing import AnnealedPath, tune_path
from skvi.sampling._chains import Chains, HamiltonianChains
from skvi.sampling._diagnostics import (
    disagreement,
    effective_sample_size,
    pareto_khat,
    split_rhat,
)
from skvi.sampling._exchange import LadderDraws, ReplicaExchange
from skvi.sampling._importance import (
    StudentT,
    WeightedDraws,
    adapt_proposal,
    draw_limit,
    draw_weighted,
)
from skvi.sampling._particles import (
    LadderPilot,
    anneal,
    particle_estimates,
    tune_ladder,
)
from skvi.sampling._replicas import Ladder

__all__ = [
    "AnnealedPath",
    "Chains",
    "HamiltonianChains",
    "Ladder",
    "LadderDraws",
    "LadderPilot",
    "ReplicaExchange",
    "StudentT",
    "WeightedDraws",
    "adapt_proposal",
    "anneal",
    "disagreement",
    "draw_limit",
    "draw_weighted",
    "effective_sample_size",
    "pareto_khat",
    "particle_estimates",
    "split_rhat",
    "tune_ladder",
    "tune_path",
]
