"""Coefficients of a linear regression whose posterior is exact."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from skvi._predictive._mixtures import Combinations, CombinedPredictive
from skvi.base import NormalForm
from skvi.base._units import Units
from skvi.likelihoods import GaussianLikelihood
from skvi.linear_model._blocks import MAX_QUICK
from skvi.linear_model._coefficients import (
    MixedCoefficients,
    Pair,
    covariance_of_functions,
)
from skvi.solvers._exact import MixtureOverPrecisions
from skvi.utils._threads import limit_threads

__all__ = ["ExactCoefficients"]

# Components of a smaller probability are left out.
NEGLIGIBLE = 1e-18
# Fraction of a squared length outside of the directions of the data that is rounding.
ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class ExactCoefficients(MixedCoefficients):
    """The exact posterior of one column under unknown precisions."""

    exact: MixtureOverPrecisions

    @property
    def _first(self) -> int:
        """Position of the first coefficient behind the intercept, if there is one."""
        return int(self.exact.form.intercept is not None)

    def scales(self) -> Pair | None:
        """Those of the nodes; see `Coefficients.scales`."""
        coef, nodes = self.exact.form.coef, self.exact.nodes
        if coef.hyperprior is None:
            return None
        log_scales = 0.5 * (coef.value.log() - torch.from_numpy(nodes.coef.ravel()))
        return log_scales, torch.from_numpy(nodes.weights.ravel())

    def moments(self) -> Pair:
        """Those of linear combinations; see `Coefficients.moments`."""
        mean, variance = self._moments_of(self._combinations())
        return mean.roll(-self._first), variance.roll(-self._first).sqrt()

    def normals(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """One for each pair of precisions; see `MixedCoefficients.normals`."""
        mixture = self._mixture(self._combinations(), Units(0.0, 1.0), has_noise=False)
        mean, std = mixture.at_nodes(slice(None))
        if not self._first:
            mean, std = (torch.cat([x[:, :1] * 0 + 1, x], 1) for x in (mean, std))
        return mean[:, None], std[:, None], mixture.log_weights.exp()

    def covariance(self) -> torch.Tensor | None:
        """Up to a number of coefficients; see `Coefficients.covariance`."""
        if self.model.predictor.n_features > MAX_QUICK:
            return None
        exact, units = self.exact, self.model.units
        along = self._combinations().along[self._first :]
        _, root, outside = exact.moments()
        covariance = (along @ root.T) @ (along @ root.T).T
        if exact.has_outside:
            k = len(exact.form.data.values)
            covariance -= outside * along[:, :k] @ along[:, :k].T
            square = (units.y_scale / np.asarray(units.x_scale, np.float64)) ** 2
            covariance.diagonal().add_(
                outside * torch.from_numpy(np.atleast_1d(square))
            )
        return covariance

    def functions(self, X: Any, n_jobs: int | None) -> Pair:
        """Those of linear combinations; see `Coefficients.functions`."""
        return self._moments_of(self._functions(X, n_jobs))

    def function_covariance(self, X: Any, n_jobs: int | None) -> np.ndarray:
        """That of the normal with the same moments; see `Coefficients`."""
        normal = self.exact.matching_normal()
        return covariance_of_functions(self.model, normal, X, n_jobs)

    def predictive(self, X: Any, n_jobs: int | None) -> CombinedPredictive:
        """Distributions of new targets in rows of X."""
        rows = self._functions(X, n_jobs)
        return self._mixture(rows, self.model.units, has_noise=True)

    def _functions(self, X: Any, n_jobs: int | None) -> Combinations:
        """Functions at rows of X, in the units of the fit."""
        exact, predictor = self.exact, self.model.predictor
        with torch.no_grad(), limit_threads(X.shape[0] * X.shape[1] ** 2, n_jobs):
            rows = self.model.design(X)
            along = predictor.project(rows, exact.basis())
            square = torch.zeros_like(along[:, 0])
            if exact.has_outside:
                ones = along.new_ones(predictor.layout.size)
                ones[predictor.n_features :] = 0.0
                normal = NormalForm(torch.zeros_like(ones), ones)
                square = predictor.moments(rows, normal)[1]
            return self._along(along, square, torch.zeros_like(square))

    def _combinations(self) -> Combinations:
        """Coefficients, after the intercept if there is one, in units of y and X."""
        units, vectors = self.model.units, self.exact.form.data.vectors
        unit, x_scale = float(units.y_scale), np.asarray(units.x_scale, np.float64)
        scale = torch.from_numpy(x_scale).expand(len(vectors))
        along, square = vectors / scale[:, None], scale**-2
        shift = torch.zeros_like(square)
        if self._first:
            # Along the coefficients the intercept at X = 0 is -x_mean / x_scale.
            origin = torch.zeros_like(scale)
            if units.x_mean is not None:
                origin = torch.from_numpy(units.x_mean) / scale
            along = torch.cat([-(origin @ vectors)[None], along])
            square = torch.cat([origin.square().sum()[None], square])
            shift = torch.cat([shift.new_ones(1), shift])
            along = torch.cat([along, shift[:, None]], 1)
        shift = shift * float(units.y_mean)
        return self._along(unit * along, unit**2 * square, shift)

    def _along(
        self, along: torch.Tensor, square: torch.Tensor, shift: torch.Tensor
    ) -> Combinations:
        """Combinations whose squared length, but for the intercept, is `square`."""
        n_known = len(self.exact.form.data.values)
        rest = square - along[:, :n_known].square().sum(1)
        outside = torch.where(rest > ROUNDING * square, rest, torch.zeros_like(rest))
        return Combinations(along, outside, shift)

    def _moments_of(self, rows: Combinations) -> Pair:
        """Means and variances of linear combinations, (n,) each."""
        mean, root, outside = self.exact.moments()
        variance = (rows.along @ root.T).square().sum(1) + outside * rows.outside
        return rows.along @ mean + rows.shift, variance

    def _mixture(
        self, rows: Combinations, units: Units, has_noise: bool
    ) -> CombinedPredictive:
        """Distributions of linear combinations, or of new targets, which have noise."""
        *given, w = self.exact.normals()
        noise = has_noise * torch.from_numpy(np.exp(-self.exact.nodes.noise.ravel()))
        kept = w > NEGLIGIBLE
        parts = (part[kept] for part in (*given, noise))
        log_w = (w[kept] / w[kept].sum()).log()
        likelihood = GaussianLikelihood()
        return CombinedPredictive(likelihood, units, *parts, log_w, rows)
