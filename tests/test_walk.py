"""One walk over loss, divergence, family, prior, objective and solver.

Each combination is refused before training with a remedy, or reports that it has no
optimum or did not get there, or converges to an optimum that is checked against its
neighbors. The axes come from the registry. A slow test shows every pair of values;
``pytest -m walk`` takes every combination of all axes but the loss, which alternates:
seeds 0 to 3 (``--random-seed``) together are the full product.
"""

from functools import cache

import numpy as np
import pytest

from tests.walking import (
    AXES,
    MODELS,
    outcome,
    pairwise,
    solvers_of,
    walk,
)


def trains(row):
    """Whether a divergence may stand beside an objective: with the ELBO only."""
    return row["objective"] in ("elbo", "score") or row["divergence"] == "kl"


PAIRS = pairwise({"name": MODELS, **AXES}, trains)


@pytest.mark.slow
@pytest.mark.parametrize("row", PAIRS, ids=lambda row: "-".join(row.values()))
def test_pairs(row):
    faults = [f"{label}: {fault}" for label, _, fault in walk(**row) if fault]
    assert not faults, "\n".join(faults)


# What the full walk found once: estimator, loss, divergence, family, prior, objective.
FOUND = [
    "linear log kl full_rank learn chi",  # no noise in the split of log joints
    "linear gamma gamma mean_field log_uniform elbo",  # improper, refused too late
    "linear beta kl mean_field laplace alpha_energy",  # an expectation of no loss
    "linear_fixed beta kl mean_field learn chi",  # the start lost a prior's scale
    "poisson log kl full_rank normal alpha_energy",  # nothing to learn
]


@pytest.mark.parametrize("row", FOUND)
def test_combinations_that_failed_once(row):
    row = dict(zip(("name", *AXES), row.split(), strict=True))
    faults = [f"{label}: {fault}" for label, _, fault in walk(**row) if fault]
    assert not faults, "\n".join(faults)


#: What "auto" is for so few parameters.
AUTO = {"posterior": "full_rank"}


def is_change(model, axis, value):
    given = model.get_params()[axis]
    return value not in (given, AUTO.get(axis) if given == "auto" else given)


CHANGES = [
    (name, axis, value)
    for name, (model, *_) in MODELS.items()
    for axis, values in AXES.items()
    for value in values
    if is_change(model, axis, value)
]
#: One estimator shows each value; pairs of values are a slow test.
SHOWN = {
    (list(MODELS)[i % len(MODELS)], axis, value)
    for i, (axis, value) in enumerate((a, v) for a in AXES for v in AXES[a])
}


@cache
def base_fit(name, solver):
    return outcome(name, solver)[2]


@pytest.mark.parametrize(("name", "axis", "value"), [c for c in CHANGES if c in SHOWN])
def test_nothing_is_ignored(name, axis, value):
    """Changing one part changes the posterior that one and the same solver finds.

    Or it is refused, or has no optimum, and says so.
    """
    able, faults = solvers_of(name, **{axis: value})
    if not able:
        assert not faults
        return
    base, _ = solvers_of(name)
    solver = next(s for s in able if s in base)
    kind, faults, model = outcome(name, solver, **{axis: value})
    if model is None:
        assert kind == "no optimum"
        assert not faults
        return
    fits = model, base_fit(name, solver)
    moments = [np.append(m.coef_, m.coef_std_) for m in fits]
    change = np.abs(moments[0] - moments[1]).max()
    assert change > 1e-6
