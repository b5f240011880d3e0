"""Held-out rows choose parts that are "auto": splits, scores, and the choice."""

import warnings
from copy import deepcopy
from typing import Any

import numpy as np
from sklearn.base import clone, is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.utils import check_random_state

from skvi._estimator._fitting import cost_of_prior, fit_likeliest
from skvi._estimator._progress import write_line
from skvi.divergences import KLDivergence
from skvi.exceptions import IncompatibleComponentsError, SkviWarning
from skvi.losses import BetaLoss, LogLoss

# Fewer rows are not split. Of several parts each is held out in turn: as many of them
# as it takes for so many rows, and at most so many of each.
MIN_ROWS, N_PARTS, ENOUGH_ROWS, MOST_ROWS = 10, 5, 150, 1000
# Candidates from weak to strong, the standard one first; the place of the one that is
# compared with it. With `BetaLoss(1 + 1 / k^2)` the influence of a row is largest at k
# standard deviations.
PATHS: dict[str, list] = {
    "divergence": [KLDivergence(w) for w in (1.0, 0.1, 0.03, 0.01, 0.003)],
    "loss": [LogLoss(), *(BetaLoss(round(1 + k**-2, 2)) for k in (3.0, 2.0, 1.5))],
}
FIRST = {"divergence": 1, "loss": 2}
# Folds are added until the gain is this number of paired standard errors above 0, or
# below what counts. The standard candidate is left for as many, and others for one, as
# is a misplaced prior; all for so many nats per row: neighbors on a path are so alike
# that differences of no use are certain.
N_ERRORS, LEAST_GAIN = 2.0, 0.01
# Fractions of the held-out rows that may be outliers; at the last one the model itself
# is wrong.
FRACTIONS = np.linspace(0, 0.2, 21)
STAGE = "chooses {} by held-out rows"


def seed_of(estimator: Any) -> int:
    """Seed of the candidates; the source of the fit itself is left as it is."""
    if (shared := getattr(estimator, "_shared_seed", None)) is not None:
        return shared
    if estimator.random_state is None:
        return 0
    source = check_random_state(deepcopy(estimator.random_state))
    return int(source.randint(2**31 - 1))


