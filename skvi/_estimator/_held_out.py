"""Held-out rows choose parts that are "auto": splits, scores, and the choice."""

import warnings
from copy import deepcopy
from typing import Any

import numpy as np
from sklearn.base import clone, is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.utils import check_random_state

from skvi._estimator._progress import write_line
from skvi.divergences import KLDivergence
from skvi.exceptions import IncompatibleComponentsError, SkviWarning
from skvi.losses import BetaLoss, LogLoss

# Fewer rows are not split. Of several parts each is held out in turn: as many of them
# as it takes for so many rows, and at most so many of each.
MIN_ROWS, N_PARTS, ENOUGH_ROWS, MOST_ROWS = 10, 5, 150, 1000
# Candidates, the standard one first, from weak to strong. A normal row at k standard
# deviations has the largest influence on a fit by `BetaLoss(1 + 1 / k^2)`.
PATHS = {
    "divergence": [KLDivergence(w) for w in (1.0, 0.1, 0.03, 0.01, 0.003)],
    "loss": [LogLoss(), *(BetaLoss(round(1 + k**-2, 2)) for k in (3.0, 2.0, 1.5))],
}
# Fractions of the held-out rows that may be outliers; at the last one the model itself
# is wrong.
FRACTIONS = np.linspace(0, 0.2, 21)
STAGE = "chooses {} by held-out rows"


def seed_of(estimator: Any) -> int:
    """Seed of the candidates; the source of the fit itself is left as it is."""
    if estimator.random_state is None:
        return 0
    source = check_random_state(deepcopy(estimator.random_state))
    return int(source.randint(2**31 - 1))


