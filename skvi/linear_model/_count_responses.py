"""Counts, their exposures and their likelihoods."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from skvi._estimator._model import Response, check_numbers
from skvi.exceptions import IncompatibleComponentsError
from skvi.likelihoods import HurdleLikelihood, Likelihood
from skvi.linear_model._row_predictions import column_of_rows
from skvi.losses import Loss
from skvi.utils._validation import column_or_1d

# Above this, not every integer is representable.
MAX_COUNT = 2.0**53


@dataclass(frozen=True, eq=False)
class Counts(Response):
    """Nonnegative numbers, and whether those of the fit were counts."""

    are_counts: bool

    @classmethod
    def find(cls, y: Any) -> "Counts":
        """Inspect the targets of a fit."""
        y = check_numbers(y)
        return cls(bool((y == np.floor(y)).all()))

    def encode(self, y: Any) -> np.ndarray:
        """Check that targets can be counts or rates; see `Response.encode`."""
        y = column_or_1d(check_numbers(y), warn=True)
        if (y < 0).any():
            raise ValueError(
                "Negative values in y: counts are needed, 0, 1, 2, ... Got "
                f"{y.min():.6g}. For such numbers use BayesianLinearRegression."
            )
        if y.max(initial=0.0) > MAX_COUNT:
            raise ValueError(
                f"y has values up to {y.max():.6g}: floats above {MAX_COUNT:.0g} are "
                "not counts. Give counts in larger units, with exposure for their size."
            )
        return y

    def check_loss(self, loss: Loss) -> None:
        """Raise if a loss sums over counts, and the targets are not counts."""
        if not (self.are_counts or loss.is_log_loss):
            raise IncompatibleComponentsError(
                f"loss={loss!r}",
                "counts, 0, 1, 2, ..., because it sums over them; y has other values",
                "counts and exposure, or loss='log'",
            )

    def check_counts(self, y: Any, name: str) -> np.ndarray:
        """Encode targets; raise if they, or those of the fit, are not counts."""
        y = self.encode(y)
        if self.are_counts and (y == np.floor(y)).all():
            return y
        raise ValueError(
            f"{name} needs counts, 0, 1, 2, ...: a Poisson distribution gives other "
            "values no probability. Fit counts with exposure=... instead of rates "
            "with sample_weight=..., which has the same posterior."
        )


def log_exposure(exposure: Any, n_rows: int) -> np.ndarray:
    """Logarithms of positive exposures, one for each row, or one for all of them."""
    exposure = column_of_rows("exposure", exposure, n_rows)
    if not (exposure > 0).all():
        raise ValueError(
            f"exposure must have one positive number for each of the {n_rows} rows. "
            f"The smallest is {exposure.min():.6g}. Leave out rows that were never "
            "exposed."
        )
    return np.log(exposure)


def check_likelihood(likelihood: Likelihood) -> None:
    """Raise if a likelihood is not one of counts."""
    is_hurdle = isinstance(likelihood, HurdleLikelihood) and likelihood.at == 0
    if not likelihood.is_discrete or likelihood.n_outputs != 1 + is_hurdle:
        raise IncompatibleComponentsError(
            f"likelihood={likelihood!r}",
            "is_discrete = True and n_outputs = 1, as a distribution of counts; zeros "
            "apart need HurdleLikelihood(..., at=0) or ZeroInflatedLikelihood",
            "'poisson', 'negative_binomial', or another Likelihood",
        )