def split_rows(
    estimator: Any, y: np.ndarray, is_enough: bool = False
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pairs of training and held-out rows; none if rows, or those of a class, are few.

    Held-out rows are at most a fifth, and as many folds are taken as they need; with
    `is_enough` one more rather than too few.
    """
    n_rows, kind = len(y), StratifiedKFold if is_classifier(estimator) else KFold
    is_number = kind is KFold
    fewest = n_rows if is_number else np.unique(y, return_counts=True)[1].min()
    if n_rows < MIN_ROWS or fewest < 2:
        return []
    n_parts = int(min(N_PARTS, fewest))
    splitter = kind(n_parts, shuffle=True, random_state=seed_of(estimator))
    n_needed = ENOUGH_ROWS * n_parts / n_rows
    n_needed = np.ceil(n_needed) if is_enough else n_needed
    n_folds = int(np.clip(n_needed, 1, n_parts))
    found = list(splitter.split(y, None if is_number else y))[:n_folds]
    source = np.random.RandomState(seed_of(estimator))
    # Of rows in any order: a file may be sorted.
    return [
        (train, np.sort(source.permutation(test)[:MOST_ROWS])) for train, test in found
    ]


def paired(
    scores: np.ndarray, other: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Total gain over other scores of the same rows, (..., rows), and its error."""
    with np.errstate(invalid="ignore"):  # of scores -inf
        gain = (scores - other) * weight
        return gain.sum(-1), np.sqrt(gain.shape[-1]) * gain.std(-1)


def choose_parts(
    estimator: Any,
    X: Any,
    y: np.ndarray,
    sample_weight: np.ndarray | None,
    rows: Any,
) -> tuple[dict[str, Any], dict[str, dict[str, float]]]:
    """Loss and divergence by parameter, and mean scores of the candidates of each.

    A first candidate is compared with the standard one, if that leaves anything to
    gain; stronger ones follow if it is better, else weaker ones, as long as each is
    better than the one before: by more than a standard error of the paired difference,
    two if that is the standard one and its prior is not misplaced, and a hundredth of a
    nat per row.
    """
    names = [name for name in PATHS if estimator._is_auto(name)]
    parts = {
        name: PATHS[name][0] if name in names else estimator._resolve(name)
        for name in PATHS
    }
    judge = _Judge(estimator, X, y, sample_weight, rows)
    judge.excepts_outliers = "loss" in names or not parts["loss"].is_log_loss
    report: dict[str, dict[str, float]] = {}
    for name in names if judge.splits else ():
        write_line(estimator, STAGE.format(name))
        parts[name], report[name] = judge.choose(name, parts)
    return {name: parts[name] for name in names}, report


class _Judge:
    """Fits to parts of the rows, and log densities of those held out."""

    excepts_outliers = False

    def __init__(
        self, estimator: Any, X: Any, y: np.ndarray, weight: Any, rows: Any
    ) -> None:
        weight = np.ones(len(y)) if weight is None else weight
        keep = np.flatnonzero(weight)
        self.estimator, self.X, self.y = estimator, X[keep], y[keep]
        self.weight = weight[keep]
        self.rows = {
            name: np.broadcast_to(values, len(y))[keep]
            for name, values in rows.items()
            if values is not None
        }
        values = np.unique(self.y)
        self.splits = split_rows(estimator, self.y, True) if len(values) > 1 else []
        self.n_values = len(values)
        if self.splits and not is_classifier(estimator):
            self.n_values = np.ptp(values) + np.diff(values).min()
        #: Log densities by candidate and fold; fits to the first fold, and its rows.
        self.held: dict[tuple, list[np.ndarray]] = {}
        self.fits: dict[tuple, tuple] = {}

    def choose(self, name: str, parts: dict[str, Any]) -> tuple[Any, dict[str, float]]:
        """Return the choice, and the mean scores of all that were tried."""
        path, first = PATHS[name], FIRST[name]
        tried = [{**parts, name: part} for part in path]
        rows, n_folds, best = {0: self._scores(tried[0], 1)}, 1, 0
        weight, others = self._weights(1), range(0)
        if self._may_gain(name, tried[0]):
            is_misplaced = name == "divergence" and self._is_misplaced(tried[0])
            n_errors = 1.0 if is_misplaced else N_ERRORS
            for n_folds in range(1, len(self.splits) + 1):
                weight = self._weights(n_folds)
                rows = {k: self._scores(tried[k], n_folds) for k in (0, first)}
                gain, error = paired(rows[first], rows[0], weight)
                least, most = gain - n_errors * error, gain + n_errors * error
                if least > 0 or most < LEAST_GAIN * weight.sum():
                    break
            best = first if self._is_better(gain, n_errors * error, weight) else 0
            stronger, weaker = range(first + 1, len(path)), range(first - 1, 0, -1)
            others = stronger if best else weaker
        for k in others:
            if best and not self._may_gain(name, tried[best]):
                break
            rows[k] = self._scores(tried[k], n_folds)
            gain, error = paired(rows[k], rows[best], weight)
            if not self._is_better(gain, error, weight):
                break
            best = k
        total = weight.sum()
        report = {repr(path[k]): float(row @ weight / total) for k, row in rows.items()}
        return path[best], report

    def _may_gain(self, name: str, parts: dict[str, Any]) -> bool:
        """Whether the rows of the first fold leave anything to gain by other parts.

        By less weight of the prior about what the prior costs. By a robust loss
        nothing, to the first order, if no fraction of outliers increases the score.
        """
        if self._key(parts) not in self.fits:
            return True
        model, solution, weight, own, rows = self.fits[self._key(parts)]
        if name == "divergence":
            return bool(cost_of_prior(solution) > LEAST_GAIN * weight.sum())
        scores = model.predict_log_density(*own, **rows)
        with np.errstate(over="ignore"):
            # The slope of the mean score in the fraction of outliers, where it is 0.
            odds = np.exp(-scores) / self.n_values
        return bool(odds @ weight > weight.sum())

    def _is_misplaced(self, parts: dict[str, Any]) -> bool:
        """Whether the prior costs much more than a right one does.

        That costs half a nat per coefficient at most, in the mean.
        """
        if self._key(parts) not in self.fits:
            return False
        solution = self.fits[self._key(parts)][1]
        n_params = solution.posterior.layout.size
        return bool(n_params < cost_of_prior(solution) < np.inf)

    @staticmethod
    def _is_better(gain: np.ndarray, error: np.ndarray, weight: np.ndarray) -> bool:
        return bool(gain > max(float(error), LEAST_GAIN * weight.sum()))

    @staticmethod
    def _key(parts: dict[str, Any]) -> tuple:
        return tuple(map(id, parts.values()))

    def _weights(self, n_folds: int) -> np.ndarray:
        return self.weight[np.concatenate([test for _, test in self.splits[:n_folds]])]

    def _scores(self, parts: dict[str, Any], n_folds: int) -> np.ndarray:
        """Scores of the rows held out in so many folds, (rows,)."""
        held = self.held.setdefault(self._key(parts), [])
        while len(held) < n_folds:
            held.append(self._fold(parts, *self.splits[len(held)]))
        found = np.concatenate(held[:n_folds])
        if not self.excepts_outliers:
            return found
        # Outliers may have any value in the range of the targets.
        with np.errstate(divide="ignore"):
            model, other = np.log1p(-FRACTIONS), np.log(FRACTIONS / self.n_values)
        table = np.logaddexp(model[:, None] + found, other[:, None])
        best = int((table @ self._weights(n_folds)).argmax())
        is_wrong = best == len(FRACTIONS) - 1 and isinstance(parts["loss"], BetaLoss)
        return np.full(len(found), -np.inf) if is_wrong else table[best]

    def _fold(
        self, parts: dict[str, Any], train: np.ndarray, test: np.ndarray
    ) -> np.ndarray:
        """Log densities of held-out rows, (rows,); -inf where there is no fit."""
        key = self._key(parts)
        # Held-out rows have no names.
        weight, groups = self.weight[train], self.estimator._groups_by_position()
        parts = {**parts, "column_groups": groups} if groups else dict(parts)
        if self.estimator._is_auto("divergence"):
            # The same posterior, which more solvers can find.
            weight = weight / parts["divergence"].weight
            parts["divergence"] = KLDivergence()
        parts |= {"warm_start": False, "verbose": 0}
        parts["random_state"] = seed_of(self.estimator)
        model = clone(self.estimator)
        known = model.get_params(deep=False)  # some take no divergence
        model.set_params(**{k: part for k, part in parts.items() if k in known})
        rows = [
            {name: values[part] for name, values in self.rows.items()}
            for part in (train, test)
        ]
        given = None if (weight == 1).all() else weight
        try:
            with warnings.catch_warnings():  # the fit itself will say it of all rows
                for category in (SkviWarning, ConvergenceWarning):
                    warnings.simplefilter("ignore", category)
                own = self.X[train], self.y[train]
                solution = fit_likeliest(model, *own, given, rows[0])
                self.fits.setdefault(key, (model, solution, weight, own, rows[0]))
                found = model.predict_log_density(self.X[test], self.y[test], **rows[1])
        except IncompatibleComponentsError as error:
            part, *rest = error.args
            for name in filter(self.estimator._is_auto, PATHS):
                part = part.replace(f"{name}={parts[name]!r}", f"{name}='auto'")
            raise IncompatibleComponentsError(part, *rest) from None
        except (ValueError, ArithmeticError):
            return np.full(len(test), -np.inf)
        return np.maximum(found, np.finfo(np.float32).min)
