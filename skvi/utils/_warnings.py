"""Warnings that point to the user's line."""

import sys
import warnings

__all__ = ["warn_user"]

# Packages whose frames are between the user's line and the warning.
INNER = {"skvi", "sklearn"}


def warn_user(message: str, category: type[Warning]) -> None:
    """Warn at the innermost line outside of skvi and scikit-learn."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in INNER:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
