"""Which candidates are the same model, and which cannot be compared."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from sklearn.base import clone, is_classifier
from sklearn.utils import get_tags

from skvi._estimator._identity import describe
from skvi._estimator._registry import SHORTHANDS
from skvi.posteriors import Posterior
from skvi.utils._transformers import refuse_samplers, refuse_supervised

# Parameters of inference, which do not define the model.
INFERENCE = frozenset(
    {
        "objective",
        "divergence",
        "posterior",
        "solver",
        "batch_size",
        "max_iter",
        "tol",
        "early_stopping",
        "warm_start",
        "n_predict_draws",
        "device",
        "n_jobs",
        "verbose",
        "random_state",
    }
)

#: Further remedies for candidates that differ.
REMEDIES = {
    "normalize_y": ", or use normalize_y=False, with priors in units of y, for all: "
    "with True the prior is made from y, and the evidence is not a probability of y",
}


def make_candidates(
    estimator: Any, grid: list[dict], allow_supervised: bool = False
) -> list[Any]:
    """Unfitted copies with the parameters of a grid, each able to bound evidence."""
    made = []
    for params in grid:
        candidate = clone(estimator).set_params(**clone(params, safe=False))
        final = final_step(candidate)
        if not hasattr(final, "evidence_bounds"):
            raise TypeError(
                f"{type(final).__name__} has no method evidence_bounds. Search over an "
                "estimator of skvi, or a Pipeline that ends in one."
            )
        refuse_samplers(candidate)
        if not allow_supervised:
            refuse_supervised(candidate)
        made.append(candidate)
    return made


def final_step(estimator: Any) -> Any:
    """Return the final estimator of a pipeline."""
    while hasattr(estimator, "steps"):
        estimator = estimator.steps[-1][1]
    return estimator


def model_key(estimator: Any) -> str:
    """Text that two candidates share if they differ in inference alone.

    Features (steps of a pipeline), likelihood, loss and prior define the evidence;
    `INFERENCE` does not.
    """
    if hasattr(estimator, "steps"):
        *features, (_, last) = estimator.steps
        return describe([step for _, step in features]) + model_key(last)
    if not hasattr(estimator, "evidence_bounds"):
        return describe(estimator)
    params = estimator.get_params(deep=False).items()
    kept = {k: _resolve(k, value) for k, value in params if k not in INFERENCE}
    if any(isinstance(value, str) and value == "auto" for value in kept.values()):
        # In an ensemble of networks it stands for another model.
        kept["auto"] = getattr(estimator, "_is_generalized", False)
    return describe([type(estimator), kept])


def prior_rule(estimator: Any) -> str | None:
    """Text that estimators share if their priors are given by equal parameters."""
    final = final_step(estimator)
    params = final.get_params(deep=False)
    if "prior" not in params:
        return None
    given = [_resolve(k, params.get(k)) for k in ("prior", "intercept_prior")]
    return describe([type(final), *given])


def _resolve(name: str, value: Any) -> Any:
    """Return the object of a shorthand."""
    table = SHORTHANDS.get(name, {})
    return table[value]() if isinstance(value, str) and value in table else value


def check_comparable(candidates: list[Any]) -> None:
    """Raise if evidences have no common unit, or refer to different rows."""
    for candidate in candidates:
        fraction = final_step(candidate).get_params().get("validation_fraction")
        if fraction is not None:
            raise ValueError(
                "Evidences refer to the training rows, and "
                f"validation_fraction={fraction!r} takes rows out of them. Use "
                "validation_fraction=None: the bound needs no held-out rows."
            )
    units = [_unit(candidate) for candidate in candidates]
    for name in units[0]:
        values = {describe(unit[name][0]): unit[name][1] for unit in units}
        if len(values) > 1:
            shown = ", ".join(sorted(values.values()))
            raise ValueError(
                f"The candidates differ in {name}: {shown}. Evidences of different "
                f"{name} have no common unit and cannot be compared: make one search "
                f"for each{REMEDIES.get(name, '')}."
            )


def _unit(candidate: Any) -> dict[str, tuple[Any, str]]:
    """Determinants of the unit of an evidence: values to compare, and to show."""
    final = final_step(candidate)
    params = final.get_params(deep=False)
    loss = _resolve("loss", params.get("loss"))
    weight = params.get("class_weight")
    return {
        "loss": (loss, repr(params.get("loss"))),
        "class weights": (weight, repr(weight)),
        "kind of target": _kind(final),
        "normalize_y": _normalization(params),
    }


def _normalization(params: dict[str, Any]) -> tuple[Any, str]:
    """Quantities that the prior takes from y; robust losses also use these units."""
    scaled, prior = params.get("normalize_y"), params.get("prior")
    if scaled is None:
        return None, "None"  # targets without units
    if isinstance(prior, Posterior) and prior.units is not None:
        return False, "the units of the posterior that is the prior"
    if scaled and not params.get("fit_intercept", True):
        return "scale", "True without an intercept (the scale of y alone)"
    return scaled, repr(scaled)


def _kind(final: Any) -> tuple[str, str]:
    if is_classifier(final):
        return "classes", "classes"
    counts = get_tags(final).target_tags.positive_only
    return ("counts", "counts") if counts else ("numbers", "real numbers")


def group_models(candidates: list[Any]) -> list[list[int]]:
    """Candidates of the same model, ordered by the first of each."""
    groups: dict[Any, list[int]] = {}
    for index, candidate in enumerate(candidates):
        groups.setdefault(model_key(candidate), []).append(index)
    return list(groups.values())


def log_prior(
    model_prior: Callable | Sequence[float] | None, grid: list[dict]
) -> np.ndarray:
    """Log prior weights of the candidates, (n_candidates,), up to a constant.

    None gives all the same. ValueError unless there is one positive number for each.
    """
    if model_prior is None:
        return np.zeros(len(grid))
    weights = model_prior
    if callable(weights):
        weights = [weights(params) for params in grid]
    weights = np.asarray(weights, dtype=float)
    good = weights.shape == (len(grid),) and np.all(
        (weights > 0) & np.isfinite(weights)
    )
    if not good:
        raise ValueError(
            "model_prior must be a function of a candidate's parameters, or "
            f"{len(grid)} weights, one for each candidate in the order of "
            f"ParameterGrid; all positive and finite. Got {model_prior!r}, "
            f"which gives {weights!r}."
        )
    return np.log(weights)
