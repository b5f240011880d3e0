"""Specifications: scikit-learn objects that hold hyperparameters only."""

from functools import cache

from sklearn.base import BaseEstimator

__all__ = ["Component"]


class Component(BaseEstimator):
    """A specification: a scikit-learn object that holds hyperparameters only.

    Components have `get_params`, `set_params`, `clone` and `repr`, hold no
    tensors and are never changed by a fit. Their parameters are checked when
    they are used, through `validate`.

    Examples
    --------
    >>> from skvi.divergences import Renyi
    >>> Renyi(alpha=0.5).get_params()
    {'alpha': 0.5}
    """

    _parameter_constraints: dict = {}

    @classmethod
    @cache
    def _get_param_names(cls) -> list[str]:
        # Inspecting a signature takes longer than many a fit.
        return super()._get_param_names()

    def validate(self) -> None:
        """Check the parameters.

        Raises
        ------
        ValueError
            Says what was given and what is allowed.
        """
        self._validate_params()
