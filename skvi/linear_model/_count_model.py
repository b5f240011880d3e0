"""The model of counts: targets, likelihood, and inferred dispersion."""

import math
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import digamma, polygamma

from skvi._estimator._model import Response, check_numbers
from skvi.base import NormalForm
from skvi.exceptions import IncompatibleComponentsError
from skvi.likelihoods import Likelihood
from skvi.losses import Loss
from skvi.posteriors import Posterior
from skvi.posteriors._over_scales import MixtureOverScales
from skvi.utils._validation import check_array, column_or_1d

__all__ = [
    "Counts",
    "check_likelihood",
    "log_exposure",
    "matching_gamma",
    "mean_number",
]

# Above this, not every integer is representable.
MAX_COUNT = 2.0**53
# Draws behind the mean of a number in a posterior that is no mixture over it.
N_DRAWS = 1000


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
                f"loss={loss!r} needs counts, 0, 1, 2, ..., because it "
                "sums over them; y has other values. Give counts and exposure, or use "
                "loss='log'."
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
    if np.ndim(exposure) == 0:
        exposure = np.full(n_rows, exposure)
    exposure = check_array(
        exposure, ensure_2d=False, dtype=np.float64, input_name="exposure"
    )
    exposure = column_or_1d(exposure)
    if len(exposure) != n_rows or not (exposure > 0).all():
        raise ValueError(
            f"exposure must have one positive number for each of the {n_rows} "
            f"rows. Got {len(exposure)} numbers, the smallest "
            f"{exposure.min():.6g}. Leave out rows that were never exposed."
        )
    return np.log(exposure)


def check_likelihood(likelihood: Likelihood) -> None:
    """Raise if a likelihood is not one of counts."""
    if not likelihood.is_discrete or likelihood.n_outputs != 1:
        raise IncompatibleComponentsError(
            f"likelihood={likelihood!r} is not a distribution of counts with one "
            "parameter f. Use 'poisson', 'negative_binomial', or a Likelihood with "
            "is_discrete = True and n_outputs = 1."
        )


def mean_number(posterior: Posterior) -> float:
    """Posterior mean of the positive parameter of a likelihood, which comes last."""
    if isinstance(posterior, MixtureOverScales):
        return float(posterior.log_weights.exp() @ posterior.places()[:, -1].exp())
    draws = posterior.draw(N_DRAWS, torch.Generator().manual_seed(0))
    return float(draws.theta[:, -1].exp().mean())


def matching_gamma(posterior: Posterior) -> tuple[float, float]:
    """Shape and rate of the Gamma variable whose log has the moments of the last one.

    In theta, of which positive parameters are logarithms.
    """
    if isinstance(posterior, MixtureOverScales):  # without the widths of its nodes
        weights, z = posterior.log_weights.exp(), posterior.places()[:, -1]
        mean = float(weights @ z)
        variance = float(weights @ (z - mean).square())
    else:
        normal = cast(NormalForm, posterior.as_prior().as_normal())
        mean, variance = float(normal.mean[-1]), float(normal.variance[-1])
    log_shape = brentq(lambda t: polygamma(1, math.exp(t)) - variance, -30.0, 30.0)
    shape = math.exp(log_shape)
    return shape, math.exp(float(digamma(shape)) - mean)
