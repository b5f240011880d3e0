"""Model selection: by evidence, with an honest "undecided"; by folds, in parallel."""

from skvi.model_selection._batched import BatchedGridSearchCV
from skvi.model_selection._search import EvidenceSearch
from skvi.model_selection._subset_search import SubsetSearch

__all__ = ["BatchedGridSearchCV", "EvidenceSearch", "SubsetSearch"]
