"""Nested names of parameters: shorthands, priors of blocks, "auto" and None."""

from typing import Any

from sklearn.base import clone

from skvi._registry import SHORTHANDS
from skvi.priors import Normal
from skvi.solvers import Stochastic

__all__ = ["expand_parameters"]

#: What a value that leaves the choice to the fit becomes where a name is nested.
CHOSEN = {
    ("prior", "auto"): Normal,
    ("intercept_prior", None): Normal,
    ("solver", "auto"): Stochastic,
}


def expand_parameters(estimator: Any, params: dict[str, Any]) -> dict[str, Any]:
    """Parameters for `BaseEstimator.set_params`, with objects where names are nested.

    ``divergence__alpha`` makes "renyi" its object, ``prior__scale`` makes "auto" a
    `Normal`, see `CHOSEN`; ``prior__coef__scale`` copies a mapping.
    """
    for name, table in SHORTHANDS.items():
        nested = [key for key in params if key.startswith(f"{name}__")]
        value = params.get(name, getattr(estimator, name, None))
        if not nested:
            continue
        if isinstance(value, dict):
            changes = {key.removeprefix(f"{name}__"): params[key] for key in nested}
            rest = {key: v for key, v in params.items() if key not in nested}
            params = {**rest, name: _change_blocks(value, changes, name)}
        elif value is None or isinstance(value, str):
            params = {**params, name: _from_shorthand(estimator, name, value, table)}
    return params


def _from_shorthand(estimator: Any, name: str, value: str, table: dict) -> Any:
    if (name, value) in CHOSEN:
        return CHOSEN[name, value]()
    if value not in table:
        raise ValueError(
            f"The {name!r} parameter of {type(estimator).__name__} must be one of "
            f"{sorted(table)} or an object. Got {value!r} instead."
        )
    return table[value]()


def _change_blocks(blocks: dict, changes: dict[str, Any], name: str) -> dict:
    """Copy a mapping of priors, with entries replaced or their parameters set."""
    changed = dict(blocks)
    # Entries first, so that their parameters are set on the new ones.
    for key in sorted(changes, key=lambda key: "__" in key):
        block, _, parameter = key.partition("__")
        if block not in changed:
            raise ValueError(
                f"Invalid parameter {name}__{key}: the mapping {name} has the blocks "
                f"{sorted(blocks)}. Use one of them, as in {name}__coef__scale."
            )
        if not parameter:
            changed[block] = changes[key]
            continue
        part = changed[block]
        if isinstance(part, str) and part in SHORTHANDS["prior"]:
            part = SHORTHANDS["prior"][part]()
        changed[block] = clone(part).set_params(**{parameter: changes[key]})
    return changed
