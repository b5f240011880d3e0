"""skvi: scikit-learn compatible variational inference."""

from skvi.evidence import evidence_bounds

__version__ = "0.1.0"
__all__ = ["__version__", "evidence_bounds"]