def split_rows(estimator: Any, y: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pairs of training and held-out rows; none if rows, or those of a class, are few.

    Held-out rows are at most a fifth, and as many folds are taken as they need.
    """
    n_rows, kind = len(y), StratifiedKFold if is_classifier(estimator) else KFold
    is_number = kind is KFold
    fewest = n_rows if is_number else np.unique(y, return_counts=True)[1].min()
    if n_rows < MIN_ROWS or fewest < 2:
        return []
    n_parts = int(min(N_PARTS, fewest))
    splitter = kind(n_parts, shuffle=True, random_state=seed_of(estimator))
    n_folds = int(np.clip(ENOUGH_ROWS * n_parts / n_rows, 1, n_parts))
    found = splitter.split(y, None if is_number else y)
    return [(train, test[:MOST_ROWS]) for train, test in found][:n_folds]


def paired(
    scores: np.ndarray, other: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Total gain over other scores of the same rows, (..., rows), and its error."""
    gain = (scores - other) * weight
    return gain.sum(-1), np.sqrt(gain.shape[-1]) * gain.std(-1)


def choose_parts(
    estimator: Any,
    X: Any,
    y: np.ndarray,
    sample_weight: np.ndarray | None,
    exposure: Any = None,
) -> tuple[dict[str, Any], dict[str, dict[str, float]]]:
    """Loss and divergence by parameter, and mean scores of the candidates of each.

    The next candidate is tried while the last one is better than all before.
    """
    names = [name for name in PATHS if estimator._is_auto(name)]
    parts = {
        name: PATHS[name][0] if name in names else estimator._resolve(name)
        for name in PATHS
    }
    judge = _Judge(estimator, X, y, sample_weight, exposure)
    judge.excepts_outliers = "loss" in names or not parts["loss"].is_log_loss
    report: dict[str, dict[str, float]] = {}
    for name in names if judge.splits else ():
        write_line(estimator, STAGE.format(name))
        parts[name], report[name] = judge.choose(name, parts)
    return {name: parts[name] for name in names}, report


class _Judge:
    """Log densities of held-out rows, by fits to the others."""

    excepts_outliers = False

    def __init__(
        self, estimator: Any, X: Any, y: np.ndarray, weight: Any, exposure: Any
    ) -> None:
        weight = np.ones(len(y)) if weight is None else weight
        keep = np.flatnonzero(weight)
        self.estimator, self.X, self.y = estimator, X[keep], y[keep]
        self.weight = weight[keep]
        self.exposure = None if exposure is None else np.asarray(exposure)[keep]
        values = np.unique(self.y)
        self.splits = split_rows(estimator, self.y) if len(values) > 1 else []
        self.n_values = len(values)
        if self.splits and not is_classifier(estimator):
            self.n_values = np.ptp(values) + np.diff(values).min()

    def choose(self, name: str, parts: dict[str, Any]) -> tuple[Any, dict[str, float]]:
        """Return the choice, and the mean scores of all that were tried.

        The best one on the first fold is compared with the standard one on all of them,
        and has to gain more than a standard error.
        """
        path, first = PATHS[name], self.splits[:1]
        rows = [self._scores(parts, first)]
        for part in path[1:]:
            rows.append(self._scores({**parts, name: part}, first, part))
            totals = np.array(rows) @ self._weights(first)
            if totals.argmax() < len(rows) - 1:
                break
        means = (totals / self._weights(first).sum()).tolist()
        report = {repr(part): mean for part, mean in zip(path, means, strict=False)}
        best = path[int(totals.argmax())]
        if best is path[0]:
            return best, report
        own, standard = rows[int(totals.argmax())], rows[0]
        if others := self.splits[1:]:
            own = np.append(own, self._scores({**parts, name: best}, others, best))
            standard = np.append(standard, self._scores(parts, others))
        gain, error = paired(own, standard, self._weights(self.splits))
        return best if gain > error else path[0], report

    def _weights(self, splits: list) -> np.ndarray:
        return self.weight[np.concatenate([test for _, test in splits])]

    def _scores(
        self, parts: dict[str, Any], splits: list, tried: Any = None
    ) -> np.ndarray:
        """Scores of the held-out rows of some splits, (rows,).

        They are -inf if the part that is tried instead of the standard one has no fit.
        """
        weight = self._weights(splits)
        try:
            with warnings.catch_warnings():  # the fit itself will say it of all rows
                for category in (SkviWarning, ConvergenceWarning):
                    warnings.simplefilter("ignore", category)
                folds = [self._fold(parts, *split) for split in splits]
        except (ValueError, ArithmeticError) as error:
            if tried is None or isinstance(error, IncompatibleComponentsError):
                raise
            return np.full(len(weight), -np.inf)
        found = np.maximum(np.concatenate(folds), np.finfo(np.float32).min)
        return self._except_outliers(found, weight, isinstance(tried, BetaLoss))

    def _fold(
        self, parts: dict[str, Any], train: np.ndarray, test: np.ndarray
    ) -> np.ndarray:
        """Log densities of a part of the rows, (rows,)."""
        parts, weight = dict(parts), self.weight[train]
        if self.estimator._is_auto("divergence"):
            # The same posterior, which more solvers can find.
            weight = weight / parts["divergence"].weight
            parts["divergence"] = KLDivergence()
        model = clone(self.estimator).set_params(
            **parts, warm_start=False, verbose=0, random_state=seed_of(self.estimator)
        )
        rows = [{}, {}]
        if self.exposure is not None:
            rows = [{"exposure": self.exposure[part]} for part in (train, test)]
        given = None if (weight == 1).all() else weight
        model.fit(self.X[train], self.y[train], given, **rows[0])
        return model.predict_log_density(self.X[test], self.y[test], **rows[1])

    def _except_outliers(
        self, scores: np.ndarray, weight: np.ndarray, is_robust: bool
    ) -> np.ndarray:
        """Scores in which outliers may have any value in the range of the targets."""
        if not self.excepts_outliers:
            return scores
        with np.errstate(divide="ignore"):
            model, other = np.log1p(-FRACTIONS), np.log(FRACTIONS / self.n_values)
        table = np.logaddexp(model[:, None] + scores, other[:, None])
        best = int((table @ weight).argmax())
        if is_robust and best == len(FRACTIONS) - 1:
            return np.full(len(scores), -np.inf)
        return table[best]
