"""scikit-learn's callback protocol where the version has it (1.9), else nothing."""

from collections.abc import Callable
from typing import Any

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:  # below 1.9

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Stands in for scikit-learn's; there are no callbacks to set."""

    def with_callbacks(method: Callable) -> Callable:
        """Return the method as it is."""
        return method


__all__ = ["CallbackSupportMixin", "has_callbacks", "with_callbacks"]


def has_callbacks(estimator: Any) -> bool:
    """Whether somebody asked to be told about the fit."""
    return hasattr(estimator, "_skl_callbacks")
