"""Evidence: lower and upper bounds on log p(D), and their reliability."""

from skvi.evidence._bounds import bound_evidence
from skvi.evidence._named import BoundsTable, NamedBound
from skvi.evidence._result import EvidenceBounds
from skvi.evidence._unwrap import evidence_bounds

__all__ = [
    "BoundsTable",
    "EvidenceBounds",
    "NamedBound",
    "bound_evidence",
    "evidence_bounds",
]
