"""Held-out rows choose what a network predicts with: ``KLDivergence("auto")``.

Candidates are networks with several weights of the divergence, a linear model and a
constant. The linear model is the network whose hidden units add nothing, so that all of
them are posteriors over the same parameters, and their mixture is one, too.
"""

import warnings
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.special import logsumexp
from sklearn.base import clone, is_classifier

from skvi._estimator._held_out import (
    ENOUGH_ROWS,
    MOST_ROWS,
    N_ERRORS,
    paired,
    seed_of,
    split_rows,
)
from skvi._estimator._progress import write_line
from skvi._estimator._side_by_side import fit_side_by_side, pose
from skvi.divergences import KLDivergence
from skvi.exceptions import SkviWarning
from skvi.neural_network._mlp import can_mix, log_noise_of
from skvi.posteriors import Ensemble
from skvi.solvers import Stochastic

# Candidates, as far apart as their scores tell. The first ones are tried at once (all
# of them where rows are so few that another member is nearly free), smaller ones as
# long as the smallest is the best.
WEIGHTS, AT_ONCE = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003), 4
# With many rows fewer: a whole divergence wins where a linear model or a constant do.
MANY_ROWS, AMONG_MANY = 2000, slice(1, 3)
# Weights of rows that are too few to be held out.
FEW_NUMBERS, FEW_LABELS = 0.1, 1.0
# Candidates that are left after the first fold: so many, none of them `N_ERRORS` behind
# the best one.
N_LEFT = 2
# Share of a mixture that is chance: it costs as much where the others are certain.
SMALL_SHARE = 0.1
# Logs of factors of the noise between which held-out rows choose.
FACTORS = np.linspace(-1.2, 3.6, 13)
# Draws of a candidate's predictions.
N_DRAWS = 50

STAGE = "chooses the weight of the divergence by held-out rows"
NOTHING_YET = (
    "Ctrl-C in the first seconds of the choice of the weight of the divergence: "
    "nothing is fitted yet"
)


@dataclass(frozen=True, eq=False)
class Choice:
    """What held-out rows chose.

    `shares` of the mixture, logs of the scales of the noise that held-out rows ask for,
    `log_noise`, and fitted estimators, `simple`, have the names "network", "linear" and
    "constant". A scale is the geometric mean over the rows of a fit, for each output.
    `kept` is the best candidate so far if Ctrl-C ended the choice; `zeros` the name of
    a simple model that is fitted instead of a network.
    """

    weight: float
    shares: dict[str, float] = field(default_factory=lambda: {"network": 1.0})
    log_noise: dict[str, np.ndarray] = field(default_factory=dict)
    simple: dict[str, Any] = field(default_factory=dict)
    kept: Any = None
    zeros: str | None = None


def choose(
    network: Any, X: np.ndarray, y: np.ndarray, sample_weight: np.ndarray | None
) -> Choice:
    """Choose by the log density of held-out rows; a usual weight for too few of them.

    Raises KeyboardInterrupt on Ctrl-C before any candidate is fitted.
    """
    if sample_weight is not None:
        is_used = sample_weight > 0
        X, y, sample_weight = X[is_used], y[is_used], sample_weight[is_used]
    splits = split_rows(network, y)
    if not splits:
        return Choice(FEW_LABELS if is_classifier(network) else FEW_NUMBERS)
    write_line(network, STAGE)
    race = _Race(network, X, y, sample_weight, splits)
    with warnings.catch_warnings():  # the fit itself will say it of all rows
        warnings.simplefilter("ignore", SkviWarning)
        try:
            race.run()
        except KeyboardInterrupt:
            if not race.held:
                raise KeyboardInterrupt(NOTHING_YET) from None
            return race.choice(interrupted=True)
    return race.choice()


class _Held:
    """Log densities of held-out rows, as functions of the log of a factor of the noise.

    Without outputs that are logs of scales that factor is 1.
    """

    def __init__(self) -> None:
        self.rows: list[np.ndarray] = []
        self.log_noise: list[np.ndarray] = []

    def add(self, fitted: Any, X: np.ndarray, y: np.ndarray, own: np.ndarray) -> None:
        """Evaluate the rows of another fold; `own` are rows of the fit."""
        self.log_noise.append(log_noise_of(fitted, own))
        factors = FACTORS if len(_noise_positions(fitted)) else FACTORS[:1] * 0
        tried = [with_noise(fitted, factor) for factor in factors]
        self.rows.append(np.stack([t.predict_log_density(X, y) for t in tried], 1))

    def best(self, weight: np.ndarray) -> tuple[float, np.ndarray]:
        """Log of the best factor, and the log densities with it."""
        table = np.concatenate(self.rows)[: len(weight)]
        if table.shape[1] == 1:
            return 0.0, table[:, 0]
        table = np.maximum(table, np.finfo(np.float32).min)
        # Between neighbors only: a row far out would bend a spline at all factors.
        curve = PchipInterpolator(FACTORS, table, axis=1)
        finer = np.linspace(FACTORS[0], FACTORS[-1], 97)
        total = weight @ curve(finer)
        factor = float(finer[np.argmax(total)])
        return factor, curve(factor)


