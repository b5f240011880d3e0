"""scikit-learn's callback protocol if the version has it (1.9), else nothing."""

from collections.abc import Callable
from typing import Any

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:  # below 1.9

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Replaces scikit-learn's; there are no callbacks to set."""

    def with_callbacks(method: Callable) -> Callable:
        """Return the method unchanged."""
        return method


__all__ = ["CallbackSupportMixin", "has_callbacks", "with_callbacks"]


def has_callbacks(estimator: Any) -> bool:
    """Whether callbacks are registered for the fit."""
    return hasattr(estimator, "_skl_callbacks")
