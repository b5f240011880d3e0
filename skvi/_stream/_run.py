"""Score a chunk, learn it, and go on with the next one."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from os import PathLike
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.metrics import get_scorer
from sklearn.utils.validation import check_is_fitted

from skvi._stream._checkpoint import StreamCheckpoint
from skvi._stream._chunks import Chunk, chunks_of
from skvi._stream._result import COUNTS, StreamResult
from skvi.metrics import log_predictive_density_scorer

__all__ = ["stream"]

SECONDS_BETWEEN_LINES = 1.0
#: Arguments of `partial_fit` that scorers have, too.
ROW_DATA = ("sample_weight", "exposure")


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
        ``sample_weight`` and ``exposure`` are for its scores as well. With `target`
        chunks are tables of pandas, polars or pyarrow (record batches), or the path is
        that of a parquet file, which pyarrow reads batch after batch.
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
