"""Chunks of a stream: pairs of arrays, tables with a target, files of tables."""

from collections.abc import Iterable, Iterator, Mapping
from os import PathLike, fspath
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Chunk", "chunks_of"]


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
