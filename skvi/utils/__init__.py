"""Small helpers that every layer may use."""

from skvi.utils._discovery import all_estimators

__all__ = ["all_estimators"]
