"""Evidence: lower and upper bounds on log p(D), and their reliability."""

from skvi.evidence._result import EvidenceBounds

__all__ = ["EvidenceBounds"]