class _Race:
    """Candidates, fold by fold; those that are clearly behind are left out."""

    def __init__(self, network: Any, X: Any, y: Any, weight: Any, splits: list) -> None:
        self.network, self.X, self.y, self.splits = network, X, y, splits
        self.weight = np.ones(len(y)) if weight is None else weight
        self.has_weight, self.seed = weight is not None, seed_of(network)
        #: Held-out densities by candidate, weights of the divergence or names.
        self.held: dict[float | str, _Held] = {}
        self.fitted: dict[float | str, Any] = {}
        self.simple: dict[str, Any] = {}

    def run(self) -> None:
        """Fit simple models to all folds, networks to one, and those left to others."""
        self._fit_simple()
        is_long, is_short = len(self.y) >= MANY_ROWS, len(self.y) < ENOUGH_ROWS
        at_once = slice(None if is_short else AT_ONCE)
        weights = list(WEIGHTS[AMONG_MANY if is_long else at_once])
        self._fit(weights, [0])
        while not is_long and self._best(weights)[0] == min(weights) > WEIGHTS[-1]:
            weights.append(WEIGHTS[WEIGHTS.index(min(weights)) + 1])
            self._fit(weights[-1:], [0])
        # A single one, too: what scales its noise and shares are held-out rows.
        self._fit(self._best(weights)[:N_LEFT], range(1, len(self.splits)))

    def choice(self, interrupted: bool = False) -> Choice:
        """What the rows held out so far choose."""
        networks = [key for key in self.held if not isinstance(key, str)]
        if interrupted:
            best = self._best([*networks, *self.simple])[0]
            kept = self.simple.get(best, self.fitted.get(best))
            return Choice(best if best in networks else 1.0, kept=kept)
        most = max(len(self.held[key].rows) for key in networks)
        network = self._best([k for k in networks if len(self.held[k].rows) == most])[0]
        names = {network: "network"} | {name: name for name in self.simple}
        weight = self._held_weight(self._n_folds(names))
        found = {names[key]: self.held[key].best(weight) for key in names}
        scores = np.stack([scores for _, scores in found.values()])
        # The constant is the last one.
        shares = dict(zip(found, beyond_chance(scores, weight).tolist(), strict=True))
        noise = {
            name: np.mean(self.held[key].log_noise, 0) + found[name][0]
            for key, name in names.items()
        }
        parts, zeros = (shares, noise, self.simple, None), None
        if self.simple:
            likelihood = self.simple["constant"]._model.likelihood
            if not can_mix(self.network.posterior_family_, likelihood):
                zeros = self._best([network, *self.simple])[0]
        if isinstance(zeros, str):
            return Choice(1.0, *parts, zeros)
        return Choice(float(network), *parts)

    def _n_folds(self, keys: Any) -> int:
        return min(len(self.held[key].rows) for key in keys)

    def _held_weight(self, n_folds: int) -> np.ndarray:
        rows = np.concatenate([test for _, test in self.splits[:n_folds]])
        return self.weight[rows]

    def _scores(self, keys: Sequence) -> tuple[np.ndarray, np.ndarray]:
        """Log densities of the rows that all have seen, (keys, rows), and weights."""
        weight = self._held_weight(self._n_folds(keys))
        return np.stack([self.held[key].best(weight)[1] for key in keys]), weight

    def _best(self, keys: Sequence) -> list:
        """The best candidate, and those not clearly behind it, best ones first."""
        scores, weight = self._scores(keys)
        order = np.argsort(-(scores @ weight))
        lost, error = paired(scores[order[0]], scores, weight)
        is_left = lost <= N_ERRORS * error
        return [keys[k] for k in order if is_left[k]]

    def _fit(self, weights: Sequence[float], folds: Sequence[int]) -> None:
        """Fit networks to some folds, and evaluate the held-out rows."""
        tried = [
            (w, fold, _candidate(self.network, KLDivergence(w), self.seed))
            for fold in folds
            for w in weights
        ]
        self._train([(network, self.splits[fold][0]) for _, fold, network in tried])
        for weight, fold, network in tried:
            self._evaluate(weight, network, fold)
            self.fitted[weight] = network

    def _evaluate(self, key: float | str, fitted: Any, fold: int) -> None:
        train, test = self.splits[fold]
        held = self.held.setdefault(key, _Held())
        held.add(fitted, self.X[test], self.y[test], self.X[train[:MOST_ROWS]])

    def _fit_simple(self) -> None:
        """Fit a linear model and a constant to all folds and to all rows."""
        tried = []
        for kind in self.network._simple_kinds:
            for rows in (*(train for train, _ in self.splits), slice(None)):
                tried.append((_simple(self.network, kind, self.seed), rows))
        self._train(tried)
        for kind in self.network._simple_kinds:
            own = [network for network, _ in tried if network._is_simple == kind]
            for fold, network in enumerate(own[:-1]):
                self._evaluate(kind, network, fold)
            self.simple[kind] = own[-1]

    def _train(self, tried: Sequence[tuple[Any, Any]]) -> None:
        """Fit networks to their rows, as far as possible in one stack."""
        posed = []
        for network, rows in tried:
            weight = self.weight[rows] if self.has_weight else None
            fit = pose(network, self.X[rows], self.y[rows], weight)
            if fit is None:
                network.fit(self.X[rows], self.y[rows], weight)
            else:
                posed.append(fit)
        fit_side_by_side(posed)


