"""Bounds for the posteriors during a fit."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from skvi.evidence._agreement import in_parameters
from skvi.evidence._estimates import forward_bound, reverse_bound
from skvi.evidence._fit_checks import lower_bound
from skvi.evidence._named import NamedBound
from skvi.evidence._over_scales import has_unknown_scale, lift, unit
from skvi.evidence._proposals import N_CHAINS, N_WARMUP
from skvi.evidence._result import EvidenceBounds
from skvi.evidence._table import EXPECTED, elbo_row, upper_exists, upper_row
from skvi.exceptions import SkviWarning
from skvi.posteriors import Posterior
from skvi.sampling import Chains, HamiltonianChains, adapt_proposal
from skvi.solvers import State, dispersed_starts, fit_proposal_normal
from skvi.targets import SupervisedTarget, Target
from skvi.utils._random import RandomState, make_generator

__all__ = ["TrainingRecord", "record_training"]

# Draws of each posterior for either bound, and in each term of the IW bounds.
N_DRAWS, K = 4096, 16
MAX_RHAT = 1.05


@dataclass(frozen=True, eq=False)
class TrainingRecord:
    """Bounds for the posteriors during a fit.

    `bounds` has "ELBO" and "IW-ELBO", and "IW-EUBO" and "EUBO" if there are posterior
    draws: one NamedBound for each recorded iteration. `reliable`: their chains agree.
    """

    iterations: tuple[int, ...]  # including the last one
    bounds: dict[str, tuple[NamedBound, ...]]
    final: EvidenceBounds  # bounds of the fitted model
    unit: str = "iteration"  # meaning of an iteration
    reliable: bool = True


def record_training(
    estimator: Any,
    X: Any,
    y: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
    n_points: int = 25,
    random_state: RandomState = None,
    **options: Any,
) -> TrainingRecord:
    """Fit a copy of an estimator, and bound the evidence by its posteriors on the way.

    Learned noise and prior scales have their final values. The same chains are behind
    all upper bounds, which are left out if precisions have hyperpriors.
    """
    if not hasattr(estimator, "evidence_bounds"):
        raise TypeError(
            f"{type(estimator).__name__} has no method evidence_bounds. Pass an "
            "estimator of skvi, and X as it goes into it."
        )
    model: Any = clone(estimator)
    recorder = _Recorder(n_points)
    model._record = recorder
    with warnings.catch_warnings():
        # The user knows this about the estimator itself.
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", SkviWarning)
        model.fit(X, y, sample_weight=sample_weight)
    weights = {} if sample_weight is None else {"sample_weight": sample_weight}
    seed = int(check_random_state(random_state).randint(2**31 - 1))
    final = model.evidence_bounds(X, y, random_state=seed, **weights, **options)
    if recorder.target is None:
        raise TypeError(
            f"A fit of {type(model).__name__} to these data reports no iterations: "
            "give one target column at a time."
        )
    found = recorder.posteriors
    found[model.n_iter_] = model.posterior_
    target = cast(SupervisedTarget, recorder.target).at(
        torch.from_numpy(model._hyper.copy()).to(recorder.target.hyper.device)
    )
    bounds, reliable = _bound_all(target.frozen(), list(found.values()), seed)
    unit = model.diagnostics_.get("unit", "iteration")
    return TrainingRecord(tuple(found), bounds, final, unit, reliable)


class _Recorder:
    """Copies the posterior at iterations with increasing distances."""

    def __init__(self, n_points: int) -> None:
        self.n_points = n_points
        self.posteriors: dict[int, Posterior] = {}
        self.target: Target | None = None
        self.wanted: set[int] = set()

    def __call__(self, n_iter: int, max_iter: int, state: Callable[[], State]) -> None:
        if not self.wanted:
            points = np.geomspace(1, max(max_iter, 1), self.n_points)
            self.wanted = set(points.round().astype(int).tolist())
        if n_iter in self.wanted:
            posterior, self.target = state()
            params = posterior.params.detach().clone()
            self.posteriors[n_iter] = posterior.at(params)


@torch.no_grad()
def _bound_all(
    target: SupervisedTarget, posteriors: list[Posterior], seed: int
) -> tuple[dict[str, tuple[NamedBound, ...]], bool]:
    chains = None
    if not target.is_extended:
        chains = _posterior_draws(target, posteriors[-1], make_generator(seed))
    # The same noise for all of them: only the posterior changes.
    rows = [_bound_one(target, q, chains, make_generator(seed)) for q in posteriors]
    reliable = chains is None or chains.rhat <= MAX_RHAT
    return {name: tuple(row[name] for row in rows) for name in rows[0]}, reliable


def _posterior_draws(
    target: SupervisedTarget, posterior: Posterior, generator: torch.Generator
) -> Chains | None:
    n_iter = math.ceil(N_DRAWS / N_CHAINS)
    lifted = lift(target, posterior) if has_unknown_scale(target) else None
    if lifted is not None:
        # Chains alone hardly move between small scales and large ones.
        near = unit(lifted)
        starts = dispersed_starts(lifted, near, generator, N_CHAINS)
        sampler = HamiltonianChains(lifted, starts, near, generator)
        return in_parameters(target, lifted, sampler.warm_up(N_WARMUP).run(n_iter))
    normal = posterior.as_normal()
    if target.has_design:
        normal = fit_proposal_normal(target) or normal
    if normal is None:
        return None
    proposal, _ = adapt_proposal(target, normal, generator)
    starts = dispersed_starts(target, proposal.normal, generator, N_CHAINS)
    sampler = HamiltonianChains(target, starts, proposal.normal, generator)
    return sampler.warm_up(N_WARMUP).run(n_iter)


def _bound_one(
    target: Target,
    posterior: Posterior,
    chains: Chains | None,
    generator: torch.Generator,
) -> dict[str, NamedBound]:
    draw = posterior.draw(N_DRAWS, generator)
    theta, log_q = draw.theta, draw.log_q
    forward = (target.log_joint_batched(theta) - log_q).double()
    rows = {"ELBO": elbo_row(lower_bound(target, posterior, generator, N_DRAWS))}
    value = forward_bound(forward, K)
    rows["IW-ELBO"] = NamedBound(*value, "lower", EXPECTED, k=K)
    if chains is not None:
        log_q = posterior.log_prob(chains.theta.flatten(0, 1))
        reverse = chains.log_joint - log_q.reshape(chains.log_joint.shape)
        exists = upper_exists(target)
        rows["IW-EUBO"] = upper_row(reverse_bound(reverse, K), exists, K)
        rows["EUBO"] = upper_row(reverse_bound(reverse, 1), exists)
    return rows
