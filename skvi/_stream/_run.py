"""Streams: score a chunk, learn it, go on; files to go on from, and the scores."""

import os
import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sklearn.base import is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.metrics import get_scorer
from sklearn.utils.validation import check_is_fitted

from skvi._estimator._progress import SECONDS_BETWEEN_LINES
from skvi.metrics import log_predictive_density_scorer
from skvi.plotting._rows import COLORS, check_matplotlib, make_axes
from skvi.utils._tables import MAX_PRINTED, as_html
from skvi.utils._validation import ROW_DATA


class Chunk(NamedTuple):
    """Rows, and more arguments of `partial_fit`."""

    X: Any
    y: Any
    options: dict[str, Any]


def chunks_of(given: Any, target: str | None) -> Iterator[Chunk]:
    """Chunks of an iterable of pairs, or of tables, or of a parquet file of tables.

    ImportError without pyarrow where it is needed, ValueError for what is no chunk.
    """
    if isinstance(given, str | PathLike):
        given = _record_batches(given, target)
    elif isinstance(given, Mapping) or not isinstance(given, Iterable):
        raise ValueError(
            "chunks must be an iterable of (X, y), or with target='name' of tables, or "
            f"the path of a parquet file. Got {type(given).__name__}."
        )
    return map(_pair, given) if target is None else _tables(given, target)


def _record_batches(path: str | PathLike, target: str | None) -> Iterable:
    if target is None:
        raise ValueError(
            f"chunks={fspath(path)!r} is a file of tables: give target='name', the "
            "name of the column of y."
        )
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise ImportError(
            "Parquet files are read by pyarrow: pip install 'skvi[arrow]'."
        ) from error
    return ParquetFile(path).iter_batches()


def _pair(chunk: Any) -> Chunk:
    parts = chunk if isinstance(chunk, tuple | list) else ()
    if len(parts) not in (2, 3) or not all(isinstance(p, Mapping) for p in parts[2:]):
        raise ValueError(
            "Every chunk must be (X, y), or (X, y, dict) with more arguments of "
            "partial_fit, such as sample_weight; or a table, if target is the name of "
            f"the column of y. Got {type(chunk).__name__}."
        )
    return Chunk(parts[0], parts[1], dict(parts[2]) if len(parts) == 3 else {})


def _tables(given: Iterable, target: str) -> Iterator[Chunk]:
    """Features, in the order of the first table, and targets."""
    features: list[str] | None = None
    for table in given:
        is_arrow = hasattr(table, "column_names")
        names = list(getattr(table, "column_names" if is_arrow else "columns", ()))
        if features is None:
            features = [name for name in names if name != target]
        if {*names} != {*features, target}:
            raise ValueError(
                f"target={target!r}: every chunk must be a table of pandas, polars or "
                f"pyarrow with this column and those of the first chunk, {features}. "
                f"Got {type(table).__name__} with {names}."
            )
        X = np.asarray(table.select(features)) if is_arrow else table[features]
        yield Chunk(X, np.asarray(table[target]), {})


class StreamCheckpoint:
    """A pickle of what an estimator has learned, and of the scores so far.

    `identity` are the parameters of the stream; None for `path` keeps nothing.
    """

    def __init__(
        self, path: str | os.PathLike | None, interval: float, identity: dict[str, str]
    ) -> None:
        self.path = None if path is None else Path(path)
        self.interval, self.identity = interval, identity
        self.last_write = time.monotonic()

    def resume(self, estimator: Any, table: dict[str, list]) -> None:
        """Restore what the file has, if there is one."""
        if self.path is None or not self.path.exists():
            return
        state = pickle.loads(self.path.read_bytes())
        if state["identity"] != self.identity:
            pairs = self.identity.items()
            other = [name for name, v in pairs if state["identity"].get(name) != v]
            raise ValueError(
                f"checkpoint_path={str(self.path)!r} belongs to another stream: it has "
                f"another {', '.join(other)}. Delete the file, or use another path."
            )
        vars(estimator).update(state["estimator"])
        table.update(state["table"])

    def save(self, estimator: Any, table: dict[str, list], now: bool = False) -> None:
        """Write the file, atomically, if it is time for it."""
        if self.path is None:
            return
        if not now and time.monotonic() - self.last_write < self.interval:
            return
        state = {"identity": self.identity, "estimator": vars(estimator)}
        written = self.path.with_name(self.path.name + ".part")
        written.write_bytes(pickle.dumps(state | {"table": table}))
        os.replace(written, self.path)
        self.last_write = time.monotonic()


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame


