"""The table of bounds: in which sense each holds, and whether it exists."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from skvi._sampling._chains import Chains
from skvi.evidence._estimates import (
    Estimate,
    Sides,
    forward_bound,
    jackknife,
    reverse_bound,
    weights_of_chains,
)
from skvi.objectives import ChiBound, RenyiBound
from skvi.posteriors import Posterior
from skvi.targets import Target
from skvi.utils._tables import as_html

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
    >>> from skvi.evidence._table import NamedBound
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
    >>> from skvi.evidence._table import BoundsTable, NamedBound
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

    def _repr_html_(self) -> str:
        columns = {
            "bound": [_label(name, row) for name, row in self.items()],
            "nats": [_number(row.value) for row in self.values()],
            "standard error": [_number(row.standard_error) for row in self.values()],
            "direction": [row.direction for row in self.values()],
            "certifies": [row.certifies for row in self.values()],
        }
        return as_html(columns)


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


# Draws of q behind the rows that are functions of its weights, and in each term of its
# importance-weighted bounds.
N_DRAWS, K_OF_Q = 4096, 16
# Elements that their evaluation may process for each draw behind the lower bound; at
# least LEAST_DRAWS, or as many as the lower bound has, but not below FEWEST.
NUMBERS_PER_DRAW, LEAST_DRAWS, FEWEST = 2**15, 512, 128
EXPECTED = "a bound in expectation"
#: Row of the samples of a refined posterior, whose auxiliary variables it counts.
OF_SAMPLES = "ELBO of the samples"
#: Row of the estimate plus what an approximation adds for learned hyperparameters.
OVER_LEARNED = "over learned numbers"
IF_EXACT = "a bound in expectation, if chains are exact"
SELF_NORMALIZED = "no valid bound: too low if few draws of q are effective"
#: Meaning of an estimate from draws of q, by whether the exact upper bound is finite.
OF_UPPER = {
    True: "no valid bound: from draws it is biased low",
    False: "+inf in expectation; no valid bound",
    None: "no valid bound: biased low, and perhaps +inf in expectation",
}


def with_samples(found: Any, elbo: tuple[float, float]) -> Any:
    """Bounds with the ELBO of refined samples and its standard error."""
    row = NamedBound(*elbo, "lower", EXPECTED)
    rows = {name: found.table[name] for name in ("ELBO of q",) if name in found.table}
    return replace(found, table={**rows, OF_SAMPLES: row, **found.table})


def elbo_row(elbo: tuple[float, float]) -> NamedBound:
    """Row of the ELBO from its value and standard error, in nats.

    It always holds if the error is 0 (closed form), otherwise in expectation.
    """
    if elbo[1]:
        return NamedBound(*elbo, "lower", EXPECTED)
    return NamedBound(*elbo, "lower", "a bound, exactly", holds=ALWAYS)


def build_table(
    target: Target,
    posterior: Posterior,
    sides: Sides,
    both: tuple[Estimate, Estimate],
    bridge: Estimate,
    finite: tuple[float, float],
    elbo: NamedBound,
    generator: torch.Generator,
) -> BoundsTable:
    """Every bound with the sense in which it is valid, in ascending order.

    `both` are the result's bounds, `finite` those that hold at any sample size.
    """
    exists = upper_exists(target)
    n_draws = _n_draws(target.cost_per_draw, len(sides.forward))
    below, above = _rows_of_q(target, posterior, n_draws, generator)
    table = BoundsTable({"ELBO of q": elbo, **below})
    table["IW-ELBO"] = NamedBound(*both[0], "lower", EXPECTED, k=sides.k_below)
    holds = "holds with 95 % probability"
    table["lower, 95 %"] = NamedBound(finite[0], 0.0, "lower", holds, holds=PROBABLE)
    table["bridge"] = NamedBound(
        *bridge, "estimate", "consistent, not a bound", holds=NEVER
    )
    holds = f"{holds} if chains are exact"
    table["upper, 95 %"] = NamedBound(
        finite[1], 0.0, "upper", holds, exists=exists, holds=PROBABLE
    )
    k = min(sides.k_above, sides.reverse.shape[1])
    table["IW-EUBO"] = upper_row(both[1], exists, k)
    exists = exists if posterior.as_normal() is not None else None
    table.update(rows_of_chains(sides.chains, posterior, exists))
    table.update(above)
    return table


def rows_of_chains(
    chains: Chains, posterior: Posterior, exists: bool | None
) -> dict[str, NamedBound]:
    """Upper bounds from the density of q at posterior draws, where it is known."""
    if posterior.side != "exact":
        return {}
    of_q = weights_of_chains(chains, posterior)
    k = min(K_OF_Q, of_q.shape[1])
    return {
        "IW-EUBO of q": upper_row(reverse_bound(of_q, k), exists, k),
        "EUBO of q": upper_row(reverse_bound(of_q, 1), exists),
    }


def _n_draws(cost: int, n_below: int) -> int:
    least = min(max(n_below, FEWEST), LEAST_DRAWS)
    return min(max(NUMBERS_PER_DRAW * n_below // cost, least), N_DRAWS)


def upper_row(
    estimate: Estimate, exists: bool | None, k: int | None = None
) -> NamedBound:
    """Row of a bound from posterior draws."""
    says = IF_EXACT if exists else f"{IF_EXACT}; perhaps +inf"
    return NamedBound(*estimate, "upper", says, exists=exists, k=k)


def upper_exists(target: Target) -> bool | None:
    """Whether E_p[lw] is finite for normal proposals: p's second moments are.

    They certainly are if the joint density has the tails of a normal.
    """
    found = target.tail_precision()
    if found is None:
        return None
    tail, _ = found
    if tail.ndim == 1:
        return True if bool((tail > 0).all()) else None
    return True if not int(torch.linalg.cholesky_ex(tail)[1]) else None


def _rows_of_q(
    target: Target, posterior: Posterior, n_draws: int, generator: torch.Generator
) -> tuple[dict[str, NamedBound], dict[str, NamedBound]]:
    """Functions of the weights of q, below and above; the last two are the same one."""
    draw = posterior.draw(n_draws, generator)
    theta, log_q = draw.theta, draw.log_q
    log_weights = target.log_joint_batched(theta) - log_q
    below, above = {}, {}
    objectives = {
        "Renyi (alpha=0.5) of q": RenyiBound(0.5),
        "Renyi (alpha=-0.5) of q": RenyiBound(-0.5),
        "Renyi (alpha=-1) of q": RenyiBound(-1),
        "chi (order=2) of q": ChiBound(2),
    }
    value = forward_bound(log_weights, K_OF_Q)
    iw = NamedBound(*value, "lower", EXPECTED, k=K_OF_Q)
    value = jackknife(_self_normalized, log_weights)
    eubo = NamedBound(*value, "upper", SELF_NORMALIZED, holds=NEVER)
    above["EUBO of q, self-normalized"] = eubo
    for name, objective in objectives.items():
        found = jackknife(objective.bound, log_weights)
        exists = objective.exists(target, posterior)
        if objective.direction == "lower":
            below[name] = NamedBound(*found, "lower", EXPECTED, exists=exists)
        else:
            above[name] = NamedBound(
                *found, "upper", OF_UPPER[exists], exists=exists, holds=NEVER
            )
    return {**below, "IW-ELBO of q": iw}, above


def _self_normalized(log_weights: torch.Tensor) -> torch.Tensor:
    """Sum of w lw with weights that are normalized over the draws of q."""
    return torch.softmax(log_weights, 0) @ log_weights
