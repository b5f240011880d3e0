"""Streams of chunks: each is a test of what was learned before it, then a lesson."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.metrics import get_scorer
from sklearn.utils.validation import check_is_fitted

from skvi.metrics import log_predictive_density_scorer
from skvi.plotting._common import COLORS, check_matplotlib, make_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["StreamResult", "stream"]

SECONDS_BETWEEN_LINES = 1.0
#: Names of the columns beside the scores.
COUNTS = ("n_rows", "seconds")
#: Arguments of `partial_fit` that scorers have, too.
ROW_DATA = ("sample_weight", "exposure")


@dataclass(frozen=True, eq=False, repr=False)
class StreamResult:
    """Scores of a stream, one for each chunk: `print` shows a table of them.

    Parameters
    ----------
    scores : dict of str to ndarray of shape (n_chunks,)
        Each chunk's score before it was learned; NaN before the first fit.
    n_rows : ndarray of int of shape (n_chunks,)
    seconds : ndarray of shape (n_chunks,)
        Of learning, without scoring.

    Examples
    --------
    >>> import numpy as np
    >>> from skvi import StreamResult
    >>> scores = {"score": np.array([np.nan, -1.0, -0.4])}
    >>> found = StreamResult(scores, np.array([10, 20, 10]), np.full(3, 0.1))
    >>> found.mean("score"), found.rows_per_second
    (-0.8, 133.3)
    """

    scores: dict[str, np.ndarray]
    n_rows: np.ndarray
    seconds: np.ndarray

    @property
    def rows_per_second(self) -> float:
        """Rows that are learned in a second, on average."""
        return float(self.n_rows.sum() / max(self.seconds.sum(), 1e-9))

    def mean(self, name: str) -> float:
        """Average a score over all rows that were scored.

        Parameters
        ----------
        name : str
            A key of `scores`.

        Returns
        -------
        float
            NaN if there was no such row.
        """
        values = self.scores[name]
        known = ~np.isnan(values)
        if not known.any():
            return float("nan")
        return float(np.average(values[known], weights=self.n_rows[known]))

    def to_dict(self) -> dict[str, list]:
        """Return columns of the table, for ``pandas.DataFrame``.

        Returns
        -------
        dict of str to list
            "n_rows", "seconds", and the scores.
        """
        counts = {name: getattr(self, name) for name in COUNTS}
        return {name: v.tolist() for name, v in (counts | self.scores).items()}

    def __str__(self) -> str:
        """Return a line for each chunk, and the means."""
        names = [f"{name:>12}" for name in ("chunk", *COUNTS, *self.scores)]
        rows = zip(*self.to_dict().values(), strict=True)
        lines = [_line(str(i), *row) for i, row in enumerate(rows)]
        means = [self.mean(name) for name in self.scores]
        total = _line("all", int(self.n_rows.sum()), float(self.seconds.sum()), *means)
        return "\n".join(["".join(names), *lines, total])

    __repr__ = __str__

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the scores over the rows that were learned before.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            None makes a figure.

        Returns
        -------
        matplotlib Axes
        """
        check_matplotlib("StreamResult.plot")
        ax = make_axes(ax, (6.4, 3.6))
        before = np.cumsum(self.n_rows) - self.n_rows
        for color, (name, values) in zip(COLORS, self.scores.items(), strict=False):
            ax.plot(before, values, ".-", color=color, label=name)
        ax.set(xlabel="rows learned before", ylabel="score of the next chunk")
        ax.legend()
        return ax


def _line(name: str, n_rows: int, seconds: float, *scores: float) -> str:
    numbers = "".join(f"{score:>12.4f}" for score in scores)
    return f"{name:>12}{n_rows:>12}{seconds:>12.3f}{numbers}"