#: Names of the columns beside the scores.
COUNTS = ("n_rows", "seconds")


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
    >>> from skvi._stream._run import StreamResult
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

    def to_frame(self) -> "DataFrame":
        """Return the table as a pandas data frame, with a row for each chunk.

        Returns
        -------
        pandas.DataFrame
        """
        try:
            from pandas import DataFrame
        except ImportError as error:
            raise ImportError(
                "StreamResult.to_frame needs pandas: install it, or use to_dict."
            ) from error
        return DataFrame(self.to_dict())

    def to_dict(self) -> dict[str, list]:
        """Return columns of the table.

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
        return "\n".join(["".join(names), *lines, _line("all", *self._total())])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the last chunks, as many as are shown, and the means."""
        n, last = len(self.n_rows), 1 - MAX_PRINTED
        columns = {"chunk": list(range(n)), **self.to_dict()}
        pairs = zip(columns.items(), ("all", *self._total()), strict=True)
        return as_html({k: [*values[last:], total] for (k, values), total in pairs})

    def _total(self) -> tuple:
        """Rows, seconds, and the mean of each score."""
        means = [self.mean(name) for name in self.scores]
        return int(self.n_rows.sum()), float(self.seconds.sum()), *means

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
    chunks: Iterable | str | PathLike,
    *,
    target: str | None = None,
    scoring: Any = None,
    classes: Any = None,
    verbose: int = 0,
    checkpoint_path: str | PathLike | None = None,
    checkpoint_interval: float = 60.0,
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
    chunks : iterable of (X, y) or (X, y, dict), or of tables, or path
        Arrays or tables; the dict has more arguments of `partial_fit` for this chunk.
        ``sample_weight``, ``exposure`` and the like are for its scores as well. With
        `target` chunks are tables of pandas, polars or pyarrow (record batches), or the
        path is that of a parquet file, which pyarrow reads batch after batch.
    target : str, default=None
        Name of the column of y in tables; all others are features.
    scoring : str, callable, or dict of str to str or callable, default=None
        Scorers as in scikit-learn. None is the mean log predictive density, in nats per
        row; for estimators without one, their `score`.
    classes : array-like of shape (n_classes,), default=None
        Of a classifier: all classes that the stream can have.
    verbose : int, default=0
        1 writes a line about once a second, with the rows per second.
    checkpoint_path : str or path-like, default=None
        A file in which the state is saved. If it exists, the stream is resumed from
        there: `chunks` begin at the first one again, and those that were learned are
        skipped; the result is that of an uninterrupted stream. It is a pickle: read
        only your own.
    checkpoint_interval : float, default=60.0
        Seconds between two writes of that file, the most that can be lost. 0 writes it
        after every chunk.
    **options : dict
        Further arguments of every `partial_fit`, such as ``forgetting=0.99``.

    Returns
    -------
    StreamResult

    Raises
    ------
    ValueError
        There is no chunk, or one is something else than a pair or a table. Notes of
        errors, also of those of `partial_fit`, name the chunk.

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
    if not hasattr(estimator, "partial_fit"):
        raise TypeError(
            f"{estimator!r} has no partial_fit, by which streams are learned. Use an "
            "estimator that has it, such as BayesianLinearRegression(); in place of a "
            "pipeline give its last step, and chunks that are transformed."
        )
    scorers = _scorers(estimator, scoring)
    table: dict[str, list] = {name: [] for name in (*COUNTS, *scorers)}
    identity = {"estimator": repr(estimator), "scoring": repr(list(scorers))}
    identity["options"] = repr(options)
    file = StreamCheckpoint(checkpoint_path, checkpoint_interval, identity)
    file.resume(estimator, table)
    start = last = time.monotonic()
    n_before = sum(table["n_rows"])
    with _chunk_named(table):
        for chunk in islice(chunks_of(chunks, target), len(table["n_rows"]), None):
            _learn(estimator, chunk, table, scorers, classes, options)
            file.save(estimator, table)
            if verbose and time.monotonic() - last > SECONDS_BETWEEN_LINES:
                last = time.monotonic()
                _report(estimator, table, n_before, last - start)
    if not table["n_rows"]:
        raise ValueError("chunks is empty: there is nothing to learn from.")
    file.save(estimator, table, now=True)
    arrays = {name: np.array(values) for name, values in table.items()}
    scores = {name: arrays[name] for name in scorers}
    return StreamResult(scores, arrays["n_rows"], arrays["seconds"])


def _learn(
    estimator: Any,
    chunk: Chunk,
    table: dict[str, list],
    scorers: dict[str, Callable],
    classes: Any,
    options: dict[str, Any],
) -> None:
    """Score a chunk, learn it, and add a row to the table if all went well."""
    X, y, own = chunk
    is_fitted, row = _is_fitted(estimator), {}
    about = {name: own[name] for name in ROW_DATA if name in own}
    for name, scorer in scorers.items():
        row[name] = scorer(estimator, X, y, **about) if is_fitted else np.nan
    if classes is not None and not is_fitted:
        own["classes"] = classes
    began = time.monotonic()
    estimator.partial_fit(X, y, **options, **own)
    row |= {"n_rows": len(y), "seconds": time.monotonic() - began}
    for name, value in row.items():
        table[name].append(value)


@contextmanager
def _chunk_named(table: dict[str, list]) -> Iterator[None]:
    """Say in errors which chunk they are about."""
    try:
        yield
    except BaseException as error:
        n_rows, n_chunks = sum(table["n_rows"]), len(table["n_rows"])
        error.add_note(
            f"This is about chunk {n_chunks} of the stream, counted from 0; the "
            f"{n_rows} rows before it are learned."
        )
        raise


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


def _report(
    estimator: Any, table: dict[str, list], n_before: int, seconds: float
) -> None:
    n_rows = sum(table["n_rows"])
    scores = [f"{name} {table[name][-1]:.4f}" for name in table if name not in COUNTS]
    text = ", ".join(
        [f"{n_rows} rows", f"{(n_rows - n_before) / seconds:.0f} per second", *scores]
    )
    print(f"[{type(estimator).__name__}] {text}", flush=True)  # noqa: T201
