"""Single bounds with their meaning, and the table of bounds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

__all__ = ["ALWAYS", "MEAN", "NEVER", "PROBABLE", "BoundsTable", "NamedBound"]

#: In which sense a row bounds the evidence.
ALWAYS, MEAN, NEVER = "always", "in expectation", "never"
PROBABLE = "with 95 % probability"
#: From certain to useless.
EXISTS = (True, None, False)


@dataclass(frozen=True)
class NamedBound(dict):
    """One row of the table of bounds.

    Also a dict of its fields, for pandas and JSON.

    Parameters
    ----------
    value : float
        Nats.
    standard_error : float
        Asymptotic; 0 if the value has no Monte Carlo noise.
    direction : {"lower", "upper", "estimate"}
    certifies : str
        The sense in which the number is a valid bound, and under which condition.
    exists : bool or None, default=True
        Whether the estimated bound is finite; None if unknown. Estimates from draws are
        finite in any case.
    holds : {"always", "in expectation", "with 95 % probability", "never"}, \
default="in expectation"
        In which sense this number, from finitely many draws, is on its side of the
        evidence. "always": without noise. "never": not a valid bound.
    k : int, default=None
        Draws inside each logarithm, for importance-weighted bounds.

    Examples
    --------
    >>> from skvi.evidence._named import NamedBound
    >>> row = NamedBound(-7.26, 0.0, "lower", "a bound, exactly", holds="always")
    >>> row.is_certificate
    True
    >>> row["direction"]
    'lower'
    """

    value: float
    standard_error: float
    direction: str
    certifies: str
    exists: bool | None = True
    holds: str = MEAN
    k: int | None = None

    def __post_init__(self) -> None:
        """Make this also a dict of the fields."""
        self.update(vars(self))

    @property
    def is_certificate(self) -> bool:
        """Whether the number bounds the evidence, in the sense of `holds`."""
        return self.holds != NEVER and self.direction in ("lower", "upper")


class BoundsTable(dict):
    """Named bounds, from the lowest to the highest.

    A dict of name to `NamedBound`, that prints as a table. ``pandas.DataFrame(table)``
    has one column for each bound.

    Examples
    --------
    >>> from skvi.evidence._named import BoundsTable, NamedBound
    >>> table = BoundsTable(
    ...     {"ELBO of q": NamedBound(-7.26, 0.0, "lower", "a bound, exactly")}
    ... )
    >>> print(table)
      ELBO of q                       -7.2600 +- 0.0000  lower    a bound, exactly
    >>> table.to_dict()["value"]
    [-7.26]
    """

    def to_dict(self) -> dict[str, list]:
        """Return one column for each field: ``pandas.DataFrame(table.to_dict())``.

        Returns
        -------
        dict of str to list
            "bound" (the names), the fields of `NamedBound`, and "is_certificate".
        """
        rows = [
            {"bound": name, **asdict(row), "is_certificate": row.is_certificate}
            for name, row in self.items()
        ]
        return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}

    @classmethod
    def sum(cls, tables: Sequence[Mapping[str, NamedBound]]) -> "BoundsTable":
        """Bound the sum of the log evidences of independent models.

        Parameters
        ----------
        tables : sequence of dict of str to NamedBound

        Returns
        -------
        BoundsTable
            Sums of the bounds that all tables have. Errors are combined as if draws
            were independent. Rows that hold with 95 % probability are left out: they
            hold individually, but not jointly.
        """
        found = cls()
        for name in tables[0]:
            rows = [table[name] for table in tables if name in table]
            if len(rows) == len(tables) and all(r.holds != PROBABLE for r in rows):
                found[name] = _add(rows)
        return found

    def __str__(self) -> str:
        """Return one line for each bound."""
        return "\n".join(
            f"  {_label(name, row):<26} {_number(row.value):>12}"
            f" +- {_number(row.standard_error)}"
            f"  {row.direction:<8} {row.certifies}"
            for name, row in self.items()
        )

    __repr__ = __str__


def _number(value: float) -> str:
    """Four decimals; fewer digits for very large values."""
    return f"{value:.4f}" if abs(value) < 1e9 else f"{value:.5g}"


def _add(rows: list[NamedBound]) -> NamedBound:
    """Sum of bounds, which holds and exists like the weakest of them."""
    weakest = max(
        rows,
        key=lambda r: ((ALWAYS, MEAN, NEVER).index(r.holds), EXISTS.index(r.exists)),
    )
    return replace(
        weakest,
        value=math.fsum(row.value for row in rows),
        standard_error=math.hypot(*(row.standard_error for row in rows)),
        k=rows[0].k if len({row.k for row in rows}) == 1 else None,
    )


def _label(name: str, row: NamedBound) -> str:
    return name if row.k is None else f"{name} (K={row.k})"
