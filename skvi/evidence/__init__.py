"""Evidence: lower and upper bounds on log p(D), and their reliability."""

from skvi.evidence._bounds import bound_evidence
from skvi.evidence._conjugate import conjugate_evidence
from skvi.evidence._fit_checks import (
    BOUND_DRAWS,
    judge_existence,
    lower_bound,
    weight_diagnostics,
)
from skvi.evidence._named import BoundsTable, NamedBound
from skvi.evidence._result import FROM_TARGET, EvidenceBounds
from skvi.evidence._table import elbo_row
from skvi.evidence._unwrap import evidence_bounds
from skvi.evidence._weights import WeightSummary, summarize_weights

__all__ = [
    "BOUND_DRAWS",
    "FROM_TARGET",
    "BoundsTable",
    "EvidenceBounds",
    "NamedBound",
    "WeightSummary",
    "bound_evidence",
    "conjugate_evidence",
    "elbo_row",
    "evidence_bounds",
    "judge_existence",
    "lower_bound",
    "summarize_weights",
    "weight_diagnostics",
]
