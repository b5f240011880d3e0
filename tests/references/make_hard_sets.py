"""Lowest objectives on hard sets, by the independent optimizer in tests/reference.py.

``python -m tests.references.make_hard_sets --write`` stores them beside this script;
without the option the stored values are compared with new ones.
"""

import json
import sys
from functools import cache
from pathlib import Path

from tests.reference import SYNTHETIC, Problem, synthetic_data

STORED = Path(__file__).with_name("hard_sets.json")
FAMILIES = ("mean_field", "full_rank")
#: What is minimized: arguments of the reference.
VARIANTS = {
    "elbo": {},
    "laplace": {"laplace": True},
    "beta": {"beta": 1.5},
    "power": {"weight": 0.5},
    "weak": {"weight": 100.0},
    "renyi_0.5": {"renyi": 0.5},
    "renyi_0.75": {"renyi": 0.75},
    "laplace_beta": {"laplace": True, "beta": 1.2},
}


def cases():
    """Variant, data set, scale of the prior, family; Rényi's is for mean field."""
    for variant in VARIANTS:
        for family in FAMILIES[: 1 if "renyi" in variant else 2]:
            scales = (1.0, 10.0, 100.0) if variant == "elbo" else (1.0, 10.0)
            yield from ((variant, n, s, family) for n in SYNTHETIC for s in scales)
    yield from (("beta", "wide", 100.0, family) for family in FAMILIES)


def problem_of(variant, name, scale):
    return Problem(*synthetic_data(name), scale=scale, **VARIANTS[variant])


def compute(variant, name, scale, family):
    return problem_of(variant, name, scale).optimum(family == "full_rank")[0]


@cache
def _stored():
    return json.loads(STORED.read_text())


def optimum(*case):
    """Stored lowest value, in nats."""
    return _stored()[" ".join(map(str, case))]


if __name__ == "__main__":
    values = {" ".join(map(str, case)): compute(*case) for case in cases()}
    if "--write" in sys.argv[1:]:
        STORED.write_text(json.dumps(values, indent=1) + "\n")
    elif max(abs(values[key] - value) for key, value in _stored().items()) > 1e-5:
        sys.exit("the stored values are not those of today's reference")