def stream(
    estimator: Any,
    chunks: Iterable,
    *,
    scoring: Any = None,
    classes: Any = None,
    verbose: int = 0,
    **options: Any,
) -> StreamResult:
    """Learn from a stream of chunks, each of which is scored before it is learned.

    Such prequential scores need no held-out rows: every row is predicted from the rows
    before its chunk. Only one chunk has to be in memory.

    Parameters
    ----------
    estimator : estimator
        With `partial_fit`: of skvi, or another one. It is changed: what it has learned
        before is kept, and after an error, or Ctrl-C, it has learned all chunks before.
    chunks : iterable of (X, y) or (X, y, dict)
        Arrays or data frames; the dict has more arguments of `partial_fit` for this
        chunk. ``sample_weight`` and ``exposure`` are for its scores as well.
    scoring : str, callable, or dict of str to str or callable, default=None
        Scorers as in scikit-learn. None is the mean log predictive density, in nats per
        row; for estimators without one, their `score`.
    classes : array-like of shape (n_classes,), default=None
        Of a classifier: all classes that the stream can have.
    verbose : int, default=0
        1 writes a line about once a second, with the rows per second.
    **options : dict
        Further arguments of every `partial_fit`, such as ``forgetting=0.99``.

    Returns
    -------
    StreamResult

    Raises
    ------
    ValueError
        There is no chunk, or one is something else than a pair.

    Examples
    --------
    >>> import numpy as np
    >>> import skvi
    >>> from skvi.linear_model import BayesianLogisticRegression
    >>> rng = np.random.default_rng(0)
    >>> def chunks():
    ...     for _ in range(5):
    ...         X = rng.normal(size=(100, 3))
    ...         yield X, X[:, 0] + rng.logistic(size=100) > 0
    >>> model = BayesianLogisticRegression()
    >>> found = skvi.stream(model, chunks(), classes=[False, True])
    >>> bool(found.mean("log_predictive_density") > -np.log(2))
    True
    """
    scorers = _scorers(estimator, scoring)
    table: dict[str, list] = {name: [] for name in (*COUNTS, *scorers)}
    start = last = time.monotonic()
    for chunk in chunks:
        X, y, own = _parts(chunk)
        is_fitted = _is_fitted(estimator)
        about = {name: own[name] for name in ROW_DATA if name in own}
        for name, scorer in scorers.items():
            value = scorer(estimator, X, y, **about) if is_fitted else np.nan
            table[name].append(value)
        if classes is not None and not is_fitted:
            own["classes"] = classes
        began = time.monotonic()
        estimator.partial_fit(X, y, **options, **own)
        now = time.monotonic()
        table["n_rows"].append(len(y))
        table["seconds"].append(now - began)
        if verbose and now - last > SECONDS_BETWEEN_LINES:
            last = now
            _report(estimator, table, now - start)
    if not table["n_rows"]:
        raise ValueError("chunks is empty: there is nothing to learn from.")
    arrays = {name: np.array(values) for name, values in table.items()}
    scores = {name: arrays[name] for name in scorers}
    return StreamResult(scores, arrays["n_rows"], arrays["seconds"])


def _parts(chunk: Any) -> tuple[Any, Any, dict[str, Any]]:
    """X, y and more arguments of a chunk."""
    parts = chunk if isinstance(chunk, tuple | list) else ()
    if len(parts) not in (2, 3) or not all(isinstance(p, Mapping) for p in parts[2:]):
        raise ValueError(
            "Every chunk must be (X, y), or (X, y, dict) with more arguments of "
            f"partial_fit, such as sample_weight. Got {type(chunk).__name__}."
        )
    return parts[0], parts[1], dict(parts[2]) if len(parts) == 3 else {}


def _scorers(estimator: Any, scoring: Any) -> dict[str, Callable]:
    """Scorers by name."""
    if scoring is None:
        method = "predict_proba" if is_classifier(estimator) else "predict_log_density"
        if hasattr(estimator, method):
            return {"log_predictive_density": log_predictive_density_scorer}
        return {"score": lambda model, X, y, **about: model.score(X, y, **about)}
    if not isinstance(scoring, Mapping):
        scoring = {scoring if isinstance(scoring, str) else "score": scoring}
    return {name: get_scorer(given) for name, given in scoring.items()}


def _is_fitted(estimator: Any) -> bool:
    try:
        check_is_fitted(estimator)
    except NotFittedError:
        return False
    return True


def _report(estimator: Any, table: dict[str, list], seconds: float) -> None:
    n_rows = sum(table["n_rows"])
    scores = [f"{name} {table[name][-1]:.4f}" for name in table if name not in COUNTS]
    text = ", ".join([f"{n_rows} rows", f"{n_rows / seconds:.0f} per second", *scores])
    print(f"[{type(estimator).__name__}] {text}", flush=True)  # noqa: T201