def beyond_chance(scores: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Weights of the best mixture, or of the last one alone, (K,); see `stacked`.

    The mixture has to gain a nat for each of its K - 1 numbers, as much as they gain on
    average where there is nothing to gain (Akaike).
    """
    shares = stacked(scores, weight)
    gain = weight @ (logsumexp(scores, 0, b=shares[:, None]) - scores[-1])
    return shares if gain >= len(shares) - 1 else np.eye(len(shares))[-1]


def stacked(scores: np.ndarray, weight: np.ndarray, n_iter: int = 200) -> np.ndarray:
    """Weights of the mixture with the best log density of held-out rows, (K,).

    `scores` are log densities, (K, rows). By expectation maximization from equal
    weights (Yao et al. 2018, *Using stacking to average Bayesian predictive
    distributions*, equation 2); small weights, which are chance, are 0.
    """
    shares = np.full(len(scores), 1 / len(scores))
    likelihood = np.exp(scores - scores.max(0))
    for _ in range(n_iter):
        own = shares[:, None] * likelihood
        shares = own / own.sum(0) @ weight / weight.sum()
    shares[shares < SMALL_SHARE] = 0.0
    return shares / shares.sum()


def _noise_positions(fitted: Any) -> np.ndarray:
    """Intercepts of the outputs that are logs of scales, in theta."""
    predictor, outputs = fitted._model.predictor, fitted._model.likelihood.noise_outputs
    if not outputs:
        return np.zeros(0, int)
    return predictor.last_intercept.numpy()[list(outputs)]


def with_noise(fitted: Any, log_factor: float) -> Any:
    """Copy of an estimator whose predictions have another scale of the noise."""
    if not log_factor:
        return fitted
    other = copy(fitted)
    other._theta = fitted._theta.copy()
    other._theta[:, _noise_positions(fitted)] += log_factor
    return other


def _candidate(network: Any, divergence: KLDivergence, seed: int) -> Any:
    """An unfitted network with one member.

    It trains as long as the fit: small weights learn faster, so that shorter fits would
    prefer them.
    """
    found = clone(network).set_params(
        divergence=divergence,
        warm_start=False,
        early_stopping=False,
        validation_fraction=None,
        n_predict_draws=min(N_DRAWS, network.n_predict_draws),
        verbose=0,
        random_state=seed,
    )
    if isinstance(found.solver, Stochastic):
        found.solver.checkpoint_path = None
    found._is_candidate, found._shapes = True, getattr(network, "_shapes", None)
    found._features = network._features
    if isinstance(family := network.posterior_family_, Ensemble):
        found.posterior = clone(family).set_params(n_members=1)
    return found


def _simple(network: Any, kind: str, seed: int) -> Any:
    """An unfitted linear model or constant: a network with units that add nothing."""
    found = _candidate(network, KLDivergence(), seed)
    found.set_params(posterior="mean_field", prior="normal")
    if not isinstance(found.solver, Stochastic):
        found.solver = "auto"
    found._is_simple = kind
    if network._has_hidden_units:
        found.hidden_layer_sizes = (1,)
    return found
