"""The weight of the divergence, from held-out rows: ``KL(weight="auto")``."""

from typing import Any

import numpy as np
from sklearn.base import clone, is_classifier
from sklearn.model_selection import ShuffleSplit, StratifiedShuffleSplit
from sklearn.utils import check_random_state

from skvi._side_by_side import fit_side_by_side, pose
from skvi.divergences import KL
from skvi.posteriors import Ensemble

__all__ = ["weight_of_divergence"]

# Candidates, as far apart as their scores tell. The usual one stays unless another is
# better by more than a standard error: few rows would choose by chance.
WEIGHTS, USUAL = (0.1, 0.3, 1.0), 0.3
# Held-out fraction of the rows, and how often, unless once is enough; scores of fewer
# rows are mostly chance.
FRACTION, N_SPLITS, MIN_ROWS, ENOUGH_ROWS = 0.2, 2, 40, 1000
# Members of a candidate, and its share of the iterations.
N_MEMBERS, SHARE = 1, 0.5


def weight_of_divergence(
    network: Any, X: np.ndarray, y: np.ndarray, sample_weight: np.ndarray | None
) -> float:
    """The weight with the best log density of held-out rows; 1 if there are too few.

    Candidates have the same starts and rows, and are trained in one stack.
    """
    labels = y if is_classifier(network) else None
    if len(y) < MIN_ROWS or not _holds_out_all(labels):
        return 1.0
    seed = network.random_state
    if not isinstance(seed, (int, np.integer)):
        seed = int(check_random_state(seed).randint(2**31 - 1))
    split = ShuffleSplit if labels is None else StratifiedShuffleSplit
    n_splits = N_SPLITS if FRACTION * len(y) < ENOUGH_ROWS else 1
    parts = [*split(n_splits, test_size=FRACTION, random_state=seed).split(X, labels)]
    tried = [
        (_candidate(network, KL(weight), seed), *part)
        for part in parts
        for weight in WEIGHTS
    ]
    _train(tried, X, y, sample_weight)
    scores = [
        candidate.predict_log_density(X[test], y[test]) for candidate, _, test in tried
    ]
    table = np.reshape(scores, (n_splits, len(WEIGHTS), -1)).swapaxes(0, 1)
    tests = np.concatenate([test for _, test in parts])
    each = np.ones(len(y)) if sample_weight is None else sample_weight
    return best_weight(table.reshape(len(WEIGHTS), -1), each[tests])


def best_weight(scores: np.ndarray, sample_weight: np.ndarray) -> float:
    """The usual weight, or the best one whose gain exceeds its standard error.

    `scores`, (weights, rows), are of the same rows; weighted sums are compared.
    """
    gains = (scores - scores[WEIGHTS.index(USUAL)]) * sample_weight
    error = np.sqrt(gains.shape[1]) * gains.std(1)
    total = np.where(gains.sum(1) > error, gains.sum(1), 0.0)
    return WEIGHTS[int(np.argmax(total))] if total.any() else USUAL


def _train(tried: list, X: np.ndarray, y: np.ndarray, weight: Any) -> None:
    """Fit networks to their rows, as far as possible in one stack."""
    posed = []
    for network, train, _ in tried:
        rows = X[train], y[train], None if weight is None else weight[train]
        fit = pose(network, *rows)
        if fit is None:
            network.fit(*rows)
        else:
            posed.append(fit)
    fit_side_by_side(posed)


def _holds_out_all(labels: np.ndarray | None) -> bool:
    """Whether both parts have rows of every class; always without classes."""
    if labels is None:
        return True
    _, counts = np.unique(labels, return_counts=True)
    return bool(counts.min() > 1 and len(counts) <= FRACTION * len(labels))


def _candidate(network: Any, divergence: KL, seed: int) -> Any:
    """An unfitted network of fewer members and iterations."""
    found = clone(network).set_params(
        divergence=divergence,
        warm_start=False,
        early_stopping=False,
        validation_fraction=None,
        checkpoint_path=None,
        verbose=0,
        random_state=seed,
    )
    family = network.posterior_family_
    if isinstance(family, Ensemble):
        n_members = min(N_MEMBERS, family.n_members)
        found.posterior = clone(family).set_params(n_members=n_members)
    found._share_of_iterations = SHARE
    return found
