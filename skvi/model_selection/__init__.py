"""Model selection by evidence: no folds, and an honest "undecided"."""

from skvi.model_selection._search import EvidenceSearch

__all__ = ["EvidenceSearch"]
