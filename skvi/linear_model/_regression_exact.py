"""Predictions and coefficients from the exact posterior of a linear regression."""

from typing import Any

import numpy as np
import torch

from skvi._predictive import Combinations, NormalPredictive
from skvi.base import NormalForm
from skvi.base._units import Units
from skvi.likelihoods import GaussianLikelihood
from skvi.predictors import LinearPredictor
from skvi.solvers._exact import MixtureOverPrecisions

__all__ = [
    "coefficient_moments",
    "exact_coefficients",
    "exact_covariance",
    "exact_functions",
    "exact_moments",
    "exact_predictive",
]

# Components of a smaller probability are left out.
NEGLIGIBLE = 1e-18
# Fraction of a squared length outside of the directions of the data that is rounding.
ROUNDING = 1e-12


def exact_predictive(
    exact: MixtureOverPrecisions, rows: Combinations, units: Units
) -> NormalPredictive:
    """Distributions of new targets, from `exact_functions`."""
    return _mixture(exact, rows, units, has_noise=True)


def exact_functions(
    exact: MixtureOverPrecisions, predictor: LinearPredictor, rows: Any
) -> Combinations:
    """Functions at rows of features, in the units of the fit."""
    along = predictor.project(rows, exact.basis())
    square = torch.zeros_like(along[:, 0])
    if exact.has_outside:
        ones = along.new_ones(predictor.layout.size)
        ones[exact.form.data.n_features :] = 0.0
        normal = NormalForm(torch.zeros_like(ones), ones)
        square = predictor.moments(rows, normal)[1]
    return _combinations(exact, along, square, torch.zeros_like(square))


def exact_coefficients(exact: MixtureOverPrecisions, units: Units) -> NormalPredictive:
    """Coefficients, after the intercept if there is one, in units of y and X."""
    rows = _coefficients(exact, units)
    return _mixture(exact, rows, Units(0.0, 1.0), has_noise=False)


def _coefficients(exact: MixtureOverPrecisions, units: Units) -> Combinations:
    vectors, unit = exact.form.data.vectors, float(units.y_scale)
    scale = torch.from_numpy(np.asarray(units.x_scale, np.float64)).expand(len(vectors))
    along, square = vectors / scale[:, None], scale**-2
    shift = torch.zeros_like(square)
    if exact.form.intercept is not None:
        # Along the coefficients the intercept at X = 0 is -x_mean / x_scale.
        origin = torch.zeros_like(scale)
        if units.x_mean is not None:
            origin = torch.from_numpy(units.x_mean) / scale
        along = torch.cat([-(origin @ vectors)[None], along])
        square = torch.cat([origin.square().sum()[None], square])
        shift = torch.cat([shift.new_ones(1), shift])
        along = torch.cat([along, shift[:, None]], 1)
    shift = shift * float(units.y_mean)
    return _combinations(exact, unit * along, unit**2 * square, shift)


def exact_moments(
    exact: MixtureOverPrecisions, rows: Combinations
) -> tuple[torch.Tensor, torch.Tensor]:
    """Means and variances of linear combinations, (n,) each."""
    mean, root, outside = exact.moments()
    variance = (rows.along @ root.T).square().sum(1) + outside * rows.outside
    return rows.along @ mean + rows.shift, variance


def coefficient_moments(
    exact: MixtureOverPrecisions, units: Units
) -> tuple[torch.Tensor, torch.Tensor]:
    """Means and variances of the coefficients, before the intercept."""
    first = int(exact.form.intercept is not None)
    mean, variance = exact_moments(exact, _coefficients(exact, units))
    return mean.roll(-first), variance.roll(-first)


def exact_covariance(exact: MixtureOverPrecisions, units: Units) -> torch.Tensor:
    """Covariance of the coefficients, (d, d)."""
    along = _coefficients(exact, units).along[int(exact.form.intercept is not None) :]
    _, root, outside = exact.moments()
    covariance = (along @ root.T) @ (along @ root.T).T
    if exact.has_outside:
        k = len(exact.form.data.values)
        covariance -= outside * along[:, :k] @ along[:, :k].T
        square = (units.y_scale / np.asarray(units.x_scale, np.float64)) ** 2
        covariance.diagonal().add_(outside * torch.from_numpy(np.atleast_1d(square)))
    return covariance


def _combinations(
    exact: MixtureOverPrecisions,
    along: torch.Tensor,
    square: torch.Tensor,
    shift: torch.Tensor,
) -> Combinations:
    """Combinations whose squared length, but for the intercept, is `square`."""
    rest = square - along[:, : len(exact.form.data.values)].square().sum(1)
    outside = torch.where(rest > ROUNDING * square, rest, torch.zeros_like(rest))
    return Combinations(along, outside, shift)


def _mixture(
    exact: MixtureOverPrecisions, rows: Combinations, units: Units, has_noise: bool
) -> NormalPredictive:
    """Distributions of linear combinations, or of new targets, which have noise."""
    nodes = exact.few if has_noise else exact.nodes
    *given, w = exact.normals(nodes)
    noise = has_noise * torch.from_numpy(np.exp(-nodes.noise.ravel()))
    kept = w > NEGLIGIBLE
    parts = (part[kept] for part in (*given, noise))
    log_w = (w[kept] / w[kept].sum()).log()
    return NormalPredictive(GaussianLikelihood(), units, rows, *parts, log_w)
