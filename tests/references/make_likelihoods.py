"""Posterior moments by long chains; ``--write`` computes them again.

Run as ``python -m tests.references.make_likelihoods --write`` in the root folder.
"""

import json
import sys
from pathlib import Path

from tests.linear_model.reference_likelihoods import NegativeBinomial, StudentT, data_of
from tests.reference import chain_mean, sample_chains
from tests.references.make_estimators import rounded

PATH = Path(__file__).with_name("likelihoods.json")
#: Name -> class and data.
PROBLEMS = {
    "student_t diabetes": (StudentT, "diabetes"),
    "student_t boston": (StudentT, "boston"),
    "negative_binomial diabetes": (NegativeBinomial, "diabetes"),
    "negative_binomial pregnancies": (NegativeBinomial, "pregnancies"),
}


def moments(name):
    """Means of (coef, intercept, log number) with errors, and variances."""
    kind, data = PROBLEMS[name]
    X, y = data_of(data)
    if kind is StudentT:
        y = (y - y.mean()) / y.std()
    theta = sample_chains(kind(X, y), 64, 100, 1000, seed=0)
    mean, error = chain_mean(theta)
    variance = chain_mean((theta - mean) ** 2)[0]
    table = {"mean": mean, "error": error, "variance": variance}
    return {key: values.tolist() for key, values in table.items()}


def load():
    """Stored values."""
    return json.loads(PATH.read_text(encoding="utf-8"))


if __name__ == "__main__" and "--write" in sys.argv[1:]:
    found = rounded({name: moments(name) for name in PROBLEMS})
    PATH.write_text(json.dumps(found) + "\n", encoding="utf-8")
