"""Predictions and coefficients from the exact posterior of a linear regression."""

from typing import Any

import numpy as np
import torch

from skvi.base import NormalForm
from skvi.base._units import Units
from skvi.exceptions import IncompatibleComponentsError
from skvi.likelihoods import GaussianLikelihood
from skvi.linear_model._precision_mixture import Directions, PrecisionMixture
from skvi.posteriors import Exact, FullRankNormal
from skvi.predictors import LinearPredictor
from skvi.solvers._exact import MixtureOverPrecisions, missing_for_exact
from skvi.utils._threads import limit_threads

__all__ = ["RegressionExactMixin", "exact_covariance", "exact_moments"]

# Components of a smaller probability are left out: of mixtures, whose tails they make,
# and of scores that do not depend on far tails.
NEGLIGIBLE, NO_TAILS = 1e-18, 1e-7
# Fraction of a squared length outside of the directions of the data that is rounding.
ROUNDING = 1e-12


class RegressionExactMixin:
    """Mixin: results from the exact posterior where there is one."""

    def _pose(self, target):
        """As for every estimator; with the exact posterior where it is asked for."""
        if self._takes_exact(target):
            self.posterior_family_ = Exact()
        return super()._pose(target)

    @property
    def _asks_for_exact(self):
        return isinstance(self.posterior, Exact) or self.posterior == "exact"

    def _takes_exact(self, target):
        """Whether the posterior is to be exact, by quadrature over its precisions."""
        is_asked = self._asks_for_exact
        is_auto = isinstance(self.posterior, str) and self.posterior == "auto"
        is_free = isinstance(self.solver, str) and self.solver in ("auto", "exact")
        if not is_asked and not (is_auto and is_free and not self._is_diagonal()):
            return False
        missing = missing_for_exact(target, self.objective_, self.divergence_)
        if not is_free:
            missing = f"with solver={self.solver!r} another one is fitted"
        # With given precisions the normal of full rank is exact.
        if is_asked and missing and self._model.gammas:
            raise IncompatibleComponentsError(
                f"posterior={self.posterior!r} has no exact form here: {missing}. Use "
                "posterior='auto'."
            )
        return not missing

    def _resolve(self, name):
        if name == "posterior" and self._asks_for_exact:
            return FullRankNormal()  # until `_pose` knows the model
        return super()._resolve(name)

    @property
    def _exact(self):
        """The posterior if it is exact over unknown precisions, else None."""
        found = self.posterior_
        return found if isinstance(found, MixtureOverPrecisions) else None

    def _exact_mixture(self, X):
        """Distributions of new targets in the rows of X."""
        rows, model = self._model.design(X), self._model
        with torch.no_grad(), limit_threads(X.shape[0] * X.shape[1] ** 2, self.n_jobs):
            along = _functions(self._exact, model.predictor, rows, model.units)
            return _mixture(self._exact, along, model.units)

    def _exact_normals(self, X):
        """Normals whose mixture they are: means and deviations, (n, S), weights."""
        mixture = self._exact_mixture(X)
        w = mixture.log_weights.exp()
        kept = w > NO_TAILS
        mean, std = (part[kept].T.numpy() for part in mixture.normals())
        return mean, std, (w[kept] / w[kept].sum()).numpy()

    def _is_drawn(self):
        return super()._is_drawn() and self._exact is None

    def _exact_functions(self, X):
        """Mean and variance of f in units of y."""
        rows, model = self._model.design(X), self._model
        with torch.no_grad(), limit_threads(X.shape[0] * X.shape[1] ** 2, self.n_jobs):
            along = _functions(self._exact, model.predictor, rows, model.units)
            return _moments(self._exact, along)

    def _coefficient_mixture(self):
        """Distributions of the coefficients, the intercept's before them."""
        return _mixture(self._exact, _coefficients(self._exact, self._model.units))

    def _coefficient_ends(self, tail):
        if self._exact is None:
            return super()._coefficient_ends(tail)
        ends = self._coefficient_mixture().quantiles(np.array([tail, 1 - tail])).T
        if not self.fit_intercept:
            ends = np.column_stack([np.zeros(2), ends])
        return ends[:, None]

    def _density_of(self, row, index, grid):
        if self._exact is None:
            return super()._density_of(row, index, grid)
        place = index + (1 if self.fit_intercept else 0)
        mixture = self._coefficient_mixture().repeat(place, len(grid))
        return np.exp(mixture.log_density(grid))


