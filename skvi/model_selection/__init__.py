"""Model selection: by evidence, with an honest "undecided"; by folds, in parallel."""

from skvi.model_selection._batched import BatchedGridSearchCV
from skvi.model_selection._search import EvidenceSearch

__all__ = ["BatchedGridSearchCV", "EvidenceSearch"]
