"""Specifications: scikit-learn objects that hold hyperparameters only."""

from functools import cache
from inspect import signature
from typing import Any

from sklearn.base import BaseEstimator

__all__ = ["Component"]


class Component(BaseEstimator):
    """A specification: a scikit-learn object that holds hyperparameters only.

    Components have `get_params`, `set_params`, `clone` and `repr`, hold no
    tensors and are never changed by a fit. Their parameters are checked when
    they are used, through `validate`.

    Examples
    --------
    >>> from skvi.divergences import RenyiDivergence
    >>> RenyiDivergence(alpha=0.5).get_params()
    {'alpha': 0.5}
    """

    _parameter_constraints: dict = {}

    @classmethod
    @cache
    def _get_param_names(cls) -> list[str]:
        # Cached, because inspecting a signature can take longer than a fit.
        return super()._get_param_names()

    @classmethod
    @cache
    def _defaults(cls) -> dict[str, Any]:
        parameters = signature(cls).parameters
        return {name: parameters[name].default for name in cls._get_param_names()}

    @classmethod
    @cache
    def _validate_defaults(cls) -> None:
        cls()._validate_params()

    def validate(self) -> None:
        """Check the parameters.

        Raises
        ------
        ValueError
            The message says what was given and what is allowed.
        """
        given, defaults = vars(self), self._defaults()
        if all(given.get(name) is value for name, value in defaults.items()):
            self._validate_defaults()
        else:
            self._validate_params()