def _functions(
    exact: MixtureOverPrecisions, predictor: LinearPredictor, rows: Any, units: Units
) -> Directions:
    """Functions at rows of features, in units of y."""
    along = predictor.project(rows, exact.basis())
    square = torch.zeros_like(along[:, 0])
    if exact.has_outside:
        ones = along.new_ones(predictor.layout.size)
        ones[exact.form.data.n_features :] = 0.0
        normal = NormalForm(torch.zeros_like(ones), ones)
        square = predictor.moments(rows, normal)[1]
    return _directions(exact, along, square, torch.ones_like(square), units)


def _coefficients(exact: MixtureOverPrecisions, units: Units) -> Directions:
    """Coefficients, after the intercept if there is one, in units of y and X."""
    vectors = exact.form.data.vectors
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
    return _directions(exact, along, square, shift, units)


def _directions(
    exact: MixtureOverPrecisions,
    along: torch.Tensor,
    square: torch.Tensor,
    is_shifted: torch.Tensor,
    units: Units,
) -> Directions:
    """In units of y; `square` is the squared length but for the intercept."""
    scale = float(units.y_scale)
    rest = square - along[:, : len(exact.form.data.values)].square().sum(1)
    outside = torch.where(rest > ROUNDING * square, rest, torch.zeros_like(rest))
    shift = is_shifted * float(units.y_mean)
    return Directions(scale * along, scale**2 * outside, shift)


def _moments(
    exact: MixtureOverPrecisions, directions: Directions
) -> tuple[torch.Tensor, torch.Tensor]:
    """Means and variances of linear combinations, (n,) each."""
    mean, root, outside = exact.moments()
    variance = (directions.along @ root.T).square().sum(1)
    variance += outside * directions.outside
    return directions.along @ mean + directions.shift, variance


def exact_moments(
    exact: MixtureOverPrecisions, units: Units
) -> tuple[torch.Tensor, torch.Tensor]:
    """Means and variances of the coefficients, before the intercept."""
    first = int(exact.form.intercept is not None)
    mean, variance = _moments(exact, _coefficients(exact, units))
    return mean.roll(-first), variance.roll(-first)


def exact_covariance(exact: MixtureOverPrecisions, units: Units) -> torch.Tensor:
    """Covariance of the coefficients, (d, d)."""
    directions = _coefficients(exact, units)
    along = directions.along[int(exact.form.intercept is not None) :]
    _, root, outside = exact.moments()
    covariance = (along @ root.T) @ (along @ root.T).T
    if exact.has_outside:
        k = len(exact.form.data.values)
        covariance -= outside * along[:, :k] @ along[:, :k].T
        square = (units.y_scale / np.asarray(units.x_scale, np.float64)) ** 2
        covariance.diagonal().add_(outside * torch.from_numpy(np.atleast_1d(square)))
    return covariance


def _mixture(
    exact: MixtureOverPrecisions, directions: Directions, units: Units | None = None
) -> PrecisionMixture:
    """Distributions of linear combinations, or of new targets.

    `units` are those of new targets, which have noise; None for combinations.
    """
    nodes = exact.nodes if units is None else exact.few
    *given, w = exact.normals(nodes)
    noise = torch.zeros_like(w)
    if units is not None:
        noise = torch.from_numpy(np.exp(-nodes.noise.ravel())) * units.y_scale**2
    kept = w > NEGLIGIBLE
    parts = (part[kept] for part in (*given, noise))
    log_w = (w[kept] / w[kept].sum()).log()
    return PrecisionMixture(GaussianLikelihood(), None, log_w, directions, *parts)
